#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What tensor parallelism costs on a wire, in two forms: a model on paper, and a simulation of the same model.

  output-cut    quire's: every product is cut by its outputs, and four all-gathers a layer bring the slices together
                (attention before o, o before the norm, the activated middle before down, down before the norm)
  row-parallel  the usual one: o and down are cut by K, and two all-reduces a layer add the parts

Nothing here is measured. The assumptions are in WIRES and in the comments below; docs/scaling.md shows the tables.

    bench/wire_model.py                # the tables
    bench/wire_model.py --simulate     # the formulas against the simulation, with and without jitter
"""

import argparse
import dataclasses
import heapq
import math
import random


@dataclasses.dataclass(frozen=True)
class Wire:
    """Each rank has one full-duplex port. A message of b bytes occupies the sender's port for post + b / bandwidth,
    arrives after the latency, and occupies the receiver's port for b / bandwidth."""
    name: str
    latency: float    # seconds, of an empty message between two ranks, software included
    post: float       # seconds, to start one more message
    bandwidth: float  # bytes per second and direction


# Round figures for the class of hardware, at about 80% of its nominal rate; latencies are those of a library's
# collective calls, not of the bare link.
WIRES = [
    Wire("NVLink 4 (450 GB/s)", 3e-6, 0.3e-6, 360e9),
    Wire("PCIe 5 x16 (63 GB/s)", 6e-6, 0.5e-6, 50e9),
    Wire("100 GbE, TCP", 25e-6, 2e-6, 11e9),
]


@dataclasses.dataclass(frozen=True)
class Shape:
    name: str
    layers: int
    hidden: int
    attention: int     # query heads times head size
    intermediate: int


SHAPES = [Shape("Qwen3-8B", 36, 4096, 4096, 12288), Shape("a 70B (Llama 3)", 80, 8192, 8192, 28672)]
STEPS = [("decode, 1 sequence", 1), ("decode, 64 sequences", 64), ("prefill, 2,048 rows", 2048)]
RANKS = [2, 4, 8, 16, 32, 64]


# On paper. `size` is the bytes of the whole result; each rank begins with size / ranks of it (all-gather), or with its
# own addend of that size (all-reduce).

def ring_gather(wire: Wire, ranks: int, size: float) -> float:
    return (ranks - 1) * (wire.latency + wire.post + size / ranks / wire.bandwidth)


def direct_gather(wire: Wire, ranks: int, size: float) -> float:
    return wire.latency + (ranks - 1) * (wire.post + size / ranks / wire.bandwidth)


def ring_reduce(wire: Wire, ranks: int, size: float) -> float:
    return 2 * ring_gather(wire, ranks, size)  # a reduce-scatter, then an all-gather


def direct_reduce(wire: Wire, ranks: int, size: float) -> float:
    return 2 * direct_gather(wire, ranks, size)


def one_shot_reduce(wire: Wire, ranks: int, size: float) -> float:
    """Everyone sends its whole addend to everyone: the least latency, for small sizes."""
    return wire.latency + (ranks - 1) * (wire.post + size / wire.bandwidth)


GATHERS = {"ring": ring_gather, "direct": direct_gather}
REDUCES = {"ring": ring_reduce, "direct": direct_reduce, "one-shot": one_shot_reduce}


def best(ways: dict, wire: Wire, ranks: int, size: float) -> float:
    return min(way(wire, ranks, size) for way in ways.values())


def output_cut(shape: Shape, rows: int, element: int) -> list[float]:
    """The sizes of a layer's all-gathers, in bytes."""
    return [rows * columns * element
            for columns in (shape.attention, shape.hidden, shape.intermediate, shape.hidden)]


def row_parallel(shape: Shape, rows: int, element: int) -> list[float]:
    """The sizes of a layer's all-reduces."""
    return [rows * shape.hidden * element] * 2


def volume_ratio(shape: Shape) -> float:
    """Bytes that a rank sends, output-cut over row-parallel: an all-reduce moves its size twice."""
    return sum(output_cut(shape, 1, 1)) / (2 * sum(row_parallel(shape, 1, 1)))


def step_seconds(shape: Shape, rows: int, element: int, wire: Wire, ranks: int) -> tuple[float, float]:
    """The communication of one step, in both forms. It overlaps with nothing."""
    cut = sum(best(GATHERS, wire, ranks, size) for size in output_cut(shape, rows, element))
    row = sum(best(REDUCES, wire, ranks, size) for size in row_parallel(shape, rows, element))
    return shape.layers * cut, shape.layers * row


# The simulation: messages as events, ports that are busy, ranks that send a piece on once they have it.

class Network:
    def __init__(self, wire: Wire, ranks: int, jitter: float, seed: int):
        self.wire, self.jitter, self.rng = wire, jitter, random.Random(seed)
        self.out_free, self.in_free = [0.0] * ranks, [0.0] * ranks
        self.events, self.count = [], 0

    def send(self, now: float, source: int, target: int, size: float, what) -> None:
        begin = max(now, self.out_free[source])
        self.out_free[source] = begin + self.wire.post + size / self.wire.bandwidth
        latency = self.wire.latency * (1 + (self.rng.expovariate(1 / self.jitter) if self.jitter else 0))
        first = begin + self.wire.post + latency  # when its first byte arrives
        self.count += 1
        heapq.heappush(self.events, (first, self.count, target, size, what))

    def run(self, arrived) -> float:
        """Calls arrived(time, target, what) for each message; returns the time of the last one."""
        end = 0.0
        while self.events:
            first, _, target, size, what = heapq.heappop(self.events)
            done = max(first, self.in_free[target]) + size / self.wire.bandwidth
            self.in_free[target] = done
            end = max(end, done)
            arrived(done, target, what)
        return end


def simulate_gather(wire: Wire, ranks: int, size: float, form: str, jitter: float = 0, seed: int = 0,
                    starts: list[float] | None = None) -> float:
    """Each rank begins at its start; the result is when the last rank has everything."""
    net, piece = Network(wire, ranks, jitter, seed), size / ranks
    starts = starts or [0.0] * ranks
    if form == "direct":
        for source, at in enumerate(starts):
            for step in range(1, ranks):  # each begins with its neighbour, so that nobody is sent to by all at once
                net.send(at, source, (source + step) % ranks, piece, None)
        return max(net.run(lambda *_: None), *starts)
    for source, at in enumerate(starts):
        net.send(at, source, (source + 1) % ranks, piece, 1)

    def arrived(time: float, rank: int, hops: int) -> None:
        if hops < ranks - 1:
            net.send(max(time, starts[rank]), rank, (rank + 1) % ranks, piece, hops + 1)

    return max(net.run(arrived), *starts)


def simulate_reduce(wire: Wire, ranks: int, size: float, form: str, jitter: float = 0, seed: int = 0) -> float:
    if form == "one-shot":
        return simulate_gather(wire, ranks, size * ranks, "direct", jitter, seed)
    half = simulate_gather(wire, ranks, size, form, jitter, seed)  # a reduce-scatter moves the same messages
    return half + simulate_gather(wire, ranks, size, form, jitter, seed + 1)


def simulated_step(shape: Shape, rows: int, element: int, wire: Wire, ranks: int, jitter: float,
                   seed: int) -> tuple[float, float]:
    """The same step, each collective in the form that is best on paper."""
    def form(ways, size):
        return min(ways, key=lambda name: ways[name](wire, ranks, size))

    cut = sum(simulate_gather(wire, ranks, size, form(GATHERS, size), jitter, seed + i)
              for i, size in enumerate(output_cut(shape, rows, element)))
    row = sum(simulate_reduce(wire, ranks, size, form(REDUCES, size), jitter, seed + 10 * i)
              for i, size in enumerate(row_parallel(shape, rows, element)))
    return shape.layers * cut, shape.layers * row


def milliseconds(seconds: float) -> str:
    value = 1e3 * seconds
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def table(shape: Shape, element: int) -> str:
    lines = [f"| {shape.name}: wire, step | " + " | ".join(f"{ranks} ranks" for ranks in RANKS) + " |",
             "| --- |" + " --- |" * len(RANKS)]
    for wire in WIRES:
        for step, rows in STEPS:
            cells = []
            for ranks in RANKS:
                cut, row = step_seconds(shape, rows, element, wire, ranks)
                cells.append(f"{milliseconds(cut)} / {milliseconds(row)} ({cut / row:.2f}x)")
            lines.append(f"| {wire.name}, {step} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def simulation_table(element: int, jitter: float, repeats: int) -> str:
    shape = SHAPES[0]
    lines = [f"| {shape.name}: wire, step, ranks | on paper | simulated | simulated, latencies with jitter |",
             "| --- | --- | --- | --- |"]

    def both(pair):
        return f"{milliseconds(pair[0])} / {milliseconds(pair[1])} ({pair[0] / pair[1]:.2f}x)"

    for wire in WIRES:
        for step, rows in STEPS:
            for ranks in (4, 16, 64):
                runs = [simulated_step(shape, rows, element, wire, ranks, jitter, 100 * seed)
                        for seed in range(repeats)]
                mean = [math.fsum(run[form] for run in runs) / repeats for form in (0, 1)]
                lines.append(f"| {wire.name}, {step}, {ranks} | {both(step_seconds(shape, rows, element, wire, ranks))} | "
                             f"{both(simulated_step(shape, rows, element, wire, ranks, 0, 0))} | {both(mean)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=int, default=2, choices=(2, 4), help="of an element on the wire (default: 2)")
    parser.add_argument("--simulate", action="store_true", help="compare the formulas with the simulation")
    parser.add_argument("--jitter", type=float, default=0.5, help="mean of what is added to a latency, as its multiple")
    parser.add_argument("--repeats", type=int, default=5, help="simulations with jitter that are averaged")
    args = parser.parse_args()
    if args.simulate:
        print(simulation_table(args.bytes, args.jitter, args.repeats))
        return
    print("Milliseconds of communication per step, output-cut / row-parallel (ratio).\n")
    for shape in SHAPES:
        print(f"{table(shape, args.bytes)}\n\n{shape.name}: a rank sends {volume_ratio(shape):.2f}x the bytes.\n")


if __name__ == "__main__":
    main()
