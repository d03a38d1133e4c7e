#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares what each kernel must read and compute with the limits of two Apple chips: the tables of docs/apple-limits.md.

Usage: tools/apple_limits.py            prints the tables
       tools/apple_limits.py --write    writes them to docs/apple-limits.md
       tools/apple_limits.py --check    fails if the page has other tables

Nothing here is measured. A kernel's time is at least bytes / bandwidth and at least operations / peak; the larger of the
two is its limit. Needs nothing but Python's standard library.
"""

import argparse
import dataclasses
import pathlib
import sys

PAGE = pathlib.Path(__file__).resolve().parents[1] / "docs" / "apple-limits.md"
BEGIN, END = "<!-- tables -->", "<!-- end -->"


@dataclasses.dataclass(frozen=True)
class Chip:
    """Bandwidth as Apple states it; the peak is cores x 128 lanes x 2 operations x clock, in float."""
    name: str
    bytes_a_second: float
    operations_a_second: float


CHIPS = (Chip("M1 Pro", 200e9, 5.3e12), Chip("M4 Max", 546e9, 18e12))

# Bytes per weight: GGUF's blocks with their scales; 4 bits of MLX and AWQ with a scale and a zero per 64 and 128.
WEIGHTS = {"bf16": 2.0, "q8_0": 34 / 32, "q6_k": 210 / 256, "q4_k": 144 / 256, "q4_0": 18 / 32,
           "mlx 4 bit": 0.5 + 4 / 64, "awq 4 bit": 0.5 + 2.5 / 128}
TILE_ROWS = 16  # rows of the matrix tile; fewer rows leave the others idle, and cost the same
FEW_ROWS, MANY_ROWS = 16, 64  # up to FEW_ROWS a linear op has one tile of rows, above it tiles of MANY_ROWS
QUERY_ROWS = 64  # query rows (tokens x heads of a group) that share one reading of K and V in a prefill
ACTIVATION = 2  # bytes of a 16-bit activation
F32 = 4


@dataclasses.dataclass(frozen=True)
class Model:
    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    delta_heads: int = 0  # of gated delta nets, whose layers are `delta_layers`
    delta_dim: int = 0
    delta_layers: int = 0

    def matrices(self):
        """(name, rows, columns) of a layer's linear ops as they are run: q, k, v in one, gate and up in one."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return (("q, k, v", q + 2 * kv, self.hidden), ("output", self.hidden, q),
                ("gate, up", 2 * self.ffn, self.hidden), ("down", self.hidden, self.ffn))

    def layer_weights(self):
        return sum(rows * columns for _, rows, columns in self.matrices())

    def kv_bytes(self):
        """Bytes of K and V per token and layer, with 16 bits."""
        return 2 * self.kv_heads * self.head_dim * ACTIVATION


QWEN_SMALL = Model("Qwen3-0.6B", 28, 1024, 16, 8, 128, 3072, 151936)
QWEN_LARGE = Model("Qwen3-8B", 36, 4096, 32, 8, 128, 12288, 151936)
HYBRID = Model("Qwen3.5-0.8B", 24, 1024, 8, 2, 256, 3584, 248320, delta_heads=16, delta_dim=128, delta_layers=18)


@dataclasses.dataclass(frozen=True)
class Work:
    """A kernel over all layers of one step; `done` counts idle rows of tiles, `useful` does not."""
    kernel: str
    bytes: float
    useful: float
    done: float

    def __add__(self, other):
        return Work(self.kernel, self.bytes + other.bytes, self.useful + other.useful, self.done + other.done)


def tiles(rows, tile=TILE_ROWS):
    return -(-rows // tile) * tile


def linear_tiles(rows):
    return tiles(rows, FEW_ROWS if rows <= FEW_ROWS else MANY_ROWS)


def linear(kernel, rows, n, k, weight, times=1, out_bytes=ACTIVATION):
    """Each weight is read once for all rows of a step."""
    return Work(kernel, times * (n * k * WEIGHTS[weight] + rows * (k * ACTIVATION + n * out_bytes)),
                times * 2.0 * rows * n * k, times * 2.0 * linear_tiles(rows) * n * k)


def layers_linear(model, rows, weight):
    total = Work(f"linear, {weight}, {rows} row{'s' * (rows > 1)}", 0, 0, 0)
    for _, n, k in model.matrices():
        total = total + linear("", rows, n, k, weight, model.layers)
    return total


def head(model, rows, weight):
    return linear(f"LM head, {weight}", rows, model.vocab, model.hidden, weight, 1, F32)


def attention_decode(model, sequences, context):
    """K and V are read once for the heads of a group, which fill some rows of the tile; the others are idle."""
    group = model.heads // model.kv_heads
    read = sequences * context * model.kv_bytes()
    rows = sequences * 2 * model.heads * model.head_dim * ACTIVATION
    useful = 4.0 * sequences * model.heads * model.head_dim * context
    return Work(f"attention, {sequences} x {context:,}", model.layers * (read + rows), model.layers * useful,
                model.layers * useful * tiles(group) / group)


def attention_prefill(model, tokens):
    """Causal: half of the square. Each tile of query rows reads the K and V before it."""
    group = model.heads // model.kv_heads
    read = model.kv_heads * (tokens / (QUERY_ROWS / group)) * (tokens / 2) * model.head_dim * 2 * ACTIVATION
    rows = tokens * 2 * model.heads * model.head_dim * ACTIVATION
    operations = 4.0 * model.heads * model.head_dim * tokens * tokens / 2
    return Work(f"attention, prefill of {tokens:,}", model.layers * (read + rows), model.layers * operations,
                model.layers * operations)


def norms(model, rows):
    """Two per layer over the float residual, the q and k norms of the heads with rope, and the final one."""
    wide = (2 * model.layers + 1) * rows * model.hidden * (F32 + ACTIVATION)
    narrow = model.layers * rows * (model.heads + model.kv_heads) * model.head_dim * 2 * ACTIVATION
    elements = (2 * model.layers + 1) * rows * model.hidden + model.layers * rows * (model.heads + model.kv_heads) * model.head_dim
    return Work("norms and rope", wide + narrow, 6.0 * elements, 6.0 * elements)


def activations(model, rows):
    """silu(gate) * up: two vectors in, one out; the exponential counts as 16 operations."""
    return Work("activation", model.layers * rows * 3 * model.ffn * ACTIVATION, model.layers * rows * model.ffn * 20.0,
                model.layers * rows * model.ffn * 20.0)


def sampling(model, rows):
    """Greedy reads the float logits once; temperature, top-k and top-p read them three times."""
    return Work("sampling (3 passes)", 3.0 * rows * model.vocab * F32, 3 * 12.0 * rows * model.vocab,
                3 * 12.0 * rows * model.vocab)


def delta_decode(model, sequences):
    """The float state is read and written once per token: decay, k.S, the outer product, q.S."""
    state = model.delta_heads * model.delta_dim * model.delta_dim
    return Work(f"gated delta net, {sequences} x 1 token", model.delta_layers * sequences * 2.0 * state * F32,
                model.delta_layers * sequences * 7.0 * state, model.delta_layers * sequences * 7.0 * state)


def delta_prefill(model, tokens):
    """The state stays on the chip; q, k and v are read and o is written. Tokens are processed one after the other."""
    state = model.delta_heads * model.delta_dim * model.delta_dim
    moved = tokens * 4 * model.delta_heads * model.delta_dim * ACTIVATION + 2 * state * F32
    return Work(f"gated delta net, 1 x {tokens:,} tokens", model.delta_layers * moved,
                model.delta_layers * tokens * 7.0 * state, model.delta_layers * tokens * 7.0 * state)


def seconds(work, chip):
    return max(work.bytes / chip.bytes_a_second, work.done / chip.operations_a_second)


def limit(work, chip):
    by_bytes = work.bytes / chip.bytes_a_second >= work.done / chip.operations_a_second
    return f"{seconds(work, chip) * 1e3:.3f} {'bytes' if by_bytes else 'ops'}"


def table(title, works, tokens=0):
    """One row per kernel; with `tokens`, a last row with the sum and the tok/s that it allows."""
    lines = [f"**{title}**", "", "| kernel | MB | Gop | of them idle rows | " +
             " | ".join(f"{chip.name}, ms" for chip in CHIPS) + " |", "| --- | --- | --- | --- |" + " --- |" * len(CHIPS)]
    for work in works:
        idle = f"{100 * (1 - work.useful / work.done):.0f}%" if work.done > work.useful else ""
        lines.append(f"| {work.kernel} | {work.bytes / 1e6:,.1f} | {work.done / 1e9:,.2f} | {idle} | " +
                     " | ".join(limit(work, chip) for chip in CHIPS) + " |")
    if tokens:
        sums = [sum(seconds(work, chip) for work in works) for chip in CHIPS]
        lines.append(f"| the step | {sum(w.bytes for w in works) / 1e6:,.1f} | {sum(w.done for w in works) / 1e9:,.2f} | | " +
                     " | ".join(f"{one * 1e3:.2f}: {tokens / one:,.0f} tok/s" for one in sums) + " |")
    return lines + [""]


def decode_step(model, sequences, context, weight):
    return [layers_linear(model, sequences, weight), attention_decode(model, sequences, context), norms(model, sequences),
            activations(model, sequences), head(model, sequences, weight), sampling(model, sequences)]


def prefill_step(model, tokens, weight):
    return [layers_linear(model, tokens, weight), attention_prefill(model, tokens), norms(model, tokens),
            activations(model, tokens), head(model, 1, weight), sampling(model, 1)]


def weight_types(model, rows):
    lines = [f"**{model.name}, the linear ops of a step with {rows} row{'s' * (rows > 1)}, by weight type**", "",
             "| weights | bytes per weight | MB | operations per byte | " + " | ".join(f"{c.name}, ms" for c in CHIPS) + " |",
             "| --- | --- | --- | --- |" + " --- |" * len(CHIPS)]
    for weight, size in WEIGHTS.items():
        work = layers_linear(model, rows, weight) + head(model, rows, weight)
        lines.append(f"| {weight} | {size:.3f} | {work.bytes / 1e6:,.0f} | {work.done / work.bytes:.0f} | " +
                     " | ".join(limit(work, chip) for chip in CHIPS) + " |")
    return lines + [""]


# The seeds' run: 100 requests of ShareGPT, 23,260 tokens in and 22,061 out, 32 at once, 92.14 s on an M1 Pro.
SEED = {"requests": 100, "in": 23260, "out": 22061, "streams": 32, "tokens_a_second": 239.43}


def seed_run(model, chip):
    """The minimum time for that work with all streams busy, for any kernels and for ours with their idle rows."""
    context = round((SEED["in"] + SEED["out"] / 2) / SEED["requests"])
    weights = (model.layers * model.layer_weights() + model.vocab * model.hidden) * WEIGHTS["bf16"]
    works = decode_step(model, SEED["streams"], context, "bf16")
    any_step = sum(seconds(dataclasses.replace(work, done=work.useful), chip) for work in works)
    our_step = sum(seconds(work, chip) for work in works)
    prompts = 2.0 * model.layers * model.layer_weights() * SEED["in"] / chip.operations_a_second
    steps = SEED["out"] / SEED["streams"]
    rows = (("weights alone, read once per step", SEED["out"] / SEED["streams"] * weights / chip.bytes_a_second),
            (f"with K and V at {context} tokens and everything else", steps * any_step),
            ("and the prompts: the whole run", steps * any_step + prompts),
            ("the whole run with this project's tiles", steps * our_step + prompts))
    lines = [f"**{model.name}, bf16, {SEED['streams']} streams on an {chip.name}: {SEED['tokens_a_second']:.0f} tok/s were measured**",
             "", "| limit | least seconds for the run's 22,061 tokens (it took 92) | tok/s | 239 tok/s is |", "| --- | --- | --- | --- |"]
    return lines + [f"| {words} | {least:.1f} | {SEED['out'] / least:,.0f} | {100 * SEED['tokens_a_second'] * least / SEED['out']:.1f}% |"
                    for words, least in rows] + [""]


def tables():
    lines = []
    for model in (QWEN_SMALL, QWEN_LARGE):
        for sequences, context in ((1, 512), (32, 512), (1, 8192)):
            lines += table(f"{model.name}, bf16, decode: {sequences} sequence{'s' * (sequences > 1)} at {context:,}",
                           decode_step(model, sequences, context, "bf16"), sequences)
        lines += table(f"{model.name}, bf16, prefill of 2,048 tokens", prefill_step(model, 2048, "bf16"), 2048)
    for model, rows in ((QWEN_SMALL, 1), (QWEN_LARGE, 1), (QWEN_LARGE, 32)):
        lines += weight_types(model, rows)
    lines += table(f"{HYBRID.name}, the gated delta nets of its {HYBRID.delta_layers} layers",
                   [delta_decode(HYBRID, 1), delta_decode(HYBRID, 32), delta_prefill(HYBRID, 2048)])
    return "\n".join(lines + seed_run(QWEN_SMALL, CHIPS[0])).rstrip() + "\n"


def main():
    parser = argparse.ArgumentParser(description="Tables of docs/apple-limits.md")
    parser.add_argument("--write", action="store_true", help="write the tables to the page")
    parser.add_argument("--check", action="store_true", help="fail if the page has other tables")
    options = parser.parse_args()
    if not options.write and not options.check:
        print(tables(), end="")
        return 0
    page = PAGE.read_text()
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    wanted = f"{before}{BEGIN}\n\n{tables()}\n{END}{after}"
    if options.check:
        if page != wanted:
            print(f"{PAGE.name} shows other tables: run tools/apple_limits.py --write", file=sys.stderr)
        return int(page != wanted)
    PAGE.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
