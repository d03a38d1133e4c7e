# SPDX-License-Identifier: Apache-2.0
"""Every family that makes embeddings or scores gives the numbers of transformers, through the server."""

import json
import subprocess

import numpy as np
import pytest
from conftest import BIN_DIR, ROOT  # noqa: F401
from tools.goldens import floats, pooling_cases

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
