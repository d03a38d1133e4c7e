# SPDX-License-Identifier: Apache-2.0
"""Writes tests/pooling/goldens with transformers: hidden states, embeddings and scores of tiny models, in float32.

Usage: python -m tools.goldens.pooling [--case NAME]...     (needs torch, transformers and tokenizers)
"""

import argparse
import copy
import json
import pathlib
import sys
import tempfile

import numpy as np
import tokenizers
import torch
import transformers
from safetensors.torch import load_file, save_file

from tools.goldens import floats, philox, pooling_cases
from tools.goldens.cases import make_prompt
from tools.goldens.pooling_cases import CASES, GOLDENS, PAIRS, PROMPT_LENGTHS, PoolingCase


def make_config(case: PoolingCase) -> dict:
    config = getattr(transformers, case.config_class)(**copy.deepcopy(case.arguments))
    config.architectures = [case.model_class]
    config.dtype = "float32"
    return json.loads(config.to_json_string(use_diff=False)) | case.fields


def load_model(case: PoolingCase, folder: pathlib.Path):
    """The model with Philox weights, by the names under which transformers saves them; writes tensors.json."""
    kind = getattr(transformers, case.model_class)
    config = transformers.AutoConfig.from_pretrained(folder)
    options = {"attn_implementation": "eager", "dtype": torch.float32}
    with tempfile.TemporaryDirectory() as scratch:
        kind._from_config(config, **options).save_pretrained(scratch)
        path = pathlib.Path(scratch) / "model.safetensors"
        listed = {name: list(tensor.shape) for name, tensor in sorted(load_file(path).items())}
        save_file({name: torch.from_numpy(philox.tensor(name, tuple(shape))) for name, shape in listed.items()}, path,
                  metadata={"format": "pt"})
        # The folder's own config: what transformers saved may have been changed by its class.
        (pathlib.Path(scratch) / "config.json").write_text((folder / "config.json").read_text())
        model = kind.from_pretrained(scratch, **options)
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(shape)}" for name, shape in listed.items())
    (folder / "tensors.json").write_text("{\n" + lines + "\n}\n")
    return model.eval()


def embedding(case: PoolingCase, hidden: np.ndarray) -> np.ndarray:
    """What sentence-transformers makes of the hidden states."""
    pooled = {"mean": hidden.mean(axis=0), "cls": hidden[0], "lasttoken": hidden[-1]}[case.pooling]
    for weight in pooling_cases.dense_tensors(case):
        pooled = weight.astype(hidden.dtype) @ pooled
    return pooled / np.linalg.norm(pooled) if case.normalize else pooled


def run_prompt(case: PoolingCase, model, tokens: list[int]) -> dict:
    ids = torch.tensor([tokens])
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    exact = copy.deepcopy(model).double()
    if case.classifies:
        logits, precise = (m(**inputs).logits[0].numpy() for m in (model, exact))
        return {"tokens": tokens, "logits": floats.encode(logits.astype(np.float32)),
                "noise": float(np.abs(logits - precise).max())}
    hidden, precise = (m(**inputs).last_hidden_state[0].numpy() for m in (model, exact))
    positions = sorted({0, len(tokens) // 2, len(tokens) - 1})
    out = {"tokens": tokens, "noise": float(np.abs(hidden - precise).max()), "largest": float(np.abs(hidden).max()),
           "rows": [{"position": p, "hidden": floats.encode(hidden[p])} for p in positions]}
    if case.pooling:
        out["embedding"] = floats.encode(embedding(case, precise).astype(np.float32))
    return out


def run_pairs(case: PoolingCase, model) -> list[dict]:
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(pooling_cases.tokenizer_files(case)["tokenizer.json"]))
    out = []
    for first, second in PAIRS:
        encoded = tokenizer.encode(first, second)
        inputs = {"input_ids": torch.tensor([encoded.ids]), "attention_mask": torch.ones(1, len(encoded.ids)),
                  "token_type_ids": torch.tensor([encoded.type_ids])}
        out.append({"ids": encoded.ids, "types": encoded.type_ids, "logit": float(model(**inputs).logits[0, 0])})
    return out


def make_case(case: PoolingCase) -> None:
    folder = GOLDENS / case.name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(make_config(case), indent=1) + "\n")
    with torch.inference_mode():
        model = load_model(case, folder)
        first = 5  # without the padding's id, by which some models find positions
        prompts = [[first + t % (pooling_cases.VOCAB - first) for t in make_prompt(n, pooling_cases.VOCAB)]
                   for n in PROMPT_LENGTHS]
        expected = {"case": case.name, "made_with": {"torch": torch.__version__.split("+")[0],
                                                     "transformers": transformers.__version__},
                    "prompts": [run_prompt(case, model, tokens) for tokens in prompts]}
        if case.pairs:
            expected["pairs"] = run_pairs(case, model)
    (folder / "expected.json").write_text(json.dumps(expected, indent=0) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", action="append", choices=[case.name for case in CASES])
    options = parser.parse_args()
    torch.set_num_threads(1)
    for case in CASES:
        if options.case and case.name not in options.case:
            continue
        make_case(case)
        print(f"{case.name}: done", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
