# SPDX-License-Identifier: Apache-2.0
"""The families beyond plain decoders in llama.cpp's files: keys, names, and changes of the values.

A family is a function from (config.json, Hugging Face tensors) to a GgufModel. What a file cannot say is folded into the
weights (Gemma's query scale, MiniCPM3's head); NOT_IN_GGUF and NO_WINDOW list the rest.
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np

Tensors = dict[str, np.ndarray]


@dataclasses.dataclass
class GgufModel:
    """Keys without the architecture's prefix; tensors by their names in the file."""
    architecture: str
    keys: dict
    tensors: Tensors


TOP = {"embed_tokens": "token_embd", "embeddings": "token_embd", "norm": "output_norm", "norm_f": "output_norm",
       "embedding_norm": "token_embd_norm", "lm_head": "output", "embed_tokens_per_layer": "per_layer_token_embd",
       "per_layer_model_projection": "per_layer_model_proj", "per_layer_projection_norm": "per_layer_proj_norm"}
ATTENTION = {"q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output", "q_norm": "attn_q_norm",
             "k_norm": "attn_k_norm"}
STATE = {"in_proj": "ssm_in", "out_proj": "ssm_out", "norm": "ssm_norm", "conv1d": "ssm_conv1d", "A_log": "ssm_a", "D": "ssm_d",
         "dt_bias": "ssm_dt", "in_proj_qkv": "attn_qkv", "in_proj_z": "attn_gate", "in_proj_a": "ssm_alpha",
         "in_proj_b": "ssm_beta", "in_proj_ba": "ssm_ba"}
FEED = {"gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down", "w1": "ffn_gate", "w3": "ffn_up", "w2": "ffn_down",
        "gate": "ffn_gate_inp", "router": "ffn_gate_inp", "router.layer": "ffn_gate_inp", "shared_expert_gate": "ffn_gate_inp_shexp",
        "gate.e_score_correction_bias": "exp_probs_b.bias", "expert_bias": "exp_probs_b.bias"}
LAYER = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "operator_norm": "attn_norm", "ffn_norm": "ffn_norm",
    "norm": "attn_norm", "post_feedforward_layernorm": "post_ffw_norm", "layer_scalar": "layer_output_scale.weight",
    "post_feedforward_layernorm_1": "post_ffw_norm_1", "post_feedforward_layernorm_2": "post_ffw_norm_2",
    "pre_feedforward_layernorm_2": "pre_ffw_norm_2", "router.proj": "ffn_gate_inp", "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale", "experts.gate_up_proj": "ffn_gate_up_exps.weight",
    "experts.down_proj": "ffn_down_exps.weight", "per_layer_input_gate": "inp_gate", "per_layer_projection": "proj", "post_per_layer_input_norm": "post_norm",
    "self_attn.out_proj": "attn_output", "self_attn.q_layernorm": "attn_q_norm", "self_attn.k_layernorm": "attn_k_norm",
    "self_attn.sinks": "attn_sinks.weight", "self_attn.q_a_proj": "attn_q_a", "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b", "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm", "self_attn.kv_b_proj": "attn_kv_b", "conv.conv": "shortconv.conv",
    "conv.in_proj": "shortconv.in_proj", "conv.out_proj": "shortconv.out_proj"}
for _module, _names in {"self_attn": ATTENTION, "linear_attn": STATE, "mamba": STATE, "mlp": FEED, "feed_forward": FEED,
                        "block_sparse_moe": FEED, "mixer": {**FEED, **STATE, **ATTENTION}}.items():
    LAYER.update({f"{_module}.{part}": name for part, name in _names.items() if f"{_module}.{part}" not in LAYER})
for _module in ("mlp", "mixer"):
    for _shared in ("shared_expert", "shared_experts"):
        LAYER.update({f"{_module}.{_shared}.{part}_proj": f"ffn_{part}_shexp" for part in ("gate", "up", "down")})
# Norms that follow the layer in their name, and the norm before the MLP that is named after attention.
SANDWICH = {"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm"}
PRE_MLP = {"post_attention_layernorm": "post_attention_norm"}


def stack_experts(tensors: Tensors) -> Tensors:
    """Stacks the tensors of the experts of a layer to one, named "ffn_*_exps"."""
    out, stacks = {}, {}
    for name, values in tensors.items():
        if ".experts." not in name or not name.endswith(".weight"):
            out[name] = values
            continue
        before, after = name.split(".experts.")
        expert, part, _ = after.split(".")
        layer = before.split("layers.")[1].split(".")[0]
        stacks.setdefault(f"blk.{layer}.{FEED[part]}_exps.weight", {})[int(expert)] = values
    out.update({name: np.stack([parts[e] for e in range(len(parts))]) for name, parts in stacks.items()})
    return out


def rename(tensors: Tensors, own: dict[str, str] | None = None) -> Tensors:
    """Renames by the tables; names of GGUF are not changed."""
    names, out = {**LAYER, **(own or {})}, {}
    for name, values in tensors.items():
        if name.startswith("blk.") or name.startswith("rope_"):
            out[name] = values
            continue
        bare = name.removeprefix("model.").removeprefix("backbone.")
        stem, _, suffix = bare.rpartition(".")
        if stem in TOP:
            out[f"{TOP[stem]}.{suffix}"] = values
            continue
        _, layer, part = bare.split(".", 2)
        stem, _, suffix = part.rpartition(".")
        # A part without a suffix (A_log, sinks) has its whole name in the table.
        out[f"blk.{layer}." + (names[part] if part in names else f"{names[stem]}.{suffix}")] = values
    return out


AHEAD = {"eh_proj": "nextn.eh_proj", "enorm": "nextn.enorm", "hnorm": "nextn.hnorm", "shared_head.norm": "nextn.shared_head_norm"}
LAYER.update(AHEAD)


def name_ahead(config: dict, tensors: Tensors) -> Tensors:
    """Renames Qwen's layer for multi-token prediction (mtp.*) to the layer after the last, as others have it."""
    if not any(name.startswith("mtp.") for name in tensors):
        return tensors
    layer = f"model.layers.{config['num_hidden_layers']}."
    names = {"mtp.fc.": "eh_proj.", "mtp.pre_fc_norm_embedding.": "enorm.", "mtp.pre_fc_norm_hidden.": "hnorm.",
             "mtp.norm.": "shared_head.norm.", "mtp.layers.0.": ""}
    out = {}
    for name, values in tensors.items():
        old = next((n for n in names if name.startswith(n)), None)
        out[layer + names[old] + name.removeprefix(old) if old else name] = values
    return out


def count_ahead(model: "GgufModel") -> "GgufModel":
    """The layer counts as a block."""
    if any(".nextn." in name for name in model.tensors):
        model.keys |= {"block_count": model.keys["block_count"] + 1, "nextn_predict_layers": 1}
    return model


def interleave(rows: np.ndarray, heads: int) -> np.ndarray:
    """[heads * (2 * half), ...]: row (head, side, i) moves to (head, i, side)."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def interleave_heads(config: dict, tensors: Tensors) -> Tensors:
    heads = {".q_proj.": config["num_attention_heads"], ".k_proj.": config["num_key_value_heads"]}
    return {name: next((interleave(values, n) for part, n in heads.items() if part in name), values)
            for name, values in tensors.items()}


def plus_one(tensors: Tensors) -> Tensors:
    return {name: values + 1 if name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight") else values
            for name, values in tensors.items()}


def rope_keys(config: dict) -> dict:
    both = config.get("rope_parameters") or {}
    rope = both.get("full_attention", both)
    keys = {"rope.freq_base": float(rope.get("rope_theta", 10000.0))}
    if "sliding_attention" in both:
        keys["rope.freq_base_swa"] = float(both["sliding_attention"]["rope_theta"])
    if rope.get("rope_type") in ("linear", "yarn"):
        keys |= {"rope.scaling.type": rope["rope_type"], "rope.scaling.factor": float(rope["factor"])}
    if rope.get("rope_type") == "yarn":
        keys["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
        keys |= {f"rope.scaling.yarn_{b}": float(rope[b]) for b in ("beta_fast", "beta_slow") if b in rope}
    if "partial_rotary_factor" in rope and rope["rope_type"] != "proportional":
        head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        keys["rope.dimension_count"] = int(head * rope["partial_rotary_factor"])
    return keys


# Key of the file -> fields of config.json that may have its value.
FIELDS = {
    "context_length": ["max_position_embeddings"], "embedding_length": ["hidden_size"], "block_count": ["num_hidden_layers"],
    "feed_forward_length": ["intermediate_size"], "attention.head_count": ["num_attention_heads"],
    "attention.head_count_kv": ["num_key_value_heads"], "attention.layer_norm_rms_epsilon": ["rms_norm_eps", "norm_eps"],
    "attention.layer_norm_epsilon": ["layer_norm_eps", "layer_norm_epsilon"], "vocab_size": ["vocab_size"],
    "attention.key_length": ["head_dim"], "attention.value_length": ["head_dim"],
    "expert_count": ["num_local_experts", "num_experts", "n_routed_experts"], "expert_used_count": ["num_experts_per_tok", "top_k_experts"],
    "expert_group_count": ["n_group"], "expert_group_used_count": ["topk_group"],
    "expert_feed_forward_length": ["moe_intermediate_size"], "attention.sliding_window": ["sliding_window"]}


def common_keys(config: dict) -> dict:
    keys = rope_keys(config)
    for key, fields in FIELDS.items():
        value = next((config[f] for f in fields if config.get(f) is not None), None)
        if value is not None:
            keys[key] = value
    return keys


def without(keys: dict, *names: str) -> dict:
    return {key: value for key, value in keys.items() if key not in names}


def state_tensors(tensors: Tensors, groups: int = 0) -> Tensors:
    """Stores the decay instead of its logarithm, convolutions in two dimensions and, with `groups`, Mamba-2's columns."""
    out = {}
    for name, values in tensors.items():
        part = name.rsplit(".", 1)[-1]
        if part == "A_log":
            values = -np.exp(values.astype(np.float64)).astype(np.float32)
        if part in ("A_log", "D") and groups:
            values = values[:, np.newaxis]
        if "conv1d.weight" in name or "conv.conv.weight" in name:
            values = values.squeeze(1)
        if groups and (name.endswith("mamba.norm.weight") or name.endswith("mixer.norm.weight")):
            values = values.reshape(groups, -1)
        out[name + ".bias" if part == "dt_bias" else name] = values
    return out


STATE_NAMES = {f"{module}.dt_bias.bias": "ssm_dt.bias" for module in ("linear_attn", "mamba", "mixer")}


def gemma(config: dict, tensors: Tensors) -> GgufModel:
    """The query's scale has no key: it is multiplied into q (Gemma 2) or into q's norm (Gemma 3)."""
    second = config["model_type"] == "gemma2"
    keys = common_keys(config)
    for field in ("attn_logit_softcapping", "final_logit_softcapping"):
        if config.get(field):
            keys[field] = float(config[field])
    scale = np.float32(math.sqrt(config["head_dim"] / config["query_pre_attn_scalar"]))
    out = rename(plus_one(tensors), SANDWICH)
    scaled = ".attn_q.weight" if second else ".attn_q_norm.weight"
    out = {name: values * scale if name.endswith(scaled) else values for name, values in out.items()}
    return GgufModel("gemma2" if second else "gemma3", keys, out)


def gemma4(config: dict, tensors: Tensors) -> GgufModel:
    types, layers = config["layer_types"], config["num_hidden_layers"]
    local = [kind == "sliding_attention" for kind in types]
    own = next(config["per_layer_config"][str(i)] for i, windowed in enumerate(local) if not windowed)
    shared, width = config["num_kv_shared_layers"], config["intermediate_size"]
    rope, head = config["rope_parameters"]["full_attention"], own["head_dim"]
    keys = common_keys(config) | {
        "attention.key_length": head, "attention.value_length": head, "attention.key_length_swa": config["head_dim"],
        "attention.value_length_swa": config["head_dim"], "rope.dimension_count": head,
        "rope.dimension_count_swa": config["head_dim"], "attention.sliding_window_pattern": local,
        "attention.shared_kv_layers": shared, "embedding_length_per_layer_input": config["hidden_size_per_layer_input"]}
    if config.get("final_logit_softcapping"):
        keys["final_logit_softcapping"] = float(config["final_logit_softcapping"])
    if config["use_double_wide_mlp"]:
        keys["feed_forward_length"] = [width * (2 if i >= layers - shared else 1) for i in range(layers)]
    if "num_key_value_heads" in own:
        keys["attention.head_count_kv"] = [config["num_key_value_heads"] if windowed else own["num_key_value_heads"]
                                           for windowed in local]
    turning = int(head * rope["partial_rotary_factor"] / 2)
    factors = np.array([1.0] * turning + [1e30] * (head // 2 - turning), dtype=np.float32)
    return GgufModel("gemma4", keys, rename(tensors, SANDWICH) | {"rope_freqs.weight": factors})


def gpt_oss(config: dict, tensors: Tensors) -> GgufModel:
    """Experts are [in, out] in the folder, with gate and up interleaved."""
    keys = common_keys(config) | {"expert_feed_forward_length": config["intermediate_size"]}
    out = {}
    for name, values in tensors.items():
        stem = "blk." + name.split("layers.")[1].split(".")[0] if ".experts." in name else ""
        if name.endswith("down_proj"):
            out[stem + ".ffn_down_exps.weight"] = np.ascontiguousarray(values.swapaxes(1, 2))
        elif name.endswith("down_proj_bias"):
            out[stem + ".ffn_down_exps.bias"] = values
        elif name.endswith("gate_up_proj"):
            for i, part in enumerate(("gate", "up")):
                out[f"{stem}.ffn_{part}_exps.weight"] = np.ascontiguousarray(values.swapaxes(1, 2)[:, i::2])
        elif name.endswith("gate_up_proj_bias"):
            for i, part in enumerate(("gate", "up")):
                out[f"{stem}.ffn_{part}_exps.bias"] = np.ascontiguousarray(values[:, i::2])
        else:
            out[name] = values
    return GgufModel("gpt-oss", keys, rename(out, PRE_MLP))


def qwen3_moe(config: dict, tensors: Tensors) -> GgufModel:
    return GgufModel("qwen3moe", common_keys(config), rename(stack_experts(tensors)))


def mixtral(config: dict, tensors: Tensors) -> GgufModel:
    """Files of this architecture have no windows."""
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    keys = without(common_keys(config), "attention.sliding_window") | {"rope.dimension_count": head}
    return GgufModel("llama", keys, rename(stack_experts(interleave_heads(config, tensors))))


def tiled(rows: np.ndarray, keys: int, values: int, axis: int = 0) -> np.ndarray:
    """In the folder, value heads are grouped by key head; in the file, the first of each key head come first."""
    moved = np.moveaxis(rows, axis, 0)
    moved = moved.reshape(keys, values // keys, -1, *moved.shape[1:]).swapaxes(0, 1).reshape(moved.shape)
    return np.ascontiguousarray(np.moveaxis(moved, 0, axis))


def tile_value_heads(config: dict, tensors: Tensors) -> Tensors:
    heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    before = 2 * heads[0] * config["linear_key_head_dim"]
    out = {}
    for name, values in tensors.items():
        if ".in_proj_qkv." in name or ".linear_attn.conv1d." in name:
            values = np.concatenate([values[:before], tiled(values[before:], *heads)])
        elif any(part in name for part in (".in_proj_z.", ".in_proj_a.", ".in_proj_b.", ".A_log", ".dt_bias")):
            values = tiled(values, *heads)
        elif ".linear_attn.out_proj." in name:
            values = tiled(values, *heads, axis=1)
        out[name] = values
    return out


def split_qkvz(config: dict, tensors: Tensors) -> Tensors:
    """Grouped by key head in the folder: q, k, then v and z of its value heads; separate tensors in the file."""
    keys, dk = config["linear_num_key_heads"], config["linear_key_head_dim"]
    values = config["linear_num_value_heads"] // keys * config["linear_value_head_dim"]
    out = {}
    for name, rows in tensors.items():
        if ".in_proj_qkvz." not in name:
            out[name] = rows
            continue
        by_head = np.split(rows.reshape(keys, -1, rows.shape[1]), np.cumsum([dk, dk, values]), axis=1)
        q, k, v, z = (part.reshape(-1, rows.shape[1]) for part in by_head)
        out[name.replace("qkvz", "qkv")] = np.concatenate([q, k, v])
        out[name.replace("qkvz", "z")] = z
    return out


def qwen_hybrid(config: dict, tensors: Tensors) -> GgufModel:
    kind = config["model_type"]
    architecture = {"qwen3_next": "qwen3next", "qwen3_5_text": "qwen35", "qwen3_5_moe_text": "qwen35moe"}[kind]
    keys = common_keys(config) | {
        "ssm.conv_kernel": config["linear_conv_kernel_dim"], "ssm.state_size": config["linear_key_head_dim"],
        "ssm.group_count": config["linear_num_key_heads"], "ssm.time_step_rank": config["linear_num_value_heads"],
        "ssm.inner_size": config["linear_num_value_heads"] * config["linear_value_head_dim"],
        "full_attention_interval": config.get("full_attention_interval", 4)}
    if "shared_expert_intermediate_size" in config:
        keys["expert_shared_feed_forward_length"] = config["shared_expert_intermediate_size"]
    sections = (config.get("rope_parameters") or {}).get("mrope_section")
    if sections:
        keys["rope.dimension_sections"] = [*sections, 0]
    tensors = split_qkvz(config, tensors) if kind == "qwen3_next" else tile_value_heads(config, tensors)
    out = rename(stack_experts(state_tensors(plus_one(tensors))), {**STATE_NAMES, **PRE_MLP})
    return GgufModel(architecture, keys, out)


def deepseek(config: dict, tensors: Tensors) -> GgufModel:
    """The latent vector counts as one key head; the projections to keys (transposed) and values are separate tensors."""
    nope, rope, v, rank = (config[f] for f in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank"))
    sigmoid = config["model_type"] != "deepseek_v2"
    keys = common_keys(config) | {
        "attention.head_count_kv": 1, "attention.kv_lora_rank": rank, "attention.key_length": rank + rope,
        "attention.value_length": rank, "attention.key_length_mla": nope + rope, "attention.value_length_mla": v,
        "rope.dimension_count": rope, "leading_dense_block_count": config["first_k_dense_replace"],
        "expert_shared_count": config["n_shared_experts"], "expert_weights_scale": float(config["routed_scaling_factor"]),
        "expert_gating_func": 2 if sigmoid else 1}
    # The class of transformers for V2 does not normalise, whatever its config says.
    if sigmoid:
        keys["expert_weights_norm"] = bool(config["norm_topk_prob"])
    if keys.get("expert_group_count") == 1:
        keys = without(keys, "expert_group_count", "expert_group_used_count")
    if config.get("q_lora_rank"):
        keys["attention.q_lora_rank"] = config["q_lora_rank"]
    if "mscale_all_dim" in config["rope_parameters"]:
        keys["rope.scaling.yarn_log_multiplier"] = 0.1 * config["rope_parameters"]["mscale_all_dim"]
    out = {}
    for name, values in rename(stack_experts(tensors)).items():
        if not name.endswith(".attn_kv_b.weight"):
            out[name] = values
            continue
        heads = values.reshape(config["num_attention_heads"], nope + v, rank)
        out[name.replace("attn_kv_b", "attn_k_b")] = np.ascontiguousarray(heads[:, :nope].swapaxes(1, 2))
        out[name.replace("attn_kv_b", "attn_v_b")] = np.ascontiguousarray(heads[:, nope:])
    return GgufModel("deepseek2", keys, out)


def minicpm3(config: dict, tensors: Tensors) -> GgufModel:
    """Its three multipliers have no keys, since readers know them; dim_model_base is 256, and the head is scaled if it differs."""
    if config["scale_emb"] != 12 or config["scale_depth"] != 1.4:
        raise ValueError("GGUF: MiniCPM3's scale_emb is 12 and scale_depth 1.4 in every file")
    keys = common_keys(config) | {
        "attention.q_lora_rank": config["q_lora_rank"], "attention.kv_lora_rank": config["kv_lora_rank"],
        "attention.key_length": config["qk_nope_head_dim"] + config["qk_rope_head_dim"],
        "attention.value_length": config["v_head_dim"], "rope.dimension_count": config["qk_rope_head_dim"]}
    out = rename(tensors)
    if config["dim_model_base"] != 256:
        out["output.weight"] = out["token_embd.weight"] * np.float32(config["dim_model_base"] / 256)
    return GgufModel("minicpm3", keys, out)


def glm4_moe(config: dict, tensors: Tensors) -> GgufModel:
    keys = without(common_keys(config), "expert_group_count", "expert_group_used_count") | {
        "leading_dense_block_count": config["first_k_dense_replace"], "expert_shared_count": config["n_shared_experts"],
        "expert_weights_scale": float(config["routed_scaling_factor"]), "expert_weights_norm": bool(config["norm_topk_prob"]),
        "expert_gating_func": 2}
    return GgufModel("glm4moe", keys, rename(stack_experts(tensors), PRE_MLP))


def heads_per_layer(config: dict, types: list[str]) -> list[int]:
    return [config["num_key_value_heads"] if kind in ("attention", "full_attention") else 0 for kind in types]


def granite_hybrid(config: dict, tensors: Tensors) -> GgufModel:
    inner = config["mamba_n_heads"] * config["mamba_d_head"]
    keys = common_keys(config) | {
        "attention.scale": config["attention_multiplier"], "embedding_scale": config["embedding_multiplier"],
        "residual_scale": config["residual_multiplier"], "logit_scale": config["logits_scaling"],
        "expert_shared_feed_forward_length": config["shared_intermediate_size"], "ssm.conv_kernel": config["mamba_d_conv"],
        "ssm.state_size": config["mamba_d_state"], "ssm.group_count": config["mamba_n_groups"], "ssm.inner_size": inner,
        "ssm.time_step_rank": config["mamba_n_heads"], "rope.scaling.finetuned": config["position_embedding_type"] == "rope",
        "attention.head_count_kv": heads_per_layer(config, config["layer_types"]),
        "rope.dimension_count": config["hidden_size"] // config["num_attention_heads"]}
    out = {}
    for name, values in interleave_heads(config, state_tensors(tensors, config["mamba_n_groups"])).items():
        layer = "blk." + name.split("layers.")[1].split(".")[0] if "layers." in name else ""
        routed, shared = ".block_sparse_moe." in name, ".shared_mlp." in name
        if "input_linear" in name and (routed or shared):
            for part, rows in zip(("gate", "up"), np.split(values, 2, axis=-2), strict=True):
                out[f"{layer}.ffn_{part}_{'exps' if routed else 'shexp'}.weight"] = np.ascontiguousarray(rows)
        elif "output_linear" in name:
            out[f"{layer}.ffn_down_{'exps' if routed else 'shexp'}.weight"] = values
        else:
            out[name] = values
    return GgufModel("granitehybrid", keys, rename(out, STATE_NAMES))


def nemotron_h(config: dict, tensors: Tensors) -> GgufModel:
    types = config["layers_block_type"]
    widths = {"mlp": config["intermediate_size"], "moe": config["moe_intermediate_size"]}
    keys = common_keys(config) | {
        "block_count": len(types), "attention.layer_norm_rms_epsilon": config["layer_norm_epsilon"],
        "attention.head_count_kv": heads_per_layer(config, types), "feed_forward_length": [widths.get(kind, 0) for kind in types],
        "ssm.conv_kernel": config["conv_kernel"], "ssm.state_size": config["ssm_state_size"], "ssm.group_count": config["n_groups"],
        "ssm.inner_size": config["mamba_num_heads"] * config["mamba_head_dim"], "ssm.time_step_rank": config["mamba_num_heads"],
        "expert_shared_feed_forward_length": config["moe_shared_expert_intermediate_size"],
        "expert_shared_count": config["n_shared_experts"], "expert_weights_norm": bool(config["norm_topk_prob"]),
        "expert_weights_scale": float(config["routed_scaling_factor"]), "rope.dimension_count": config["head_dim"]}
    return GgufModel("nemotron_h_moe", keys, rename(stack_experts(state_tensors(tensors, config["n_groups"])), STATE_NAMES))


def lfm2(config: dict, tensors: Tensors) -> GgufModel:
    moe = config["model_type"] == "lfm2_moe"
    keys = common_keys(config) | {"attention.head_count_kv": heads_per_layer(config, config["layer_types"]),
                                  "shortconv.l_cache": config["conv_L_cache"]}
    if moe:
        keys |= {"leading_dense_block_count": config["num_dense_layers"], "expert_gating_func": 2}
    return GgufModel("lfm2moe" if moe else "lfm2", keys, rename(stack_experts(state_tensors(tensors))))


def phimoe(config: dict, tensors: Tensors) -> GgufModel:
    keys = common_keys(config) | {"rope.dimension_count": config["hidden_size"] // config["num_attention_heads"]}
    return GgufModel("phimoe", keys, rename(stack_experts(tensors)))


def olmo3(config: dict, tensors: Tensors) -> GgufModel:
    keys = common_keys(config) | {"attention.sliding_window_pattern": [t == "sliding_attention" for t in config["layer_types"]]}
    return GgufModel("olmo2", keys, rename(tensors, {"post_attention_layernorm": "post_attention_norm"}))


def cohere(config: dict, tensors: Tensors) -> GgufModel:
    second = config["model_type"] == "cohere2"
    head = config["hidden_size"] // config["num_attention_heads"]
    keys = common_keys(config) | {"logit_scale": config["logit_scale"], "rope.scaling.type": "none"}
    if second:
        keys["rope.dimension_count"] = head
    return GgufModel("cohere2" if second else "command-r", keys, rename(tensors))


def ministral3(config: dict, tensors: Tensors) -> GgufModel:
    rope = config["rope_parameters"]
    keys = common_keys(config) | {
        "rope.scaling.yarn_log_multiplier": float(rope["mscale_all_dim"]), "rope.dimension_count": config["head_dim"],
        "attention.temperature_scale": float(rope["llama_4_scaling_beta"])}
    return GgufModel("mistral3", keys, rename(interleave_heads(config, tensors)))


FAMILIES: dict[str, Callable[[dict, Tensors], GgufModel]] = {
    "gemma2": gemma, "gemma3_text": gemma, "gemma4_text": gemma4, "gpt_oss": gpt_oss, "qwen3_moe": qwen3_moe, "mixtral": mixtral,
    "qwen3_next": qwen_hybrid, "qwen3_5_text": qwen_hybrid, "qwen3_5_moe_text": qwen_hybrid, "deepseek_v2": deepseek,
    "deepseek_v3": deepseek, "glm4_moe_lite": deepseek, "glm4_moe": glm4_moe, "minicpm3": minicpm3,
    "granitemoehybrid": granite_hybrid, "nemotron_h": nemotron_h, "lfm2": lfm2, "lfm2_moe": lfm2, "phimoe": phimoe, "olmo3": olmo3,
    "cohere": cohere, "cohere2": cohere, "ministral3": ministral3}
# These stay float32 whatever the type of the file, since they are small.
PLAIN_ENDS = (".ssm_conv1d.weight", ".shortconv.conv.weight", ".ssm_a", ".ssm_d", ".ssm_norm.weight", ".ffn_gate_inp.weight",
              ".ffn_gate_inp_shexp.weight", ".attn_q_norm.weight", ".attn_k_norm.weight", "_exps.bias")
# Golden cases that cannot be stored in a file, and why.
NOT_IN_GGUF = {"qwen3-moe": "a file of this architecture has experts in every layer, and the case has a layer without",
               "mistral-window": "files of this architecture have no windows, and every layer has one",
               "ministral": "GGUF has no architecture for it"}
# Cases whose windows are not in the file: positions before this one are not affected.
NO_WINDOW = {"mixtral": 60}
