#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares several engines (--data-parallel-size) with one engine that has all the threads, on prompts with shared prefixes.

    python3 bench/data_parallel.py [--model MODEL] [--engines 2] [--threads 2] [--prefixes 8] [--per-prefix 16]
                                   [--prefix-tokens 512] [--output 32] [--concurrency 16] [--rounds 3] [-- FLAG ...]

In each round both servers get the same new prompts, `per-prefix` of them for each prefix in random order, one server after
the other; which goes first changes. It prints the hit rate of the prefix cache (tokens found / tokens looked up, from
/metrics) and the throughput of each side, and the ratios of each round with their median. The answers must be the same to
the last digit of the logprobs, or the script exits with 1. What follows -- goes to both servers. Standard library only.
"""

import argparse
import concurrent.futures
import contextlib
import json
import pathlib
import random
import re
import statistics
import sys
import time
import urllib.request

import serving


def ask(url: str, body: dict) -> list:
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=900) as reply:
        answer = json.loads(reply.read())
    return [[choice["token_ids"], choice["logprobs"]] for choice in answer["choices"]]


def counts(url: str) -> dict[str, float]:
    """Tokens looked up and found, and requests by engine."""
    with urllib.request.urlopen(url + "/metrics", timeout=60) as reply:
        text = reply.read().decode()
    out: dict[str, float] = {}
    for name, labels, value in re.findall(r"^vllm:(prefix_cache_\w+_total|request_success_total){([^}]*)} (\S+)$", text, re.M):
        out[name] = out.get(name, 0) + float(value)
        engine = re.search(r'engine="(\d+)"', labels)
        if name == "request_success_total" and engine:
            out["engine " + engine.group(1)] = out.get("engine " + engine.group(1), 0) + float(value)
    return out


def traffic(args, seed: int) -> list[dict]:
    rng = random.Random(seed)
    word = lambda: rng.randrange(1000, 20000)
    bodies = []
    for _ in range(args.prefixes):
        prefix = [word() for _ in range(args.prefix_tokens)]
        for _ in range(args.per_prefix):
            bodies.append({"prompt": prefix + [word() for _ in range(rng.randrange(8, 64))], "max_tokens": args.output,
                           "temperature": 0, "ignore_eos": True, "logprobs": 1, "return_token_ids": True})
    rng.shuffle(bodies)
    return bodies


def measure(url: str, bodies: list[dict], concurrency: int) -> tuple[float, float, list, dict]:
    before = counts(url)
    begin = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(concurrency) as pool:
        answers = list(pool.map(lambda body: ask(url, body), bodies))
    seconds = time.perf_counter() - begin
    after = counts(url)
    added = {name: value - before.get(name, 0) for name, value in after.items()}
    hit_rate = added["prefix_cache_hits_total"] / added["prefix_cache_queries_total"]
    tokens = sum(body["max_tokens"] for body in bodies)
    return hit_rate, tokens / seconds, answers, {name: n for name, n in added.items() if name.startswith("engine ")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quire", default=serving.ROOT / "build" / "quire", type=pathlib.Path)
    parser.add_argument("--model", help="default: the default model")
    parser.add_argument("--engines", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prefixes", type=int, default=8)
    parser.add_argument("--per-prefix", type=int, default=16)
    parser.add_argument("--prefix-tokens", type=int, default=512)
    parser.add_argument("--output", type=int, default=32)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("flags", nargs="*")
    args = parser.parse_args()
    common = ["--threads", args.threads, *args.flags]
    hits, speeds = [], []
    with contextlib.ExitStack() as stack:
        one, _ = stack.enter_context(serving.server(args.quire, args.model, *common))
        several, _ = stack.enter_context(serving.server(args.quire, args.model, "--data-parallel-size", args.engines, *common))
        for url in (one, several):
            measure(url, traffic(argparse.Namespace(**vars(args) | {"prefixes": 1, "per_prefix": 2}), 999), 2)  # warm up
        for number in range(args.rounds):
            bodies = traffic(args, number)
            results = {}
            for url in (one, several) if number % 2 == 0 else (several, one):
                results[url] = measure(url, bodies, args.concurrency)
            for name, url in (("1 engine", one), (f"{args.engines} engines", several)):
                hit_rate, speed, _, shares = results[url]
                print(f"round {number + 1}, {name}: {100 * hit_rate:.1f}% of prompt tokens from the cache, "
                      f"{speed:.1f} output tokens/s, requests by engine {[int(n) for _, n in sorted(shares.items())]}", flush=True)
            if results[one][2] != results[several][2]:
                raise SystemExit("the answers differ")
            hits.append(results[several][0] / results[one][0])
            speeds.append(results[several][1] / results[one][1])
    for name, ratios in (("hit rate", hits), ("throughput", speeds)):
        print(f"{name}, {args.engines} engines / 1 engine: median {statistics.median(ratios):.3f} "
              f"({min(ratios):.3f} to {max(ratios):.3f})")


if __name__ == "__main__":
    sys.exit(main())
