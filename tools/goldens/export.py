# SPDX-License-Identifier: Apache-2.0
"""Writes a golden case (or any config.json of the families that shapes.py knows) with its Philox weights as a model on disk.

Usage: python -m tools.goldens.export --case llama --out DIR                      model.safetensors, config.json, tokenizer
       python -m tools.goldens.export --case llama --out DIR --type BF16 --shards 3
       python -m tools.goldens.export --case llama --out FILE.gguf --type Q4_0
       python -m tools.goldens.export --config config.json --seed 7 --out DIR

Needs numpy, and for GGUF the gguf package; no torch.
"""

import argparse
import json
import pathlib
import sys

from tools.goldens import philox, safetensors_file, shapes, tiny_tokenizer
from tools.goldens.cases import CASES

GOLDENS = pathlib.Path(__file__).resolve().parents[2] / "tests" / "goldens"


def default_length(config: dict) -> int:
    """The default context of a model: the extended length of its config; for longrope the original length."""
    if config["model_type"] not in shapes.FAMILIES:
        return config["max_position_embeddings"]
    d = shapes.read_dims(config)
    kind = d.rope["rope_type"]
    if kind == "longrope":
        return d.rope["original_max_position_embeddings"]
    if kind == "yarn":
        return int(d.rope["original_max_position_embeddings"] * d.rope["factor"])
    return int(d.max_position * d.rope["factor"]) if kind in ("linear", "dynamic") else d.max_position


def make_tensors(path: pathlib.Path, config: dict, seed: int) -> dict:
    """From the list beside the config if there is one, else from shapes.py."""
    listed = path.parent / "tensors.json"
    found = json.loads(listed.read_text()) if listed.exists() else shapes.tensor_shapes(config)
    ahead = path.parent / "ahead.json"  # with a layer for multi-token prediction
    if ahead.exists():
        found |= json.loads(ahead.read_text())["tensors"]
    return {name: philox.tensor(name, tuple(shape), seed) for name, shape in found.items()}


def write_folder(folder: pathlib.Path, config: dict, tensors: dict, dtype: str, shards: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    torch_name = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}.get(dtype)
    if torch_name is None:
        raise ValueError(f"the type of a safetensors folder is one of {', '.join(safetensors_file.DTYPES)}, not {dtype}")
    config = {**config, "torch_dtype" if "torch_dtype" in config else "dtype": torch_name}
    files = {"config.json": config, "tokenizer.json": tiny_tokenizer.tokenizer_json(config["vocab_size"]),
             "tokenizer_config.json": tiny_tokenizer.tokenizer_config(),
             "generation_config.json": {"bos_token_id": tiny_tokenizer.BOS, "eos_token_id": tiny_tokenizer.EOS}}
    for name, value in files.items():
        (folder / name).write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    safetensors_file.write_folder(folder, tensors, dtype, shards)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--case", choices=[c.name for c in CASES], metavar="NAME",
                        help="one of " + ", ".join(c.name for c in CASES))
    source.add_argument("--config", type=pathlib.Path, help="a config.json")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="a folder, or a file that ends in .gguf")
    parser.add_argument("--type", default="F32", help="F32, F16, BF16; GGUF also Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K to Q6_K")
    parser.add_argument("--shards", type=int, default=1, help="number of .safetensors files, with an index")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-model-len", type=int, help="the length that fixes dynamic RoPE's base in a GGUF")
    options = parser.parse_args(arguments)
    path = options.config or GOLDENS / options.case / "config.json"
    config = json.loads(path.read_text())
    tensors = make_tensors(path, config, options.seed)
    if options.out.suffix == ".gguf":
        from tools.goldens import gguf_file  # only here, so that safetensors need no gguf package
        options.out.parent.mkdir(parents=True, exist_ok=True)
        length = options.max_model_len or default_length(config)
        gguf_file.write_model(options.out, config, tensors, options.type, length)
    else:
        write_folder(options.out, config, tensors, options.type, options.shards)
    return 0


if __name__ == "__main__":
    sys.exit(main())
