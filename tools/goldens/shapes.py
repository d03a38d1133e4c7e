# SPDX-License-Identifier: Apache-2.0
"""The names and shapes of a family's tensors in the Hugging Face layout, from its config.json."""

from dataclasses import dataclass

# The default of tie_word_embeddings in config.json.
_TIED_BY_DEFAULT = {"smollm3"}
FAMILIES = ("llama", "mistral", "smollm3", "qwen2", "qwen3", "phi3", "glm", "glm4", "granite", "olmo2")


@dataclass(frozen=True)
class Dims:
    """What the exporters need from a config, in either format."""
    family: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_position: int
    norm_eps: float
    tied: bool
    rope: dict  # always has rope_theta, rope_type, partial_rotary_factor

    @property
    def rotary_dim(self) -> int:
        return int(self.head_dim * self.rope["partial_rotary_factor"])


def read_rope(config: dict) -> dict:
    """Merges transformers 4's rope_theta, rope_scaling, partial_rotary_factor and 5's rope_parameters into one format."""
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    rope["rope_type"] = rope.get("rope_type", rope.pop("type", "default"))
    rope.setdefault("rope_theta", config.get("rope_theta", 10000.0))
    default_partial = 0.5 if config["model_type"] in ("glm", "glm4") else 1.0
    rope.setdefault("partial_rotary_factor", config.get("partial_rotary_factor", default_partial))
    if rope["rope_type"] in ("longrope", "yarn", "llama3"):
        rope.setdefault("original_max_position_embeddings",
                        config.get("original_max_position_embeddings", config["max_position_embeddings"]))
    return rope


def read_dims(config: dict) -> Dims:
    family = config["model_type"]
    if family not in FAMILIES:
        raise ValueError(f"config.json: model_type {family!r} is not one of {', '.join(FAMILIES)}")
    heads = config["num_attention_heads"]
    return Dims(family=family, hidden=config["hidden_size"], intermediate=config["intermediate_size"],
                layers=config["num_hidden_layers"], heads=heads, kv_heads=config.get("num_key_value_heads") or heads,
                head_dim=config.get("head_dim") or config["hidden_size"] // heads, vocab=config["vocab_size"],
                max_position=config["max_position_embeddings"], norm_eps=config["rms_norm_eps"],
                tied=config.get("tie_word_embeddings", family in _TIED_BY_DEFAULT), rope=read_rope(config))


def _layer(config: dict, d: Dims) -> dict[str, tuple[int, ...]]:
    q, kv, h, m = d.heads * d.head_dim, d.kv_heads * d.head_dim, d.hidden, d.intermediate
    out: dict[str, tuple[int, ...]] = {}
    if d.family == "phi3":
        out["self_attn.qkv_proj.weight"] = (q + 2 * kv, h)
    else:
        qkv_bias = d.family == "qwen2" or config.get("attention_bias", False)
        for name, rows in (("q", q), ("k", kv), ("v", kv)):
            out[f"self_attn.{name}_proj.weight"] = (rows, h)
            if qkv_bias:
                out[f"self_attn.{name}_proj.bias"] = (rows,)
    out["self_attn.o_proj.weight"] = (h, q)
    if config.get("attention_bias", False) and d.family in ("llama", "smollm3", "granite", "qwen3", "olmo2"):
        out["self_attn.o_proj.bias"] = (h,)
    if d.family == "qwen3":
        out["self_attn.q_norm.weight"] = out["self_attn.k_norm.weight"] = (d.head_dim,)
    if d.family == "olmo2":
        out["self_attn.q_norm.weight"], out["self_attn.k_norm.weight"] = (q,), (kv,)
    if d.family in ("phi3", "glm", "glm4"):
        out["mlp.gate_up_proj.weight"] = (2 * m, h)
    else:
        out["mlp.gate_proj.weight"] = out["mlp.up_proj.weight"] = (m, h)
    out["mlp.down_proj.weight"] = (h, m)
    if config.get("mlp_bias", False):
        out["mlp.gate_proj.bias"] = out["mlp.up_proj.bias"] = (m,)
        out["mlp.down_proj.bias"] = (h,)
    if d.family == "olmo2":
        norms = ["post_attention_layernorm", "post_feedforward_layernorm"]
    else:
        norms = ["input_layernorm", "post_attention_layernorm"]
    if d.family == "glm4":
        norms += ["post_self_attn_layernorm", "post_mlp_layernorm"]
    for norm in norms:
        out[f"{norm}.weight"] = (h,)
    return out


def tensor_shapes(config: dict) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every weight; a tied head has no tensor."""
    d = read_dims(config)
    out: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (d.vocab, d.hidden)}
    for i in range(d.layers):
        out.update({f"model.layers.{i}.{name}": shape for name, shape in _layer(config, d).items()})
    out["model.norm.weight"] = (d.hidden,)
    if not d.tied:
        out["lm_head.weight"] = (d.vocab, d.hidden)
    return out
