#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Embeds short texts with quire and with other programs, in turns; compares times and vectors.

Usage: bench/embeddings.py [--model MODEL] [--sentence-transformers PYTHON] [--llama-cpp PYTHON] [--xllamacpp PYTHON]
                           [--texts 2000] [--threads 2] [--rounds 3] [--dtype float32] [--quire build/quire]

PYTHON is an interpreter with the package of that name (llama-cpp-python for --llama-cpp) and numpy. The model is
all-MiniLM-L6-v2 of scripts/get-minilm unless a folder or a GGUF file is given. llama.cpp gets a folder of BERT as a GGUF
file of the same weights, for which this program needs the package gguf; sentence-transformers takes folders only. All
have the same texts and number of threads, and each round runs one after the other, so that a busy machine slows all of
them. quire's time is that of a request over HTTP, the others' that of a call.
"""

import argparse
import atexit
import base64
import json
import os
import pathlib
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[1]


def make_texts(count: int) -> list[str]:
    """Sentences of 4 to 24 words from the documentation."""
    words = re.findall(r"[A-Za-z]+", " ".join(path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))))
    random.seed(1)
    starts = [random.randrange(len(words) - 24) for _ in range(count)]
    return [" ".join(words[at:at + random.randint(4, 24)]) + "." for at in starts]


class Quire:
    name = "quire"

    def __init__(self, options, model: str):
        self.process = subprocess.Popen([options.quire, "serve", model, "--port", "0", "--threads", str(options.threads), "--dtype",
                                         options.dtype], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        atexit.register(self.stop)  # also after an error
        for line in self.process.stderr:
            if found := re.search(r"Serving .* at (http://\S+)", line):
                self.url = found.group(1)
                return  # the log that follows stays far below the size of a pipe's buffer
        raise SystemExit("bench/embeddings.py: quire did not start")

    def embed(self, texts: list[str]) -> tuple[float, float, np.ndarray]:
        """Seconds, seconds of the processor, and vectors."""
        begin, before = time.perf_counter(), self.processor_seconds()
        body = json.dumps({"input": texts, "encoding_format": "base64"}).encode()
        request = urllib.request.Request(self.url + "/v1/embeddings", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as reply:
            items = json.load(reply)["data"]
        vectors = np.array([np.frombuffer(base64.b64decode(item["embedding"]), "<f4") for item in items])
        return time.perf_counter() - begin, self.processor_seconds() - before, vectors

    def processor_seconds(self) -> float:
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self):
        self.process.terminate()
        self.process.wait()


class Peer:
    """Another program in a process of its own (embeddings_worker.py)."""

    def __init__(self, name: str, python: str, model: str, threads: int):
        self.name = name
        worker = pathlib.Path(__file__).with_name("embeddings_worker.py")
        self.process = subprocess.Popen([python, worker, name, model, str(threads)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        atexit.register(self.process.kill)

    def embed(self, texts: list[str]) -> tuple[float, float, np.ndarray]:
        print(json.dumps(texts), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"bench/embeddings.py: {self.name} stopped; run bench/embeddings_worker.py by hand to see why")
        answer = json.loads(line)
        vectors = np.frombuffer(base64.b64decode(answer["vectors"]), "<f4").reshape(len(texts), -1)
        return answer["seconds"], answer["processor"], vectors


def write_gguf(model: pathlib.Path, path: pathlib.Path) -> None:
    """A BERT folder as a GGUF file of float32 weights, with llama.cpp's names."""
    import gguf
    config = json.loads((model / "config.json").read_text())
    writer = gguf.GGUFWriter(str(path), "bert")
    for key, field in {"block_count": "num_hidden_layers", "context_length": "max_position_embeddings",
                       "embedding_length": "hidden_size", "feed_forward_length": "intermediate_size",
                       "attention.head_count": "num_attention_heads"}.items():
        writer.add_uint32(f"bert.{key}", config[field])
    writer.add_float32("bert.attention.layer_norm_epsilon", config["layer_norm_eps"])
    writer.add_bool("bert.attention.causal", False)
    writer.add_uint32("bert.pooling_type", 1)  # mean
    vocab = json.loads((model / "tokenizer.json").read_text())["model"]["vocab"]
    words = sorted(vocab, key=vocab.__getitem__)
    special = [word.startswith("[") and word.endswith("]") and len(word) > 2 for word in words]
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("jina-v2-en")
    writer.add_token_list([word if is_special else word[2:] if word.startswith("##") else "\u2581" + word
                           for word, is_special in zip(words, special)])
    writer.add_token_types([gguf.TokenType.CONTROL if is_special else gguf.TokenType.NORMAL for is_special in special])
    writer.add_token_type_count(config["type_vocab_size"])
    for name, word in {"bos": "[CLS]", "eos": "[SEP]", "seperator": "[SEP]", "unknown": "[UNK]", "padding": "[PAD]",
                       "mask": "[MASK]"}.items():
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", vocab[word])
    names = [("embeddings.word_embeddings", "token_embd"), ("embeddings.position_embeddings", "position_embd"),
             ("embeddings.token_type_embeddings", "token_types"), ("embeddings.LayerNorm", "token_embd_norm"),
             ("encoder.layer.", "blk."), ("attention.self.query", "attn_q"), ("attention.self.key", "attn_k"),
             ("attention.self.value", "attn_v"), ("attention.output.dense", "attn_output"),
             ("attention.output.LayerNorm", "attn_output_norm"), ("intermediate.dense", "ffn_up"),
             ("output.dense", "ffn_down"), ("output.LayerNorm", "layer_output_norm")]
    data = (model / "model.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    for tensor, entry in json.loads(data[8:8 + size]).items():
        if tensor == "__metadata__" or tensor.startswith("pooler.") or entry["dtype"] != "F32":
            continue
        short = tensor
        for long, replacement in names:
            short = short.replace(long, replacement)
        begin, end = entry["data_offsets"]
        writer.add_tensor(short, np.frombuffer(data[8 + size + begin:8 + size + end], "<f4").reshape(entry["shape"]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def model_for(peer: str, model: pathlib.Path, scratch: pathlib.Path) -> str:
    if peer == "sentence-transformers" or model.is_file():
        return str(model)
    path = scratch / "model.gguf"
    if not path.exists():
        write_gguf(model, path)
    return str(path)


PEERS = ("sentence-transformers", "llama-cpp", "xllamacpp")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for peer in PEERS:
        parser.add_argument(f"--{peer}", metavar="PYTHON", help="an interpreter that has this package")
    parser.add_argument("--model", type=pathlib.Path)
    parser.add_argument("--texts", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", default="float32", help="quire's")
    parser.add_argument("--quire", default=str(ROOT / "build" / "quire"))
    options = parser.parse_args()
    model = options.model or pathlib.Path(
        subprocess.run([ROOT / "scripts" / "get-minilm"], capture_output=True, text=True, check=True).stdout.strip())
    scratch = tempfile.TemporaryDirectory()
    programs = [Quire(options, str(model))]
    for peer in PEERS:
        if python := getattr(options, peer.replace("-", "_")):
            programs.append(Peer(peer, python, model_for(peer, model, pathlib.Path(scratch.name)), options.threads))
    texts = make_texts(options.texts)
    for program in programs:
        program.embed(texts[:64])  # warm up
    rounds = [[program.embed(texts) for program in programs] for _ in range(options.rounds)]
    ours = rounds[-1][0][2]
    for i, program in enumerate(programs):
        times = [one[i][0] for one in rounds]
        processor = statistics.median(one[i][1] for one in rounds)
        middle = statistics.median(times)
        line = (f"{program.name:22} {middle:6.2f} s ({min(times):.2f} to {max(times):.2f}) {len(texts) / middle:6.0f} texts/s, "
                f"processor {processor:5.2f} s")
        if i > 0:
            ratios = sorted(one[i][0] / one[0][0] for one in rounds)
            theirs = rounds[-1][i][2]
            cosine = (ours * theirs).sum(1) / np.linalg.norm(ours, axis=1) / np.linalg.norm(theirs, axis=1)
            line += (f"; quire is {statistics.median(ratios):.2f}x as fast ({ratios[0]:.2f} to {ratios[-1]:.2f}), "
                     f"least cosine {cosine.min():.7f}")
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
