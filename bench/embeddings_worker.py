#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Embeds texts with another program, for bench/embeddings.py; run with a Python that has that program.

    embeddings_worker.py sentence-transformers|llama-cpp|xllamacpp MODEL THREADS

A line of standard input is a JSON list of texts. The answer is one line: {"seconds", "processor", "vectors"}, where
vectors are float32 numbers in base64, and the times are those of the program alone, without the pipe.
"""

import base64
import json
import os
import resource
import sys
import time

import numpy as np

SLOTS = 32  # texts at a time in llama.cpp's server


def sentence_transformers(model: str, threads: int):
    import torch
    from sentence_transformers import SentenceTransformer
    torch.set_num_threads(threads)
    return SentenceTransformer(model, device="cpu").encode


def llama_cpp(model: str, threads: int):
    import llama_cpp as lib
    # Of 32, 64, 128, 192, 256, 512 and 2048 tokens at a time, up to 128 are fastest: attention runs over all of a batch.
    llama = lib.Llama(model, embedding=True, n_ctx=512, n_batch=128, n_ubatch=128, n_threads=threads,
                      n_threads_batch=threads, verbose=False)
    return lambda texts: llama.embed(texts, normalize=True)


def xllamacpp(model: str, threads: int):
    import xllamacpp as lib
    params = lib.CommonParams()
    params.model.path = model
    params.embedding = True
    params.n_parallel = SLOTS
    params.n_ctx = SLOTS * 256
    params.n_batch = params.n_ubatch = 2048
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.warmup = False
    params.verbosity = -1
    server = lib.Server(params)

    def embed(texts):
        answer = server.handle_embeddings({"input": texts, "model": "m"})
        items = answer if isinstance(answer, dict) else json.loads(answer)
        return [item["embedding"] for item in items["data"]]
    return embed


PROGRAMS = {"sentence-transformers": sentence_transformers, "llama-cpp": llama_cpp, "xllamacpp": xllamacpp}


def processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> int:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the libraries print is not an answer
    embed = PROGRAMS[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
    for line in sys.stdin:
        texts = json.loads(line)
        begin, before = time.perf_counter(), processor_seconds()
        vectors = embed(texts)
        seconds, processor = time.perf_counter() - begin, processor_seconds() - before
        raw = np.asarray(vectors, dtype="<f4")
        print(json.dumps({"seconds": seconds, "processor": processor,
                          "vectors": base64.b64encode(raw.tobytes()).decode()}), file=out, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
