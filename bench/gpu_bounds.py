# SPDX-License-Identifier: Apache-2.0
"""What a step of a shape must read and compute at least, from its config.json: the bounds of bench/gpu.

Decode: every matrix that a step needs is read once, of the experts those that the step's tokens are expected to hit; K and V
(or the latent pages) of each sequence are read once; a recurrent state is read and written once. Norms, biases and
activations are left out: they are less than a thousandth. Prefill: two operations for each weight that a token uses, and
those of attention and of recurrent states; the LM head runs for the last token of each prompt only.
"""

import dataclasses

# Bytes of an element. MXFP4 has one byte of scale for 32 weights; 4-bit groups (AWQ, GPTQ) two bytes of scale and four bits of
# zero point for 128; FP8 a scale in float32 for a block of 128 by 128.
BF16, F32, MXFP4, INT4, FP8 = 2.0, 4.0, 17 / 32, (64 + 2.5) / 128, 1 + 4 / 128**2
# By quant_method: of the matrices that every token uses, and of the experts. Routers, embeddings and the LM head are in bf16.
HELD = {None: (BF16, BF16), "mxfp4": (BF16, MXFP4), "awq": (INT4, INT4), "gptq": (INT4, INT4), "fp8": (FP8, FP8)}


@dataclasses.dataclass
class Layer:
    """One layer: its weights, its experts, its cache, and the operations that are not products with a weight."""
    weights: int = 0             # matrix elements that every token uses
    router: int = 0              # those of the router
    experts: int = 0             # how many there are
    chosen: int = 0              # by one token
    expert: int = 0              # elements of one
    kv: int = 0                  # elements of K and V, or of the latent row, of one position
    window: int = 0              # 0: all positions
    state: int = 0               # elements of the recurrent state of one sequence, in float32
    pair: int = 0                # operations for one pair of a query and a position that it sees
    token: int = 0               # operations for one token in the recurrence


def attention(config, layer, window=0):
    hidden, heads, size = config["hidden_size"], config["num_attention_heads"], config["head_dim"]
    kv = config["num_key_value_heads"]
    gate = 1 if config.get("attn_output_gate") else 0
    layer.weights += hidden * size * ((2 + gate) * heads + 2 * kv)
    layer.kv, layer.window, layer.pair = 2 * kv * size, window, 4 * heads * size


def latent_attention(config, layer):
    """MLA: a latent row and a shared rotary key are cached; the products with q, k and v are counted as for plain heads."""
    hidden, heads, rank = config["hidden_size"], config["num_attention_heads"], config["kv_lora_rank"]
    nope, rope, value = config["qk_nope_head_dim"], config["qk_rope_head_dim"], config["v_head_dim"]
    down = config.get("q_lora_rank")
    layer.weights += hidden * down + down * heads * (nope + rope) if down else hidden * heads * (nope + rope)
    layer.weights += hidden * (rank + rope) + rank * heads * (nope + value) + heads * value * hidden
    layer.kv, layer.pair = rank + rope, 2 * heads * (nope + rope + value)


def delta_net(config, layer):
    hidden, heads = config["hidden_size"], config["linear_num_value_heads"]
    keys, values = config["linear_num_key_heads"] * config["linear_key_head_dim"], heads * config["linear_value_head_dim"]
    layer.weights += hidden * (2 * keys + 2 * values + 2 * heads) + values * hidden
    square = values * config["linear_key_head_dim"]
    layer.state = square + (config["linear_conv_kernel_dim"] - 1) * (2 * keys + values)
    layer.token = 7 * square  # decay, the row that the key finds, the update, the row that the query finds


def mamba2(config, layer, heads, size, state, groups, kernel):
    hidden, inner = config["hidden_size"], heads * size
    channels = inner + 2 * groups * state
    layer.weights += hidden * (inner + channels + heads) + inner * hidden
    layer.state = inner * state + (kernel - 1) * channels
    layer.token = 5 * inner * state  # decay, update, output


def short_convolution(config, layer):
    hidden = config["hidden_size"]
    layer.weights += 4 * hidden * hidden
    layer.state = (config["conv_L_cache"] - 1) * hidden


def experts(config, layer, count, chosen, size, shared=0, matrices=3):
    hidden = config["hidden_size"]
    layer.router += hidden * count
    layer.weights += matrices * hidden * shared
    layer.experts, layer.chosen, layer.expert = count, chosen, matrices * hidden * size


def gated_mlp(config, layer, size=0):
    layer.weights += 3 * config["hidden_size"] * (size or config["intermediate_size"])


def granite_layer(config, layer, kind):
    if kind == "mamba":
        mamba2(config, layer, config["mamba_n_heads"], config["mamba_d_head"], config["mamba_d_state"], config["mamba_n_groups"],
               config["mamba_d_conv"])
    else:
        attention(config, layer)
    if config["num_local_experts"]:
        experts(config, layer, config["num_local_experts"], config["num_experts_per_tok"], config["intermediate_size"],
                config["shared_intermediate_size"])
    else:
        gated_mlp(config, layer, config["shared_intermediate_size"])


def nemotron_layer(config, layer, kind):
    if kind == "M":
        mamba2(config, layer, config["mamba_num_heads"], config["mamba_head_dim"], config["ssm_state_size"], config["n_groups"],
               config["conv_kernel"])
    elif kind == "*":
        attention(config, layer)
    elif kind == "-":
        layer.weights += 2 * config["hidden_size"] * config["intermediate_size"]
    else:
        raise ValueError(f"gpu_bounds.py does not know Nemotron-H's layer {kind}")


def lfm2_layer(config, layer, kind):
    short_convolution(config, layer) if kind == "conv" else attention(config, layer)
    size = config["block_ff_dim"]
    if config["block_auto_adjust_ff_dim"]:  # two thirds, rounded up to a multiple
        multiple = config["block_multiple_of"]
        size = -(-int(config["block_ffn_dim_multiplier"] * int(2 * size / 3)) // multiple) * multiple
    gated_mlp(config, layer, size)


def deepseek_layer(config, layer, index):
    latent_attention(config, layer)
    if index < config["first_k_dense_replace"]:
        gated_mlp(config, layer)
    else:
        experts(config, layer, config["n_routed_experts"], config["num_experts_per_tok"], config["moe_intermediate_size"],
                config["n_shared_experts"] * config["moe_intermediate_size"])


def transformer_layer(config, layer, kind):
    if kind == "linear_attention":
        delta_net(config, layer)
    else:
        attention(config, layer, config["sliding_window"] if kind == "sliding_attention" else 0)
    count = config.get("num_experts") or config.get("num_local_experts")
    if count:
        experts(config, layer, count, config["num_experts_per_tok"], config.get("moe_intermediate_size", config["intermediate_size"]))
    else:
        gated_mlp(config, layer)


def layers(config):
    count = config["num_hidden_layers"]
    kinds = config.get("layer_types") or list(config.get("hybrid_override_pattern", "")) or ["full_attention"] * count
    out = []
    for index, kind in enumerate(kinds):
        layer = Layer()
        if config["model_type"] == "granitemoehybrid":
            granite_layer(config, layer, kind)
        elif config["model_type"] == "nemotron_h":
            nemotron_layer(config, layer, kind)
        elif config["model_type"] == "lfm2":
            lfm2_layer(config, layer, kind)
        elif config["model_type"] == "deepseek_v2":
            deepseek_layer(config, layer, index)
        else:
            transformer_layer(config, layer, kind)
        out.append(layer)
    return out


def expected_experts(count, chosen, tokens):
    """How many of `count` experts are hit, if each token chooses `chosen` different ones and all are equally likely."""
    return count * (1 - (1 - chosen / count) ** tokens)


def held_bytes(config, quantised=True):
    """Bytes of an element: of matrices that every token uses, and of experts."""
    method = config.get("quantization_config", {}).get("quant_method") if quantised else None
    if method not in HELD:
        raise ValueError(f"gpu_bounds.py does not know quant_method {method}")
    return HELD[method]


def weight_bytes(config, quantised=True):
    """All matrices, as they lie in memory; an embedding that is not the LM head counts, too."""
    tables = (1 if config["tie_word_embeddings"] else 2) * config["vocab_size"] * config["hidden_size"]
    matrix, expert = held_bytes(config, quantised)
    return BF16 * tables + sum(matrix * layer.weights + BF16 * layer.router + expert * layer.experts * layer.expert for layer in layers(config))


def step_bytes(config, sequences, context, quantised=True):
    """Least bytes of a decode step of `sequences`, each with `context` positions: (weights, K and V, states)."""
    weights, kv, states = BF16 * config["vocab_size"] * config["hidden_size"], 0.0, 0.0
    matrix, expert = held_bytes(config, quantised)
    for layer in layers(config):
        weights += matrix * layer.weights + BF16 * layer.router
        if layer.experts:
            weights += expert * layer.expert * expected_experts(layer.experts, layer.chosen, sequences)
        kv += BF16 * layer.kv * sequences * (min(context, layer.window) if layer.window else context)
        states += 2 * F32 * layer.state * sequences
    return weights, kv, states


def decode_bound(config, sequences, context, copy_bytes_per_s, quantised=True):
    """Most tokens per second that the memory allows."""
    return sequences * copy_bytes_per_s / sum(step_bytes(config, sequences, context, quantised))


def seen(tokens, window):
    """Pairs of a query and a position at or before it, of which it sees the last `window`."""
    if not window or tokens <= window:
        return tokens * (tokens + 1) // 2
    return window * (window + 1) // 2 + (tokens - window) * window


def prefill_flops(config, sequences, tokens):
    flops = 2 * config["vocab_size"] * config["hidden_size"]
    for layer in layers(config):
        flops += 2 * tokens * (layer.weights + layer.router + layer.chosen * layer.expert)
        flops += layer.pair * seen(tokens, layer.window) + layer.token * tokens
    return sequences * flops
