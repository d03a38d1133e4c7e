#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures a model on several ranks against one rank with as many threads, in turn, and prints the share of gathers in steps.

    python3 bench/ranks.py [--model MODEL] [--ranks 2 | --alone] [--device cpu] [--threads 2] [--rounds 5] [-- FLAG ...]

Each round runs `quire bench latency` once with one rank and once with --tensor-parallel-size; the median ratio of the decode
and prefill rates is printed, with the lowest and highest. What follows -- goes to both. Without --model it uses Qwen3-0.6B's
shape with dummy weights (--shape), since its heads divide. On GPUs (--device cuda) each rank has one; --alone compares with a
single rank that makes the calls of several (QUIRE_GATHER_ALONE), so that one GPU shows what the calls cost without a wire.
Standard library only.
"""

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

import gpu_shapes

ROOT = pathlib.Path(__file__).resolve().parent.parent
GATHERS = re.compile(r"rank 0 gathered (\d+) times in ([\d.]+) s of steps: ([\d.]+)% of the time, ([\d.]+) us each")


def measure(quire: str, args: argparse.Namespace, ranks: int) -> tuple[dict, str]:
    several = ranks > 1
    size = str(1 if args.alone else ranks)
    command = [quire, "--log-level", "info", "bench", "latency", "--model", args.model, "--json", "--device", args.device, "--threads",
               str(args.threads), "--input-len", str(args.input_len), "--output-len", str(args.output_len), "--batch-size",
               str(args.batch_size), "--num-iters", "1", "--num-iters-warmup", "1", "--tensor-parallel-size", size, *args.flags]
    environment = {**os.environ, "QUIRE_GATHER_ALONE": "1" if args.alone and several else "0"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        sys.exit(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"{command[0]} failed")
    found = GATHERS.search(done.stderr)
    return json.loads(done.stdout), f"{found[3]}% of a step in gathers, {found[4]} us each" if found else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quire", default=str(ROOT / "build" / "quire"))
    parser.add_argument("--model", default="", help="a folder or a file")
    parser.add_argument("--shape", default="Qwen3-0.6B", choices=list(gpu_shapes.SHAPES), help="of dummy weights, without --model")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, or GPUs as in cuda:0,1")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--alone", action="store_true", help="instead of --ranks, one rank that makes their calls")
    parser.add_argument("--threads", type=int, default=2, help="of all ranks together")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--input-len", type=int, default=128)
    parser.add_argument("--output-len", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("flags", nargs="*", help="after --: flags of quire bench latency")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if not args.model:
            args.model = str(pathlib.Path(folder) / "config.json")
            pathlib.Path(args.model).write_text(json.dumps(gpu_shapes.SHAPES[args.shape]))
            args.flags += ["--load-format", "dummy"]
        compare(args)


def compare(args: argparse.Namespace) -> None:
    ratios: dict[str, list[float]] = {"decode_tokens_per_s": [], "prefill_tokens_per_s": []}
    for number in range(args.rounds):
        sides = (1, args.ranks) if number % 2 == 0 else (args.ranks, 1)
        results = {ranks: measure(args.quire, args, ranks) for ranks in sides}
        for key, list_of in ratios.items():
            list_of.append(results[args.ranks][0][key] / results[1][0][key])
        print(f"round {number + 1}: " + ", ".join(f"{key.split('_')[0]} {results[1][0][key]:.1f} -> {results[args.ranks][0][key]:.1f}"
                                                   for key in ratios) + f" tokens/s; {results[args.ranks][1]}", flush=True)
    what = "one rank that makes the calls of several has" if args.alone else f"{args.ranks} ranks have"
    one = f"one with {args.threads} threads" if args.device == "cpu" else "one"
    for key, list_of in ratios.items():
        print(f"{key.split('_')[0]}: {what} {statistics.median(list_of):.2f} of the speed of {one} "
              f"({min(list_of):.2f} to {max(list_of):.2f})")


if __name__ == "__main__":
    main()
