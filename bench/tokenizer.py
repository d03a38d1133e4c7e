#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the encoding speed with Hugging Face's `tokenizers`: the same text, one thread each, alternating rounds.

usage: bench/tokenizer.py [--build build] [--data FOLDER] [--rounds 5] [--seconds 0.5] [TOKENIZER ...]
Prints MB/s for both, the ratio (above 1: quire is faster), and the time to load. With no TOKENIZER it
uses every tokenizer.json in the data folder, else the small ones in tests/text/tokenizers.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO / "tests" / "text"))
import support  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402


def texts(data):
    """English prose, chat, code and other scripts; whole documents of realistic size."""
    if data is None:
        small = "".join(p.read_text() for p in sorted(REPO.glob("src/text/*.cc")))
        return {"code": small}
    wiki = (data / "evals" / "wikitext-2-raw" / "wiki.test.raw").read_text()
    chat = json.loads((data / "workloads" / "sharegpt" / "sharegpt_1k_multiturn.json").read_text())
    turns = "\n\n".join(m["value"] for c in chat for m in c["conversations"])
    return {"wiki": wiki, "chat": turns[:1_500_000], "unicode": "".join(support.random_texts(1, 4000))}


class Worker:
    """quire_tokenize_check, kept running over the rounds."""

    def __init__(self, build, path):
        start = time.perf_counter()
        self.process = subprocess.Popen([str(Path(build) / "quire_tokenize_check"), str(path)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.ask({"text": ""})
        self.load_seconds = time.perf_counter() - start

    def ask(self, request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def rate(self, text, seconds):
        return self.ask({"bench": text, "seconds": seconds})["bytes_per_second"]

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def reference_rate(tokenizer, text, seconds):
    size = len(text.encode())
    start = time.perf_counter()
    runs = 0
    while True:
        tokenizer.encode(text)
        runs += 1
        elapsed = time.perf_counter() - start
        if elapsed >= seconds:
            return size * runs / elapsed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizers", nargs="*", type=Path)
    parser.add_argument("--build", default=REPO / "build")
    parser.add_argument("--data", type=Path, default=support.shared_data())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5)
    args = parser.parse_args()
    paths = args.tokenizers or (sorted((args.data / "tokenizers").glob("hf*/*/tokenizer.json")) if args.data
                                else sorted((REPO / "tests/text/tokenizers").glob("*.json")))
    corpora = texts(args.data)
    print(f"{'tokenizer':24} {'text':8} {'quire MB/s':>11} {'tokenizers MB/s':>16} {'ratio':>7} {'load s':>7} {'theirs':>7}")
    slower = 0
    for path in paths:
        start = time.perf_counter()
        reference = Tokenizer.from_file(str(path))
        their_load = time.perf_counter() - start
        reference.no_truncation()
        reference.no_padding()
        worker = Worker(args.build, path)
        name = path.parent.name if path.name == "tokenizer.json" else path.stem
        for kind, text in corpora.items():
            ours, theirs = [], []
            for _ in range(args.rounds):
                ours.append(worker.rate(text, args.seconds))
                theirs.append(reference_rate(reference, text, args.seconds))
            ratio = statistics.median(ours) / statistics.median(theirs)
            slower += ratio < 1
            print(f"{name:24} {kind:8} {statistics.median(ours) / 1e6:11.1f} {statistics.median(theirs) / 1e6:16.1f} {ratio:7.1f} "
                  f"{worker.load_seconds:7.2f} {their_load:7.2f}", flush=True)
        worker.close()
    print(f"{slower} of {len(paths) * len(corpora)} rows slower than tokenizers")


if __name__ == "__main__":
    main()
