# SPDX-License-Identifier: Apache-2.0
"""The same request gives the same bits under load: random traffic on a server with too few pages."""

import asyncio
import random

import httpx
import pytest

FIELDS = {"logprobs": 4, "return_token_ids": True}


def make_request(rng: random.Random, prefixes: list[list[int]]) -> dict:
    prompt = rng.choice(prefixes)[:rng.randrange(1, 80)] + [rng.randrange(3, 250) for _ in range(rng.randrange(1, 20))]
    body = {"prompt": prompt, "max_tokens": rng.randrange(1, 150), "seed": rng.randrange(1 << 40), "ignore_eos": True,
            "temperature": rng.choice([0, 0.5, 1, 1.5])} | FIELDS
    for extra in ({"top_k": 20}, {"top_p": 0.8}, {"min_p": 0.05}, {"repetition_penalty": 1.3},
                  {"presence_penalty": 0.7, "frequency_penalty": -0.3}, {"logit_bias": {"40": 3, "41": -3}},
                  {"min_tokens": 1}, {"cache_salt": "salt"}, {"priority": rng.randrange(3)}):
        if rng.random() < 0.2:
            body |= extra
    if rng.random() < 0.1 and body["temperature"] > 0:
        body["n"] = 2
    return body


def essence(answer: dict) -> list:
    """Everything that must not change: tokens, text, logprobs to the last digit, and the reason for the end."""
    return [[c["token_ids"], c["text"], c["logprobs"], c["finish_reason"]] for c in answer["choices"]]


async def storm(url: str, bodies: list[dict], seed: int) -> list:
    """Sends all requests within a short time; one in five is broken off half-way, and gives None."""
    rng = random.Random(seed)
    plans = [(rng.random() * 0.2, rng.random() < 0.2, rng.random() * 0.3) for _ in bodies]

    async def ask(client, body, delay, leaves, patience):
        await asyncio.sleep(delay)
        if not leaves:
            answer = await client.post("/v1/completions", json=body)
            assert answer.status_code == 200, answer.text
            return essence(answer.json())
        try:
            async with client.stream("POST", "/v1/completions", json=body | {"stream": True}) as stream:
                async with asyncio.timeout(patience):
                    async for _ in stream.aiter_lines():
                        pass
        except TimeoutError:
            pass
        return None

    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=300, limits=limits) as client:
        return await asyncio.gather(*(ask(client, body, *plan) for body, plan in zip(bodies, plans)))


@pytest.mark.parametrize("flags", [
    ("--num-gpu-blocks-override", 24, "--max-num-seqs", 24, "--max-num-batched-tokens", 64),
    ("--num-gpu-blocks-override", 32, "--scheduling-policy", "priority", "--max-num-batched-tokens", 96,
     "--long-prefill-token-threshold", 24),
])
def test_answers_in_a_storm_are_those_given_alone(start, flags):
    rng = random.Random(4)
    prefixes = [[rng.randrange(3, 250) for _ in range(80)] for _ in range(3)]
    bodies = [make_request(rng, prefixes) for _ in range(120)]
    crowded = start("tiny", "--max-model-len", 256, *flags)
    answers = asyncio.run(storm(crowded.url, bodies, 9))
    assert crowded.metric("vllm:num_preemptions_total") > 0, "the pool was not small enough to test anything"
    assert crowded.metric("vllm:prefix_cache_hits_total") > 0
    # Nothing is left behind, not even by clients that went away.
    for _ in range(100):
        if crowded.metric("vllm:num_requests_running") == 0:
            break
    assert crowded.metric("vllm:kv_cache_usage_perc") == 0 and crowded.metric("vllm:num_requests_waiting") == 0
    alone = start("tiny", "--no-enable-prefix-caching", "--max-num-seqs", 1, "--max-model-len", 256)
    compared = 0
    for body, answer in zip(bodies, answers):
        if answer is None:
            continue
        assert essence(alone.ok("/v1/completions", body)) == answer, body
        compared += 1
    assert compared > 60
    assert crowded.stop() == 0 and alone.stop() == 0


@pytest.mark.parametrize("config", [
    '{"method": "ngram", "num_speculative_tokens": 6, "prompt_lookup_max": 3, "prompt_lookup_min": 1}',
    '{"method": "suffix", "num_speculative_tokens": 6, "suffix_decoding_max_spec_factor": 2}',
    '{"model": "tiny", "num_speculative_tokens": 4}'], ids=["ngram", "suffix", "draft model"])
def test_speculation_changes_no_answer(start, config):
    """Speculation on a busy server with few pages gives the answers that a server without it gives."""
    rng = random.Random(6)
    prefixes = [[rng.randrange(3, 250) for _ in range(80)] for _ in range(3)]
    bodies = [make_request(rng, prefixes) for _ in range(60)]
    for i, body in enumerate(bodies[:20]):
        body |= {"stop": ["e", "q"]} if i % 2 else {"structured_outputs": {"regex": "(ab|cd|[0-9]{3} )+"}}
    fast = start("tiny", "--max-model-len", 256, "--num-gpu-blocks-override", 40, "--speculative-config", config)
    answers = asyncio.run(storm(fast.url, bodies, 9))
    drafted = fast.metric("vllm:spec_decode_num_draft_tokens_total")
    accepted = fast.metric("vllm:spec_decode_num_accepted_tokens_total")
    assert drafted > accepted > 0
    assert fast.metric("vllm:spec_decode_num_drafts_total") > 0
    assert fast.metric("vllm:spec_decode_num_accepted_tokens_per_pos_total") == accepted
    plain = start("tiny", "--max-model-len", 256)
    compared = 0
    for body, answer in zip(bodies, answers):
        if answer is not None:
            assert essence(plain.ok("/v1/completions", body)) == answer, body
            compared += 1
    assert compared > 30
    assert "spec_decode" not in plain.http.get("/metrics").text
    # A stop string among accepted drafts: the count of tokens ends with it, too.
    body = {"prompt": [5, 6, 7], "max_tokens": 60, "temperature": 0, "ignore_eos": True} | FIELDS
    text = plain.ok("/v1/completions", body)["choices"][0]["text"]
    for at in range(10, min(40, len(text) - 2), 7):
        stopping = body | {"stop": [text[at:at + 2]]}
        one, other = plain.ok("/v1/completions", stopping), fast.ok("/v1/completions", stopping)
        assert essence(one) == essence(other) and one["usage"] == other["usage"]
    # What a grammar forces becomes drafts, on a server that has not measured yet what they cost.
    fresh = start("tiny", "--max-model-len", 256, "--speculative-config", config)
    forced = {"prompt": [9, 8, 7], "max_tokens": 40, "seed": 3, "structured_outputs": {"regex": "zqjzxqkzjqxzvk(y|n)"}} | FIELDS
    assert essence(plain.ok("/v1/completions", forced)) == essence(fresh.ok("/v1/completions", forced))
    assert fresh.metric("vllm:spec_decode_num_accepted_tokens_total") > 0
    assert fresh.stop() == 0
    assert fast.stop() == 0 and plain.stop() == 0


def test_streams_and_whole_answers_and_restarts_agree(start):
    body = {"prompt": "the same bits", "max_tokens": 24, "temperature": 1, "seed": 11} | FIELDS
    first = start("tiny")
    whole = essence(first.ok("/v1/completions", body))
    again = essence(first.ok("/v1/completions", body))  # from the prefix cache
    first.stop()
    for size in (8, 32):
        second = start("tiny", "--block-size", size, "--threads", 2)
        assert essence(second.ok("/v1/completions", body)) == whole == again
        second.stop()
