# SPDX-License-Identifier: Apache-2.0
"""Runs a golden case in transformers, in float32 on the CPU, and records the results.

The reference fixes RoPE's frequencies when the model is loaded, as quire and vLLM do: see fix_frequencies().
"""

import copy
import json
import pathlib
import tempfile

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tools.goldens import floats, philox, shapes
from tools.goldens.cases import INNER_POSITIONS, NEW_TOKENS, PROMPT_LENGTHS, Case, make_prompt


def spell_as_v4(config: dict) -> dict:
    """The same config in the format of transformers 4; linear and yarn also use the older key `type`."""
    out = {k: v for k, v in config.items() if k not in ("rope_parameters", "dtype")}
    rope = dict(config["rope_parameters"])
    out["rope_theta"] = rope.pop("rope_theta")
    if "partial_rotary_factor" in rope and rope["partial_rotary_factor"] != 1.0:
        out["partial_rotary_factor"] = rope["partial_rotary_factor"]
    rope.pop("partial_rotary_factor", None)
    rope_type = rope.pop("rope_type")
    if rope_type == "longrope":  # Phi has it at the top level
        rope.pop("original_max_position_embeddings")
    key = "type" if rope_type in ("linear", "yarn", "longrope") else "rope_type"
    out["rope_scaling"] = None if rope_type == "default" else {key: rope_type, **rope}
    if out.get("head_dim") == out["hidden_size"] // out["num_attention_heads"] and config["model_type"] == "llama":
        del out["head_dim"]  # most Llama checkpoints were written before the field existed
    out["torch_dtype"] = config["dtype"]
    out["transformers_version"] = "4.51.3"
    return dict(sorted(out.items()))


def make_config_json(case: Case) -> dict:
    config = getattr(transformers, case.config_class)(**copy.deepcopy(case.arguments))
    config.architectures = [case.model_class]
    config.dtype = "float32"
    out = json.loads(config.to_json_string(use_diff=True))
    return spell_as_v4(out) if case.config_format == "v4" else out


def fix_frequencies(model, max_model_len: int) -> None:
    """Makes RoPE depend only on the position.

    transformers picks dynamic's base and longrope's factors anew from the longest position of each call, so the same
    token would get other keys in a longer context. quire takes them from max_model_len once, which is transformers'
    own formula with the sequence length set to max_model_len; then the update on each call is switched off.
    """
    rotary = model.model.rotary_emb
    if rotary.rope_type in ("dynamic", "longrope"):
        inv_freq, rotary.attention_scaling = ROPE_INIT_FUNCTIONS[rotary.rope_type](
            model.config, torch.device("cpu"), seq_len=max_model_len)
        rotary.inv_freq = inv_freq
        rotary.rope_type = "default"


def load_by_parameters(folder: pathlib.Path, config, seed: int):
    """Sets the parameters, all of which must be in shapes.py."""
    config_json = json.loads((folder / "config.json").read_text())
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    parameters = dict(model.named_parameters())  # a tied head is listed once, as the embedding
    expected = shapes.tensor_shapes(config_json)
    found = {name: tuple(p.shape) for name, p in parameters.items()}
    if found != expected:
        raise RuntimeError(f"{folder.name}: shapes.py and transformers disagree: {set(found.items()) ^ set(expected.items())}")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(torch.from_numpy(philox.tensor(name, tuple(parameter.shape), seed)))
    return model


def load_by_files(folder: pathlib.Path, config, seed: int):
    """Saves the model, sets the tensors of the files by their names, and loads it again; writes tensors.json."""
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    with tempfile.TemporaryDirectory() as scratch:
        model.save_pretrained(scratch)
        path = pathlib.Path(scratch) / "model.safetensors"
        listed = {name: list(tensor.shape) for name, tensor in sorted(load_file(path).items())}
        save_file({name: torch.from_numpy(philox.tensor(name, tuple(shape), seed)) for name, shape in listed.items()}, path,
                  metadata={"format": "pt"})
        model = transformers.AutoModelForCausalLM.from_pretrained(scratch, attn_implementation="eager", dtype=torch.float32,
                                                                      experts_implementation="eager")
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(shape)}" for name, shape in listed.items())
    (folder / "tensors.json").write_text("{\n" + lines + "\n}\n")
    return model


def load_model(folder: pathlib.Path, max_model_len: int, seed: int = 0, listed: bool = False):
    """Builds the model from the folder's config.json (the same file that quire reads) with Philox weights."""
    config = transformers.AutoConfig.from_pretrained(folder)
    model = (load_by_files if listed else load_by_parameters)(folder, config, seed)
    if not listed:
        fix_frequencies(model, max_model_len)
    return model.eval()


def greedy(model, tokens: list[int], count: int) -> tuple[np.ndarray, list[int], np.ndarray]:
    """Returns all prompt logits [len, vocab], `count` greedy tokens (ties to the lower id) and each step's top-2 gap."""
    cache = transformers.DynamicCache(config=model.config)
    ids, out, gaps, prompt_logits = torch.tensor([tokens]), [], [], None
    for _ in range(count):
        logits = model(input_ids=ids, past_key_values=cache, use_cache=True).logits[0]
        if prompt_logits is None:
            prompt_logits = logits.numpy().copy()
        last = logits[-1].numpy()
        out.append(int(np.argmax(last)))
        top = np.partition(last, -2)[-2:]
        gaps.append(np.float32(top[1] - top[0]))
        ids = torch.tensor([[out[-1]]])
    return prompt_logits, out, np.array(gaps, dtype=np.float32)


def run_case(folder: pathlib.Path, max_model_len: int, listed: bool = False) -> list[dict]:
    with torch.inference_mode():
        model = load_model(folder, max_model_len, listed=listed)
        answers = [(tokens, *greedy(model, tokens, NEW_TOKENS))
                   for tokens in (make_prompt(n, model.config.vocab_size) for n in PROMPT_LENGTHS)]
        # The error of float32 itself: the same prompts with float64 weights and activations (norms stay float32).
        exact = model.double()
        prompts = []
        for tokens, logits, out, gaps in answers:
            noise = np.abs(exact(input_ids=torch.tensor([tokens])).logits[0].numpy() - logits).max()
            positions = [*INNER_POSITIONS.get(len(tokens), ()), len(tokens) - 1]
            prompts.append({
                "tokens": tokens, "max_abs_logit": float(np.abs(logits).max()), "reference_noise": float(noise),
                "greedy": out, "gaps": floats.encode(gaps),
                "rows": [{"position": p, "logits": floats.encode(logits[p])} for p in positions]})
    return prompts
