#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures KV pages on disk: restoring a prefix against computing it, and what the writing costs when nothing is restored.

    python3 bench/kv_offload.py [--model MODEL] [--tokens 2000] [--rounds 5] [--dir FOLDER] [-- FLAG ...]

Without --model it uses Qwen3-0.6B's shape with dummy weights. In each round a prompt that no server has seen is computed, the
prefix cache is emptied and the prompt is restored; both answers must be the same to the last digit of the logprobs, or the
script exits with 1. At the end the server is started again and the last prompts are restored by the new process. Then a
server with the tier and one without get the same new prompts in turn, and the ratio of their throughputs is printed. What
follows -- goes to all servers. The files are usually still in the system's file cache when they are read; --drop-file-cache
asks the system to forget them first. Standard library only.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import random
import re
import statistics
import sys
import tempfile
import time
import urllib.request

import gpu_shapes
import serving


def post(url: str, path: str, body: dict | None = None) -> dict:
    data = json.dumps(body or {}).encode()
    request = urllib.request.Request(url + path, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=900) as reply:
        return json.loads(reply.read() or b"{}")


def metric(url: str, name: str) -> float:
    with urllib.request.urlopen(url + "/metrics", timeout=60) as reply:
        return sum(float(value) for value in re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", reply.read().decode(), re.M))


def ask(url: str, prompt: list[int], tokens: int) -> tuple[float, list, int]:
    """Seconds, the choices, and how many tokens of the prompt were cached."""
    begin = time.perf_counter()
    answer = post(url, "/v1/completions", {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "logprobs": 3,
                                           "ignore_eos": True, "return_token_ids": True})
    seconds = time.perf_counter() - begin
    cached = (answer["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    choices = [[choice["token_ids"], choice["logprobs"]] for choice in answer["choices"]]
    return seconds, choices, cached


def cpu_seconds(process) -> float:
    """Processor time of the server so far; on a busy machine it says more than the clock does."""
    try:
        fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    except FileNotFoundError:  # not Linux
        return float("nan")
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wait_until_written(url: str) -> None:
    """Until the number of page files has not changed for a second."""
    files, since = -1.0, time.monotonic()
    while time.monotonic() - since < 1:
        now = metric(url, "quire:kv_offload_files")
        if now != files:
            files, since = now, time.monotonic()
        time.sleep(0.1)


def drop_file_cache(folder: pathlib.Path) -> None:
    os.sync()
    for file in folder.rglob("*.kv"):
        with open(file, "rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure_restore(options, folder: pathlib.Path, flags: list, rng: random.Random) -> bool:
    new_prompt = lambda: [rng.randrange(10, 150) for _ in range(options.tokens)]
    seen, ratios, cpu_ratios = [], [], []

    def timed(url, process, prompt):
        before = cpu_seconds(process)
        seconds, answer, cached = ask(url, prompt, 1)
        return seconds, cpu_seconds(process) - before, answer, cached

    def restore(url, process, name, prompt, truth, computed, computed_cpu):
        restored, cpu, answer, cached = timed(url, process, prompt)
        if answer != truth or cached < options.tokens - 64:
            print(f"{name}: the answers differ, or only {cached} tokens were restored", file=sys.stderr)
            return False
        ratios.append(computed / restored)
        cpu_ratios.append(computed_cpu / max(cpu, 0.01))
        print(f"| {name} | {computed:.3f} | {restored:.3f} | {ratios[-1]:.1f}x | {computed_cpu:.2f} | {cpu:.2f} |", flush=True)
        return True

    print("| | computed, s | restored, s | ratio | computed, processor s | restored, processor s |\n| --- | --- | --- | --- | --- | --- |")
    with serving.server(options.quire, options.model, *flags) as (url, process):
        for _ in range(3):  # until the memory of all pages was used once: the system clears it then
            ask(url, new_prompt(), 1)
        for number in range(options.rounds):
            prompt = new_prompt()
            computed, cpu, truth, cached = timed(url, process, prompt)
            assert cached == 0
            wait_until_written(url)
            if options.drop_file_cache:
                drop_file_cache(folder)
            post(url, "/reset_prefix_cache")
            seen.append((prompt, truth, computed, cpu))
            if not restore(url, process, f"round {number + 1}", *seen[-1]):
                return False
    if options.drop_file_cache:
        drop_file_cache(folder)
    with serving.server(options.quire, options.model, *flags) as (url, process):
        ask(url, new_prompt()[:64], 1)
        for one in seen:
            if not restore(url, process, "after a restart", *one):
                return False
    for where, part in ("Restored", slice(0, options.rounds)), ("After a restart", slice(options.rounds, None)):
        clock, cpu = ratios[part], cpu_ratios[part]
        print(f"{where}, a prefix of {options.tokens} tokens takes 1/{statistics.median(clock):.1f} of the time of computing it "
              f"(median of {len(clock)}, {min(clock):.1f} to {max(clock):.1f}), and 1/{statistics.median(cpu):.1f} of the processor time.")
    return True


def throughput(url: str, prompts: list[list[int]], tokens: int) -> float:
    """Prompt and output tokens per second of all requests together."""
    begin = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
        list(pool.map(lambda prompt: ask(url, prompt, tokens), prompts))
    return sum(len(prompt) + tokens for prompt in prompts) / (time.perf_counter() - begin)


def measure_cost(options, flags: list, tier: list, rng: random.Random) -> None:
    with serving.server(options.quire, options.model, *flags) as (plain, plain_process), \
            serving.server(options.quire, options.model, *flags, *tier) as (tiered, tiered_process):
        ratios = []
        start = []
        for number in range(options.rounds + 1):
            prompts = [[rng.randrange(10, 150) for _ in range(256)] for _ in range(options.concurrency)]
            rates = {}
            for url in (plain, tiered) if number % 2 else (tiered, plain):
                rates[url] = throughput(url, prompts, 32)
            if number == 0:  # it warms up
                start = [cpu_seconds(tiered_process), cpu_seconds(plain_process)]
            else:
                ratios.append(rates[tiered] / rates[plain])
        print(f"Throughput with the tier, nothing restored: {statistics.median(ratios):.3f} of that without "
              f"(median of {len(ratios)} rounds in turn, {min(ratios):.3f} to {max(ratios):.3f}; "
              f"{metric(tiered, 'quire:kv_offload_pages_total'):.0f} pages were written and "
              f"{metric(tiered, 'quire:kv_offload_dropped_pages_total'):.0f} dropped).")
        ends = [cpu_seconds(tiered_process), cpu_seconds(plain_process)]
        print(f"Processor time with the tier: {(ends[0] - start[0]) / (ends[1] - start[1]):.3f} of that without.")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="", help="default: Qwen3-0.6B's shape with dummy weights")
    parser.add_argument("--quire", type=pathlib.Path, default=serving.ROOT / "build" / "quire")
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--dir", type=pathlib.Path, help="where to make the folder for pages; default: the temporary folder")
    parser.add_argument("--cache", default="640MiB", help="for --kv-cache-memory-bytes")
    parser.add_argument("--size", default="8GiB", help="for --kv-offload-size")
    parser.add_argument("--drop-file-cache", action="store_true")
    parser.add_argument("--only", choices=["restore", "cost"])
    parser.add_argument("flags", nargs="*", metavar="-- FLAG")
    options = parser.parse_args()
    rng = random.Random(1)
    with tempfile.TemporaryDirectory(dir=options.dir) as temporary:
        folder = pathlib.Path(temporary)
        flags = ["--enable-reset-prefix-cache", "--max-model-len", str(options.tokens + 512),
                 "--kv-cache-memory-bytes", options.cache, *options.flags]
        if not options.model:
            options.model = folder / "config.json"
            options.model.write_text(json.dumps(gpu_shapes.SHAPES["Qwen3-0.6B"]))
            flags += ["--load-format", "dummy"]
        tier = lambda name: ["--kv-offload-dir", str(folder / name), "--kv-offload-size", options.size]
        if options.only != "cost" and not measure_restore(options, folder / "a", flags + tier("a"), rng):
            return 1
        if options.only != "restore":
            measure_cost(options, flags, tier("b"), rng)
    return 0


if __name__ == "__main__":
    sys.exit(main())
