# SPDX-License-Identifier: Apache-2.0
"""Golden cases with small changes that llama.cpp needs, so that it and quire can be compared.

There is no reference for these: `verify_gguf.py --quire-logits` holds the two programs to each other.
"""

import json
import pathlib
from collections.abc import Callable

from tools.goldens import export, gguf_file, philox

Shapes = dict[str, list[int]]


def plain_rope(config: dict, shapes: Shapes) -> Shapes:
    """llama.cpp rounds the bounds of YaRN's ramp; GPT-OSS does not."""
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": 150000.0}
    return shapes


def one_group(config: dict, shapes: Shapes) -> Shapes:
    """llama.cpp normalises Mamba-2's groups separately, Granite all columns together."""
    config["mamba_n_groups"] = 1
    inner = config["mamba_n_heads"] * config["mamba_d_head"]
    channels = inner + 2 * config["mamba_d_state"]
    rows = {"mamba.conv1d": channels, "mamba.in_proj": inner + channels + config["mamba_n_heads"]}
    return {name: next(([n, *shape[1:]] for part, n in rows.items() if part in name), shape) for name, shape in shapes.items()}


def no_mlp(config: dict, shapes: Shapes) -> Shapes:
    """Experts instead of the MLP: llama.cpp supports only one of them in a model."""
    config["layers_block_type"] = [kind.replace("mlp", "moe") for kind in config["layers_block_type"]]
    config["n_group"] = config["topk_group"] = None
    kept = {name: shape for name, shape in shapes.items() if "layers.1.mixer" not in name}
    return kept | {name.replace("layers.3.", "layers.1."): shape for name, shape in kept.items() if "layers.3.mixer" in name}


def no_conv_bias(config: dict, shapes: Shapes) -> Shapes:
    config["conv_bias"] = False
    return {name: shape for name, shape in shapes.items() if not (".conv." in name and name.endswith(".bias"))}


def no_head_norms(config: dict, shapes: Shapes) -> Shapes:
    """llama.cpp reads them only in models with 64 layers or more."""
    config["use_qk_norm"] = False
    return {name: shape for name, shape in shapes.items() if "_norm.weight" not in name}


def softmax_scores(config: dict, shapes: Shapes) -> Shapes:
    """DeepSeek V2's router without groups, which llama.cpp scores as in V3."""
    config["model_type"] = "deepseek_v2"
    config["n_group"] = config["topk_group"] = None
    return {name: shape for name, shape in shapes.items() if "e_score" not in name}


def equal_head_sizes(config: dict, shapes: Shapes) -> Shapes:
    """llama.cpp supports only one size for keys and values of a gated delta net."""
    config["linear_value_head_dim"] = dim = config["linear_key_head_dim"]
    keys, values = config["linear_num_key_heads"] * dim, config["linear_num_value_heads"] * dim
    hidden = config["hidden_size"]
    own = {"conv1d": [2 * keys + values, 1, config["linear_conv_kernel_dim"]], "in_proj_qkvz": [2 * (keys + values), hidden],
           "in_proj_qkv.": [2 * keys + values, hidden], "in_proj_z": [values, hidden], "norm": [dim], "out_proj": [hidden, values]}
    return {name: next((size for part, size in own.items() if f"linear_attn.{part}" in name), shape)
            for name, shape in shapes.items()}


def all_experts(config: dict, shapes: Shapes) -> Shapes:
    config["mlp_only_layers"] = []
    kept = {name: shape for name, shape in shapes.items() if "layers.1.mlp" not in name}
    return kept | {name.replace("layers.0.", "layers.1."): shape for name, shape in kept.items() if "layers.0.mlp" in name}


# Name -> the case it starts from, and the change.
VARIANTS: dict[str, tuple[str, Callable[[dict, Shapes], Shapes]]] = {
    "gpt-oss": ("gpt-oss", plain_rope), "granite-hybrid": ("granite-hybrid", one_group), "nemotron-h": ("nemotron-h", no_mlp),
    "lfm2": ("lfm2", no_conv_bias), "cohere": ("cohere", no_head_norms), "deepseek-v2": ("deepseek-v3", softmax_scores),
    "qwen3-next": ("qwen3-next", equal_head_sizes), "qwen3.5": ("qwen3.5", equal_head_sizes),
    "qwen3.5-moe": ("qwen3.5-moe", equal_head_sizes), "qwen3-moe": ("qwen3-moe", all_experts)}


def write(name: str, path: pathlib.Path) -> None:
    case, change = VARIANTS[name]
    config = json.loads((export.GOLDENS / case / "config.json").read_text())
    shapes = change(config, json.loads((export.GOLDENS / case / "tensors.json").read_text()))
    tensors = {tensor: philox.tensor(tensor, tuple(shape), 0) for tensor, shape in shapes.items()}
    gguf_file.write_model(path, config, tensors, "F32", 1024)
