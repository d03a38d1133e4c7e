# SPDX-License-Identifier: Apache-2.0
"""The list of golden cases: one tiny config each, and the prompts for all of them.

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
    """A config (arguments of the transformers class), and how it is written and loaded.

    config_format: "v5" is config.json as transformers 5 writes it (rope_parameters, dtype); "v4" the same model as
                   transformers 4 wrote it (rope_theta, rope_scaling, torch_dtype).
    max_model_len: the length the engine is loaded with; dynamic and longrope take their frequencies from it.
    listed:        names and shapes of the tensors are in tensors.json beside the config, as transformers saves them;
                   for the others shapes.py knows them.
    """
    name: str
    config_class: str
    arguments: dict
    config_format: str = "v5"
    max_model_len: int = 1024
    model_class: str = field(default="")
    listed: bool = False

    def __post_init__(self):
        if not self.model_class:
            object.__setattr__(self, "model_class", self.config_class.replace("Config", "ForCausalLM"))


def _sizes(hidden: int, intermediate: int, layers: int, heads: int, kv_heads: int, **more) -> dict:
    return {"hidden_size": hidden, "intermediate_size": intermediate, "num_hidden_layers": layers,
            "num_attention_heads": heads, "num_key_value_heads": kv_heads, "vocab_size": 512,
            "max_position_embeddings": 1024, "bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": EOS, **more}


def _rope(rope_type: str = "default", theta: float = 10000.0, **more) -> dict:
    return {"rope_parameters": {"rope_type": rope_type, "rope_theta": theta, **more}}


# Twelve pairs of a 24-wide rotary part: a small version of Phi-4-mini's shape (partial_rotary_factor 0.75).
_SHORT = [1.0, 1.0, 1.02, 1.05, 1.1, 1.15, 1.2, 1.3, 1.4, 1.6, 1.8, 2.0]
_LONG = [1.0, 1.2, 1.5, 2.0, 2.8, 4.0, 5.5, 7.5, 10.0, 14.0, 20.0, 28.0]


def _longrope(original: int, longest: int) -> dict:
    return {**_sizes(128, 160, 2, 4, 2, max_position_embeddings=longest), "tie_word_embeddings": True,
            "original_max_position_embeddings": original,
            **_rope("longrope", 10000.0, short_factor=_SHORT, long_factor=_LONG, partial_rotary_factor=0.75,
                    original_max_position_embeddings=original)}


# Gated delta net with odd sizes.
_GDN = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 24, "linear_value_head_dim": 40,
        "linear_conv_kernel_dim": 4}
_MROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0, "partial_rotary_factor": 0.25,
                              "mrope_section": [2, 1, 1], "mrope_interleaved": True}}

CASES = [
    Case("llama", "LlamaConfig", {**_sizes(64, 160, 3, 4, 2), **_rope()}, config_format="v4"),
    # Rows of 256 and more elements, which the K-quants need; head_dim 128.
    Case("llama-wide", "LlamaConfig", {**_sizes(256, 512, 2, 2, 1), **_rope(theta=100000.0)}),
    Case("llama-bias-tied", "LlamaConfig",
         {**_sizes(96, 128, 2, 6, 3), **_rope(), "attention_bias": True, "mlp_bias": True,
          "tie_word_embeddings": True}),
    Case("llama-rope-llama3", "LlamaConfig",
         {**_sizes(128, 192, 2, 4, 2, max_position_embeddings=2048), "rms_norm_eps": 1e-5,
          **_rope("llama3", 500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                  original_max_position_embeddings=256)}, max_model_len=2048),
    Case("llama-rope-linear", "LlamaConfig", {**_sizes(128, 192, 2, 2, 1), **_rope("linear", factor=4.0)},
         config_format="v4", max_model_len=4096),
    Case("llama-rope-dynamic", "LlamaConfig", {**_sizes(64, 128, 2, 2, 2), **_rope("dynamic", factor=2.0)},
         config_format="v4", max_model_len=2048),
    Case("llama-rope-yarn", "LlamaConfig",
         {**_sizes(128, 192, 2, 4, 4),
          **_rope("yarn", factor=4.0, original_max_position_embeddings=256, beta_fast=16.0, beta_slow=2.0)}),
    Case("smollm3", "SmolLM3Config", {**_sizes(64, 128, 4, 4, 2), **_rope(theta=2000000.0)}),
    Case("mistral", "MistralConfig",
         {**_sizes(96, 160, 3, 4, 2), **_rope(theta=1000000.0), "head_dim": 32, "sliding_window": None}, config_format="v4"),
    Case("qwen2", "Qwen2Config",
         {**_sizes(128, 192, 2, 4, 2), **_rope(theta=1000000.0), "tie_word_embeddings": True}, config_format="v4"),
    Case("qwen2-rope-yarn", "Qwen2Config",
         {**_sizes(64, 128, 2, 2, 1), **_rope("yarn", 1000000.0, factor=4.0, original_max_position_embeddings=256)},
         config_format="v4"),
    Case("qwen3", "Qwen3Config",
         {**_sizes(64, 192, 2, 4, 2, vocab_size=509), **_rope(theta=1000000.0), "head_dim": 32}),
    Case("phi3", "Phi3Config", {**_sizes(192, 256, 2, 2, 1), **_rope()}),
    Case("phi3-longrope-short", "Phi3Config", _longrope(1024, 4096), config_format="v4", max_model_len=1024),
    Case("phi3-longrope-long", "Phi3Config", _longrope(256, 1024), max_model_len=1024),
    Case("glm", "GlmConfig",
         {**_sizes(128, 160, 2, 4, 2), "head_dim": 32, "attention_bias": True, **_rope(partial_rotary_factor=0.5)}),
    Case("glm4", "Glm4Config",
         {**_sizes(64, 128, 3, 4, 2), "head_dim": 16, "attention_bias": True, **_rope(partial_rotary_factor=0.5)},
         config_format="v4"),
    Case("granite", "GraniteConfig",
         {**_sizes(128, 192, 3, 4, 2), **_rope(theta=10000000.0), "embedding_multiplier": 6.0,
          "residual_multiplier": 0.45, "attention_multiplier": 0.25, "logits_scaling": 0.5}),
    Case("olmo2", "Olmo2Config", {**_sizes(128, 192, 3, 4, 2), **_rope(theta=500000.0)}, config_format="v4"),
    Case("gemma2", "Gemma2Config",
         {**_sizes(96,160,4,4,2), "head_dim": 24, "query_pre_attn_scalar": 40, "sliding_window": 48,
          "attn_logit_softcapping": 20.0, "final_logit_softcapping": 10.0, **_rope()}, listed=True),
    Case("gemma3", "Gemma3TextConfig",
         {**_sizes(96,160,7,4,1), "head_dim": 32, "query_pre_attn_scalar": 40, "sliding_window": 40,
          "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1000000.0},
          "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}}, model_class="Gemma3ForCausalLM", listed=True),
    Case("mistral-window", "MistralConfig",
         {**_sizes(96,160,3,4,2), **_rope(theta=1000000.0), "head_dim": 32, "sliding_window": 50}, listed=True),
    Case("ministral", "MinistralConfig",
         {**_sizes(96,160,4,4,2), **_rope(theta=1000000.0), "head_dim": 32, "sliding_window": 50, "layer_types":
          ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]}, listed=True),
    Case("gpt-oss", "GptOssConfig",
         {**_sizes(96,64,4,6,2), "head_dim": 32, "sliding_window": 37, "num_local_experts": 6, "num_experts_per_tok":
          3,
          **_rope("yarn",150000.0,factor=8.0,beta_fast=32.0,beta_slow=1.0,truncate=False,original_max_position_embeddings=128)}, listed=True),
    Case("qwen3-moe", "Qwen3MoeConfig",
         {**_sizes(96,160,3,4,2), "head_dim": 32, "num_experts": 7, "num_experts_per_tok": 3,
          "moe_intermediate_size": 40, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [1],
          **_rope(theta=1000000.0)}, listed=True),
    Case("mixtral", "MixtralConfig",
         {**_sizes(96,72,2,4,2), "num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 60,
          **_rope(theta=1000000.0)}, listed=True),
    Case("deepseek-v2", "DeepseekV2Config",
         {**_sizes(96,160,3,4,4), "q_lora_rank": None, "kv_lora_rank": 40, "qk_nope_head_dim": 24,
          "qk_rope_head_dim": 16, "v_head_dim": 20, "n_routed_experts": 8, "n_shared_experts": 2,
          "num_experts_per_tok": 3, "moe_intermediate_size": 24, "first_k_dense_replace": 1, "n_group": 4,
          "topk_group": 2, "topk_method": "group_limited_greedy", "routed_scaling_factor": 2.5, "norm_topk_prob":
          False, **_rope("yarn",factor=4.0,original_max_position_embeddings=256,mscale=0.7,mscale_all_dim=0.7)}, listed=True),
    Case("deepseek-v3", "DeepseekV3Config",
         {**_sizes(96,160,3,4,4), "q_lora_rank": 48, "kv_lora_rank": 40, "qk_nope_head_dim": 24, "qk_rope_head_dim":
          16, "v_head_dim": 20, "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 3,
          "moe_intermediate_size": 24, "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2,
          "routed_scaling_factor": 2.5, "norm_topk_prob": True,
          **_rope("yarn",factor=4.0,original_max_position_embeddings=256,mscale=1.0,mscale_all_dim=1.0,beta_fast=32.0,beta_slow=1.0)}, listed=True),
    Case("glm4-moe", "Glm4MoeConfig",
         {**_sizes(96,160,3,4,2), "head_dim": 32, "attention_bias": True, "use_qk_norm": True, "n_routed_experts": 6,
          "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "first_k_dense_replace": 1,
          "n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.5, "norm_topk_prob": True,
          **_rope(partial_rotary_factor=0.5)}, listed=True),
    Case("glm4-moe-lite", "Glm4MoeLiteConfig",
         {**_sizes(96,160,3,4,4), "q_lora_rank": 48, "kv_lora_rank": 40, "qk_nope_head_dim": 24, "qk_rope_head_dim":
          16, "v_head_dim": 20, "n_routed_experts": 6, "n_shared_experts": 1, "num_experts_per_tok": 2,
          "moe_intermediate_size": 24, "first_k_dense_replace": 1, "routed_scaling_factor": 1.8, "norm_topk_prob":
          True, **_rope()}, listed=True),
    Case("minicpm3", "MiniCPM3Config",
         {**_sizes(96,160,3,4,4), "q_lora_rank": 48, "kv_lora_rank": 40, "qk_nope_head_dim": 24, "qk_rope_head_dim":
          16, "v_head_dim": 20, "scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 32, **_rope()}, listed=True),
    Case("granite-hybrid", "GraniteMoeHybridConfig",
         {**_sizes(96,40,4,4,2), "layer_types": ["mamba", "attention", "mamba", "mamba"], "mamba_n_heads": 6,
          "mamba_d_head": 32, "mamba_d_state": 24, "mamba_n_groups": 2, "mamba_d_conv": 4, "mamba_expand": 2,
          "shared_intermediate_size": 72, "num_local_experts": 5, "num_experts_per_tok": 2, "embedding_multiplier":
          6.0, "residual_multiplier": 0.45, "attention_multiplier": 0.25, "logits_scaling": 0.5,
          "position_embedding_type": "nope"}, listed=True),
    Case("nemotron-h", "NemotronHConfig",
         {**_sizes(96,72,4,4,2), "head_dim": 32, "hybrid_override_pattern": "M-*E", "mamba_num_heads": 6,
          "mamba_head_dim": 20, "ssm_state_size": 24, "n_groups": 2, "conv_kernel": 4, "n_routed_experts": 6,
          "num_experts_per_tok": 2, "moe_intermediate_size": 24, "moe_shared_expert_intermediate_size": 40, "n_group":
          2, "topk_group": 1, "routed_scaling_factor": 1.5, "norm_topk_prob": True}, listed=True),
    Case("lfm2", "Lfm2Config",
         {**_sizes(96,160,4,4,2), "layer_types": ["conv", "full_attention", "conv", "conv"], "conv_L_cache": 3,
          "conv_bias": True, "block_auto_adjust_ff_dim": False, **_rope(theta=1000000.0)}, listed=True),
    Case("phimoe", "PhimoeConfig",
         {**_sizes(96,72,2,4,2), "num_local_experts": 5, "num_experts_per_tok": 2, "attention_bias": True,
          "lm_head_bias": True, **_rope()}, listed=True),
    Case("olmo3", "Olmo3Config",
         {**_sizes(96,160,4,4,2), "sliding_window": 50, **_rope(theta=500000.0)}, listed=True),
    Case("cohere", "CohereConfig",
         {**_sizes(96,160,2,4,2), "use_qk_norm": True, "logit_scale": 0.25, **_rope()}, listed=True),
    Case("cohere2", "Cohere2Config",
         {**_sizes(96,160,4,4,2), "head_dim": 24, "logit_scale": 0.25, "sliding_window": 40, **_rope(theta=50000.0)}, listed=True),
    Case("qwen3-next", "Qwen3NextConfig",
         {**_sizes(96,160,4,4,2), "head_dim": 32, **_GDN, "num_experts": 6, "num_experts_per_tok": 2,
          "moe_intermediate_size": 40, "shared_expert_intermediate_size": 56, "norm_topk_prob": True,
          "decoder_sparse_step": 1, **_rope(partial_rotary_factor=0.25,theta=1000000.0)}, listed=True),
    Case("qwen3.5", "Qwen3_5TextConfig",
         {**_sizes(96,160,4,4,2), "head_dim": 32, **_GDN, "rope_parameters": {"rope_type": "default", "rope_theta":
          1000000.0, "partial_rotary_factor": 0.25, "mrope_section": [2,1,1], "mrope_interleaved": True}}, model_class="Qwen3_5ForCausalLM", listed=True),
    Case("qwen3.5-moe", "Qwen3_5MoeTextConfig",
         {**_sizes(96,160,4,4,2), "head_dim": 32, **_GDN, "num_experts": 6, "num_experts_per_tok": 2,
          "moe_intermediate_size": 40, "shared_expert_intermediate_size": 56, "rope_parameters": {"rope_type":
          "default", "rope_theta": 1000000.0, "partial_rotary_factor": 0.25, "mrope_section": [2,1,1],
          "mrope_interleaved": True}}, model_class="Qwen3_5MoeForCausalLM", listed=True),
    Case("gemma4", "Gemma4TextConfig",
         {**_sizes(96,160,6,4,2), "head_dim": 32, "global_head_dim": 48, "sliding_window": 40, "num_kv_shared_layers": 2,
          "layer_types": ["sliding_attention", "full_attention"] * 3, "final_logit_softcapping": 20.0,
          "hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 512, "use_double_wide_mlp": True},
         model_class="Gemma4ForCausalLM", listed=True),
    Case("gemma4-moe", "Gemma4TextConfig",
         {**_sizes(96,160,4,4,2), "head_dim": 32, "global_head_dim": 48, "sliding_window": 40, "enable_moe_block": True,
          "num_experts": 6, "top_k_experts": 2, "moe_intermediate_size": 40, "hidden_size_per_layer_input": 0,
          "layer_types": ["sliding_attention", "full_attention"] * 2},
         model_class="Gemma4ForCausalLM", listed=True),
    Case("gemma4-global", "Gemma4TextConfig",
         {**_sizes(96,160,4,4,2), "head_dim": 32, "global_head_dim": 64, "num_global_key_value_heads": 1,
          "attention_k_eq_v": True, "sliding_window": 40, "hidden_size_per_layer_input": 0,
          "layer_types": ["sliding_attention", "full_attention"] * 2},
         model_class="Gemma4ForCausalLM", listed=True),
    Case("lfm2-moe", "Lfm2MoeConfig",
         {**_sizes(96,160,4,4,2), "layer_types": ["conv", "full_attention", "conv", "conv"], "conv_L_cache": 3,
          "conv_bias": False, "num_dense_layers": 1, "num_experts": 6, "num_experts_per_tok": 2,
          "moe_intermediate_size": 40, "use_expert_bias": True, "norm_topk_prob": True, "routed_scaling_factor": 1.0,
          **_rope(theta=1000000.0)}, listed=True),
    Case("ministral3", "Ministral3Config",
         {**_sizes(96,160,2,4,2), "head_dim": 32,
          **_rope("yarn",1000000.0,factor=4.0,original_max_position_embeddings=256,llama_4_scaling_beta=0.1,mscale=1.0,mscale_all_dim=1.0)}, listed=True),
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
