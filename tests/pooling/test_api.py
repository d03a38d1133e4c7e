# SPDX-License-Identifier: Apache-2.0
"""The endpoints of embeddings and scores: their forms, the same bits alone and in a crowd, and wrong requests."""

import base64
import concurrent.futures
import json
import subprocess

import numpy as np
import openai
import pytest
from conftest import BIN_DIR, export

TEXTS = ["hello world", "the page of keys", "a", "an engine in the sea and the world of pages"]


def vectors(answer: dict) -> np.ndarray:
    return np.array([item["embedding"] for item in answer["data"]], dtype=np.float32)


def test_embeddings_have_openais_form(server):
    answer = server.ok("/v1/embeddings", {"model": "bert", "input": TEXTS, "request_id": "mine"})
    assert answer["id"] == "embd-mine" and answer["object"] == "list" and answer["model"] == "bert"
    assert [item["index"] for item in answer["data"]] == [0, 1, 2, 3]
    assert {item["object"] for item in answer["data"]} == {"embedding"}
    usage = answer["usage"]
    assert usage["prompt_tokens"] == usage["total_tokens"] > 4 and usage["completion_tokens"] == 0
    one = server.ok("/v1/embeddings", {"model": "bert", "input": TEXTS[1]})
    assert one["data"][0]["embedding"] == answer["data"][1]["embedding"]


def test_token_ids_are_the_same_as_their_text(server):
    ids = server.ok("/tokenize", {"model": "bert", "prompt": TEXTS[0]})["tokens"]
    by_text = server.ok("/v1/embeddings", {"model": "bert", "input": TEXTS[0]})
    assert vectors(server.ok("/v1/embeddings", {"model": "bert", "input": ids})).tobytes() == vectors(by_text).tobytes()
    assert vectors(server.ok("/v1/embeddings", {"model": "bert", "input": [ids]})).tobytes() == vectors(by_text).tobytes()


def test_conversations_go_through_the_template(server):
    chat = [{"role": "user", "content": "hello"}]
    rendered = server.ok("/v1/embeddings", {"model": "qwen3-embedding", "input": "user: hello\n"})
    for body in ({"messages": chat}, {"input": chat}, {"input": [chat]}):
        answer = server.ok("/v1/embeddings", {"model": "qwen3-embedding"} | body)
        assert vectors(answer).tobytes() == vectors(rendered).tobytes()


def test_the_openai_client_decodes_base64(server):
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none")
    answer = client.embeddings.create(model="bert", input=TEXTS)
    plain = vectors(server.ok("/v1/embeddings", {"model": "bert", "input": TEXTS}))
    assert np.array([item.embedding for item in answer.data], dtype=np.float32).tobytes() == plain.tobytes()
    floats = client.embeddings.create(model="bert", input=TEXTS, encoding_format="float")
    assert np.array(floats.data[1].embedding, dtype=np.float32).tobytes() == plain[1].tobytes()


@pytest.mark.parametrize("name,dtype", [("float32", "<f4"), ("float16", "<f2")])
@pytest.mark.parametrize("endianness", ["native", "little", "big"])
def test_bytes_say_where_each_vector_is(server, name, dtype, endianness):
    plain = vectors(server.ok("/v1/embeddings", {"model": "bert", "input": TEXTS}))
    order = dtype.replace("<", ">") if endianness == "big" else dtype
    body = {"model": "bert", "input": TEXTS, "embed_dtype": name, "endianness": endianness}
    answer = server.post("/v1/embeddings", body | {"encoding_format": "bytes"})
    assert answer.headers["content-type"] == "application/octet-stream"
    for item in json.loads(answer.headers["metadata"])["data"]:
        vector = np.frombuffer(answer.content[item["start"]:item["end"]], dtype=order)
        assert item["shape"] == [64] and item["embed_dtype"] == name
        assert np.allclose(vector.astype(np.float32), plain[item["index"]], atol=1e-3)
    alone = server.post("/v1/embeddings", body | {"encoding_format": "bytes_only"})
    assert alone.content == answer.content and "metadata" not in alone.headers
    text = server.ok("/v1/embeddings", body | {"encoding_format": "base64"})["data"]
    assert b"".join(base64.b64decode(item["embedding"]) for item in text) == answer.content


@pytest.mark.parametrize("name", ["bert", "modernbert", "gemma3-embedding", "qwen3-embedding", "llama-mean"])
def test_a_vector_has_the_same_bits_in_a_crowd(server, name):
    """Each text alone, then all in one request, then many requests at once: equal by bytes."""
    texts = [" ".join(TEXTS[i % 4] for i in range(n)) for n in range(1, 9)]
    ask = lambda body: [item["embedding"] for item in server.ok(  # noqa: E731
        "/v1/embeddings", {"model": name, "encoding_format": "base64"} | body)["data"]]
    alone = [ask({"input": text})[0] for text in texts]
    assert ask({"input": texts}) == alone
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        crowd = list(pool.map(lambda i: (i, ask({"input": texts[i % 8]})[0]), range(48)))
    assert all(vector == alone[i % 8] for i, vector in crowd)


def test_cohere_has_bits_and_prompts(server):
    plain = vectors(server.ok("/v1/embeddings", {"model": "bert", "input": ["ask: " + text for text in TEXTS]}))
    answer = server.ok("/v2/embed", {"model": "bert", "texts": TEXTS, "input_type": "search_query",
                                     "embedding_types": ["float", "binary", "ubinary", "base64"]})
    assert answer["response_type"] == "embeddings_by_type" and answer["texts"] == TEXTS
    assert answer["meta"]["billed_units"]["input_tokens"] > 0
    by_type = answer["embeddings"]
    assert np.array(by_type["float"], dtype=np.float32).tobytes() == plain.tobytes()
    assert base64.b64decode(by_type["base64"][0]) == plain[0].tobytes()
    bits = np.packbits(plain >= 0, axis=1)
    assert by_type["ubinary"] == bits.tolist() and by_type["binary"] == (bits.astype(int) - 128).tolist()


def test_rerank_sorts_by_the_scores(server):
    documents = ["hello", "the page", "a sea of keys", {"text": "world"}]
    texts = ["hello", "the page", "a sea of keys", "world"]
    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        answer = server.ok(path, {"model": "bert-cross", "query": "what is a page", "documents": documents})
        assert answer["id"].startswith("score-"), "as vLLM's"
        scores = [item["relevance_score"] for item in answer["results"]]
        assert scores == sorted(scores, reverse=True) and len(scores) == 4
        assert all(item["document"]["text"] == texts[item["index"]] for item in answer["results"])
    by_score = server.ok("/score", {"model": "bert-cross", "text_1": "what is a page", "text_2": texts})
    assert {item["index"]: item["relevance_score"] for item in answer["results"]} == {
        item["index"]: item["score"] for item in by_score["data"]}
    best = server.ok("/rerank", {"model": "bert-cross", "query": "what is a page", "documents": texts, "top_n": 1})
    assert [item["index"] for item in best["results"]] == [answer["results"][0]["index"]]


@pytest.mark.parametrize("path, body", [
    ("/v1/embeddings", {"model": "bert", "input": TEXTS[:2]}),
    ("/score", {"model": "bert", "text_1": "a", "text_2": TEXTS[0]}),
    ("/score", {"model": "bert-cross", "queries": "a", "documents": TEXTS[:2]}),
    ("/rerank", {"model": "bert-cross", "query": "a", "documents": TEXTS[:2]}),
    ("/classify", {"model": "bert-cross", "input": "a"}),
    ("/pooling", {"model": "bert", "input": "a", "task": "token_embed"})])
def test_invocations_answer_as_the_route_that_the_body_means(server, path, body):
    body = body | {"request_id": "mine"}
    meant, answer = server.ok(path, body), server.ok("/invocations", body)
    assert answer | {"created": 0} == meant | {"created": 0}


def test_scores_of_a_bi_encoder_are_cosines(server):
    plain = vectors(server.ok("/v1/embeddings", {"model": "bert", "input": TEXTS})).astype(np.float64)
    answer = server.ok("/v1/score", {"model": "bert", "queries": TEXTS[0], "documents": TEXTS})
    assert np.allclose([item["score"] for item in answer["data"]], plain @ plain[0], atol=1e-5)
    assert answer["data"][0]["object"] == "score"


def test_long_inputs_are_cut_before_their_special_tokens(server):
    long = "page " * 400
    assert server.post("/classify", {"model": "bert-cross", "input": long}).status_code == 400
    cut = server.ok("/classify", {"model": "bert-cross", "input": long, "truncate_prompt_tokens": -1})
    assert cut["usage"]["prompt_tokens"] == 256
    few = server.ok("/classify", {"model": "bert-cross", "input": long, "truncate_prompt_tokens": 5})
    same = server.ok("/classify", {"model": "bert-cross", "input": "page page page"})
    assert few["data"] == same["data"]
    left = server.ok("/classify", {"model": "bert-cross", "input": "hello " + long, "truncate_prompt_tokens": 5,
                                   "truncation_side": "left"})
    assert left["data"] == same["data"]


def test_the_own_size_of_a_model_may_be_asked_for(server):
    """Clients that always send the size they expect were refused."""
    plain = server.ok("/v1/embeddings", {"model": "bert", "input": "a"})["data"]
    assert server.ok("/v1/embeddings", {"model": "bert", "input": "a", "dimensions": len(plain[0]["embedding"])})["data"] == plain


WRONG = [
    ("/v1/embeddings", {"model": "bert"}, 400, "give either input or messages"),
    ("/v1/embeddings", {"model": "bert", "input": []}, 400, "must not be empty"),
    ("/v1/embeddings", {"model": "bert", "input": [[]]}, 400, "must be a text"),
    ("/v1/embeddings", {"model": "bert", "input": ["a", 1]}, 400, "must be a text"),
    ("/v1/embeddings", {"model": "bert", "input": [99999]}, 400, "out of the vocabulary"),
    ("/v1/embeddings", {"model": "bert", "input": [7] * 257}, 400, "257 tokens"),
    ("/v1/embeddings", {"model": "bert", "input": "a", "dimensions": 8}, 400, "not made to be cut"),
    ("/v1/embeddings", {"model": "nomic-bert", "input": "a", "dimensions": 17}, 400, "must be one of 64, 32, 16"),
    ("/v1/embeddings", {"model": "qwen3-embedding", "input": "a", "dimensions": 65}, 400, "from 1 to 64"),
    ("/v1/embeddings", {"model": "bert", "input": "a", "encoding_format": "hex"}, 400, "encoding_format"),
    ("/v1/embeddings", {"model": "bert", "input": "a", "normalize": True}, 400, "use_activation"),
    ("/v1/embeddings", {"model": "bert", "input": "a", "truncate_prompt_tokens": 1000}, 400, "at most 256"),
    ("/v1/embeddings", {"model": "nobody", "input": "a"}, 404, "does not exist"),
    ("/v1/embeddings", {"model": "llama", "input": "a"}, 404, "generates text"),
    ("/v1/embeddings", {"model": "bert-cross", "input": "a"}, 400, "classify"),
    ("/v1/chat/completions", {"model": "bert", "messages": [{"role": "user", "content": "a"}]}, 404, "no text"),
    ("/classify", {"model": "bert", "input": "a"}, 400, "embed"),
    ("/pooling", {"model": "bert", "input": "a", "task": "dream"}, 400, "token_embed"),
    ("/pooling", {"model": "bert", "input": "a", "task": "classify"}, 400, "does not have the task"),
    ("/score", {"model": "bert-cross", "queries": ["a", "b"], "documents": ["c"]}, 400, "2 queries and 1 documents"),
    ("/score", {"model": "bert-cross", "queries": [], "documents": ["c"]}, 400, "must not be empty"),
    ("/score", {"model": "bert-cross", "documents": ["c"]}, 400, "queries is missing"),
    ("/score", {"model": "bert-classify", "queries": "a", "documents": "b"}, 400, "3 classes"),
    ("/rerank", {"model": "bert-cross", "query": "a"}, 400, "documents"),
    ("/rerank", {"model": "bert-cross", "query": "a", "documents": [1]}, 400, "must be a text"),
    ("/v2/embed", {"model": "bert", "texts": ["a"], "inputs": [{"content": []}]}, 400, "either texts or inputs"),
    ("/v2/embed", {"model": "bert", "texts": ["a"], "embedding_types": ["int4"]}, 400, "embedding_types"),
    ("/v2/embed", {"model": "bert", "texts": ["page " * 400], "truncate": "NONE"}, 400, "tokens"),
    # The bug: of many texts, no error said which one was wrong.
    ("/v1/embeddings", {"model": "qwen3-embedding", "input": ["a", [], ""]}, 400, "must be a text"),
    ("/v1/embeddings", {"model": "bert", "input": ["a", "page " * 400]}, 400, "input[1]: the input has"),
    ("/v1/embeddings", {"model": "bert", "input": [[7], [7, 99999]]}, 400, "input[1]: token id 99999"),
    ("/v1/embeddings", {"model": "bert", "input": "page " * 400}, 400, "input: the input has"),
    ("/v2/embed", {"model": "bert", "texts": ["a", "page " * 400], "truncate": "NONE"}, 400, "texts[1] has"),
    ("/v2/embed", {"model": "bert", "texts": ["page " * 400], "truncate": "NONE"}, 400, "let truncate be END"),
    ("/v2/embed", {"model": "bert", "texts": ["a"], "output_dimension": 8}, 400, "output_dimension: "),
    ("/score", {"model": "bert", "queries": "a", "documents": ["b", "page " * 400]}, 400, "documents[1]: the input has"),
    ("/score", {"model": "bert", "text_1": ["a", "page " * 400], "text_2": ["b", "c"]}, 400, "text_1[1]: the input has"),
    ("/rerank", {"model": "bert-cross", "query": "a", "documents": ["b", "page " * 400]}, 400, "documents[1]: the input has"),
]


@pytest.mark.parametrize("path,body,status,words", WRONG, ids=lambda value: str(value)[:40])
def test_wrong_requests_get_one_sentence(server, path, body, status, words):
    answer = server.post(path, body)
    assert answer.status_code == status, answer.text
    assert words in answer.json()["error"]["message"]


def test_an_encoder_refuses_what_does_not_fit_a_step(start):
    server = start("models/bert", "--max-num-batched-tokens", "32")
    answer = server.post("/v1/embeddings", {"input": [7] * 33})
    assert answer.status_code == 400
    assert "33 tokens" in answer.json()["error"]["message"] and "holds 32" in answer.json()["error"]["message"]
    assert server.ok("/v1/embeddings", {"input": [[7] * 32, [8] * 5]})["usage"]["prompt_tokens"] == 37


def test_a_generating_model_embeds_and_generates_at_once(start):
    """One model, one batch: the vectors and the tokens are those of each alone."""
    server = start("models/llama", "--runner", "generate", "--convert", "embed", "--dtype", "float32")
    embed = lambda: server.ok("/v1/embeddings", {"input": TEXTS, "encoding_format": "base64"})["data"]  # noqa: E731
    write = lambda: server.ok("/v1/completions", {"prompt": TEXTS, "max_tokens": 24, "temperature": 0})  # noqa: E731
    vectors_alone, texts_alone = embed(), [choice["text"] for choice in write()["choices"]]
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        both = [pool.submit(embed if i % 2 else write) for i in range(12)]
        for i, future in enumerate(both):
            answer = future.result()
            assert (answer if i % 2 else [c["text"] for c in answer["choices"]]) == (vectors_alone if i % 2 else texts_alone)


def test_late_interaction_scores_token_by_token(start):
    """MaxSim: the sum over the query's tokens of the best product with a token of the document."""
    late = start("models/bert", "--pooler-config", '{"task": "token_embed"}', "--dtype", "float32")
    documents = ["hello", *TEXTS]

    def tokens_of(text):
        rows = np.array(late.ok("/pooling", {"input": text, "task": "token_embed"})["data"][0]["data"])
        assert np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)
        return rows

    def best_products(query, document):
        return float((tokens_of(query) @ tokens_of(document).T).max(axis=1).sum())

    answer = late.ok("/score", {"queries": TEXTS[1], "documents": documents})
    scores = [item["score"] for item in answer["data"]]
    assert np.allclose(scores, [best_products(TEXTS[1], text) for text in documents], atol=1e-4)
    count = len(tokens_of(TEXTS[1]))
    assert max(scores) == scores[2] and abs(scores[2] - count) < 1e-4  # each token of the query finds itself
    assert abs(scores[0] - best_products(documents[0], TEXTS[1])) > 1e-3  # query and document are not alike
    pairs = late.ok("/score", {"queries": documents, "documents": documents[::-1]})["data"]
    assert pairs[1]["score"] == late.ok("/score", {"queries": documents[1], "documents": documents[3]})["data"][0]["score"]
    ranked = late.ok("/v2/rerank", {"query": TEXTS[1], "documents": documents, "top_n": 2})["results"]
    assert [item["index"] for item in ranked] == list(np.argsort(scores)[::-1][:2])
    assert ranked[0]["relevance_score"] == scores[2]
    assert late.post("/score", {"queries": TEXTS[1], "documents": []}).status_code == 400


def test_flags_choose_the_pooling(start):
    mean = start("models/llama", "--runner", "pooling", "--pooler-config", '{"pooling_type": "MEAN"}', "--dtype", "float32")
    rows = np.array(mean.ok("/pooling", {"input": [5, 6, 7], "task": "token_embed", "use_activation": False})["data"][0]["data"])
    pooled = rows.mean(axis=0)
    assert np.allclose(vectors(mean.ok("/v1/embeddings", {"input": [5, 6, 7]}))[0], pooled / np.linalg.norm(pooled), atol=1e-5)
    assert mean.post("/v1/completions", {"prompt": "a"}).status_code == 404


JUDGE = ("<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. "
         "Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n<Instruct>: {}\n<Query>: {}\n"
         "<Document>: {}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n")


def test_a_reranker_scores_one_token_against_another(start, folder):
    """Qwen3-Reranker: the score is the difference of two logits, which the same weights show as logprobs of a text."""
    export.main(["--case", "qwen3", "--out", str(folder / "judge")])
    overrides = {"architectures": ["Qwen3ForSequenceClassification"], "classifier_from_token": ["in", "he"],
                 "is_original_qwen3_reranker": True}
    judge = start("judge", "--hf-overrides", json.dumps(overrides), "--dtype", "float32")
    writer = start("judge", "--dtype", "float32")
    body = {"queries": "a page", "documents": ["the sea", "keys <|eos|> of pages"], "instruction": "find it", "use_activation": False}
    scores = [item["score"] for item in judge.ok("/score", body)["data"]]
    for score, document in zip(scores, body["documents"], strict=True):
        text = JUDGE.format("find it", "a page", document)
        ids = writer.ok("/tokenize", {"prompt": text})["tokens"]
        if "<|eos|>" in document:  # a control token in a document is plain text
            assert 257 in ids
            continue
        no, yes = (writer.ok("/tokenize", {"prompt": word})["tokens"] for word in ("in", "he"))
        last = [writer.ok("/v1/completions", {"prompt": ids + token, "max_tokens": 1, "prompt_logprobs": 0})["choices"][0][
            "prompt_logprobs"][-1][str(token[0])]["logprob"] for token in (no, yes)]
        assert abs(score - (last[1] - last[0])) < 1e-4
    first = judge.ok("/rerank", {"query": "a page", "documents": body["documents"]})["results"]
    assert all(0 < item["relevance_score"] < 1 for item in first)


@pytest.mark.parametrize("flags,words", [
    (["--pooler-config", "{"], "--pooler-config"), (["--pooler-config", '{"normalize": true}'], "use_activation"),
    (["--runner", "swim"], "--runner"), (["--runner", "generate"], "makes embeddings"), (["--convert", "sing"], "--convert"),
    (["--hf-overrides", "[]"], "--hf-overrides")])
def test_wrong_flags_are_refused(folder, flags, words):
    done = subprocess.run([BIN_DIR / "quire", "serve", "models/bert", "--port", "0", *flags], cwd=folder, capture_output=True,
                          text=True, timeout=60)
    assert done.returncode == 2 and words in done.stderr, done.stderr


def embed(folder, *arguments, text=None):
    return subprocess.run([BIN_DIR / "quire", "embed", *arguments], cwd=folder, capture_output=True, text=True, timeout=120,
                          input=text)


def test_embed_prints_vectors_and_cosines(server, folder):
    plain = vectors(server.ok("/v1/embeddings", {"model": "bert", "input": TEXTS}))
    done = embed(folder, "models/bert", "--dtype", "float32", *TEXTS)
    assert done.returncode == 0, done.stderr
    assert np.array([json.loads(line) for line in done.stdout.splitlines()], dtype=np.float32).tobytes() == plain.tobytes()
    done = embed(folder, "--model", "models/bert", "--to", TEXTS[1], "--lines", "--json", text="\n".join(TEXTS) + "\n")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["text"] for line in lines] == TEXTS
    assert np.allclose([line["cosine"] for line in lines], plain @ plain[1], atol=1e-5)
    long = embed(folder, "models/bert-cls", "--truncate", "x" * 300)
    assert json.loads(long.stdout) == json.loads(embed(folder, "models/bert-cls", "x" * 256).stdout)
    done = embed(folder, "models/bert", "--to", TEXTS[0], "[hello, world]")
    assert done.stdout.endswith("  [hello, world]\n")


@pytest.mark.parametrize("arguments,words", [
    (["models/bert"], "there is no text"), (["models/bert", "--dimensions", "8", "a"], "dimensions"),
    (["models/bert-cross", "a"], "classify"), (["models/bert", "x" * 300], "--truncate"), (["models/bert", "--nonsense", "a"], "--nonsense"),
    (["models/bert", "--prompt-name", "poem", "a"], "query, document")])
def test_embed_refuses_what_it_cannot_do(folder, arguments, words):
    done = subprocess.run([BIN_DIR / "quire", "embed", *arguments], cwd=folder, capture_output=True, text=True, timeout=60,
                          stdin=subprocess.DEVNULL)
    assert done.returncode in (1, 2) and words in done.stderr, done.stderr


@pytest.mark.parametrize("backend,model", [("openai-embeddings", "bert"), ("vllm-rerank", "bert-cross")])
def test_bench_serve_times_whole_answers(server, folder, backend, model):
    done = subprocess.run([BIN_DIR / "quire", "bench", "serve", "--backend", backend, "--base-url", server.url, "--model", model,
                           "--tokenizer", f"models/{model}", "--dataset-name", "random", "--random-input-len", "12",
                           "--random-output-len", "1", "--num-prompts", "6"], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Successful requests:                     6" in done.stdout


def test_embed_takes_no_mistyped_path_for_a_text(folder):
    done = embed(folder, "./models/bertt", "a text")
    assert done.returncode == 1 and "'./models/bertt' does not exist" in done.stderr and done.stdout == ""
