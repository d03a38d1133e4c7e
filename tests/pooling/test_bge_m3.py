# SPDX-License-Identifier: Apache-2.0
"""BGE-M3's heads on the tiny RoBERTa: weights and vectors of tokens, from safetensors, torch files and the checkpoint."""

import json
import shutil
import subprocess
import zipfile

import numpy as np
import pytest
from conftest import BIN_DIR, ROOT  # noqa: F401
from tools.goldens import floats, philox, pooling_cases, safetensors_file

WIDTH = 64
BOS, EOS = 0, 2
HEADS = {"sparse_linear.weight": philox.tensor("sparse_linear.weight", (1, WIDTH)),
         "sparse_linear.bias": philox.tensor("sparse_linear.bias", (1,)),
         "colbert_linear.weight": philox.tensor("colbert_linear.weight", (WIDTH, WIDTH)),
         "colbert_linear.bias": philox.tensor("colbert_linear.bias", (WIDTH,))}


def write_torch(path, tensors: dict) -> None:
    """A state dict as torch.save writes it: a pickle that names storages, and their bytes."""
    text = lambda word: b"X" + len(word).to_bytes(4, "little") + word.encode()  # noqa: E731
    number = lambda value: b"J" + value.to_bytes(4, "little")  # noqa: E731
    code = b"\x80\x02ccollections\nOrderedDict\n)R("
    for i, (name, array) in enumerate(tensors.items()):
        storage = b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text(str(i)) + text("cpu") + number(array.size) + b"tQ"
        sizes = b"(" + b"".join(number(size) for size in array.shape) + b"t"
        strides = b"(" + b"".join(number(stride // 4) for stride in array.strides) + b"t"
        code += text(name) + b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"K\0" + sizes + strides + \
            b"\x89ccollections\nOrderedDict\n)RtR"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", code + b"u.")
        for i, array in enumerate(tensors.values()):
            archive.writestr(f"archive/data/{i}", array.astype("<f4").tobytes())


def head_tensors(head: str) -> dict:
    return {name.split(".")[1]: tensor for name, tensor in HEADS.items() if name.startswith(head)}


@pytest.fixture(scope="module")
def server(start, folder):
    """The same model three times: its heads in torch files, in safetensors, and among the other tensors."""
    models = folder / "bge"
    for form in ("torch", "files", "inside"):
        pooling_cases.write_model(pooling_cases.find_case("roberta"), models / form)
        config = json.loads((models / form / "config.json").read_text()) | {"architectures": ["BgeM3EmbeddingModel"]}
        (models / form / "config.json").write_text(json.dumps(config))
        for head in ("sparse_linear", "colbert_linear"):
            if form == "torch":
                write_torch(models / form / f"{head}.pt", head_tensors(head))
            if form == "files":
                safetensors_file.write_file(models / form / f"{head}.safetensors", head_tensors(head), "F32")
    listed = json.loads((pooling_cases.GOLDENS / "roberta" / "tensors.json").read_text())
    safetensors_file.write_folder(models / "inside", {n: philox.tensor(n, tuple(s)) for n, s in listed.items()} | HEADS,
                                  "F32", 1)
    return start("--models-dir=bge", "--max-loaded-models", "3", "--dtype", "float32")


def pooled(server, tokens, task, model="files", **more):
    answer = server.ok("/pooling", {"model": model, "task": task, "input": tokens, **more})
    return np.array(answer["data"][0]["data"], dtype=np.float32)


def test_heads_are_linear_layers_over_the_hidden_states(server):
    for prompt in json.loads((pooling_cases.GOLDENS / "roberta" / "expected.json").read_text())["prompts"]:
        tokens = prompt["tokens"]
        first = 1 if tokens[0] == BOS else 0
        weights, vectors = pooled(server, tokens, "token_classify"), pooled(server, tokens, "token_embed")
        assert vectors.shape == (len(tokens) - first, WIDTH)
        assert weights.shape == (max(len(tokens) - first - (tokens[-1] == EOS), 0),)
        for row in prompt["rows"]:
            hidden, place = floats.decode(row["hidden"]), row["position"] - first
            if not 0 <= place < len(weights):
                continue
            weight = float((HEADS["sparse_linear.weight"] @ hidden + HEADS["sparse_linear.bias"])[0])
            assert abs(weights[place] - max(weight, 0)) < 1e-4
            vector = HEADS["colbert_linear.weight"] @ hidden + HEADS["colbert_linear.bias"]
            assert np.abs(vectors[place] - vector / np.linalg.norm(vector)).max() < 1e-4
    raw = pooled(server, tokens, "token_classify", use_activation=False)
    assert raw.min() < 0 and np.array_equal(np.maximum(raw, 0), pooled(server, tokens, "token_classify"))


def test_the_tokens_around_a_text_have_no_weight(server):
    inner = [40, 41, 42, 40]
    weights, vectors = (pooled(server, [BOS, *inner, EOS], task) for task in ("token_classify", "token_embed"))
    assert weights.shape == (4,) and vectors.shape == (5, WIDTH)
    assert pooled(server, inner, "token_classify").shape == (4,)
    assert pooled(server, [BOS, EOS], "token_classify").shape == (0,)
    both = pooled(server, [BOS, *inner, EOS], "embed&token_classify")
    dense = pooled(server, [BOS, *inner, EOS], "embed")
    assert both.tobytes() == dense.tobytes() + weights.tobytes()
    usual = server.ok("/pooling", {"model": "files", "input": [BOS, *inner, EOS]})
    assert np.array(usual["data"][0]["data"], dtype=np.float32).tobytes() == both.tobytes()
    plain = server.ok("/v1/embeddings", {"model": "files", "input": [BOS, *inner, EOS]})["data"][0]["embedding"]
    assert np.array(plain, dtype=np.float32).tobytes() == dense.tobytes()


@pytest.mark.parametrize("form", ["torch", "inside"])
def test_every_form_of_the_heads_is_the_same(server, form):
    tokens = [BOS, 7, 8, 9, EOS]
    for task in ("embed&token_classify", "token_embed"):
        assert pooled(server, tokens, task, form).tobytes() == pooled(server, tokens, task).tobytes()


def test_wrong_tasks_and_missing_heads_are_refused(server, folder):
    answer = server.post("/pooling", {"model": "files", "task": "classify", "input": [5]})
    assert answer.status_code == 400 and "embed&token_classify" in answer.json()["error"]["message"]
    missing = folder / "no-heads"
    shutil.copytree(folder / "bge" / "files", missing)
    (missing / "colbert_linear.safetensors").unlink()
    done = subprocess.run([BIN_DIR / "quire", "embed", missing, "hello"], capture_output=True, text=True)
    assert done.returncode == 1 and "colbert_linear.safetensors" in done.stderr and "XLMRobertaModel" in done.stderr
