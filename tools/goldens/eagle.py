# SPDX-License-Identifier: Apache-2.0
"""EAGLE-3: a layer of its own that drafts for a dense model, for the golden case llama. transformers has none.

Row i of the layer sees the token i + 1 and a state: at first fc(concat of the model's residual stream before the layers
0, 1 and 2), for later drafts what the layer itself had at its end, before its norm.

    s_i      = the state
    x        = concat(input_layernorm(embedding(token i + 1)), hidden_norm(s_i))
    s'_i     = s_i + attention(x);  s''_i = s'_i + mlp(post_attention_layernorm(s'_i))
    logits for the token i + 2 = lm_head(norm(s''_i)), for the first tokens of the vocabulary
"""

import json
import pathlib

import numpy as np
import torch
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from tools.goldens import floats, philox, reference
from tools.goldens.cases import make_prompt

CASE = "llama"
DRAFT_VOCAB = 300
DRAFTS = 3
PROMPT_LENGTHS = (2, 17, 64, 333)


def make_config(folder: pathlib.Path) -> dict:
    config = json.loads((folder / "config.json").read_text())
    return {**config, "architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, "draft_vocab_size": DRAFT_VOCAB}


def shapes(config: dict) -> dict[str, list[int]]:
    h, m, heads, kv = (config[f] for f in ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads"))
    d = h // heads
    out = {"fc": [h, 3 * h], "norm": [h], "lm_head": [DRAFT_VOCAB, h], "midlayer.self_attn.q_proj": [h, 2 * h],
           "midlayer.self_attn.k_proj": [kv * d, 2 * h], "midlayer.self_attn.v_proj": [kv * d, 2 * h],
           "midlayer.self_attn.o_proj": [h, h], "midlayer.mlp.gate_proj": [m, h], "midlayer.mlp.up_proj": [m, h],
           "midlayer.mlp.down_proj": [h, m]}
    out |= {f"midlayer.{norm}": [h] for norm in ("input_layernorm", "hidden_norm", "post_attention_layernorm")}
    return {f"{name}.weight": shape for name, shape in sorted(out.items())}


class Eagle:
    def __init__(self, folder: pathlib.Path):
        self.config = make_config(folder)
        self.model = reference.load_model(folder, 1024)
        self.weights = {name: torch.from_numpy(philox.tensor(name, tuple(shape), 0)) for name, shape in shapes(self.config).items()}

    def double(self):
        self.model.double()
        self.weights = {name: w.double() for name, w in self.weights.items()}

    def linear(self, name: str, x):
        return x @ self.weights[name + ".weight"].T

    def norm(self, name: str, x):
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.config["rms_norm_eps"])
        return x * scale * self.weights[name + ".weight"]

    def layer(self, state, tokens):
        heads, kv = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        embedded = self.model.model.embed_tokens(torch.tensor(tokens))
        x = torch.cat([self.norm("midlayer.input_layernorm", embedded), self.norm("midlayer.hidden_norm", state)], dim=-1)
        q, k, v = (self.linear(f"midlayer.self_attn.{n}_proj", x).view(len(tokens), c, -1).transpose(0, 1)[None]
                   for n, c in (("q", heads), ("k", kv), ("v", kv)))
        cos, sin = self.model.model.rotary_emb(x, torch.arange(len(tokens))[None])
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        k, v = (t.repeat_interleave(heads // kv, dim=1) for t in (k, v))
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        future = torch.triu(torch.ones(len(tokens), len(tokens), dtype=torch.bool), 1)
        mixed = (scores.masked_fill(future, -torch.inf).softmax(-1) @ v)[0].transpose(0, 1).reshape(len(tokens), -1)
        state = state + self.linear("midlayer.self_attn.o_proj", mixed)
        y = self.norm("midlayer.post_attention_layernorm", state)
        gated = torch.nn.functional.silu(self.linear("midlayer.mlp.gate_proj", y)) * self.linear("midlayer.mlp.up_proj", y)
        return state + self.linear("midlayer.mlp.down_proj", gated)

    def run(self, tokens: list[int], drafts: list[int] | None = None):
        out = self.model(input_ids=torch.tensor([tokens]), output_hidden_states=True, use_cache=False)
        state = self.linear("fc", torch.cat([out.hidden_states[i][0] for i in (0, 1, 2)], dim=-1))
        following = [*tokens[1:], int(out.logits[0, -1].argmax())]
        found, rows = [], []
        for step in range(DRAFTS):
            end = self.layer(state, following)
            rows.append(self.linear("lm_head", self.norm("norm", end[-1])).numpy().copy())
            found.append(drafts[step] if drafts else int(rows[-1].argmax()))
            following = [*following, found[-1]]
            state = torch.cat([state, end[-1:]])
        return following[len(tokens) - 1], found, rows


def run_case(folder: pathlib.Path) -> list[dict]:
    with torch.inference_mode():
        eagle = Eagle(folder)
        answers = [(t, *eagle.run(t)) for t in (make_prompt(n, eagle.config["vocab_size"]) for n in PROMPT_LENGTHS)]
        eagle.double()
        prompts = []
        for tokens, following, drafts, rows in answers:
            noise = max(np.abs(a - b).max() for a, b in zip(eagle.run(tokens, drafts)[2], rows, strict=True))
            prompts.append({"tokens": tokens, "next": following, "drafts": drafts, "reference_noise": float(noise),
                            "max_abs_logit": float(max(np.abs(row).max() for row in rows)),
                            "rows": [floats.encode(row) for row in rows]})
    return prompts
