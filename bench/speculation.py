#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what speculation gains: the same requests to a server with --speculative-config and to one without, in turn.

    python3 bench/speculation.py [--model MODEL] [--rounds 5] [--concurrency 1] [--drafts 5] [-- FLAG ...]

The tasks are an edit of a program (most of the answer is in the prompt), the repetition of a list of records, and prose, in
which there is little to look up. Both servers must give the same answers to the last digit of the logprobs; the script exits
with 1 if they do not. What follows -- goes to both servers. Standard library only.
"""

import argparse
import concurrent.futures
import json
import pathlib
import re
import statistics
import sys
import time
import urllib.request

import serving

PROGRAM = """class Account:
    def __init__(self, owner, balance=0):
        self.owner = owner
        self.balance = balance
        self.history = []

    def deposit(self, amount):
        if amount <= 0:
            raise ValueError("the amount must be positive")
        self.balance += amount
        self.history.append(("deposit", amount))

    def withdraw(self, amount):
        if amount <= 0:
            raise ValueError("the amount must be positive")
        if amount > self.balance:
            raise ValueError("the balance is too low")
        self.balance -= amount
        self.history.append(("withdraw", amount))

    def report(self):
        for kind, amount in self.history:
            print(kind, amount)
        print("balance", self.balance)
"""
RECORDS = "\n".join(f'{{"id": {i}, "name": "item-{i * 37 % 101}", "price": {i * 13 % 97}.5, "stock": {i * 7 % 50}}}' for i in range(1, 13))
TASKS = {
    "edit of a program": "Rename the method `report` to `summary` and print the whole program again:\n```python\n" + PROGRAM + "```",
    "records repeated": "Repeat these lines exactly, without any other text:\n" + RECORDS,
    "prose": "Tell a story about a lighthouse keeper who finds a letter in a bottle.",
}


def ask(url: str, prompt: str, tokens: int) -> dict:
    body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": tokens, "temperature": 0, "logprobs": True}
    request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=900) as reply:
        return json.load(reply)


def run(url: str, prompt: str, options) -> tuple[float, list]:
    """Output tokens per second of all clients together, and the answers."""
    begin = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(options.concurrency) as pool:
        answers = list(pool.map(lambda _: ask(url, prompt, options.tokens), range(options.concurrency)))
    seconds = time.perf_counter() - begin
    return sum(answer["usage"]["completion_tokens"] for answer in answers) / seconds, [answer["choices"] for answer in answers]


def counters(url: str) -> dict:
    with urllib.request.urlopen(url + "/metrics", timeout=60) as reply:
        text = reply.read().decode()
    return {name: float(value) for name, value in re.findall(r"^vllm:spec_decode_num_(\w+)_total\{[^}]*\} (\S+)$", text, re.M)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="", help="default: the default model")
    parser.add_argument("--quire", type=pathlib.Path, default=serving.ROOT / "build" / "quire")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=300, help="of an answer, at most")
    parser.add_argument("--drafts", type=int, default=5)
    parser.add_argument("--lookup", type=int, nargs=2, default=(2, 4), metavar=("MIN", "MAX"))
    parser.add_argument("flags", nargs="*", metavar="-- FLAG")
    options = parser.parse_args()
    config = json.dumps({"method": "ngram", "num_speculative_tokens": options.drafts, "prompt_lookup_min": options.lookup[0],
                         "prompt_lookup_max": options.lookup[1]})
    with serving.server(options.quire, options.model, *options.flags) as (plain, _), \
            serving.server(options.quire, options.model, "--speculative-config", config, *options.flags) as (fast, _):
        print("| task | tokens/s without | tokens/s with | gain | tokens per step | drafts accepted |\n| --- | --- | --- | --- | --- | --- |")
        for name, prompt in TASKS.items():
            run(plain, prompt, options), run(fast, prompt, options)  # the prompt is in the prefix cache from here on
            before = counters(fast)
            rates = {plain: [], fast: []}
            for _ in range(options.rounds):
                answers = []
                for url in (plain, fast):
                    rate, choices = run(url, prompt, options)
                    rates[url].append(rate)
                    answers.append(choices)
                if answers[0] != answers[1]:
                    print(f"{name}: the answers differ", file=sys.stderr)
                    return 1
            drafted, accepted = (counters(fast)[key] - before[key] for key in ("draft_tokens", "accepted_tokens"))
            without, with_drafts = (statistics.median(rates[url]) for url in (plain, fast))
            output = sum(len(c["logprobs"]["content"]) for choices in answers[1] for c in choices) * options.rounds
            print(f"| {name} | {without:.0f} | {with_drafts:.0f} | {with_drafts / without:.2f}x | {output / (output - accepted):.2f} | "
                  f"{100 * accepted / drafted if drafted else 0:.0f}% of {drafted / options.rounds:.0f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
