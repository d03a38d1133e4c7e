# SPDX-License-Identifier: Apache-2.0
"""quire against llama.cpp on one GGUF: prefill and decode at batch 1, same threads, alternating rounds in one run.

Usage: python bench/peer.py --model FILE.gguf [--quire build/quire] [--peer-venv build/peer-venv] [--threads N] [--rounds N]

The peer is llama-cpp-python built from source with native flags (prebuilt wheels lack the matrix instructions and would
be no fair peer). The venv is made on first use, which takes a quarter of an hour on two cores. llama.cpp runs twice in each
round, with its default attention and without flash attention: which is faster differs by phase and machine, and the
verdict is against the better of the two in each phase. Python's standard library is enough.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import venv

ROOT = pathlib.Path(__file__).resolve().parents[1]
PACKAGE = "llama-cpp-python==0.3.36"
# GCC (12, at least) believes that ldtilecfg reads eight bytes of its operand and drops the other stores, after which
# llama.cpp's AMX path dies of an illegal instruction; without dead-store elimination the build is right.
GCC_FLAGS = "-fno-tree-dse -fno-dse"
PEERS = {"llama.cpp (default)": [], "llama.cpp (no flash attention)": ["--flash-attn", "off"]}


def make_venv(folder: pathlib.Path) -> None:
    """Builds the package into a new venv; a venv that can import it is left alone."""
    python = folder / "bin" / "python"
    if python.exists() and subprocess.run([python, "-c", "import llama_cpp"], capture_output=True).returncode == 0:
        return
    print(f"building {PACKAGE} into {folder} (once; minutes)", flush=True)
    venv.create(folder, with_pip=True)
    compiler = subprocess.run(["c++", "--version"], capture_output=True, text=True).stdout
    flags = GCC_FLAGS if "Free Software Foundation" in compiler else ""
    environment = {**os.environ, "CMAKE_ARGS": f'-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF -DCMAKE_CXX_FLAGS="{flags}"',
                   "CMAKE_BUILD_PARALLEL_LEVEL": str(os.cpu_count())}
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-binary", "llama-cpp-python", PACKAGE],
                   check=True, env=environment)


def run_json(command: list) -> dict:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(str(part) for part in command)}\nended with {done.returncode}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout[done.stdout.index("{"):])


def run_quire(options) -> dict:
    out = run_json([options.quire, "bench", "latency", "--model", options.model, "--input-len", options.input_len,
                    "--output-len", options.output_len, "--batch-size", 1, "--num-iters", options.iters,
                    "--threads", options.threads, "--json", *options.quire_args])
    return {"prefill": out["prefill_tokens_per_s"], "decode": out["decode_tokens_per_s"]}


def run_peer(options, arguments: list[str]) -> dict:
    out = run_json([options.peer_venv / "bin" / "python", ROOT / "bench" / "llama_cpp_worker.py", "speed", "--model",
                    options.model, "--threads", options.threads, "--input-len", options.input_len, "--output-len",
                    options.output_len, "--iters", options.iters, *arguments])
    return {"prefill": options.input_len / statistics.median(out["prefill_s"]),
            "decode": options.output_len / statistics.median(out["decode_s"]), "system_info": out["system_info"],
            "buffers": [line for line in out["log"] if "model buffer" in line]}


def measure(options) -> tuple[dict[str, dict], dict]:
    """side -> phase -> figures of all rounds; and what llama.cpp says of itself."""
    sides = {name: (lambda arguments=arguments: run_peer(options, arguments)) for name, arguments in PEERS.items()}
    if options.quire:
        sides = {"quire": lambda: run_quire(options), **sides}
    figures = {name: {"prefill": [], "decode": []} for name in sides}
    about = {}
    for number in range(options.rounds):
        order = list(sides) if number % 2 == 0 else list(reversed(sides))  # nobody always runs on the warmer chip
        for name in order:
            result = sides[name]()
            for phase in ("prefill", "decode"):
                figures[name][phase].append(result[phase])
            about = result if "system_info" in result else about
            print(f"round {number + 1}: {name:32} prefill {result['prefill']:9.1f}  decode {result['decode']:8.1f}", flush=True)
    return figures, about


def print_table(options, figures: dict[str, dict], about: dict) -> dict:
    medians = {name: {phase: statistics.median(values) for phase, values in phases.items()} for name, phases in figures.items()}
    best = {phase: max(medians[name][phase] for name in PEERS) for phase in ("prefill", "decode")}
    print(f"\n{pathlib.Path(options.model).name}, {options.threads} threads, median of {options.rounds} rounds, tokens/s")
    print(f"{'':32}{f'prefill {options.input_len}':>14}{f'decode {options.output_len}':>14}")
    for name, phases in medians.items():
        print(f"{name:32}{phases['prefill']:14.1f}{phases['decode']:14.1f}")
    if "quire" in medians:
        for name in PEERS:
            ratios = [medians["quire"][p] / medians[name][p] for p in ("prefill", "decode")]
            print(f"{'quire / ' + name:32}{ratios[0]:13.2f}x{ratios[1]:13.2f}x")
        ratios = [medians["quire"][p] / best[p] for p in ("prefill", "decode")]
        print(f"{'quire / its best in each':32}{ratios[0]:13.2f}x{ratios[1]:13.2f}x")
    print(f"llama.cpp: {about['system_info'].strip()}\n           {'; '.join(about['buffers'])}")
    return {"medians": medians, "rounds": figures, "best_peer": best, "peer": about}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--quire", type=pathlib.Path, default=ROOT / "build" / "quire")
    parser.add_argument("--peer-only", action="store_true", help="measure llama.cpp alone")
    parser.add_argument("--peer-venv", type=pathlib.Path, default=ROOT / "build" / "peer-venv")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--iters", type=int, default=3, help="timed iterations a round, after one that warms up")
    parser.add_argument("--input-len", type=int, default=512)
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--quire-args", nargs=argparse.REMAINDER, default=[], help="last: more arguments for quire")
    parser.add_argument("--json", type=pathlib.Path, help="also write the figures here")
    options = parser.parse_args()
    if options.peer_only:
        options.quire = None
    make_venv(options.peer_venv)
    table = print_table(options, *measure(options))
    if options.json:
        options.json.write_text(json.dumps(table, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
