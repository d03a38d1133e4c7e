# SPDX-License-Identifier: Apache-2.0
"""Clients of other services work unchanged: LangChain's OpenAIEmbeddings and Cohere's own client."""

import numpy as np
import pytest
from test_api import TEXTS, vectors


def test_langchain_embeds_queries_and_documents(server):
    langchain = pytest.importorskip("langchain_openai", reason="needs the package langchain-openai")
    # Without the check of lengths, texts are sent as they are; with it, as token ids of an OpenAI model.
    client = langchain.OpenAIEmbeddings(model="bert", base_url=server.url + "/v1", api_key="none",
                                        check_embedding_ctx_length=False)
    plain = vectors(server.ok("/v1/embeddings", {"model": "bert", "input": TEXTS}))
    assert np.array(client.embed_documents(TEXTS), dtype=np.float32).tobytes() == plain.tobytes()
    assert np.array(client.embed_query(TEXTS[1]), dtype=np.float32).tobytes() == plain[1].tobytes()
    cut = langchain.OpenAIEmbeddings(model="nomic-bert", base_url=server.url + "/v1", api_key="none", dimensions=16,
                                     check_embedding_ctx_length=False)
    assert len(cut.embed_query("hello")) == 16


@pytest.fixture(scope="module")
def cohere_client(server):
    cohere = pytest.importorskip("cohere", reason="needs the package cohere")
    return cohere.ClientV2(api_key="none", base_url=server.url)


def test_coheres_client_embeds(server, cohere_client):
    plain = vectors(server.ok("/v1/embeddings", {"model": "bert", "input": TEXTS}))
    answer = cohere_client.embed(model="bert", texts=TEXTS, input_type="search_document", embedding_types=["float", "ubinary"])
    assert np.array(answer.embeddings.float_, dtype=np.float32).tobytes() == plain.tobytes()
    assert np.array(answer.embeddings.ubinary, dtype=np.uint8).tobytes() == np.packbits(plain >= 0, axis=1).tobytes()
    assert answer.texts == TEXTS and answer.meta.billed_units.input_tokens > 0


def test_coheres_client_reranks(server, cohere_client):
    documents = ["a page holds the keys", "hello", "the sea"]
    answer = cohere_client.rerank(model="bert-cross", query="what is a page", documents=documents, top_n=2)
    plain = server.ok("/v2/rerank", {"model": "bert-cross", "query": "what is a page", "documents": documents})["results"]
    assert [result.index for result in answer.results] == [result["index"] for result in plain[:2]]
    assert answer.results[0].relevance_score == plain[0]["relevance_score"] >= answer.results[1].relevance_score


def test_langchain_reranks_with_coheres_client(server, cohere_client):
    rerank = pytest.importorskip("langchain_cohere", reason="needs the package langchain-cohere").CohereRerank
    ranker = rerank(model="bert-cross", client=cohere_client, top_n=3)
    ranked = ranker.rerank(["hello", "a page", "the sea"], "what is a page")
    assert sorted(item["index"] for item in ranked) == [0, 1, 2]
    assert ranked[0]["relevance_score"] >= ranked[-1]["relevance_score"]
