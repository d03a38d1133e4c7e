#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what LoRA adapters cost: decoding with several adapters in the batch and without any, in turn, on one server.

    python3 bench/lora.py [--model MODEL] [--rounds 5] [--adapters 8] [--sequences 32] [--rank 16] [-- FLAG ...]

Adapters of random weights are made for the shapes in --config (default: SmolLM2-135M), for all linear modules. What
follows -- goes to the server. Needs numpy.
"""

import argparse
import concurrent.futures
import json
import pathlib
import statistics
import sys
import tempfile
import time
import urllib.request

import numpy as np
import serving

sys.path.insert(0, str(serving.ROOT))
from tools.goldens import safetensors_file  # noqa: E402

SMOLLM2 = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
           "num_key_value_heads": 3}


def write_adapter(folder: pathlib.Path, config: dict, rank: int, seed: int) -> None:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    head = config.get("head_dim") or hidden // config["num_attention_heads"]
    q, kv = head * config["num_attention_heads"], head * config["num_key_value_heads"]
    shapes = {"self_attn.q_proj": (hidden, q), "self_attn.k_proj": (hidden, kv), "self_attn.v_proj": (hidden, kv),
              "self_attn.o_proj": (q, hidden), "mlp.gate_proj": (hidden, inner), "mlp.up_proj": (hidden, inner),
              "mlp.down_proj": (inner, hidden)}
    random = np.random.default_rng(seed)
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        for module, (columns, rows) in shapes.items():
            name = f"base_model.model.model.layers.{layer}.{module}"
            tensors[f"{name}.lora_A.weight"] = random.standard_normal((rank, columns), dtype=np.float32) / columns**0.5
            tensors[f"{name}.lora_B.weight"] = random.standard_normal((rows, rank), dtype=np.float32) * 0.01
    folder.mkdir()
    safetensors_file.write_file(folder / "adapter_model.safetensors", tensors, "BF16")
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": rank, "lora_alpha": rank}))


def ask(url: str, body: dict) -> int:
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=900) as reply:
        return json.load(reply)["usage"]["completion_tokens"]


def run(url: str, names: list[str], options) -> float:
    """Output tokens per second of all sequences together."""
    bodies = [{"prompt": [11 + i, 12, 13, 14], "max_tokens": options.tokens, "ignore_eos": True, "temperature": 0} |
              ({"model": names[i % len(names)]} if names else {}) for i in range(options.sequences)]
    begin = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(options.sequences) as pool:
        tokens = sum(pool.map(lambda body: ask(url, body), bodies))
    return tokens / (time.perf_counter() - begin)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="", help="default: the default model")
    parser.add_argument("--config", type=pathlib.Path, help="a config.json with the model's shapes; default: SmolLM2-135M")
    parser.add_argument("--quire", type=pathlib.Path, default=serving.ROOT / "build" / "quire")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--adapters", type=int, default=8)
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=128, help="of an answer")
    parser.add_argument("flags", nargs="*", metavar="-- FLAG")
    options = parser.parse_args()
    config = json.loads(options.config.read_text()) if options.config else SMOLLM2
    names = [f"adapter-{i}" for i in range(options.adapters)]
    with tempfile.TemporaryDirectory() as scratch:
        for i, name in enumerate(names):
            write_adapter(pathlib.Path(scratch) / name, config, options.rank, i)
        modules = [f"{name}={pathlib.Path(scratch) / name}" for name in names]
        with serving.server(options.quire, options.model, "--enable-lora", "--max-loras", str(options.adapters),
                            "--max-lora-rank", str(options.rank), *options.flags, "--lora-modules", *modules) as (url, _):
            run(url, [], options), run(url, names, options)
            rounds = []
            for i in range(options.rounds):
                rounds.append((run(url, [], options), run(url, names, options)))
                print(f"round {i + 1}: {rounds[-1][0]:.0f} tokens/s without, {rounds[-1][1]:.0f} with", flush=True)
    ratios = sorted(with_them / without for without, with_them in rounds)
    print(f"{options.adapters} adapters of rank {options.rank} over {options.sequences} sequences: "
          f"{statistics.median(ratios):.2f} of the speed without ({ratios[0]:.2f} to {ratios[-1]:.2f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
