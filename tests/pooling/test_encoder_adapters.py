# SPDX-License-Identifier: Apache-2.0
"""Adapters of encoders: an embedding with one is that of a model into whose weights it was merged."""

import json

import numpy as np
import pytest
from tools.goldens import philox, pooling_cases, safetensors_file

RANK, ALPHA = 4, 6
# The model, and modules as PEFT names them with the weights that they are in the checkpoint.
MODULES = {
    "bert": {f"encoder.layer.1.{name}": f"encoder.layer.1.{name}" for name in (
        "attention.self.query", "attention.self.value", "attention.output.dense", "intermediate.dense", "output.dense")},
    "bert-cross": {"bert.encoder.layer.0.attention.self.key": "bert.encoder.layer.0.attention.self.key",
                   "bert.embeddings.word_embeddings": "bert.embeddings.word_embeddings"},
    "xlm-roberta-cross": {"roberta.encoder.layer.2.output.dense": "roberta.encoder.layer.2.output.dense"},
    "mpnet": {f"encoder.layer.0.attention.attn.{name}": f"encoder.layer.0.attention.attn.{name}" for name in "qkvo"},
    "modernbert": {"layers.1.attn.Wqkv": "layers.1.attn.Wqkv", "layers.1.mlp.Wi": "layers.1.mlp.Wi"},
    # As of transformers 5, and as of the model's own code.
    "nomic-bert": {"layers.1.self_attn.k_proj": ("encoder.layers.1.attn.Wqkv", 64, 128),
                   "layers.1.self_attn.v_proj": ("encoder.layers.1.attn.Wqkv", 128, 192),
                   "layers.1.self_attn.o_proj": "encoder.layers.1.attn.out_proj",
                   "layers.1.mlp.up_proj": "encoder.layers.1.mlp.fc11", "layers.1.mlp.gate_proj": "encoder.layers.1.mlp.fc12",
                   "layers.1.mlp.down_proj": "encoder.layers.1.mlp.fc2", "encoder.layers.0.attn.Wqkv": "encoder.layers.0.attn.Wqkv"},
}


def write_adapter(folder, matrices, **more):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA} | more))
    safetensors_file.write_file(folder / "adapter_model.safetensors", matrices, "F32")


@pytest.mark.parametrize("name", MODULES)
def test_an_adapter_is_as_good_as_merged(folder, start, name):
    case = pooling_cases.find_case(name)
    listed = json.loads((pooling_cases.GOLDENS / name / "tensors.json").read_text())
    weights = {key: philox.tensor(key, tuple(shape)) for key, shape in listed.items()}
    names = {key.removesuffix(".weight").removeprefix("model."): key for key in weights}
    matrices = {}
    for module, of in MODULES[name].items():
        own, begin, end = of if isinstance(of, tuple) else (of, 0, None)
        part = weights[names[own]][begin:end]
        lookup = module.endswith("word_embeddings")
        out, width = part.shape if not lookup else part.shape[::-1]
        a, b = (philox.tensor(module + end_of, shape) for end_of, shape in ((".a", (RANK, width)), (".b", (out, RANK))))
        part += ALPHA / RANK * (b @ a if not lookup else (b @ a).T)
        endings = (".lora_embedding_A", ".lora_embedding_B") if lookup else (".lora_A.weight", ".lora_B.weight")
        matrices |= {f"base_model.model.{module}{ending}": m for ending, m in zip(endings, (a, b), strict=True)}
    if name in ("bert", "mpnet"):  # what no embedding is made of
        matrices |= {"base_model.model.pooler.dense.lora_A.weight": np.ones((RANK, 64), dtype=np.float32),
                     "base_model.model.pooler.dense.lora_B.weight": np.ones((64, RANK), dtype=np.float32)}
    merged = folder / "merged" / name
    pooling_cases.write_model(case, merged)
    safetensors_file.write_folder(merged, weights, "F32", 1)
    write_adapter(folder / "adapters" / name, matrices)
    server = start(f"models/{name}", "--enable-lora", "--lora-modules", f"tuned=adapters/{name}", "--dtype", "float32",
                   "--served-model-name", "base")
    other = start(f"merged/{name}", "--dtype", "float32", "--served-model-name", "tuned")
    path, key = ("/classify", "probs") if case.classifies else ("/v1/embeddings", "embedding")
    body = {"input": [list(range(7, 40)), [9, 8]], "use_activation": False}
    base, tuned, wanted = (np.array([item[key] for item in each.ok(path, body | {"model": model})["data"]])
                           for each, model in ((server, "base"), (server, "tuned"), (other, "tuned")))
    scale = np.abs(wanted).max()
    assert np.abs(tuned - wanted).max() < 2e-5 * scale
    assert np.abs(base - wanted).max() > 1e-3 * scale


def test_one_matrix_under_two_names_is_refused(folder, start):
    matrices = {}
    for module, out in (("encoder.layers.0.attn.Wqkv", 192), ("layers.0.self_attn.k_proj", 64)):
        matrices |= {f"base_model.model.{module}.lora_A.weight": np.ones((RANK, 64), dtype=np.float32),
                     f"base_model.model.{module}.lora_B.weight": np.ones((out, RANK), dtype=np.float32)}
    write_adapter(folder / "adapters" / "twice", matrices)
    server = start("models/nomic-bert", "--enable-lora", env={"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"})
    answer = server.post("/v1/load_lora_adapter", {"lora_name": "twice", "lora_path": str(folder / "adapters" / "twice")})
    assert answer.status_code == 400 and "are the same matrix under two names" in answer.json()["error"]["message"]
