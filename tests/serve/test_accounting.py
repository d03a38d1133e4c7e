# SPDX-License-Identifier: Apache-2.0
"""How much of the server one request may use: sequences, memory, the queue and the time of others."""

import concurrent.futures
import json
import threading
import time

import pytest

SMALL = {"prompt": "hello", "max_tokens": 8, "temperature": 0, "ignore_eos": True}


def megabytes(server) -> float:
    """The resident memory of the server's process."""
    with open(f"/proc/{server.process.pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:")) / 1024


def wait_until(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def idle(server) -> bool:
    return server.metric("vllm:num_requests_running") + server.metric("vllm:num_requests_waiting") == 0


def refused(server, body: dict, *words: str):
    answer = server.post("/v1/completions", body)
    assert answer.status_code == 400, answer.text
    message = answer.json()["error"]["message"]
    for word in words:
        assert word in message, message


@pytest.fixture(scope="module")
def own(start):
    """A server for this file only, because other requests would disturb its memory."""
    one = start("tiny", "--max-num-seqs", 32)
    one.ok("/v1/completions", SMALL)
    return one


def test_prompts_times_n_are_bounded(own):
    # The bug: a body of 5 KB asked for 4 million sequences, which were created at once and ended the server.
    refused(own, {"prompt": ["a"] * 1024, "n": 4000, "max_tokens": 1, "temperature": 1}, "4096000", "16384")
    refused(own, {"prompt": "a", "n": 16385, "max_tokens": 1, "temperature": 1}, "16384")


def test_lists_of_a_request_are_bounded(own):
    refused(own, {"prompt": "a", "stop": ["x" * 4097]}, "stop", "4097", "4096")
    refused(own, {"prompt": "a", "bad_words": ["w"] * 1025}, "bad_words", "1025", "1024")
    refused(own, {"prompt": "a", "bad_words": ["w" * 40000] * 2}, "bad_words", "80000", "65536")
    refused(own, {"prompt": "a", "stop_token_ids": [1] * 4097}, "stop_token_ids", "4097", "4096")
    refused(own, {"prompt": "a", "allowed_token_ids": [1] * 70000}, "allowed_token_ids", "70000")
    own.ok("/v1/completions", SMALL | {"stop": ["x" * 4096] * 4})
    own.ok("/v1/completions", SMALL | {"bad_words": ["w"] * 1024})


@pytest.mark.parametrize("body", [
    {"prompt": "a", "n": 16384, "max_tokens": 2, "temperature": 1},
    {"prompt": ["a"] * 1024, "n": 8, "max_tokens": 2, "temperature": 1, "logit_bias": {str(i): 1 for i in range(250)}},
    {"prompt": "a", "n": 2000, "max_tokens": 4, "temperature": 1, "stop": ["x" * 4096] * 4},
    {"prompt": "a", "n": 200, "max_tokens": 4, "temperature": 1, "bad_words": [f"w{i}" for i in range(1024)]},
], ids=["n", "prompts", "stop", "bad_words"])
def test_many_sequences_share_what_they_have_in_common(own, body):
    before = megabytes(own)
    peak = before
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        answer = pool.submit(own.ok, "/v1/completions", body)
        while not answer.done():
            peak = max(peak, megabytes(own))
            time.sleep(0.02)
    prompts = len(body["prompt"]) if isinstance(body["prompt"], list) else 1
    choices = answer.result()["choices"]
    assert [choice["index"] for choice in choices] == list(range(prompts * body["n"]))
    assert peak - before < 100, f"{before:.0f} MB grew to {peak:.0f} MB"


def test_memory_goes_back_after_a_burst(own):
    wait_until(lambda: idle(own))
    body = {"prompt": ["a b c"] * 128, "n": 16, "max_tokens": 4, "temperature": 1, "logprobs": 5}

    def burst(clients):
        with concurrent.futures.ThreadPoolExecutor(clients) as pool:
            for answer in [pool.submit(own.ok, "/v1/completions", body) for _ in range(clients)]:
                answer.result()

    burst(2)  # KV pages that were written once keep their memory
    time.sleep(2)
    before = megabytes(own)
    burst(16)
    wait_until(lambda: megabytes(own) < 1.1 * before + 4)


def test_a_request_that_would_hold_too_much_is_refused_with_the_numbers(start):
    one = start("long", "--max-model-len", "64k", "--kv-cache-memory-bytes", "64MiB", "--max-request-bytes",
                "120KiB")
    refused(one, {"prompt": "a", "n": 100, "max_tokens": 60000, "temperature": 1}, "100", "122880",
            "--max-request-bytes")
    refused(one, {"prompt": "a", "max_tokens": 20000, "logprobs": 20}, "122880")
    streamed = {"prompt": "a", "n": 100, "max_tokens": 60000, "temperature": 1, "stream": True}
    with one.http.stream("POST", "/v1/completions", json=streamed) as answer:
        assert answer.status_code == 200, "a streamed answer is not kept"
    wait_until(lambda: idle(one))
    prompt = {"prompt": [5] * 6000, "max_tokens": 5000, "ignore_eos": True, "stream": True}
    with one.http.stream("POST", "/v1/completions", json=prompt), one.http.stream("POST", "/v1/completions", json=prompt):
        answer = one.post("/v1/completions", prompt)
        assert answer.status_code == 503 and "--max-request-bytes" in answer.text
    assert one.metric("vllm:admission_rejections_total", reason="max_request_bytes") == 1
    assert one.stop() == 0


def test_the_queue_counts_sequences_before_any_is_made(start):
    one = start("tiny", "--max-num-seqs", 4, "--max-num-queued-reqs", 10)
    refused(one, {"prompt": "a", "n": 15, "max_tokens": 1, "temperature": 1}, "15", "10", "--max-num-queued-reqs")
    assert len(one.ok("/v1/completions", {"prompt": "a", "n": 14, "max_tokens": 1, "temperature": 1})["choices"]) == 14


def test_a_small_request_does_not_wait_for_a_large_one(own):
    # The bug: one request with n 16,384 delayed everyone until it was done.
    large = {"prompt": "a", "n": 4000, "max_tokens": 200, "temperature": 1, "ignore_eos": True, "stream": True,
             "stream_interval": 1000}  # so little is sent that it may stay unread
    with own.http.stream("POST", "/v1/completions", json=large) as stream:
        assert stream.status_code == 200
        lines = stream.iter_lines()
        next(lines)
        for _ in range(3):
            own.ok("/v1/completions", SMALL)
        assert own.metric("vllm:num_requests_waiting") > 3000
    wait_until(lambda: idle(own))


def test_the_answer_in_a_crowd_of_one_request_is_the_answer_alone(own):
    alone = own.ok("/v1/completions", SMALL | {"temperature": 1, "seed": 7, "logprobs": 3})["choices"][0]
    large = {"prompt": "hello", "n": 500, "max_tokens": 50, "temperature": 1, "ignore_eos": True, "seed": 1}
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        crowd = pool.submit(own.ok, "/v1/completions", large)
        for _ in range(20):
            assert own.ok("/v1/completions", SMALL | {"temperature": 1, "seed": 7, "logprobs": 3})["choices"][0] == alone
        first = crowd.result()
    assert own.ok("/v1/completions", large)["choices"] == first["choices"], "preempted or not"


def test_a_client_that_leaves_takes_all_of_its_sequences_with_it(own):
    large = {"prompt": ["a b c"] * 100, "n": 100, "max_tokens": 100, "temperature": 1, "stream": True,
             "stream_interval": 1000}
    with own.http.stream("POST", "/v1/completions", json=large) as stream:
        lines = stream.iter_lines()
        next(lines)
    wait_until(lambda: idle(own), 10)


def test_every_choice_of_a_stream_ends_once(own):
    body = {"prompt": ["a", "b"], "n": 50, "max_tokens": 3, "temperature": 1, "stream": True,
            "stream_options": {"include_usage": True}}
    ends = []
    lock = threading.Lock()
    with own.http.stream("POST", "/v1/completions", json=body) as stream:
        for line in stream.iter_lines():
            if not line.startswith("data: {"):
                continue
            for choice in json.loads(line[6:])["choices"]:
                if choice["finish_reason"]:
                    with lock:
                        ends.append(choice["index"])
    assert sorted(ends) == list(range(100))
