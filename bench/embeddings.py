#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Embeds short texts with quire and with sentence-transformers (PyTorch), in turns, and compares times and vectors.

Usage: bench/embeddings.py [--model FOLDER] [--texts 2000] [--threads 2] [--rounds 3] [--quire build/quire]

Needs sentence-transformers. The model is all-MiniLM-L6-v2 of scripts/get-minilm unless another is given. Both programs
have the same texts and number of threads, and each round runs one after the other, so that a busy machine slows both.
"""

import argparse
import atexit
import base64
import json
import pathlib
import random
import re
import statistics
import subprocess
import sys
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[1]


def make_texts(count: int) -> list[str]:
    """Sentences of 4 to 24 words from the documentation."""
    words = re.findall(r"[A-Za-z]+", " ".join(path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))))
    random.seed(1)
    starts = [random.randrange(len(words) - 24) for _ in range(count)]
    return [" ".join(words[at:at + random.randint(4, 24)]) + "." for at in starts]


class Quire:
    def __init__(self, program: str, model: str, threads: int):
        self.process = subprocess.Popen([program, "serve", model, "--port", "0", "--threads", str(threads), "--dtype", "float32"],
                                        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        atexit.register(self.stop)  # also after an error
        for line in self.process.stderr:
            if found := re.search(r"Serving .* at (http://\S+)", line):
                self.url = found.group(1)
                return  # the log that follows stays far below the size of a pipe's buffer
        raise SystemExit("bench/embeddings.py: quire did not start")

    def embed(self, texts: list[str]):
        import numpy as np
        body = json.dumps({"input": texts, "encoding_format": "base64"}).encode()
        request = urllib.request.Request(self.url + "/v1/embeddings", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as reply:
            items = json.load(reply)["data"]
        return np.array([np.frombuffer(base64.b64decode(item["embedding"]), "<f4") for item in items])

    def stop(self):
        self.process.terminate()
        self.process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="")
    parser.add_argument("--texts", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quire", default=str(ROOT / "build" / "quire"))
    options = parser.parse_args()
    model = options.model or subprocess.run([ROOT / "scripts" / "get-minilm"], capture_output=True, text=True, check=True).stdout.strip()

    import numpy as np
    import torch
    from sentence_transformers import SentenceTransformer
    torch.set_num_threads(options.threads)
    torch_model = SentenceTransformer(model, device="cpu")
    quire = Quire(options.quire, model, options.threads)
    texts = make_texts(options.texts)
    times: dict[str, list[float]] = {"quire": [], "sentence-transformers": []}
    for run in (quire.embed, torch_model.encode):
        run(texts[:64])  # warm up
    for _ in range(options.rounds):
        for name, run in (("quire", quire.embed), ("sentence-transformers", torch_model.encode)):
            begin = time.perf_counter()
            vectors = run(texts)
            times[name].append(time.perf_counter() - begin)
            if name == "quire":
                ours = vectors
    theirs = np.asarray(vectors)
    cosine = (ours * theirs).sum(1) / np.linalg.norm(ours, axis=1) / np.linalg.norm(theirs, axis=1)
    for name, all_times in times.items():
        middle = statistics.median(all_times)
        print(f"{name:24} {middle:7.2f} s   {len(texts) / middle:8.0f} texts/s   (all: {', '.join(f'{t:.2f}' for t in all_times)})")
    ratios = [b / a for a, b in zip(times["quire"], times["sentence-transformers"])]
    print(f"quire is {statistics.median(ratios):.2f}x as fast (rounds: {', '.join(f'{r:.2f}' for r in ratios)}); least cosine {cosine.min():.7f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
