#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what the page's live view and receipts cost: time of a decode step without, with receipts, and watched.

    python3 bench/watching.py [--model MODEL | --shape NAME] [--streams 16] [--rounds 5] [-- FLAG ...]
    python3 bench/watching.py --shape Qwen3-8B --streams 64 --output-len 256 --rounds 7 -- --device cuda

One server answers the same requests in turns: plainly, with "return_receipt", and while a client reads /live, which looks at the
engine ten times a second at most. For each it prints the processor time of the whole server per step and the time per step
(which is what counts on a GPU), with the medians of the rounds and their ranges, and for /live also what it says itself: how
long a look takes (look_s), and the share of the time that looks took. --shape is one of bench/gpu_shapes.py, with dummy weights.
What follows -- goes to the server. Wanted: under 0.5% of a step for looks, under 1% for receipts.
Linux; standard library only.
"""

import argparse
import concurrent.futures
import json
import pathlib
import statistics
import sys
import tempfile
import threading
import time
import urllib.request

import gpu_shapes
from overhead import steps, thread_times
from serving import ROOT, server


def ask(url: str, number: int, options, extra: dict) -> None:
    body = {"prompt": [5 + number] * 16, "max_tokens": options.output_len, "ignore_eos": True, "temperature": 0} | extra
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    urllib.request.urlopen(request, timeout=600).read()


class Watcher:
    """Reads /live until the block ends."""

    def __init__(self, url: str):
        self.looks: list[float] = []
        self.stream = urllib.request.urlopen(url + "/live", timeout=60)
        self.ended = False
        self.thread = threading.Thread(target=self.read)

    def read(self):
        for line in self.stream:
            if self.ended:
                return
            if line.startswith(b"data:"):
                event = json.loads(line[5:])
                if "look_s" in event:
                    self.looks.append(event["look_s"])

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended = True
        self.thread.join()
        self.stream.close()


def round_of(url: str, process, options, extra: dict) -> tuple[float, float]:
    """Processor seconds of the server, and seconds, per step."""
    before, count, start = sum(thread_times(process.pid).values()), steps(url), time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(options.streams) as pool:
        list(pool.map(lambda number: ask(url, number, options, extra), range(options.streams)))
    seconds, count = time.monotonic() - start, steps(url) - count
    return (sum(thread_times(process.pid).values()) - before) / count, seconds / count


def show(what: str, rounds: dict[str, list[float]]) -> None:
    print(f"{what}:")
    plain = statistics.median(rounds["plain"])
    for name, values in rounds.items():
        # In turns, each round is compared with the plain one right before it.
        ratios = [value / other for value, other in zip(values, rounds["plain"], strict=True)]
        print(f"  {name:10} {1e3 * statistics.median(values):8.3f} ms ({1e3 * min(values):.3f} to {1e3 * max(values):.3f}), "
              f"{statistics.median(values) / plain:.4f} of plain; by round {statistics.median(ratios):.4f} "
              f"({min(ratios):.4f} to {max(ratios):.4f})")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="", help="default: the default model")
    parser.add_argument("--shape", choices=list(gpu_shapes.SHAPES), help="dummy weights of this shape, instead of a model")
    parser.add_argument("--quire", type=pathlib.Path, default=ROOT / "build" / "quire")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--output-len", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("flags", nargs="*", help="flags of quire serve, after --")
    options = parser.parse_args()
    times: dict[str, list[tuple[float, float]]] = {"plain": [], "receipts": [], "watched": []}
    looks, seconds = [], 0.0
    with tempfile.TemporaryDirectory() as folder:
        if options.shape:
            options.model = pathlib.Path(folder, "config.json")
            options.model.write_text(json.dumps(gpu_shapes.SHAPES[options.shape]))
            options.flags += ["--load-format", "dummy", "--max-num-seqs", options.streams, "--max-model-len", 16 + options.output_len]
        with server(options.quire, options.model, "--no-enable-prefix-caching", *options.flags) as (url, process):
            round_of(url, process, options, {"return_receipt": True})  # also makes the digest of the weights
            for _ in range(options.rounds):
                times["plain"].append(round_of(url, process, options, {}))
                times["receipts"].append(round_of(url, process, options, {"return_receipt": True}))
                with Watcher(url) as watcher:
                    start = time.monotonic()
                    times["watched"].append(round_of(url, process, options, {}))
                    seconds += time.monotonic() - start
                looks += watcher.looks
    print(f"{options.streams} streams, {options.rounds} rounds in turns")
    show("processor time of the server per step", {name: [cpu for cpu, _ in values] for name, values in times.items()})
    show("time per step", {name: [wall for _, wall in values] for name, values in times.items()})
    print(f"/live: {len(looks) / seconds:.1f} looks a second, {1e6 * statistics.median(looks):.0f} us each (at most "
          f"{1e6 * max(looks):.0f}), {100 * sum(looks) / seconds:.3f}% of the time")
    return 0


if __name__ == "__main__":
    sys.exit(main())
