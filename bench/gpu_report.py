# SPDX-License-Identifier: Apache-2.0
"""The tables of bench/gpu, from the figures of one run: kernels against goals, shapes against bounds, quire against vLLM."""

import json

import gpu_bounds
from gpu_loads import LOADS
from gpu_shapes import SHAPES

SHAPE = SHAPES["Qwen3-0.6B"]  # of the parts latency, batch and serve, and of their peer
SEQUENCES, CONTEXT, OUTPUT = 256, 512, 128
# The part shapes: sequences of each run, and their lengths. A decode step sees the prompt and half of the answer on average.
BATCHES, SHAPE_INPUT, SHAPE_OUTPUT = (1, 64), 512, 128
# Shares, TFLOP/s or tok/s. Decode attention: pages are read once, so it reaches the speed of a copy except for its
# start and end. Prefill: half of the matrix rate, since exp and the online softmax take the other cycles. Small matrix
# products: weights stream a little slower than with the library's best, which uses split-K. One sequence: 1.2 GB of
# weights, and about 200 launches that overlap. 256 sequences: 16 GB per step.
PREDICTED = {"decode": 0.85, "prefill": 400, "gemm": 0.97, "gemm_small": 0.75, "latency": 1700, "batch": 0.60, "serve": 0.90}
NOTHING = "-"


def copy_speed(out):
    """Bytes per second of the GPU's own copy, by the ceilings or else by quire bench kernels; 0: neither ran."""
    return out.get("ceilings", {}).get("copy_tb_per_s", out.get("kernels", {}).get("copy_tb_per_s", 0)) * 1e12


def merged(runs):
    """One run made of several: parts, shapes and loads of later ones are added or replace those of earlier ones."""
    out = {}

    def add(to, new):
        for key, value in new.items():
            if isinstance(value, dict) and isinstance(to.get(key), dict):
                add(to[key], value)
            else:
                to[key] = value

    for run in runs:
        add(out, json.loads(json.dumps(run)))
    measured = [f"shape {shape}, batch {batch}" for shape, of_shape in out.get("shapes", {}).items() for batch in of_shape]
    for server, shapes in out.get("loads", {}).items():
        measured += [f"{server} {shape} {load}" for shape, loads in shapes.items() for load in loads]
        measured += [f"{server} {shape}" for shape, loads in shapes.items() if loads]
    measured += [name for name in out if name not in ("shapes", "loads", "left_out")]
    out["left_out"] = {name: why for name, why in out.get("left_out", {}).items() if name not in measured}
    return out


def kernel(figures, op, case):
    return next((f for f in figures.get("kernels", []) if f["kernel"] == op and f["case"] == case), None)


def worst_product(figures, few):
    """The matrix product that is slowest compared with the library, of those with fewer than 64 rows or of the others."""
    held = [f for f in figures.get("kernels", []) if f["kernel"] == "linear" and f.get("library_seconds") and (f["rows"] < 64) == few]
    return min(held, key=lambda f: f["library_seconds"] / f["seconds"], default=None)


def table(out):
    """Rows of (work, target, measured, ratio of measured to target, predicted)."""
    rows = []
    kernels = out.get("kernels", {})
    copy = copy_speed(out)

    def row(work, wanted, got, predicted, text, note=""):
        got_text = NOTHING if got is None else text(got) + (f" ({note})" if note else "")
        rows.append((work, text(wanted), got_text, NOTHING if got is None else f"{got / wanted:.2f}", text(predicted)))

    percent, number = (lambda x: f"{100 * x:.1f}%"), (lambda x: f"{x:,.0f}")
    f = kernel(kernels, "decode", "16/8x128 64@4096")
    row("paged decode attention 64 at 4k, of copy", 0.80, f["bytes"] / f["seconds"] / copy if f and copy else None, PREDICTED["decode"], percent,
        f and f"{f['seconds'] * 1e6:.0f} us")
    f = kernel(kernels, "prefill", "32/8x128 1@8192")
    row("prefill attention causal 8k, TFLOP/s", 350, f and f["flops"] / f["seconds"] * 1e-12, PREDICTED["prefill"], number,
        f and f"{f['seconds'] * 1e6:.0f} us")
    for few, wanted, name in ((False, 0.95, "gemm"), (True, 0.60, "gemm_small")):
        f = worst_product(kernels, few)
        row(f"GEMM, {'below' if few else 'from'} 64 rows, of the library's best: the worst", wanted,
            f and f["library_seconds"] / f["seconds"], PREDICTED[name], percent, f and f"{f['case']}, {f['rows']} rows")
    one = out.get("latency", {}).get("decode_tokens_per_s")
    row("Qwen3-0.6B shape, one sequence, tok/s", 1500, one, PREDICTED["latency"], number)
    weights = gpu_bounds.weight_bytes(SHAPE)
    if one and copy:
        row("  of the bound that its weights set", 0.42, one * weights / copy, PREDICTED["latency"] * weights / copy, percent)
    peer = out.get("peer-latency", {}).get("tokens_per_s")
    if one and peer:
        row(f"  against transformers' {peer:.0f} tok/s (static cache, compiled)", 6.9, one / peer, PREDICTED["latency"] / 217, lambda x: f"{x:.1f}x")
    many = out.get("batch", {}).get("decode_tokens_per_s")
    if copy:
        bound = gpu_bounds.decode_bound(SHAPE, SEQUENCES, CONTEXT, copy)
        row(f"the same, {SEQUENCES} sequences at {CONTEXT}, of the bound of {bound:,.0f} tok/s", 0.50, many and many / bound, PREDICTED["batch"],
            percent, many and f"{many:,.0f} tok/s")
        peer = out.get("peer-batch", {}).get("tokens_per_s")
        if many and peer:
            row(f"  against transformers' {peer:,.0f} tok/s (continuous batching)", 20, many / peer, PREDICTED["batch"] * bound / 1686,
                lambda x: f"{x:.1f}x")
    busy = out.get("serve", {}).get("busy")
    row("ShareGPT through quire bench serve, 256 at once: GPU busy", 0.85, busy, PREDICTED["serve"], percent,
        busy and f"{out['serve'].get('output_throughput') or 0:,.0f} tok/s")
    return rows


def holds_quantised(config, figures):
    """Whether the weights were held in the config's own type, by their size: an older quire has bfloat16 for all of them."""
    held = figures.get("weights_bytes")
    if not held or "quantization_config" not in config:
        return True
    return abs(held - gpu_bounds.weight_bytes(config)) < abs(held - gpu_bounds.weight_bytes(config, quantised=False))


def shape_rows(out):
    """Rows of (shape, batch, decode tok/s, bound, of the bound, prefill s, TFLOP/s, of the product); empty where a run failed."""
    rows, copy = [], copy_speed(out)
    product = out.get("ceilings", {}).get("matmul_tflop_per_s")
    for shape, runs in out.get("shapes", {}).items():
        config = SHAPES[shape]
        for batch in BATCHES:
            figures = runs.get(str(batch)) or {}
            quantised = holds_quantised(config, figures)
            bound = gpu_bounds.decode_bound(config, batch, SHAPE_INPUT + SHAPE_OUTPUT // 2, copy, quantised) if copy else None
            decode, prefill = figures.get("decode_tokens_per_s"), figures.get("prefill_tokens_per_s")
            seconds = batch * SHAPE_INPUT / prefill if prefill else None
            rate = gpu_bounds.prefill_flops(config, batch, SHAPE_INPUT) / seconds * 1e-12 if seconds else None
            rows.append((shape + ("" if quantised else " (in bfloat16)"), str(batch), cell(decode, "{:,.0f}"), cell(bound, "{:,.0f}"),
                         cell(decode and bound and 100 * decode / bound, "{:.0f}%"), cell(seconds, "{:.4f}"), cell(rate, "{:,.0f}"),
                         cell(rate and product and 100 * rate / product, "{:.0f}%")))
    return rows


def load_rows(out):
    """Rows of (shape, load, quire's output tok/s, vLLM's, quire / vLLM, vLLM's batch invariant, quire / that)."""
    loads = out.get("loads", {})
    found = lambda server, shape, load: (loads.get(server, {}).get(shape, {}).get(load) or {}).get("output_throughput")
    rows = []
    for shape in [shape for shape in SHAPES if any(shape in of_server for of_server in loads.values())]:
        for load in LOADS:
            quire, vllm, invariant = (found(server, shape, load) for server in ("quire", "vllm", "vllm-invariant"))
            if quire is vllm is invariant is None and not any(f"{shape} {load}" in why for why in out.get("left_out", {})):
                continue
            rows.append((shape, load_name(load), cell(quire, "{:,.0f}"), cell(vllm, "{:,.0f}"), cell(quire and vllm and quire / vllm, "{:.2f}"),
                         cell(invariant, "{:,.0f}"), cell(quire and invariant and quire / invariant, "{:.2f}")))
    return rows


def load_name(load):
    at_once, tokens_in, tokens_out, _ = LOADS[load]
    return f"{at_once} at once, " + (f"{tokens_in} in, {tokens_out} out" if tokens_in else "ShareGPT")


def cell(value, text):
    return text.format(value) if value else NOTHING


def print_table(head, rows):
    if not rows:
        return
    rows = [head, *rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    print()
    for row in rows:
        print("| " + " | ".join(text.ljust(width) for text, width in zip(row, widths)) + " |")
        if row is head:
            print("|" + "|".join("-" * (width + 2) for width in widths) + "|")


def print_kernels(kernels):
    for f in kernels:
        if f["kernel"] == "linear" and f.get("library_seconds"):
            print(f"  linear {f['type']:5} {f['case']:12} rows {f['rows']:5}  {f['seconds'] * 1e6:9.2f} us  library {f['library_seconds'] * 1e6:9.2f} us  "
                  f"{f['library_seconds'] / f['seconds']:.2f}  {f['flops'] / f['seconds'] * 1e-12:6.1f} TFLOP/s {f['bytes'] / f['seconds'] * 1e-12:5.2f} TB/s")
        else:
            print(f"  {f['kernel']:6} {f['type']:5} {f['case']:20} rows {f['rows']:5}  {f['seconds'] * 1e6:9.2f} us  "
                  f"{f['flops'] / f['seconds'] * 1e-12:6.1f} TFLOP/s {f['bytes'] / f['seconds'] * 1e-12:5.2f} TB/s {100 * f['share_copy']:5.1f}% of copy")


def print_report(out):
    print_kernels(out.get("kernels", {}).get("kernels", []))
    if "ceilings" in out:
        c = out["ceilings"]
        print(f"\n{c['device']}: copy {c['copy_tb_per_s']:.2f} TB/s, bf16 product {c['matmul_tflop_per_s']:.0f} TFLOP/s")
    if any(part in out for part in ("kernels", "latency", "batch", "serve")):
        print_table(("work", "wanted", "got", "got/wanted", "predicted"), table(out))
    print_table(("shape, random weights", "batch", "decode tok/s", "bound", "of it", "prefill s", "TFLOP/s", "of product"), shape_rows(out))
    print_table(("shape", "load", "quire tok/s", "vLLM tok/s", "quire/vLLM", "vLLM batch invariant", "quire/that"), load_rows(out))
    for name, why in out.get("left_out", {}).items():
        print(f"skipped: {name}: {why}")
