# SPDX-License-Identifier: Apache-2.0
"""The list of golden cases: one tiny config each, and the prompts that all of them answer.

Imports nothing heavy, so tools without torch can read the list too.
"""

from dataclasses import dataclass, field

PROMPT_LENGTHS = (1, 2, 17, 64, 333, 700)
NEW_TOKENS = 64
# These prompts also record logits at three inner positions.
INNER_POSITIONS = {64: (0, 31, 62), 700: (127, 128, 511)}
BOS, EOS = 256, 257


@dataclass(frozen=True)
class Case:
    """A config (arguments of the transformers class), and how it is spelled and loaded.

    spelling:      "v5" is config.json as transformers 5 writes it (rope_parameters, dtype); "v4" the same model as
                   transformers 4 wrote it (rope_theta, rope_scaling, torch_dtype).
    max_model_len: the length the engine is loaded with; dynamic and longrope take their frequencies from it.
    """
    name: str
    config_class: str
    arguments: dict
    spelling: str = "v5"
    max_model_len: int = 1024
    model_class: str = field(default="")

    def __post_init__(self):
        if not self.model_class:
            object.__setattr__(self, "model_class", self.config_class.replace("Config", "ForCausalLM"))


def _sizes(hidden: int, intermediate: int, layers: int, heads: int, kv_heads: int, **more) -> dict:
    return {"hidden_size": hidden, "intermediate_size": intermediate, "num_hidden_layers": layers,
            "num_attention_heads": heads, "num_key_value_heads": kv_heads, "vocab_size": 512,
            "max_position_embeddings": 1024, "bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": EOS, **more}


def _rope(rope_type: str = "default", theta: float = 10000.0, **more) -> dict:
    return {"rope_parameters": {"rope_type": rope_type, "rope_theta": theta, **more}}


# Twelve pairs of a 24-wide rotary part: Phi-4-mini's shape (partial_rotary_factor 0.75), in small.
_SHORT = [1.0, 1.0, 1.02, 1.05, 1.1, 1.15, 1.2, 1.3, 1.4, 1.6, 1.8, 2.0]
_LONG = [1.0, 1.2, 1.5, 2.0, 2.8, 4.0, 5.5, 7.5, 10.0, 14.0, 20.0, 28.0]


def _longrope(original: int, longest: int) -> dict:
    return {**_sizes(128, 160, 2, 4, 2, max_position_embeddings=longest), "tie_word_embeddings": True,
            "original_max_position_embeddings": original,
            **_rope("longrope", 10000.0, short_factor=_SHORT, long_factor=_LONG, partial_rotary_factor=0.75,
                    original_max_position_embeddings=original)}


CASES = [
    Case("llama", "LlamaConfig", {**_sizes(64, 160, 3, 4, 2), **_rope()}, spelling="v4"),
    # Rows of 256 and more, which the K-quants need; head_dim 128.
    Case("llama-wide", "LlamaConfig", {**_sizes(256, 512, 2, 2, 1), **_rope(theta=100000.0)}),
    Case("llama-bias-tied", "LlamaConfig",
         {**_sizes(96, 128, 2, 6, 3), **_rope(), "attention_bias": True, "mlp_bias": True,
          "tie_word_embeddings": True}),
    Case("llama-rope-llama3", "LlamaConfig",
         {**_sizes(128, 192, 2, 4, 2, max_position_embeddings=2048), "rms_norm_eps": 1e-5,
          **_rope("llama3", 500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                  original_max_position_embeddings=256)}, max_model_len=2048),
    Case("llama-rope-linear", "LlamaConfig", {**_sizes(128, 192, 2, 2, 1), **_rope("linear", factor=4.0)},
         spelling="v4", max_model_len=4096),
    Case("llama-rope-dynamic", "LlamaConfig", {**_sizes(64, 128, 2, 2, 2), **_rope("dynamic", factor=2.0)},
         spelling="v4", max_model_len=2048),
    Case("llama-rope-yarn", "LlamaConfig",
         {**_sizes(128, 192, 2, 4, 4),
          **_rope("yarn", factor=4.0, original_max_position_embeddings=256, beta_fast=16.0, beta_slow=2.0)}),
    Case("smollm3", "SmolLM3Config", {**_sizes(64, 128, 4, 4, 2), **_rope(theta=2000000.0)}),
    Case("mistral", "MistralConfig",
         {**_sizes(96, 160, 3, 4, 2), **_rope(theta=1000000.0), "head_dim": 32, "sliding_window": None}, spelling="v4"),
    Case("qwen2", "Qwen2Config",
         {**_sizes(128, 192, 2, 4, 2), **_rope(theta=1000000.0), "tie_word_embeddings": True}, spelling="v4"),
    Case("qwen2-rope-yarn", "Qwen2Config",
         {**_sizes(64, 128, 2, 2, 1), **_rope("yarn", 1000000.0, factor=4.0, original_max_position_embeddings=256)},
         spelling="v4"),
    Case("qwen3", "Qwen3Config",
         {**_sizes(64, 192, 2, 4, 2, vocab_size=509), **_rope(theta=1000000.0), "head_dim": 32}),
    Case("phi3", "Phi3Config", {**_sizes(192, 256, 2, 2, 1), **_rope()}),
    Case("phi3-longrope-short", "Phi3Config", _longrope(1024, 4096), spelling="v4", max_model_len=1024),
    Case("phi3-longrope-long", "Phi3Config", _longrope(256, 1024), max_model_len=1024),
    Case("glm", "GlmConfig",
         {**_sizes(128, 160, 2, 4, 2), "head_dim": 32, "attention_bias": True, **_rope(partial_rotary_factor=0.5)}),
    Case("glm4", "Glm4Config",
         {**_sizes(64, 128, 3, 4, 2), "head_dim": 16, "attention_bias": True, **_rope(partial_rotary_factor=0.5)},
         spelling="v4"),
    Case("granite", "GraniteConfig",
         {**_sizes(128, 192, 3, 4, 2), **_rope(theta=10000000.0), "embedding_multiplier": 6.0,
          "residual_multiplier": 0.45, "attention_multiplier": 0.25, "logits_scaling": 0.5}),
    Case("olmo2", "Olmo2Config", {**_sizes(128, 192, 3, 4, 2), **_rope(theta=500000.0)}, spelling="v4"),
]


def find_case(name: str) -> Case:
    for case in CASES:
        if case.name == name:
            return case
    raise ValueError(f"there is no golden case {name!r}; the cases are {', '.join(c.name for c in CASES)}")


def make_prompt(length: int, vocab: int) -> list[int]:
    """Token ids from a 64-bit linear congruential generator seeded with the length: the high bits, modulo the vocabulary."""
    state, out = length, []
    for _ in range(length):
        state = (state * 6364136223846793005 + 1442695040888963407) & 0xFFFFFFFFFFFFFFFF
        out.append((state >> 33) % vocab)
    return out
