# SPDX-License-Identifier: Apache-2.0
"""Every family that makes embeddings or scores gives the numbers of transformers, through the server."""

import json
import subprocess

import numpy as np
import pytest
from conftest import BIN_DIR, ROOT  # noqa: F401
from tools.goldens import floats, pooling_cases, safetensors_file

CASES = pooling_cases.CASES
EMBEDDERS = [case for case in CASES if not case.classifies]
CLASSIFIERS = [case for case in CASES if case.classifies]


def expected(case) -> dict:
    return json.loads((pooling_cases.GOLDENS / case.name / "expected.json").read_text())


def tolerance(noise: float, largest: float) -> float:
    """For another order of float32 sums: from the reference's own distance to float64."""
    return 8 * noise + 32 * 2.0**-23 * largest


@pytest.mark.parametrize("case", EMBEDDERS, ids=lambda case: case.name)
def test_hidden_states_are_those_of_transformers(server, case):
    prompts = expected(case)["prompts"]
    answer = server.ok("/pooling", {"model": case.name, "task": "token_embed", "use_activation": False,
                                    "input": [prompt["tokens"] for prompt in prompts]})
    for prompt, item in zip(prompts, answer["data"], strict=True):
        rows = np.array(item["data"], dtype=np.float32)
        assert len(rows) == len(prompt["tokens"])
        for row in prompt["rows"]:
            hidden = floats.decode(row["hidden"])
            for weight in pooling_cases.dense_tensors(case):
                hidden = weight @ hidden
            worst = np.abs(rows[row["position"]] - hidden).max()
            allowed = tolerance(prompt["noise"], prompt["largest"]) * max(1, 4 * len(case.dense))
            assert worst <= allowed, f"position {row['position']} of {len(rows)}: off by {worst:.3g}, allowed {allowed:.3g}"


@pytest.mark.parametrize("case", [case for case in EMBEDDERS if case.pooling], ids=lambda case: case.name)
def test_embeddings_are_those_of_sentence_transformers(server, case):
    prompts = expected(case)["prompts"]
    answer = server.ok("/v1/embeddings", {"model": case.name, "input": [prompt["tokens"] for prompt in prompts]})
    for prompt, item in zip(prompts, answer["data"], strict=True):
        ours, theirs = np.array(item["embedding"], dtype=np.float64), floats.decode(prompt["embedding"]).astype(np.float64)
        cosine = ours @ theirs / np.linalg.norm(ours) / np.linalg.norm(theirs)
        assert cosine >= 0.999999 and np.abs(ours - theirs).max() < 1e-4
        if case.normalize:
            assert abs(np.linalg.norm(ours) - 1) < 1e-5


@pytest.mark.parametrize("case", CLASSIFIERS, ids=lambda case: case.name)
def test_scores_of_classes_are_those_of_transformers(server, case):
    prompts = expected(case)["prompts"]
    body = {"model": case.name, "input": [prompt["tokens"] for prompt in prompts]}
    raw = server.ok("/classify", body | {"use_activation": False})
    plain = server.ok("/classify", body)
    for prompt, item, active in zip(prompts, raw["data"], plain["data"], strict=True):
        logits = floats.decode(prompt["logits"])
        assert np.abs(np.array(item["probs"]) - logits).max() <= tolerance(prompt["noise"], 4 * np.abs(logits).max() + 1)
        exponents = np.exp(logits - logits.max())
        probs = exponents / exponents.sum() if len(logits) > 1 else 1 / (1 + np.exp(-logits))
        assert np.allclose(active["probs"], probs, atol=1e-5) and item["num_classes"] == len(logits)
    labels = {"bert-classify": ["bad", "good", "so-so"]}.get(case.name)
    if labels:
        assert [item["label"] for item in plain["data"]] == [labels[int(np.argmax(item["probs"]))] for item in plain["data"]]


@pytest.mark.parametrize("case", [case for case in CASES if case.pairs], ids=lambda case: case.name)
def test_pairs_have_the_tokens_types_and_scores_of_the_reference(server, case):
    pairs = expected(case)["pairs"]
    body = {"model": case.name, "queries": [a for a, _ in pooling_cases.PAIRS], "documents": [b for _, b in pooling_cases.PAIRS]}
    answer = server.ok("/score", body | {"use_activation": False})
    assert answer["usage"]["prompt_tokens"] == sum(len(pair["ids"]) for pair in pairs)
    assert np.allclose([item["score"] for item in answer["data"]], [pair["logit"] for pair in pairs], atol=2e-5)
    sigmoid = server.ok("/score", body)["data"]
    assert np.allclose([item["score"] for item in sigmoid], 1 / (1 + np.exp([-pair["logit"] for pair in pairs])), atol=1e-5)


MODES = {"max": lambda rows: rows.max(axis=0), "mean_sqrt_len_tokens": lambda rows: rows.sum(axis=0) / len(rows)**0.5,
         "weightedmean": lambda rows: np.average(rows, axis=0, weights=np.arange(1, len(rows) + 1))}
ACTIVATIONS = {"SiLU": lambda x: x / (1 + np.exp(-x)), "LeakyReLU": lambda x: np.where(x > 0, x, 0.01 * x),
               "ELU": lambda x: np.where(x > 0, x, np.expm1(x)),
               "SELU": lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x)),
               "Mish": lambda x: x * np.tanh(np.log1p(np.exp(x))), "Softplus": lambda x: np.log1p(np.exp(x)),
               "Softsign": lambda x: x / (1 + abs(x)), "Hardtanh": lambda x: np.clip(x, -1, 1),
               "ReLU6": lambda x: np.clip(x, 0, 6), "LogSigmoid": lambda x: -np.log1p(np.exp(-x))}


@pytest.fixture(scope="module")
def variants(folder, start):
    """The model "bert" with other modules of sentence-transformers behind it."""
    weight = np.random.default_rng(1).standard_normal((32, 64), dtype=np.float32)

    def write(name, mode, kinds, activation="Tanh", **files):
        out = folder / "variants" / name
        pooling_cases.write_model(pooling_cases.find_case("bert"), out)
        modules = [{"idx": i, "name": str(i), "path": f"{i}_{kind}", "type": f"sentence_transformers.models.{kind}"}
                   for i, kind in enumerate(["Transformer", "Pooling", *kinds])]
        written = {"modules.json": modules, "1_Pooling/config.json": {"pooling_mode": mode, "include_prompt": True}} | files
        for module in modules:
            if module["type"].endswith(".Dense"):
                written[module["path"] + "/config.json"] = {
                    "in_features": 64, "out_features": 32, "bias": False,
                    "activation_function": f"torch.nn.modules.activation.{activation}"}
        for path, value in written.items():
            (out / path).parent.mkdir(exist_ok=True)
            (out / path).write_text(json.dumps(value))
            if path.endswith("Dense/config.json"):
                safetensors_file.write_file(out / path.replace("config.json", "model.safetensors"), {"linear.weight": weight}, "F32")

    for mode in MODES:
        write(mode, mode, [])
    for activation in ACTIVATIONS:
        write(activation, "mean", ["Dense"], activation)
    write("normalized-first", "mean", ["Normalize", "Dense"])
    write("cut", "mean", ["Normalize"], **{"config_sentence_transformers.json": {"truncate_dim": 16}})
    write("without-prompt", "mean", [], **{"1_Pooling/config.json": {"pooling_mode": "mean", "include_prompt": False}})
    write("short", "mean", [], **{"tokenizer_config.json": {"model_max_length": 8}})
    write("lower", "mean", [], **{"sentence_bert_config.json": {"do_lower_case": True, "max_seq_length": 100}})
    return start("--models-dir=variants", "--max-loaded-models", "2", "--dtype", "float32"), weight


def rows_of(server, tokens) -> np.ndarray:
    body = {"model": "bert", "input": tokens, "task": "token_embed", "use_activation": False}
    return np.array(server.ok("/pooling", body)["data"][0]["data"], dtype=np.float64)


def embedding_of(server, model, text) -> np.ndarray:
    return np.array(server.ok("/v1/embeddings", {"model": model, "input": text})["data"][0]["embedding"])


def test_other_modules_of_sentence_transformers(server, variants):
    tokens = expected(pooling_cases.find_case("bert"))["prompts"][2]["tokens"]
    rows, (own, weight) = rows_of(server, tokens), variants
    for mode, pooled in MODES.items():
        assert np.allclose(embedding_of(own, mode, tokens), pooled(rows), atol=1e-5), mode
    mean = rows.mean(axis=0)
    for name, function in ACTIVATIONS.items():
        assert np.allclose(embedding_of(own, name, tokens), function(weight @ mean), atol=1e-5), name
    unit = mean / np.linalg.norm(mean)
    assert np.allclose(embedding_of(own, "normalized-first", tokens), np.tanh(weight @ unit), atol=1e-6)
    assert np.allclose(embedding_of(own, "cut", tokens), unit[:16] / np.linalg.norm(unit[:16]), atol=1e-6)


def test_sizes_and_prompts_of_cohere_follow_the_files(variants):
    own, _ = variants
    body = {"texts": ["a"], "embedding_types": ["float", "ubinary"]}
    answer = own.ok("/v2/embed", body | {"model": "cut"})["embeddings"]
    assert len(answer["float"][0]) == 16 and len(answer["ubinary"][0]) == 2
    own.ok("/v2/embed", body | {"model": "without-prompt"})
    own.ok("/v2/embed", body | {"model": "without-prompt", "input_type": "search_document"})  # whose prompt is empty
    refused = own.post("/v2/embed", body | {"model": "without-prompt", "input_type": "search_query"})
    assert refused.status_code == 400 and "include_prompt is false" in refused.json()["error"]["message"]


def test_lengths_and_lower_case_of_sentence_transformers(variants):
    own, _ = variants
    refused = own.post("/v1/embeddings", {"model": "short", "input": list(range(9))})
    assert refused.status_code == 400 and "takes at most 8" in refused.json()["error"]["message"]
    assert (embedding_of(own, "lower", "A KEY, \u00c4") == embedding_of(own, "lower", "a key, \u00e4")).all()
    assert (embedding_of(own, "lower", "a key") != embedding_of(own, "lower", "a page")).any()


def test_a_head_with_numbers_that_are_not_finite_is_refused(folder):
    out = folder / "infinite"
    pooling_cases.write_model(pooling_cases.find_case("gemma3-embedding"), out)
    weights = pooling_cases.dense_tensors(pooling_cases.find_case("gemma3-embedding"))[0]
    weights[3, 5] = np.inf
    safetensors_file.write_file(out / "2_Dense" / "model.safetensors", {"linear.weight": weights}, "F32")
    done = subprocess.run([BIN_DIR / "quire", "embed", out, "hello"], capture_output=True, text=True)
    assert done.returncode != 0 and done.stdout == ""
    assert "2_Dense': tensor 'linear.weight' has a value that is not a finite number" in done.stderr


def test_matryoshka_cuts_and_normalises_again(server):
    tokens = expected(pooling_cases.find_case("nomic-bert"))["prompts"][2]["tokens"]
    whole = np.array(server.ok("/v1/embeddings", {"model": "nomic-bert", "input": tokens})["data"][0]["embedding"])
    cut = np.array(server.ok("/v1/embeddings", {"model": "nomic-bert", "input": tokens, "dimensions": 16})["data"][0]["embedding"])
    assert np.allclose(cut, whole[:16] / np.linalg.norm(whole[:16]), atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_mpnets_bias_by_distance_on_the_emulator(folder, dtype):
    """The emulator runs the texts of the GPU kernels."""
    command = [BIN_DIR / "quire", "embed", folder / "models" / "mpnet", "--json", "hello world", "a page of keys, " * 6]
    vectors = []
    for flags in (["--device", "cpu", "--dtype", "float32"], ["--device", "emulator", "--dtype", dtype]):
        done = subprocess.run(command + flags, capture_output=True, text=True)
        if "emulator" in flags and "has no emulator" in done.stderr:
            pytest.skip("this build has no emulator")
        assert done.returncode == 0, done.stderr
        vectors.append(np.array([json.loads(line)["embedding"] for line in done.stdout.splitlines()]))
    assert np.abs(vectors[0] - vectors[1]).max() < (1e-5 if dtype == "float32" else 2e-2)
