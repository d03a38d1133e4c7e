# SPDX-License-Identifier: Apache-2.0
"""Writes a model as GGUF like llama.cpp's converter: architecture keys, tensor names, q/k row order.

Which families store q and k interleaved, what keys each has and which tensors carry RoPE's factors are facts of the
format; `verify_gguf.py` holds every file to llama.cpp itself.
"""

import math
import pathlib

import gguf
import numpy as np

from tools.goldens import gguf_families, kquants, shapes, tiny_tokenizer

# Listed here and not taken from the gguf package, whose older versions lack some, so that any version works.
ARCHITECTURES = {"llama": "llama", "mistral": "llama", "smollm3": "smollm3", "qwen2": "qwen2", "qwen3": "qwen3",
                 "phi3": "phi3", "glm": "chatglm", "glm4": "glm4", "granite": "granite", "olmo2": "olmo2"}
TOP_NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
LAYER_NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.qkv_proj": "attn_qkv", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.gate_up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "post_self_attn_layernorm": "post_attention_norm",
    "post_mlp_layernorm": "post_ffw_norm", "post_feedforward_layernorm": "post_ffw_norm"}
# These rotate neighbouring pairs in llama.cpp, so the two halves of each head of q and k are interleaved in the file.
INTERLEAVED = ("llama", "mistral", "smollm3", "granite")
TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", *kquants.PACKERS)


def gguf_name(hf_name: str, family: str) -> str:
    stem, suffix = hf_name.rsplit(".", 1)
    if stem in TOP_NAMES:
        return f"{TOP_NAMES[stem]}.{suffix}"
    _, _, layer, part = stem.split(".", 3)
    # OLMo-2 normalises the output of attention, the others the input of the MLP; Hugging Face uses one name for both.
    name = "post_attention_norm" if family == "olmo2" and part == "post_attention_layernorm" else LAYER_NAMES[part]
    return f"blk.{layer}.{name}.{suffix}"


def quantize(values: np.ndarray, name: str) -> np.ndarray:
    if name in kquants.PACKERS:
        return kquants.quantize(values, name)
    return gguf.quants.quantize(values, gguf.GGMLQuantizationType[name])


def dynamic_base(d: shapes.Dims, max_model_len: int) -> float:
    """NTK scaling at one length; GGUF has no key for it, so a file has the resulting base."""
    length, factor, width = max(max_model_len, d.max_position), d.rope["factor"], d.rotary_dim
    return d.rope["rope_theta"] * (factor * length / d.max_position - (factor - 1)) ** (width / (width - 2))


def llama3_factors(d: shapes.Dims) -> np.ndarray:
    """The divisor of each frequency, as in the tensor rope_freqs.weight."""
    r = d.rope
    inv_freq = 1.0 / r["rope_theta"] ** (np.arange(0, d.head_dim, 2, dtype=np.float64) / d.head_dim)
    waves = 2 * math.pi / inv_freq
    original = r["original_max_position_embeddings"]
    smooth = (original / waves - r["low_freq_factor"]) / (r["high_freq_factor"] - r["low_freq_factor"])
    between = 1 / ((1 - smooth) / r["factor"] + smooth)
    out = np.where(waves < original / r["high_freq_factor"], 1.0,
                   np.where(waves > original / r["low_freq_factor"], r["factor"], between))
    return out.astype(np.float32)


def add_rope(writer: gguf.GGUFWriter, d: shapes.Dims, max_model_len: int) -> dict[str, np.ndarray]:
    """Writes the keys and returns the extra tensors."""
    kind, extra = d.rope["rope_type"], {}
    writer.add_rope_freq_base(dynamic_base(d, max_model_len) if kind == "dynamic" else d.rope["rope_theta"])
    if d.family not in ("qwen2", "qwen3", "olmo2"):
        writer.add_rope_dimension_count(d.rotary_dim)
    if kind == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(d.rope["factor"])
    elif kind == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(d.rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(d.rope["original_max_position_embeddings"])
        for name in ("beta_fast", "beta_slow"):
            if name in d.rope:
                writer.add_float32(f"{ARCHITECTURES[d.family]}.rope.scaling.yarn_{name}", d.rope[name])
    elif kind == "llama3":
        extra["rope_freqs.weight"] = llama3_factors(d)
    elif kind == "longrope":
        original = d.rope["original_max_position_embeddings"]
        scale = d.max_position / original
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(scale) / math.log(original)) if scale > 1 else 1.0)
        extra["rope_factors_long.weight"] = np.array(d.rope["long_factor"], dtype=np.float32)
        extra["rope_factors_short.weight"] = np.array(d.rope["short_factor"], dtype=np.float32)
    elif kind not in ("default", "dynamic"):
        raise ValueError(f"GGUF: rope type {kind!r} is not known here")
    return extra


def add_metadata(writer: gguf.GGUFWriter, config: dict, d: shapes.Dims, max_model_len: int) -> None:
    writer.add_type("model")
    # Not the case's name: llama.cpp searches it for "phi3" and then requires that model's special tokens.
    writer.add_name("Tiny random model")
    # Dynamic scaling is part of the base, so the file is a model with the longer context.
    writer.add_context_length(max(d.max_position, max_model_len) if d.rope["rope_type"] == "dynamic" else d.max_position)
    writer.add_embedding_length(d.hidden)
    writer.add_block_count(d.layers)
    writer.add_feed_forward_length(d.intermediate)
    writer.add_head_count(d.heads)
    writer.add_head_count_kv(d.kv_heads)
    writer.add_layer_norm_rms_eps(d.norm_eps)
    writer.add_vocab_size(d.vocab)
    if "head_dim" in config:
        writer.add_key_length(d.head_dim)
        writer.add_value_length(d.head_dim)
    if d.family == "phi3":  # zero means that the model has no window
        writer.add_sliding_window(config.get("sliding_window") or 0)
    if d.family == "granite":
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])


def add_tokenizer(writer: gguf.GGUFWriter, vocab: int) -> None:
    tokens = tiny_tokenizer.vocabulary(vocab)
    kinds = [gguf.TokenType.UNUSED if t.startswith("<|unused_") else
             gguf.TokenType.CONTROL if t.startswith("<|") else gguf.TokenType.NORMAL for t in tokens]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(tiny_tokenizer.usable_merges(vocab))
    writer.add_bos_token_id(tiny_tokenizer.BOS)
    writer.add_eos_token_id(tiny_tokenizer.EOS)
    writer.add_pad_token_id(tiny_tokenizer.EOS)
    writer.add_add_bos_token(False)
    writer.add_chat_template(tiny_tokenizer.CHAT_TEMPLATE)


def plain_model(config: dict, tensors: dict[str, np.ndarray], max_model_len: int, path: pathlib.Path) -> tuple:
    """The families that shapes.py knows: a writer with their keys, and their tensors by the names of the file."""
    d = shapes.read_dims(config)
    writer = gguf.GGUFWriter(path, ARCHITECTURES[d.family])
    add_metadata(writer, config, d, max_model_len)
    extra = add_rope(writer, d, max_model_len)
    out = {}
    for hf_name, values in tensors.items():
        if d.family in INTERLEAVED and ".q_proj." in hf_name:
            values = gguf_families.interleave(values, d.heads)
        if d.family in INTERLEAVED and ".k_proj." in hf_name:
            values = gguf_families.interleave(values, d.kv_heads)
        out[gguf_name(hf_name, d.family)] = values
    return writer, {**out, **extra}


def other_model(config: dict, tensors: dict[str, np.ndarray], path: pathlib.Path) -> tuple:
    """The same for a family of gguf_families.py."""
    tensors = gguf_families.name_ahead(config, tensors)
    model = gguf_families.count_ahead(gguf_families.FAMILIES[config["model_type"]](config, tensors))
    writer = gguf.GGUFWriter(path, model.architecture)
    writer.add_type("model")
    writer.add_name("Tiny random model")
    for key, value in model.keys.items():
        add = writer.add_array if isinstance(value, list) else writer.add_bool if isinstance(value, bool) else \
            writer.add_uint32 if isinstance(value, int) else writer.add_string if isinstance(value, str) else writer.add_float32
        add(f"{model.architecture}.{key}", value)
    return writer, model.tensors


def write_model(path: pathlib.Path, config: dict, tensors: dict[str, np.ndarray], dtype: str, max_model_len: int) -> None:
    """tensors: Hugging Face name -> float32. Matrices have the type `dtype`, vectors are float32."""
    if dtype not in TYPES:
        raise ValueError(f"GGUF: the type is one of {', '.join(TYPES)}, not {dtype}")
    other = config["model_type"] in gguf_families.FAMILIES
    writer, named = other_model(config, tensors, path) if other else plain_model(config, tensors, max_model_len, path)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32 if dtype == "F32" else next(
        t for t in gguf.LlamaFileType if t.name in (f"MOSTLY_{dtype}", f"MOSTLY_{dtype}_M", f"MOSTLY_{dtype}_S")))
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    add_tokenizer(writer, config["vocab_size"])
    for name, values in named.items():
        if values.ndim == 1 or name.endswith(gguf_families.PLAIN_ENDS):
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, quantize(values, dtype), raw_dtype=gguf.GGMLQuantizationType[dtype])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
