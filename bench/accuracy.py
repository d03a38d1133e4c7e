# SPDX-License-Identifier: Apache-2.0
"""Measures how far quire and llama.cpp are from the float32 reference on 2,000 tokens of real text: KL, perplexity, top-1.

Usage: python bench/accuracy.py --model SmolLM2-135M-Instruct.Q4_1.gguf --goldens-python build/goldens-venv/bin/python
           [--peer-python build/peer-venv/bin/python] [--quire build/quire_logits] [--scratch DIR]
       python bench/accuracy.py --model SmolLM2-135M-Instruct.Q4_1.gguf --quire build/quire_logits --types all
           [--levels avx2,avx512,amx] [--tokens 500]

All compute logits for the same token ids (tests/goldens/smollm2/teacher_forced.json), teacher-forced; needs numpy. With
--types, the model's matrices are rewritten in each of the types, and quire's default settings at each ISA level are
compared with quire's --dtype float32 on the same file; needs the gguf package.
"""

import argparse
import json
import pathlib
import subprocess
import sys

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[1]
ROWS = 50  # rows of logits converted to float64 at a time


def run(command: list, **more) -> None:
    subprocess.run([str(part) for part in command], check=True, cwd=ROOT, **more)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    x = logits.astype(np.float64)
    x -= x.max(axis=1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=1, keepdims=True))


def compare(reference: pathlib.Path, other: pathlib.Path, tokens: list[int]) -> dict:
    """KL(reference || other) per position, perplexity of `other`, and how often both have the same best token."""
    ref = np.memmap(reference, dtype="<f4", mode="r").reshape(len(tokens), -1)
    oth = np.memmap(other, dtype="<f4", mode="r").reshape(len(tokens), -1)
    if ref.shape != oth.shape:
        raise SystemExit(f"{other}: {oth.shape[1]} logits per row, but the reference has {ref.shape[1]}")
    kl, nll, same = [], [], 0
    for at in range(0, len(tokens), ROWS):
        p, q = log_softmax(ref[at:at + ROWS]), log_softmax(oth[at:at + ROWS])
        kl.append((np.exp(p) * (p - q)).sum(axis=1))
        same += int((ref[at:at + ROWS].argmax(axis=1) == oth[at:at + ROWS].argmax(axis=1)).sum())
        following = tokens[at + 1:at + 1 + ROWS]
        nll.append(-q[np.arange(len(following)), following])
    kl = np.concatenate(kl)
    return {"kl_mean": float(kl.mean()), "kl_p99": float(np.quantile(kl, 0.99)), "kl_max": float(kl.max()),
            "perplexity": float(np.exp(np.concatenate(nll).mean())), "top1": same / len(tokens)}


def collect(options, ids: pathlib.Path) -> dict[str, pathlib.Path]:
    """Runs every requested side; returns label -> file of logits, the reference first."""
    scratch = options.scratch
    files = {"reference (transformers float32)": scratch / "reference.f32"}
    if not (scratch / "reference.f32").exists():
        run([options.goldens_python, "-m", "tools.goldens.smollm2", "--model", options.model, "--logits", scratch / "reference.f32"])
    if options.peer_python:
        worker = [options.peer_python, ROOT / "bench" / "llama_cpp_worker.py", "logits", "--model", options.model,
                  "--threads", options.threads, "--tokens", ids]
        for label, name, more in (("llama.cpp (default)", "peer.f32", []),
                                  ("llama.cpp (flash attention off)", "peer_fa_off.f32", ["--flash-attn", "off"])):
            run([*worker, "--out", scratch / name, *more], stdout=subprocess.DEVNULL)
            files[label] = scratch / name
    if options.quire:
        for label, name, more in (("quire (default)", "quire.f32", []),
                                  ("quire (--dtype float32)", "quire_f32.f32", ["--dtype", "float32"])):
            run([options.quire, "--model", options.model, "--tokens", ids, "--out", scratch / name, *more])
            files[label] = scratch / name
    return files


def by_type(options, tokens: list[int], ids: pathlib.Path) -> dict[str, dict]:
    """A row for each type and level: the default settings against float32 on the same weights."""
    import requantise

    types = requantise.TYPES if options.types == "all" else options.types.split(",")
    for name in types:
        if name not in requantise.TYPES:
            raise SystemExit(f"--types has {name}; choose from {', '.join(requantise.TYPES)}")
    table = {}
    for name in types:
        model = options.scratch / f"{name}.gguf"
        requantise.requantise(options.model, model, name)
        sides = {"reference": ["--dtype", "float32"]}
        sides |= {level: ["--cpu-isa", level] for level in options.levels.split(",")} if options.levels else {"default": []}
        for side, more in sides.items():
            run([options.quire, "--model", model, "--tokens", ids, "--out", options.scratch / f"{side}.f32", *more])
            if side != "reference":
                table[f"{name}, {side}"] = compare(options.scratch / "reference.f32", options.scratch / f"{side}.f32", tokens)
                row = table[f"{name}, {side}"]
                print(f"{name:8}{side:12}KL mean {row['kl_mean']:.1e}, p99 {row['kl_p99']:.1e}, same best token "
                      f"{100 * row['top1']:.2f}%", flush=True)
        model.unlink()
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--goldens-python", help="a Python with tools/goldens/requirements.txt; needed without --types")
    parser.add_argument("--types", help="compare types of weights: all, or a list such as Q8_0,Q4_K,BF16")
    parser.add_argument("--levels", help="with --types: a list of ISA levels instead of the default one")
    parser.add_argument("--tokens", type=int, help="with --types: use only so many of the text's 2,000")
    parser.add_argument("--peer-python", help="a Python with llama-cpp-python (see bench/compare)")
    parser.add_argument("--quire", help="the quire_logits binary")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--scratch", type=pathlib.Path, default=ROOT / "build" / "accuracy",
                        help="folder for logits (400 MB per side); the reference's are kept for the next run")
    parser.add_argument("--json", type=pathlib.Path, help="also write the table here")
    options = parser.parse_args()
    for name in ("model", "scratch"):
        setattr(options, name, getattr(options, name).resolve())
    if options.types and not options.quire:
        parser.error("--types needs --quire")
    if not options.types and not options.goldens_python:
        parser.error("--goldens-python is needed, except with --types")
    if not options.types and (options.levels or options.tokens):
        parser.error("--levels and --tokens need --types")
    if options.types:
        options.scratch = options.scratch / "types"  # the reference of the other table is kept
    options.scratch.mkdir(parents=True, exist_ok=True)
    tokens = json.loads((ROOT / "tests/goldens/smollm2/teacher_forced.json").read_text())["tokens"][:options.tokens]
    ids = options.scratch / "ids.json"
    ids.write_text(json.dumps(tokens))
    if options.types:
        table = by_type(options, tokens, ids)
        if options.json:
            options.json.write_text(json.dumps(table, indent=1) + "\n")
        return 0
    files = collect(options, ids)
    reference = next(iter(files.values()))
    table = {label: compare(reference, file, tokens) for label, file in files.items()}
    base = table[next(iter(table))]["perplexity"]
    print(f"{'':34}{'KL mean':>11}{'KL p99':>11}{'KL max':>10}{'perplexity':>12}{'vs ref':>9}{'top-1':>9}")
    for label, row in table.items():
        print(f"{label:34}{row['kl_mean']:11.2e}{row['kl_p99']:11.2e}{row['kl_max']:10.2e}{row['perplexity']:12.4f}"
              f"{100 * (row['perplexity'] / base - 1):+8.3f}%{100 * row['top1']:8.2f}%")
    if options.json:
        options.json.write_text(json.dumps(table, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
