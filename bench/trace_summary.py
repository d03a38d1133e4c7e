# SPDX-License-Identifier: Apache-2.0
"""Lists the ops of a trace (quire --profile FILE) by their time on the engine's thread.

Usage: python bench/trace_summary.py trace.json [--last N] [--top N]

Shares are of the time inside steps. `waiting` is the time of an op beyond this thread's own share: planning before
the work, and waiting for workers after it. Ops outside steps (packing weights) are listed separately. Needs only
Python's standard library.
"""

import argparse
import collections
import json
import pathlib
import sys

FRAME = ("step", "forward", "logits and sampling")


def engine_spans(trace: dict) -> list[dict]:
    """The spans of the thread with steps, in order of their start; an outer span before those in it."""
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    threads = {event["tid"] for event in spans if event["name"].startswith("step ")}
    if len(threads) != 1:
        raise SystemExit(f"{len(threads)} threads of this trace have steps; expected one")
    [thread] = threads
    return sorted((event for event in spans if event["tid"] == thread), key=lambda event: (event["ts"], -event["dur"]))


def summarise(spans: list[dict], last: int) -> tuple[dict, dict, dict, float, int]:
    """Time, own share and count by name inside the last steps, the total time of these steps, and their number."""
    steps = [span for span in spans if span["name"].startswith("step ")][-last:] if last else \
            [span for span in spans if span["name"].startswith("step ")]
    total, own, count = (collections.Counter() for _ in range(3))
    first, op = steps[0]["ts"], None
    for span in spans:
        name = span["name"]
        if span["ts"] < first and not name.startswith("pack "):
            continue
        if name == "own share":
            own[op] += span["dur"]
            continue
        op = name
        if not name.startswith(FRAME):
            total[name] += span["dur"]
            count[name] += 1
    return total, own, count, sum(step["dur"] for step in steps), len(steps)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=pathlib.Path)
    parser.add_argument("--last", type=int, default=0, help="only the last N steps (default all)")
    parser.add_argument("--top", type=int, default=30, help="number of lines in the table")
    options = parser.parse_args()
    total, own, count, steps_us, steps = summarise(engine_spans(json.loads(options.trace.read_text())), options.last)
    inside = {name: time for name, time in total.items() if not name.startswith("pack ")}
    print(f"{steps} steps, {steps_us / 1e3:.1f} ms; ops {sum(inside.values()) / steps_us:.1%} of it")
    print(f"{'share':>7} {'ms':>10} {'calls':>7} {'us a call':>10} {'waiting':>8}  op")
    for name, time in sorted(total.items(), key=lambda item: -item[1])[:options.top]:
        share = "" if name.startswith("pack ") else f"{time / steps_us:.1%}"
        waiting = f"{1 - own[name] / time:.0%}" if own[name] and time else ""
        print(f"{share:>7} {time / 1e3:10.2f} {count[name]:7} {time / count[name]:10.1f} {waiting:>8}  {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
