#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Embeds short texts with quire and with sentence-transformers (PyTorch) or llama.cpp, in turns; compares times and vectors.

Usage: bench/embeddings.py [--peer NAME] [--model FOLDER] [--texts 2000] [--threads 2] [--rounds 3] [--quire build/quire]

Needs sentence-transformers, or for --peer llama.cpp the packages xllamacpp and gguf. The model is all-MiniLM-L6-v2 of
scripts/get-minilm unless another is given. Both programs have the same texts, float32 weights and number of threads, and
each round runs one after the other, so that a busy machine slows both.
"""

import argparse
import atexit
import base64
import json
import os
import pathlib
import random
import re
import resource
import statistics
import subprocess
import sys
import tempfile
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

    def cpu_seconds(self) -> float:
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self):
        self.process.terminate()
        self.process.wait()


class SentenceTransformers:
    def __init__(self, model: str, threads: int):
        import torch
        from sentence_transformers import SentenceTransformer
        torch.set_num_threads(threads)
        self.embed = SentenceTransformer(model, device="cpu").encode


def write_gguf(model: pathlib.Path, path: pathlib.Path) -> None:
    """A BERT folder as a GGUF file of float32 weights, with llama.cpp's names."""
    import gguf
    import numpy as np
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


class LlamaCpp:
    SLOTS = 32  # texts at a time

    def __init__(self, model: str, threads: int):
        import xllamacpp
        folder = tempfile.TemporaryDirectory()
        atexit.register(folder.cleanup)
        path = pathlib.Path(folder.name) / "model.gguf"
        write_gguf(pathlib.Path(model), path)
        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.embedding = True
        params.n_parallel = self.SLOTS
        params.n_ctx = self.SLOTS * 256
        params.n_batch = params.n_ubatch = 2048
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        params.warmup = False
        params.verbosity = -1
        self.server = xllamacpp.Server(params)

    def embed(self, texts: list[str]):
        import numpy as np
        answer = self.server.handle_embeddings({"input": texts, "model": "m"})
        items = answer if isinstance(answer, dict) else json.loads(answer)
        return np.array([item["embedding"] for item in items["data"]], dtype=np.float32)


def own_cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


PEERS = {"sentence-transformers": SentenceTransformers, "llama.cpp": LlamaCpp}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", default="sentence-transformers", choices=PEERS)
    parser.add_argument("--model", default="")
    parser.add_argument("--texts", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quire", default=str(ROOT / "build" / "quire"))
    options = parser.parse_args()
    model = options.model or subprocess.run([ROOT / "scripts" / "get-minilm"], capture_output=True, text=True, check=True).stdout.strip()

    import numpy as np
    peer = PEERS[options.peer](model, options.threads)
    quire = Quire(options.quire, model, options.threads)
    texts = make_texts(options.texts)
    times: dict[str, list[float]] = {"quire": [], options.peer: []}
    clocks = {"quire": quire.cpu_seconds, options.peer: own_cpu_seconds}
    processor = dict.fromkeys(times, 0.0)
    for run in (quire.embed, peer.embed):
        run(texts[:64])  # warm up
    for _ in range(options.rounds):
        for name, run in (("quire", quire.embed), (options.peer, peer.embed)):
            begin, before = time.perf_counter(), clocks[name]()
            vectors = run(texts)
            times[name].append(time.perf_counter() - begin)
            processor[name] += clocks[name]() - before
            if name == "quire":
                ours = vectors
    theirs = np.asarray(vectors)
    cosine = (ours * theirs).sum(1) / np.linalg.norm(ours, axis=1) / np.linalg.norm(theirs, axis=1)
    for name, all_times in times.items():
        middle = statistics.median(all_times)
        print(f"{name:24} {middle:7.2f} s   {len(texts) / middle:8.0f} texts/s   (all: {', '.join(f'{t:.2f}' for t in all_times)};"
              f" processor time {processor[name] / options.rounds:.2f} s)")
    ratios = [b / a for a, b in zip(times["quire"], times[options.peer])]
    print(f"quire is {statistics.median(ratios):.2f}x as fast (rounds: {', '.join(f'{r:.2f}' for r in ratios)}); least cosine {cosine.min():.7f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
