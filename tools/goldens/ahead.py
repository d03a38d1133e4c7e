# SPDX-License-Identifier: Apache-2.0
"""Multi-token prediction: what the layer after the last one proposes. transformers does not run it, so it is built here.

Row i of the layer sees the token i + 1 and the hidden state of the model at i, after the model's last norm:

    x_i  = projection(concat(norm_e(embedding(token i + 1)), norm_h(hidden i)))
    h'_i = norm(block(x)_i),   logits for the token i + 2 = head(h'_i)

DeepSeek and GLM take a zero embedding in row 0. The second draft comes from a row with the first draft and h' of the row
before it. The block is one more decoder layer of the family: it is made as the last layer of a model that has one more.
"""

import copy
import json
import pathlib
import tempfile

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

from tools.goldens import floats, philox
from tools.goldens.cases import make_prompt

# Names of the layer's tensors; {} is the number of layers of the model.
_NEXTN = {"block": "model.layers.{}.", "projection": "model.layers.{}.eh_proj", "norm_e": "model.layers.{}.enorm",
          "norm_h": "model.layers.{}.hnorm", "norm": "model.layers.{}.shared_head.norm", "zero_first": True}
_MTP = {"block": "mtp.layers.0.", "projection": "mtp.fc", "norm_e": "mtp.pre_fc_norm_embedding",
        "norm_h": "mtp.pre_fc_norm_hidden", "norm": "mtp.norm", "zero_first": False}
LAYOUTS = {"deepseek-v3": _NEXTN, "glm4-moe": _NEXTN, "qwen3-next": _MTP, "qwen3.5": _MTP, "qwen3.5-moe": _MTP}
DRAFTS = 3
PROMPT_LENGTHS = (2, 17, 64, 333)


def load_with_block(folder: pathlib.Path, layout: dict, listed: dict):
    """The model with the block as one more layer at the end; lists the shapes of the block's tensors by their names."""
    config = copy.deepcopy(transformers.AutoConfig.from_pretrained(folder))
    layers = config.num_hidden_layers
    config.num_hidden_layers = layers + 1
    for name, last in (("layer_types", "full_attention"), ("mlp_layer_types", "sparse")):
        if getattr(config, name, None):
            setattr(config, name, [*getattr(config, name)[:layers], last])
    own, block = f"model.layers.{layers}.", layout["block"].format(layers)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    with tempfile.TemporaryDirectory() as scratch:
        model.save_pretrained(scratch)
        path = pathlib.Path(scratch) / "model.safetensors"
        made = {}
        for name, tensor in load_file(path).items():
            stored = name
            if name.startswith(own):
                stored = block + name.removeprefix(own)
                listed[stored] = list(tensor.shape)
            made[name] = torch.from_numpy(philox.tensor(stored, tuple(tensor.shape), 0))
        save_file(made, path, metadata={"format": "pt"})
        model = transformers.AutoModelForCausalLM.from_pretrained(
            scratch, attn_implementation="eager", dtype=torch.float32, experts_implementation="eager")
    return model.eval()


class Ahead:
    def __init__(self, folder: pathlib.Path, layout: dict):
        self.tensors = {}  # of the layer: name -> shape
        self.model = load_with_block(folder, layout, self.tensors)
        self.block = self.model.model.layers[-1]
        self.zero_first = layout["zero_first"]
        config = self.model.config
        hidden = config.hidden_size

        def weight(part: str, *shape: int) -> torch.Tensor:
            name = layout[part].format(config.num_hidden_layers - 1) + ".weight"
            self.tensors[name] = list(shape)
            return torch.from_numpy(philox.tensor(name, shape, 0))

        def norm(part: str):
            out = type(self.model.model.norm)(hidden, eps=config.rms_norm_eps)
            out.weight.data.copy_(weight(part, hidden))
            return out
        self.norm_e, self.norm_h, self.norm = norm("norm_e"), norm("norm_h"), norm("norm")
        self.projection = weight("projection", hidden, 2 * hidden)

    def double(self):
        for module in (self.model, self.norm_e, self.norm_h, self.norm):
            module.double()
        self.projection = self.projection.double()

    def before_block(self, tokens: list[int]):
        """What the block would get as the last layer of the model: the residual stream and the other arguments."""
        seen = {}

        def look(_, args, kwargs):
            seen["hidden"] = args[0] if args else kwargs.pop("hidden_states")
            seen["kwargs"] = {k: v for k, v in kwargs.items() if k != "hidden_states"}
        handle = self.block.register_forward_pre_hook(look, with_kwargs=True)
        self.model.model(input_ids=torch.tensor([tokens]), use_cache=False)
        handle.remove()
        return seen["hidden"], seen["kwargs"]

    def run(self, tokens: list[int], drafts: list[int] | None = None):
        """The next token of the model, the drafts after it, and the logits of each draft (all rows of the first one)."""
        stream, _ = self.before_block([*tokens, 0])  # the last one is a place holder: its row is not read
        hidden = self.model.model.norm(stream)[:, :len(tokens)]
        following = [*tokens[1:], int(self.model.lm_head(hidden[0, -1]).argmax())]
        given, out, rows = drafts, [], []
        for step in range(DRAFTS):
            _, arguments = self.before_block([0] * len(following))
            embedded = self.model.model.embed_tokens(torch.tensor([following]))
            if self.zero_first:
                embedded = embedded.clone()
                embedded[:, 0] = 0
            both = torch.cat([self.norm_e(embedded), self.norm_h(hidden)], dim=-1)
            x = self.block(both @ self.projection.T, **arguments)
            ahead = self.norm(x[0] if isinstance(x, tuple) else x)
            rows.append(self.model.lm_head(ahead[0, -1]).numpy().copy())
            out.append(given[step] if given else int(rows[-1].argmax()))
            following = [*following, out[-1]]
            hidden = torch.cat([hidden, ahead[:, -1:]], dim=1)
        return following[len(tokens) - 1], out, rows


def run_case(folder: pathlib.Path, name: str) -> tuple[dict, list[dict]]:
    """The shapes of the layer's tensors by their names, and what it proposes after each prompt."""
    with torch.inference_mode():
        ahead = Ahead(folder, LAYOUTS[name])
        vocab = json.loads((folder / "config.json").read_text())["vocab_size"]
        answers = [(tokens, *ahead.run(tokens)) for tokens in (make_prompt(n, vocab) for n in PROMPT_LENGTHS)]
        ahead.double()
        prompts = []
        for tokens, following, drafts, rows in answers:
            exact = ahead.run(tokens, drafts)[2]
            noise = max(np.abs(a - b).max() for a, b in zip(exact, rows, strict=True))
            prompts.append({"tokens": tokens, "next": following, "drafts": drafts, "reference_noise": float(noise),
                            "max_abs_logit": float(max(np.abs(row).max() for row in rows)),
                            "rows": [floats.encode(row) for row in rows]})
    return dict(sorted(ahead.tensors.items())), prompts
