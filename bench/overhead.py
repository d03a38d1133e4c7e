# SPDX-License-Identifier: Apache-2.0
"""Measures the share of a decode step that scheduler, text and HTTP take, at 32 streams.

Usage: python bench/overhead.py [--model FILE.gguf] [--streams 32]

It measures three figures: the engine's own step (CPU time of `quire bench engine --text`, whose model computes nothing), a real
decode step (`quire bench latency`), and the CPU time of the server's other threads (sockets, formatting, requests) while it
streams (/proc/PID/task/*/schedstat, divided by the steps in /metrics). The threads that compute are the --threads busiest ones.
The target is below 2%. Linux; standard library only.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import urllib.request

from serving import ROOT, bench_serve, server


def run_json(*command) -> dict:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}\nended with {done.returncode}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout)


def thread_times(pid: int) -> dict[str, float]:
    """CPU seconds of each thread."""
    times = {}
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        times[task.name] = int((task / "schedstat").read_text().split()[0]) / 1e9
    return times


def steps(url: str) -> float:
    text = urllib.request.urlopen(url + "/metrics").read().decode()
    return sum(float(value) for value in re.findall(r"^vllm:iteration_tokens_total_count\{.*\} (\S+)$", text, re.M))


def serving_cost(options) -> tuple[float, float]:
    """CPU seconds per step of the threads that do not compute, and of those that do."""
    load = ["--dataset-name", "random", "--random-input-len", options.input_len, "--random-output-len", options.output_len,
            "--max-concurrency", options.streams, "--temperature", 0]
    with server(options.quire, options.model, "--threads", options.threads) as (url, process):
        bench_serve(options.quire, url, *load, "--num-prompts", options.streams, "--seed", 1, show=False)
        before, steps_before = thread_times(process.pid), steps(url)
        bench_serve(options.quire, url, *load, "--num-prompts", 2 * options.streams, show=False)
        after, steps_after = thread_times(process.pid), steps(url)
    used = sorted((after[name] - before.get(name, 0) for name in after), reverse=True)
    count = steps_after - steps_before
    return sum(used[options.threads:]) / count, sum(used[:options.threads]) / count


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="", help="default: the default model")
    parser.add_argument("--quire", type=pathlib.Path, default=ROOT / "build" / "quire")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--input-len", type=int, default=128)
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="threads that compute")
    parser.add_argument("--json", type=pathlib.Path, help="also write the results here")
    options = parser.parse_args()
    named = ["--model", options.model] if options.model else []
    engine = min((run_json(options.quire, "bench", "engine", *named, "--text", "--num-streams", options.streams, "--json")
                  for _ in range(3)), key=lambda figures: figures["cpu_us_per_step"])
    latency = run_json(options.quire, "bench", "latency", *named, "--batch-size", options.streams, "--input-len", options.input_len,
                       "--output-len", options.output_len, "--num-iters", 3, "--num-iters-warmup", 1, "--threads", options.threads, "--json")
    real = latency["decode_s"] / (options.output_len - 1)
    http, compute = serving_cost(options)
    own = engine["cpu_us_per_step"] / 1e6
    share = (own + http) / real
    print(f"{options.streams} streams, {options.threads} threads\n"
          f"engine's own step       {1e6 * own:10.1f} us  ({engine['steps_per_s']:.0f} steps/s, {engine['tokens_per_s']:.0f} tokens/s)\n"
          f"HTTP and formatting     {1e6 * http:10.1f} us of CPU time per step\n"
          f"a real step             {1e6 * real:10.1f} us  (in process; {1e6 * compute / options.threads:.0f} us per computing thread when served)\n"
          f"share                   {100 * share:10.2f} %   (wanted: under 2)")
    if options.json:
        options.json.write_text(json.dumps({"engine_s": own, "http_s": http, "step_s": real, "share": share}, indent=1) + "\n")
    return 0 if share < 0.02 else 1


if __name__ == "__main__":
    sys.exit(main())
