# SPDX-License-Identifier: Apache-2.0
"""Turns the figures of bench/compare into paired ratios with their spread, a markdown table and a plot.

A run is {"machine": {...}, "models": {name: {"figures": {phase: {side: [one per round]}}, "memory": {phase: {side: [MB]}},
"others": {phase: {side: [share]}}, "shares": {limit: [one per round]}}}, "serve": [...]}; phases are keys of PHASES, sides are
"quire" and the peer's settings.
"""

import statistics

PHASES = {"prefill": "prefill {input_len}", "decode": "decode, 1 sequence", "batch": "decode, {batch} sequences at {input_len}"}
QUIRE = "quire"


def best_peer(sides: dict[str, list[float]]) -> str:
    """The peer's setting with the highest median, with which quire is compared; chosen per phase."""
    return max((name for name in sides if name != QUIRE), key=lambda name: statistics.median(sides[name]))


def spread(values: list[float]) -> dict:
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "rounds": len(values)}


def paired_ratios(ours: list[float], theirs: list[float]) -> dict:
    """Spread of ours / theirs per round: both values of a pair were measured within a minute or two."""
    return spread([a / b for a, b in zip(ours, theirs, strict=True)])


def ratios_of(model: dict) -> dict[str, dict]:
    """phase -> ratio to the peer's best setting, with both medians."""
    out = {}
    for phase, sides in model["figures"].items():
        peer = best_peer(sides)
        if QUIRE in sides:
            out[phase] = {**paired_ratios(sides[QUIRE], sides[peer]), "peer": peer, "quire_tokens_per_s": statistics.median(sides[QUIRE]),
                          "peer_tokens_per_s": statistics.median(sides[peer])}
    return out


def merge(runs: list[dict]) -> dict:
    """Merges the runs of one machine; a later run of a model replaces an earlier one."""
    out = {"machine": runs[-1]["machine"], "workload": runs[-1]["workload"], "models": {}, "serve": []}
    for run in runs:
        out["models"].update(run["models"])
        out["serve"] += run["serve"]
    return out


def phase_name(phase: str, workload: dict) -> str:
    return PHASES[phase].format(**workload)


def ratio_text(ratio: dict, digits: int = 2) -> str:
    return f"**{ratio['median']:.{digits}f}x** ({ratio['min']:.{digits}f}..{ratio['max']:.{digits}f})"


def speed_table(run: dict) -> str:
    phases = [p for p in PHASES if any(p in model["figures"] for model in run["models"].values())]
    lines = ["| quire / llama.cpp | " + " | ".join(phase_name(p, run["workload"]) for p in phases) + " |",
             "| --- |" + " --- |" * len(phases)]
    for name, model in run["models"].items():
        ratios = ratios_of(model)
        cells = [f"{ratio_text(ratios[p])}, {ratios[p]['quire_tokens_per_s']:.0f} / {ratios[p]['peer_tokens_per_s']:.0f} tok/s"
                 if p in ratios else "" for p in phases]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def memory_table(run: dict) -> str:
    lines = ["| peak memory, MB | file | quire, 1 sequence | llama.cpp | quire, {batch} sequences | llama.cpp |".format(**run["workload"]),
             "| --- | --- | --- | --- | --- | --- |"]
    for name, model in run["models"].items():
        cells = [f"{model['file_bytes'] / 1e6:.0f}"]
        for phase in ("decode", "batch"):
            sides = model["memory"].get(phase, {})
            peers = [statistics.median(v) for side, v in sides.items() if side != QUIRE]
            cells += [f"{statistics.median(sides[QUIRE]):.0f}" if QUIRE in sides else "", f"{min(peers):.0f}" if peers else ""]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def share_table(run: dict) -> str:
    """quire's share of the limits that were measured around each round."""
    columns = {"prefill of int8": "prefill, of the int8 peak", "prefill of bf16": "of the bf16 peak", "decode of read": "decode, of the read bandwidth"}
    columns = {key: title for key, title in columns.items() if any(key in model["shares"] for model in run["models"].values())}
    lines = ["| the whole model's share of the limits | " + " | ".join(columns.values()) + " |", "| --- |" + " --- |" * len(columns)]
    for name, model in run["models"].items():
        found = {key: spread(values) for key, values in model["shares"].items()}
        cells = [f"{100 * found[k]['median']:.0f}% ({100 * found[k]['min']:.0f}..{100 * found[k]['max']:.0f})" if k in found else "" for k in columns]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def serve_table(run: dict) -> str:
    lines = ["| ShareGPT through both servers | quire, output tok/s | peer | ratio | quire, mean TTFT ms | peer | ratio |",
             "| --- | --- | --- | --- | --- | --- | --- |"]
    for served in run["serve"]:
        ours, theirs = served["results"][QUIRE], served["results"]["peer"]
        speed = [[r["output_throughput"] for r in side] for side in (ours, theirs)]
        wait = [[r["mean_ttft_ms"] for r in side] for side in (ours, theirs)]
        lines.append(f"| {served['model']} | {statistics.median(speed[0]):.1f} | {statistics.median(speed[1]):.1f} | "
                     f"{ratio_text(paired_ratios(*speed))} | {statistics.median(wait[0]):.0f} | {statistics.median(wait[1]):.0f} | "
                     f"{ratio_text(paired_ratios(*wait), 3)} |")
    return "\n".join(lines)


def busiest(run: dict) -> float:
    """The largest share of the machine that other programs used during a measurement."""
    return max((share for model in run["models"].values() for sides in model["others"].values() for shares in sides.values()
                for share in shares), default=0.0)


def markdown(run: dict) -> str:
    parts = []
    if run["models"]:
        machine, rounds = run["machine"], max(len(v) for m in run["models"].values() for s in m["figures"].values() for v in s.values())
        parts += [f"{machine['cpu']}, {machine['threads']} threads; {rounds} rounds, alternating; median (lowest..highest) of the rounds' "
                  f"ratios, then both medians. The peer is {machine['peer']}, with the better of flash attention on and off in "
                  f"each column. Other programs took up to {100 * busiest(run):.0f}% of the machine.", speed_table(run), share_table(run),
                  memory_table(run)]
    if run["serve"]:
        parts.append(serve_table(run))
    return "\n\n".join(parts) + "\n"


def plot(run: dict, path) -> None:
    """Bars of the ratios with their spread, one group per phase; needs matplotlib."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot

    ratios = {name: ratios_of(model) for name, model in run["models"].items()}
    phases = [p for p in PHASES if any(p in r for r in ratios.values())]
    figure, axes = pyplot.subplots(figsize=(8, 3.6), layout="constrained")
    width = 0.8 / len(ratios)
    colours = ["#1f4e79", "#2e86ab", "#7fb7be", "#c9a227", "#8d5524", "#999999"]
    for index, (name, of_phase) in enumerate(ratios.items()):
        at = [i + (index - (len(ratios) - 1) / 2) * width for i, p in enumerate(phases) if p in of_phase]
        shown = [of_phase[p] for p in phases if p in of_phase]
        heights = [r["median"] for r in shown]
        errors = [[r["median"] - r["min"] for r in shown], [r["max"] - r["median"] for r in shown]]
        bars = axes.bar(at, heights, width * 0.92, yerr=errors, capsize=2, label=name, color=colours[index % len(colours)],
                        error_kw={"linewidth": 0.8})
        axes.bar_label(bars, [f"{h:.1f}x" for h in heights], fontsize=7, padding=2)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.text(len(phases) - 0.5, 1, " llama.cpp", fontsize=7, va="bottom", ha="right")
    axes.set_xticks(range(len(phases)), [phase_name(p, run["workload"]) for p in phases])
    axes.set_ylabel("tokens/s, times llama.cpp's")
    axes.set_title(f"{run['machine']['cpu']}, {run['machine']['threads']} threads", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=7, frameon=False)
    figure.savefig(path, dpi=150, metadata={"Software": None})
