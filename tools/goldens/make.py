# SPDX-License-Identifier: Apache-2.0
"""Writes tests/goldens (configs, expected logits and tokens, known answers), or compares with the existing files.

Usage: python -m tools.goldens.make [--check] [--case NAME]...
"""

import argparse
import json
import pathlib
import sys
import tempfile

import numpy as np
import torch
import transformers

from tools.goldens import ahead, eagle, floats, philox, quant_vectors, reference
from tools.goldens.cases import CASES, find_case

ROOT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "goldens"
# Another machine or torch build adds in another order: this many times float32's own error is allowed.
NOISE_FACTOR = 20.0


def in_lines(items: list) -> str:
    """A JSON list with one item per line: small, and a diff shows what changed."""
    return "[\n" + ",\n".join("  " + json.dumps(item, ensure_ascii=False, separators=(",", ":")) for item in items) + "\n ]"


def write_object(path: pathlib.Path, head: dict, **lists: list) -> None:
    fields = [f' "{k}": {json.dumps(v)}' for k, v in head.items()] + [f' "{k}": {in_lines(v)}' for k, v in lists.items()]
    path.write_text("{\n" + ",\n".join(fields) + "\n}\n", encoding="utf-8")


def make_case(case, root: pathlib.Path) -> None:
    folder = root / case.name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(reference.make_config_json(case), indent=2) + "\n")
    prompts = reference.run_case(folder, case.max_model_len, case.listed)
    head = {"case": case.name, "seed": 0, "max_model_len": case.max_model_len,
            "made_with": {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__}}
    write_object(folder / "expected.json", head, prompts=prompts)
    if case.name == eagle.CASE:
        (folder / "eagle3").mkdir(exist_ok=True)
        config = eagle.make_config(folder)
        (folder / "eagle3" / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        write_object(folder / "eagle3" / "ahead.json", {**head, "tensors": eagle.shapes(config)}, prompts=eagle.run_case(folder))
    if case.name in ahead.LAYOUTS:
        tensors, drafts = ahead.run_case(folder, case.name)
        write_object(folder / "ahead.json", {**head, "tensors": tensors}, prompts=drafts)


def compare_prompt(label: str, old: dict, new: dict) -> list[str]:
    tolerance = NOISE_FACTOR * max(old["reference_noise"], 1e-6)
    problems = []
    if old["tokens"] != new["tokens"]:
        return [f"{label}: the prompt differs"]
    for a, b in zip(old["rows"], new["rows"], strict=True):
        worst = np.abs(floats.decode(a["logits"]) - floats.decode(b["logits"])).max()
        if a["position"] != b["position"] or not worst <= tolerance:
            problems.append(f"{label}: position {a['position']} differs by {worst:.3g}, more than {tolerance:.3g}")
    gaps = floats.decode(old["gaps"])
    for step, (a, b) in enumerate(zip(old["greedy"], new["greedy"], strict=True)):
        if a != b:
            if gaps[step] > 2 * tolerance:
                problems.append(f"{label}: greedy token {step} is {b}, was {a} with a gap of {gaps[step]:.3g}")
            break  # after a near tie, the rest differs
    return problems


def compare_ahead(name: str, old: dict, new: dict) -> list[str]:
    problems = []
    for a, b in zip(old["prompts"], new["prompts"], strict=True):
        tolerance = NOISE_FACTOR * max(a["reference_noise"], 1e-6)
        worst = max(np.abs(floats.decode(x) - floats.decode(y)).max() for x, y in zip(a["rows"], b["rows"], strict=True))
        if a["tokens"] != b["tokens"] or a["drafts"] != b["drafts"] or not worst <= tolerance:
            problems.append(f"{name}, ahead of a prompt of {len(a['tokens'])}: differs by {worst:.3g}")
    return problems


def compare(old_root: pathlib.Path, new_root: pathlib.Path, names: list[str]) -> list[str]:
    problems = []
    for name in names:
        old_folder, new_folder = old_root / name, new_root / name
        if json.loads((old_folder / "config.json").read_text()) != json.loads((new_folder / "config.json").read_text()):
            problems.append(f"{name}: config.json differs")
        old, new = (json.loads((f / "expected.json").read_text()) for f in (old_folder, new_folder))
        for a, b in zip(old["prompts"], new["prompts"], strict=True):
            problems += compare_prompt(f"{name}, prompt of {len(a['tokens'])}", a, b)
        for part in (".",) if name in ahead.LAYOUTS else ("eagle3",) if name == eagle.CASE else ():
            problems += compare_ahead(name, *(json.loads((f / part / "ahead.json").read_text()) for f in (old_folder, new_folder)))
    for name in ("philox.json", "quants.json"):
        if (old_root / name).read_text() != (new_root / name).read_text():
            problems.append(f"{name} differs")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the tree differs beyond float noise")
    parser.add_argument("--case", action="append", help="only this case (repeatable)")
    options = parser.parse_args()
    cases = [find_case(name) for name in options.case] if options.case else CASES
    torch.set_num_threads(1)  # on a busy machine, threads that wait for each other slow it down
    with tempfile.TemporaryDirectory() as scratch:
        root = pathlib.Path(scratch) if options.check else ROOT
        write_object(root / "philox.json", {}, **philox.known_answers())
        write_object(root / "quants.json", {}, types=quant_vectors.known_answers())
        for case in cases:
            make_case(case, root)
            print(f"{case.name}: done", flush=True)
        problems = compare(ROOT, root, [c.name for c in cases]) if options.check else []
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
