# SPDX-License-Identifier: Apache-2.0
"""Writes tests/goldens/lora: what PEFT answers with tiny random LoRA adapters on the golden models.

Usage: python -m tools.goldens.lora [NAME]...

Needs what scripts/goldens installs, and peft (PyPI). An adapter has no file of weights: each of its tensors follows from
its name by the rule of philox.py, as the weights of the models do.
"""

import json
import pathlib
import sys

import numpy as np
import peft
import torch

from tools.goldens import floats, philox, reference
from tools.goldens.cases import find_case, make_prompt
from tools.goldens.make import write_object

ROOT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "goldens"
PROMPT_LENGTHS = (1, 17, 64)
# With experts in a layer, PEFT turns the modules of an MLP into target_parameters, which adapt all experts.
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
MLP = ["gate_proj", "up_proj", "down_proj"]

# The adapter's name: the model, and the settings.
ADAPTERS = {
    "llama-all": ("llama", {"r": 8, "lora_alpha": 16, "target_modules": "all-linear"}),
    "llama-few": ("llama-bias-tied", {"r": 3, "lora_alpha": 6, "target_modules": ["q_proj", "v_proj"]}),
    "llama-patterns": ("llama", {
        "r": 4, "lora_alpha": 8, "use_rslora": True,
        "target_modules": ["q_proj", "v_proj", "o_proj", "down_proj", "embed_tokens", "lm_head"],
        "rank_pattern": {"layers.0.self_attn.q_proj": 12, r"^model\.layers\.1\..*v_proj": 2},
        "alpha_pattern": {"down_proj": 3}}),
    "phi3": ("phi3", {"r": 6, "lora_alpha": 6, "target_modules": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]}),
    "qwen3-regex": ("qwen3", {"r": 16, "lora_alpha": 8, "target_modules": r".*\.(k_proj|up_proj)"}),
    "gemma3": ("gemma3", {"r": 4, "lora_alpha": 4, "target_modules": ATTENTION + MLP + ["embed_tokens"]}),
    "qwen3-moe": ("qwen3-moe", {"r": 8, "lora_alpha": 8, "target_modules": ATTENTION}),
    "qwen3-moe-all": ("qwen3-moe", {"r": 4, "lora_alpha": 6, "use_rslora": True, "target_modules": "all-linear"}),
    "nemotron-h": ("nemotron-h", {
        "r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "o_proj", "embeddings"],
        "target_parameters": ["experts.up_proj", "experts.down_proj", "gate.weight"],
        "rank_pattern": {".*experts.down_proj": 2}, "alpha_pattern": {"gate.weight": 3}}),
    "glm4-moe": ("glm4-moe", {"r": 4, "lora_alpha": 8, "target_modules": ATTENTION + MLP}),
    "glm4-moe-shared": ("glm4-moe", {"r": 4, "lora_alpha": 8, "target_modules": r".*\.(shared_experts\.(gate|up|down)_proj|q_proj)"}),
    "qwen3-next": ("qwen3-next", {"r": 4, "lora_alpha": 8, "target_modules": ATTENTION + MLP + [
        "in_proj_qkvz", "in_proj_ba", "out_proj", "shared_expert_gate"]}),
    "qwen3.5": ("qwen3.5", {"r": 4, "lora_alpha": 8, "target_modules": ATTENTION + MLP + [
        "in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj"]}),
    "granite-hybrid": ("granite-hybrid", {"r": 4, "lora_alpha": 8, "target_modules": ATTENTION + [
        "in_proj", "out_proj", "input_linear", "output_linear"]}),
    "lfm2": ("lfm2", {"r": 4, "lora_alpha": 8, "target_modules": [
        "q_proj", "k_proj", "v_proj", "in_proj", "out_proj", "w1", "w2", "w3"]}),
    "deepseek-v2": ("deepseek-v2", {"r": 4, "lora_alpha": 8, "target_modules": MLP + [
        "q_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"]}),
}


def plain_config(config) -> dict:
    out = {k: sorted(v) if isinstance(v, set) else v for k, v in config.to_dict().items()}
    out = {k: v for k, v in out.items() if k not in ("auto_mapping", "base_model_name_or_path")}
    return json.loads(json.dumps(out, default=str))


def answer(model, tokens: list[int]) -> np.ndarray:
    return model(input_ids=torch.tensor([tokens])).logits[0].numpy().copy()


def make(name: str) -> None:
    case_name, settings = ADAPTERS[name]
    case = find_case(case_name)
    with torch.inference_mode():
        base = reference.load_model(ROOT / case_name, case.max_model_len, listed=case.listed)
        config = peft.LoraConfig(task_type="CAUSAL_LM", **settings)
        model = peft.get_peft_model(base, config).eval()
        saved = peft.get_peft_model_state_dict(model, save_embedding_layers=False)
        weights = {key: torch.from_numpy(philox.tensor(key, tuple(value.shape))) for key, value in saved.items()}
        peft.set_peft_model_state_dict(model, weights)
        prompts = [make_prompt(n, base.config.get_text_config().vocab_size) for n in PROMPT_LENGTHS]
        answers = [answer(model, tokens) for tokens in prompts]
        model = model.double()
        rows = []
        for tokens, logits in zip(prompts, answers, strict=True):
            noise = np.abs(answer(model, tokens) - logits).max()
            rows.append({"tokens": tokens, "max_abs_logit": float(np.abs(logits).max()), "reference_noise": float(noise),
                         "rows": [{"position": len(tokens) - 1, "logits": floats.encode(logits[-1])}]})
    folder = ROOT / "lora"
    folder.mkdir(exist_ok=True)
    head = {"case": case_name, "max_model_len": case.max_model_len, "made_with": {"peft": peft.__version__},
            "adapter_config": plain_config(config),
            "tensors": {key: list(value.shape) for key, value in sorted(saved.items())}}
    write_object(folder / f"{name}.json", head, prompts=rows)
    print(name, len(saved), "tensors")


if __name__ == "__main__":
    for wanted in sys.argv[1:] or ADAPTERS:
        make(wanted)
