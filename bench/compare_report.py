# SPDX-License-Identifier: Apache-2.0
"""Turns the figures of bench/compare into paired ratios with their spread, markdown tables and a plot.

A run is {"machine": {...}, "models": {name: {"figures": {phase: {side: [one per round]}}, "memory": {phase: {side: [MB]}},
"others": {phase: {side: [share]}}, "shares": {limit: [one per round]}, "notes": [why a cell is empty]}}, "serve": [...]};
phases are keys of PHASES, and sides are "quire" and the settings of the peers ("llama.cpp, flash attention"): the name of a
peer, a comma, and what is set.
"""

import statistics

PHASES = {"prefill": "prefill {input_len}", "decode_0": "decode at 0", "decode": "decode at {input_len}",
          "batch": "decode, {batch} sequences at {input_len}"}
SHARES = {"prefill of int8": "prefill, of the int8 peak", "prefill of bf16": "of the bf16 peak",
          "decode_0 of read": "decode at 0, of the read bandwidth", "decode of read": "decode at {input_len}, of the read bandwidth"}
QUIRE = "quire"


def peer_of(side: str) -> str:
    return side.split(",")[0]


def peers_of(run: dict) -> list[str]:
    """The names of the peers that have a figure in a run, in the order in which they were measured."""
    return list(dict.fromkeys(peer_of(side) for model in run["models"].values() for sides in model["figures"].values()
                              for side in sides if side != QUIRE))


def best_peer(sides: dict[str, list[float]]) -> str | None:
    """The setting of any peer with the highest median, with which quire is compared; chosen per phase. None if there is none."""
    return max((name for name in sides if name != QUIRE), key=lambda name: statistics.median(sides[name]), default=None)


def spread(values: list[float]) -> dict:
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "rounds": len(values)}


def paired_ratios(ours: list[float], theirs: list[float]) -> dict:
    """Spread of ours / theirs per round: both values of a pair were measured within a few minutes."""
    return spread([a / b for a, b in zip(ours, theirs, strict=True)])


def ratios_of(model: dict) -> dict[str, dict]:
    """phase -> ratio to the best setting of any peer, with both medians."""
    out = {}
    for phase, sides in model["figures"].items():
        peer = best_peer(sides)
        if QUIRE in sides and peer is not None:
            out[phase] = {**paired_ratios(sides[QUIRE], sides[peer]), "peer": peer, "quire_tokens_per_s": statistics.median(sides[QUIRE]),
                          "peer_tokens_per_s": statistics.median(sides[peer])}
    return out


def steps_problem(depth: list[int], steps: list[int], wanted_depth: int, wanted_steps: int) -> str | None:
    """Why the iterations of a decode cannot be compared with those of the others; None if they can."""
    if all(one == wanted_depth for one in depth) and all(one == wanted_steps for one in steps):
        return None
    return (f"its decode began at {sorted(set(depth))} tokens and had {sorted(set(steps))} steps of the whole batch, "
            f"instead of {wanted_depth} and {wanted_steps}")


def shares(work: dict, result: dict, before: dict, after: dict, workload: dict) -> dict:
    """The share of the limits that one round reached in its phases; the limits are the mean of those before and after it.

    A decode step reads the matrices once, and K and V as they are in the middle of the decode.
    """
    limit = {kind: (before[kind] + after[kind]) / 2 for kind in before}
    out = {}
    if "prefill" in result:
        speed = work["prompt_operations"] * result["prefill"] / workload["input_len"]
        out = {f"prefill of {kind}": speed / limit[kind] for kind in ("int8", "bf16") if kind in limit}
    for phase, depth in (("decode_0", 0), ("decode", workload["input_len"])):
        if phase in result:
            step = work["weight_bytes"] + work["token_bytes"] * (depth + workload["output_len"] / 2)
            out[f"{phase} of read"] = step * result[phase] / limit["read"]
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


def measured_phases(run: dict) -> list[str]:
    return [p for p in PHASES if any(p in model["figures"] for model in run["models"].values())]


def speed_table(run: dict) -> str:
    phases = measured_phases(run)
    lines = ["| quire / the best peer | " + " | ".join(phase_name(p, run["workload"]) for p in phases) + " |",
             "| --- |" + " --- |" * len(phases)]
    for name, model in run["models"].items():
        ratios = ratios_of(model)
        cells = [f"{ratio_text(ratios[p])}, {ratios[p]['quire_tokens_per_s']:.0f} / {ratios[p]['peer_tokens_per_s']:.0f} tok/s "
                 f"({ratios[p]['peer']})" if p in ratios else "" for p in phases]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def side_table(run: dict) -> str:
    """Tokens per second of every side; a cell is empty where a side has no figure."""
    phases = measured_phases(run)
    sides = list(dict.fromkeys(side for model in run["models"].values() for p in phases for side in model["figures"].get(p, {})))
    lines = ["| tok/s | | " + " | ".join(phase_name(p, run["workload"]) for p in phases) + " |", "| --- | --- |" + " --- |" * len(phases)]
    for name, model in run["models"].items():
        for side in sides:
            found = [model["figures"].get(p, {}).get(side) for p in phases]
            cells = [f"{statistics.median(v):.1f} ({min(v):.1f}..{max(v):.1f})" if v else "" for v in found]
            lines.append(f"| {name} | {side} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def memory_table(run: dict) -> str:
    """Peak memory in the measurement at the prompt's length and in the batch; of a peer that of its thriftiest setting."""
    peers, batch = peers_of(run), run["workload"]["batch"]
    titles = ["file", "quire, 1 sequence", *peers, f"quire, {batch} sequences", *peers]
    lines = ["| peak memory, MB | " + " | ".join(titles) + " |", "| --- |" + " --- |" * len(titles)]
    for name, model in run["models"].items():
        cells = [f"{model['file_bytes'] / 1e6:.0f}"]
        for phase in ("decode", "batch"):
            sides = model["memory"].get(phase, {})
            for wanted in (QUIRE, *peers):
                found = [statistics.median(values) for side, values in sides.items() if peer_of(side) == wanted]
                cells.append(f"{min(found):.0f}" if found else "")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def share_table(run: dict) -> str:
    """quire's share of the limits that were measured around each round."""
    measured = {key for model in run["models"].values() for key in model["shares"]}
    columns = {key: title.format(**run["workload"]) for key, title in SHARES.items() if key in measured}
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
        machine, figures = run["machine"], [sides for model in run["models"].values() for sides in model["figures"].values()]
        rounds = max((len(values) for sides in figures for values in sides.values()), default=0)
        parts += [f"{machine['cpu']}, {machine['threads']} threads; {rounds} round{'' if rounds == 1 else 's'}, alternating; "
                  f"median (lowest..highest) of the rounds' ratios, then both medians. Compared with {machine['peer']}; each column is the ratio to the fastest setting of any of "
                  f"them, which is named. Other programs took up to {100 * busiest(run):.0f}% of the machine.", speed_table(run),
                  side_table(run), share_table(run), memory_table(run)]
        parts += [note for model in run["models"].values() for note in model.get("notes", [])]
    if run["serve"]:
        parts.append(serve_table(run))
    return "\n\n".join(parts) + "\n"


def plot(run: dict, path) -> None:
    """Bars of the ratios with their spread, one group per phase, each with the name of its peer; needs matplotlib."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot

    ratios = {name: ratios_of(model) for name, model in run["models"].items()}
    phases = [p for p in PHASES if any(p in r for r in ratios.values())]
    figure, axes = pyplot.subplots(figsize=(9, 3.8), layout="constrained")
    width = 0.8 / len(ratios)
    colours = ["#1f4e79", "#2e86ab", "#4f8a8b", "#c9a227", "#8d5524", "#777777"]
    for index, (name, of_phase) in enumerate(ratios.items()):
        at = [i + (index - (len(ratios) - 1) / 2) * width for i, p in enumerate(phases) if p in of_phase]
        shown = [of_phase[p] for p in phases if p in of_phase]
        heights = [r["median"] for r in shown]
        errors = [[r["median"] - r["min"] for r in shown], [r["max"] - r["median"] for r in shown]]
        bars = axes.bar(at, heights, width * 0.92, yerr=errors, capsize=2, label=name, color=colours[index % len(colours)],
                        error_kw={"linewidth": 0.8})
        axes.bar_label(bars, [f"{h:.1f}x" for h in heights], fontsize=7, padding=2)
        for x, ratio in zip(at, shown):
            axes.text(x, 0, " " + peer_of(ratio["peer"]), fontsize=6, rotation=90, va="bottom", ha="center", color="white")
    axes.axhline(1, color="black", linewidth=0.8, zorder=0, label="the best peer")
    axes.set_xticks(range(len(phases)), [phase_name(p, run["workload"]) for p in phases])
    axes.set_ylabel("tokens/s, times the best peer's\n(named in the bar)")
    axes.set_title(f"{run['machine']['cpu']}, {run['machine']['threads']} threads", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=7, frameon=False)
    figure.savefig(path, dpi=150, metadata={"Software": None})
