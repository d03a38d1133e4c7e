# SPDX-License-Identifier: Apache-2.0
"""The shapes that bench/gpu measures: the sizes of published models, as their config.json files give them.

Weights are random (--load-format dummy), so only the sizes and types matter. Each entry has what quire, vLLM and transformers
read; fields that only name files, versions or training settings are left out.
"""


def decoder(architecture, model_type, hidden, layers, heads, kv_heads, head_dim, intermediate, vocabulary, **more):
    """The fields that every family has."""
    return {"architectures": [architecture], "model_type": model_type, "hidden_size": hidden, "num_hidden_layers": layers,
            "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim, "intermediate_size": intermediate,
            "vocab_size": vocabulary, "hidden_act": "silu", "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
            "attention_bias": False, "torch_dtype": "bfloat16"} | more


def every(count, period, last, others):
    """Layer types: `last` in each place whose number is a multiple of `period`, `others` elsewhere."""
    return [last if (i + 1) % period == 0 else others for i in range(count)]


def at(count, places, there, elsewhere):
    return [there if i in places else elsewhere for i in range(count)]


GROUP = 128  # inputs that share a scale in AWQ and GPTQ; FP8 has blocks of as many rows and columns
LINEAR = [["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"], ["self_attn.o_proj"], ["mlp.gate_proj", "mlp.up_proj"],
          ["mlp.down_proj"]]
METHODS = {
    "awq": {"bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"},
    # A folder without tensors does not show which of them are quantised: vLLM then takes none, unless the config names them.
    "gptq": {"bits": 4, "group_size": GROUP, "desc_act": False, "sym": True, "checkpoint_format": "gptq",
             "modules_in_block_to_quantize": LINEAR},
    "fp8": {"activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [GROUP, GROUP]},
}


def quantised(config, method):
    """The same shape with quantised matrices; the LM head, the embedding and the routers stay as they are."""
    routers = [f"model.layers.{i}.mlp.gate" for i in range(config["num_hidden_layers"])] if config.get("num_experts") else []
    return config | {"quantization_config": {"quant_method": method, "modules_to_not_convert": ["lm_head", *routers]} | METHODS[method]}


QWEN = {"rope_theta": 1000000, "max_position_embeddings": 40960, "bos_token_id": 151643, "eos_token_id": 151645}
GEMMA = {"hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 256, "rope_theta": 1000000, "rope_local_base_freq": 10000,
         "sliding_window_pattern": 6, "tie_word_embeddings": True, "bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0,
         "attn_logit_softcapping": None, "final_logit_softcapping": None}

SHAPES = {
    "Qwen3-0.6B": decoder("Qwen3ForCausalLM", "qwen3", 1024, 28, 16, 8, 128, 3072, 151936, **QWEN | {"tie_word_embeddings": True}),
    "Qwen3-8B": decoder("Qwen3ForCausalLM", "qwen3", 4096, 36, 32, 8, 128, 12288, 151936, **QWEN),
    "Llama-3.1-8B": decoder(
        "LlamaForCausalLM", "llama", 4096, 32, 32, 8, 128, 14336, 128256, rms_norm_eps=1e-5, rope_theta=500000, mlp_bias=False,
        rope_scaling={"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                      "original_max_position_embeddings": 8192}, max_position_embeddings=131072, bos_token_id=128000, eos_token_id=128001),
    "Qwen3-30B-A3B": decoder(
        "Qwen3MoeForCausalLM", "qwen3_moe", 2048, 48, 32, 4, 128, 6144, 151936, num_experts=128, num_experts_per_tok=8,
        moe_intermediate_size=768, norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[], **QWEN),
    "gpt-oss-20b": decoder(
        "GptOssForCausalLM", "gpt_oss", 2880, 24, 64, 8, 64, 2880, 201088, rms_norm_eps=1e-5, attention_bias=True, num_local_experts=32,
        num_experts_per_tok=4, sliding_window=128, layer_types=every(24, 2, "full_attention", "sliding_attention"), swiglu_limit=7.0,
        rope_theta=150000, rope_scaling={"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
                                         "original_max_position_embeddings": 4096},
        max_position_embeddings=131072, eos_token_id=200002, pad_token_id=199999,
        quantization_config={"quant_method": "mxfp4", "modules_to_not_convert": [
            "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}),
    "DeepSeek-V2-Lite": decoder(
        "DeepseekV2ForCausalLM", "deepseek_v2", 2048, 27, 16, 16, 64, 10944, 102400, kv_lora_rank=512, q_lora_rank=None,
        qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, n_routed_experts=64, n_shared_experts=2, num_experts_per_tok=6,
        moe_intermediate_size=1408, moe_layer_freq=1, first_k_dense_replace=1, n_group=1, topk_group=1, topk_method="greedy",
        norm_topk_prob=False, routed_scaling_factor=1.0, scoring_func="softmax", rope_theta=10000,
        rope_scaling={"type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 0.707, "mscale_all_dim": 0.707,
                      "original_max_position_embeddings": 4096}, max_position_embeddings=163840, bos_token_id=100000, eos_token_id=100001),
    "Qwen3.5-4B": decoder(
        "Qwen3_5ForCausalLM", "qwen3_5_text", 2560, 32, 16, 4, 256, 9216, 248320, layer_types=every(32, 4, "full_attention", "linear_attention"),
        full_attention_interval=4, attn_output_gate=True, linear_conv_kernel_dim=4, linear_key_head_dim=128, linear_num_key_heads=16,
        linear_num_value_heads=32, linear_value_head_dim=128, tie_word_embeddings=True, max_position_embeddings=262144, eos_token_id=248044,
        rope_parameters={"rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25, "mrope_interleaved": True,
                         "mrope_section": [11, 11, 10]}),
    "Gemma-3-1B": decoder(
        "Gemma3ForCausalLM", "gemma3_text", 1152, 26, 4, 1, 256, 6912, 262144, sliding_window=512, max_position_embeddings=32768,
        layer_types=every(26, 6, "full_attention", "sliding_attention"), **GEMMA),
    "Gemma-3-4B": decoder(
        "Gemma3ForCausalLM", "gemma3_text", 2560, 34, 8, 4, 256, 10240, 262208, sliding_window=1024, max_position_embeddings=131072,
        layer_types=every(34, 6, "full_attention", "sliding_attention"), rope_scaling={"rope_type": "linear", "factor": 8.0}, **GEMMA),
    "Granite-4.0-H-Micro": decoder(
        "GraniteMoeHybridForCausalLM", "granitemoehybrid", 2048, 40, 32, 8, 64, 8192, 100352, rms_norm_eps=1e-5, tie_word_embeddings=True,
        layer_types=at(40, (5, 15, 25, 35), "attention", "mamba"), shared_intermediate_size=8192, num_local_experts=0, num_experts_per_tok=0,
        mamba_n_heads=64, mamba_d_head=64, mamba_d_state=128, mamba_n_groups=1, mamba_d_conv=4, mamba_expand=2, mamba_chunk_size=256,
        mamba_conv_bias=True, mamba_proj_bias=False, position_embedding_type="nope", embedding_multiplier=12, logits_scaling=8,
        residual_multiplier=0.22, attention_multiplier=0.015625, max_position_embeddings=131072, bos_token_id=100257, eos_token_id=100257),
    "Nemotron-H-8B": decoder(
        "NemotronHForCausalLM", "nemotron_h", 4096, 52, 32, 8, 128, 21504, 131072, layer_norm_epsilon=1e-5, mlp_hidden_act="relu2",
        hybrid_override_pattern="M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-", attention_head_dim=128, mamba_num_heads=128,
        mamba_head_dim=64, ssm_state_size=128, n_groups=8, conv_kernel=4, expand=2, chunk_size=128, use_conv_bias=True, use_bias=False,
        mlp_bias=False, mamba_proj_bias=False, mamba_hidden_act="silu", max_position_embeddings=8192, bos_token_id=1, eos_token_id=2),
    "LFM2-1.2B": decoder(
        "Lfm2ForCausalLM", "lfm2", 2048, 16, 32, 8, 64, 12288, 65536, norm_eps=1e-5, layer_types=at(16, (2, 5, 8, 10, 12, 14), "full_attention", "conv"),
        block_ff_dim=12288, block_auto_adjust_ff_dim=True, block_ffn_dim_multiplier=1.0, block_multiple_of=256, conv_L_cache=3, conv_bias=False,
        tie_word_embeddings=True, rope_theta=1000000, max_position_embeddings=128000, bos_token_id=1, eos_token_id=7),
}

SHAPES |= {
    "Qwen3-8B-AWQ": quantised(SHAPES["Qwen3-8B"], "awq"),
    "Qwen3-8B-GPTQ": quantised(SHAPES["Qwen3-8B"], "gptq"),
    "Qwen3-8B-FP8": quantised(SHAPES["Qwen3-8B"], "fp8"),
    "Qwen3-30B-A3B-AWQ": quantised(SHAPES["Qwen3-30B-A3B"], "awq"),
    "Qwen3-30B-A3B-FP8": quantised(SHAPES["Qwen3-30B-A3B"], "fp8"),
}
