# SPDX-License-Identifier: Apache-2.0
"""LLM.embed, classify, score and encode, and AsyncLLM.encode, on tiny models with the numbers of transformers."""

import asyncio
import json
import sys

import numpy
import pytest

from conftest import ROOT

sys.path.insert(0, str(ROOT))
from tools.goldens import floats, pooling_cases  # noqa: E402

TEXTS = ["hello world", "the page of keys", "a", "an engine in the sea"]


def expected(name):
    return json.loads((pooling_cases.GOLDENS / name / "expected.json").read_text())


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """load("bert", runner="pooling"): a golden model, each once."""
    from quire import LLM
    folder, loaded = tmp_path_factory.mktemp("models"), {}

    def model(name, kind=LLM, **options):
        key = (name, kind, json.dumps(options))
        if key not in loaded:
            pooling_cases.write_model(pooling_cases.find_case(name), folder / name)
            loaded[key] = kind(folder / name, dtype="float32", threads=1, **options)
        return loaded[key]
    return model


def test_embeddings_are_those_of_sentence_transformers(load):
    from quire import EmbeddingRequestOutput
    prompts = expected("bert")["prompts"]
    outputs = load("bert").embed([prompt["tokens"] for prompt in prompts])
    for prompt, output in zip(prompts, outputs, strict=True):
        assert isinstance(output, EmbeddingRequestOutput) and output.finished
        assert output.prompt_token_ids == prompt["tokens"] and output.num_cached_tokens == 0
        vector = output.outputs.embedding
        assert vector.dtype == numpy.float32 and vector.shape == (64,) and output.outputs.hidden_size == 64
        assert numpy.abs(vector - floats.decode(prompt["embedding"])).max() < 1e-4
        assert abs(numpy.linalg.norm(vector) - 1) < 1e-5
    assert len({output.request_id for output in outputs}) == len(outputs)


def test_a_text_has_the_same_bits_alone_and_among_others(load):
    llm = load("bert")
    together = llm.embed(TEXTS)
    for text, output in zip(TEXTS, together, strict=True):
        [alone] = llm.embed(text)
        assert alone.outputs.embedding.tobytes() == output.outputs.embedding.tobytes()
        ids = llm.get_tokenizer().encode(text)
        assert llm.embed(ids)[0].outputs.embedding.tobytes() == output.outputs.embedding.tobytes()
        assert llm.embed({"prompt": text})[0].outputs.embedding.tobytes() == output.outputs.embedding.tobytes()


def test_outputs_can_be_compared(load):
    """Comparing two was an error: "the truth value of an array with more than one element is ambiguous"."""
    one, same, other = load("bert").embed(["hello", "hello", "a"])
    assert one.outputs == same.outputs and one.outputs != other.outputs and one != other
    one, other = load("bert").encode(["hello", "a"], pooling_task="token_embed")
    assert one.outputs == one.outputs and one.outputs != other.outputs and one.outputs != "x"
    with pytest.raises(TypeError, match="score takes texts"):
        load("bert").score({"content": []}, "a")


def test_tokens_have_a_row_each(load):
    from quire import PoolingParams
    prompt = expected("bert")["prompts"][2]
    [output] = load("bert").encode(prompt["tokens"], PoolingParams(use_activation=False), pooling_task="token_embed")
    assert output.outputs.data.shape == (len(prompt["tokens"]), 64)
    for row in prompt["rows"]:
        assert numpy.abs(output.outputs.data[row["position"]] - floats.decode(row["hidden"])).max() < 1e-4


def test_pooling_params_cut_and_truncate(load):
    from quire import PoolingParams
    llm = load("nomic-bert")
    [whole], [cut] = llm.embed(TEXTS[3]), llm.embed(TEXTS[3], pooling_params=PoolingParams(dimensions=16))
    first = whole.outputs.embedding[:16]
    assert numpy.allclose(cut.outputs.embedding, first / numpy.linalg.norm(first), atol=1e-6)
    short = llm.embed(TEXTS[3], pooling_params=PoolingParams(truncate_prompt_tokens=5))[0]
    assert len(short.prompt_token_ids) == 5
    again = llm.embed(TEXTS[3], tokenization_kwargs={"truncate_prompt_tokens": 5})[0]
    assert again.outputs.embedding.tobytes() == short.outputs.embedding.tobytes()
    long = "word " * 400
    with pytest.raises(ValueError, match="256"):
        llm.embed(long)
    assert len(llm.embed(long, pooling_params=PoolingParams(truncate_prompt_tokens=-1))[0].prompt_token_ids) == 256
    each = llm.embed(TEXTS[:2], pooling_params=[PoolingParams(dimensions=32), PoolingParams()])
    assert [len(output.outputs.embedding) for output in each] == [32, 64]


def test_classes_are_those_of_transformers(load):
    prompts = expected("bert-classify")["prompts"]
    for prompt, output in zip(prompts, load("bert-classify").classify([p["tokens"] for p in prompts]), strict=True):
        exponents = numpy.exp(floats.decode(prompt["logits"]))
        assert numpy.allclose(output.outputs.probs, exponents / exponents.sum(), atol=1e-5)
        assert output.outputs.num_classes == 3


def test_a_cross_encoder_scores_pairs(load):
    from quire import PoolingParams
    pairs, llm = expected("bert-cross")["pairs"], load("bert-cross")
    first, second = [a for a, _ in pooling_cases.PAIRS], [b for _, b in pooling_cases.PAIRS]
    raw = llm.score(first, second, pooling_params=PoolingParams(use_activation=False))
    assert numpy.allclose([output.outputs.score for output in raw], [pair["logit"] for pair in pairs], atol=2e-5)
    assert [output.prompt_token_ids for output in raw] == [pair["ids"] for pair in pairs]
    one_to_many = llm.score(first[0], second)
    assert len(one_to_many) == 4 and isinstance(one_to_many[0].outputs.score, float)
    assert one_to_many[0].outputs.score == llm.score(first[0], second[0])[0].outputs.score
    rows = llm.reward(TEXTS[0])[0]
    assert rows.outputs.data.shape == (len(rows.prompt_token_ids), 1)


def test_embedders_score_by_cosine_or_late_interaction(load):
    llm = load("bert")
    vectors = numpy.array([output.outputs.embedding for output in llm.embed(TEXTS)])
    scores = [output.outputs.score for output in llm.score(TEXTS[0], TEXTS)]
    assert numpy.allclose(scores, vectors @ vectors[0], atol=1e-6) and abs(scores[0] - 1) < 1e-6
    late = load("bert", pooler_config={"task": "token_embed"})
    query, document = (late.encode(text, pooling_task="token_embed")[0].outputs.data for text in TEXTS[:2])
    [scored] = late.score(TEXTS[0], TEXTS[1])
    assert abs(scored.outputs.score - (query @ document.T).max(axis=1).sum()) < 1e-5


def test_a_decoder_makes_embeddings_and_text(load):
    from quire import SamplingParams
    llm = load("llama-mean", runner="pooling")
    assert len(llm.embed("hello")[0].outputs.embedding) == 64
    with pytest.raises(ValueError, match="embed"):
        llm.generate("hello", SamplingParams(max_tokens=2))


def test_wrong_requests_say_what_is_wrong(load, llm):
    from quire import PoolingParams
    bert = load("bert")
    with pytest.raises(ValueError, match="pooling_task"):
        bert.encode("hello")
    with pytest.raises(ValueError, match="embed and token_embed"):
        bert.classify("hello")
    with pytest.raises(ValueError, match="task"):
        bert.encode("hello", pooling_task="nonsense")
    with pytest.raises(ValueError, match="matryoshka"):
        bert.embed("hello", pooling_params=PoolingParams(dimensions=3))
    with pytest.raises(ValueError, match="was called for"):
        bert.embed("hello", pooling_params=PoolingParams(task="classify"))
    with pytest.raises(ValueError, match="2 prompts and 1"):
        bert.embed(["a", "b"], pooling_params=[PoolingParams()])
    with pytest.raises(ValueError, match="vocabulary"):
        bert.embed([1, 99999])
    with pytest.raises(ValueError, match="3 classes|does not score"):
        load("bert-classify").score("a", "b")
    with pytest.raises(ValueError, match="one for each"):
        bert.score(["a", "b"], ["a", "b", "c"])
    with pytest.raises(ValueError, match="runner pooling"):
        llm.embed("hello")  # loaded for text
    assert bert.embed([]) == []


def test_async_encode_yields_once(load):
    from quire import AsyncLLM, PoolingParams
    plain = [output.outputs.embedding for output in load("bert").embed(TEXTS)]
    llm = load("bert", AsyncLLM)

    async def one(text):
        return [output async for output in llm.encode(text, PoolingParams(task="embed"), request_id=text)]

    async def every():
        return await asyncio.gather(*(one(text) for text in TEXTS))

    for text, vector, outputs in zip(TEXTS, plain, asyncio.run(every()), strict=True):
        [output] = outputs
        assert output.request_id == text and output.outputs.data.tobytes() == vector.tobytes()
    llm.shutdown()
