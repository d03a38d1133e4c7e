# SPDX-License-Identifier: Apache-2.0
"""One caller must not stop the others: work is bounded, cancelled, protected by keys, and ended at shutdown."""

import json
import socket
import threading
import time

import httpx
import pytest
from test_process import ENDLESS, wait_until

TURN = [{"role": "user", "content": "hello"}]
# Runs until the render's limit of processor time is reached.
HEAVY = {"messages": TURN, "chat_template": "{% set x = 'aB' * 1000000 %}{% for a in range(1000) %}{% for b in range(1000) %}"
                                            "{% set y = x.replace('a', 'c') %}{% endfor %}{% endfor %}"}


def raw_post(server, path: str, body: bytes, length: int | None = None) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", int(server.url.rsplit(":", 1)[1])))
    client.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
                   % (path.encode(), len(body) if length is None else length, body))
    return client


def read_all(client: socket.socket) -> bytes:
    client.settimeout(60)
    parts = []
    try:
        while part := client.recv(65536):
            parts.append(part)
    except ConnectionResetError:  # as the kernel answers for a connection that was never accepted
        pass
    return b"".join(parts)


def test_template_variables_by_the_hundred_thousand_are_merged_quickly(start):
    """The bug: the time was quadratic in the number of variables: four such requests blocked both workers for
    minutes, and the server ended only at its last time limit."""
    one = start("tiny", "--default-chat-template-kwargs", '{"k7": 0, "who": "me"}')
    body = {"messages": TURN, "model": "tiny", "max_tokens": 1, "chat_template_kwargs": {f"k{i}": i for i in range(150_000)}}
    answers = []
    threads = [threading.Thread(target=lambda path=path: answers.append(one.post(path, body, timeout=60)))
               for path in ("/tokenize", "/v1/chat/completions", "/v1/messages", "/v1/messages")]
    for thread in threads:
        thread.start()
    assert one.ok("/v1/completions", {"prompt": "hello", "max_tokens": 1})
    for thread in threads:
        thread.join()
    assert [answer.status_code for answer in answers] == [200] * 4


def test_work_for_clients_that_left_is_dropped(start):
    """Forty renders of two seconds on two workers: the next client would wait for forty seconds."""
    one = start("tiny", "--trust-request-chat-template")
    clients = [raw_post(one, "/tokenize", json.dumps(HEAVY).encode()) for _ in range(40)]
    time.sleep(0.3)  # so that some run
    for client in clients:
        client.close()
    assert one.ok("/tokenize", {"prompt": "hello"})
    wait_until(lambda: one.log.count("gone=1") == 40)


def test_a_heavy_template_ends_with_a_sentence(start):
    one = start("tiny", "--trust-request-chat-template")
    answer = one.post("/tokenize", HEAVY)
    assert answer.status_code == 400 and "CPU time" in answer.json()["error"]["message"]


def test_texts_are_measured_before_they_are_tokenised(server):
    limit = 1 << 20  # this much is always tokenised: far more than 1,024 of the tiny model's tokens
    assert server.ok("/tokenize", {"prompt": "x" * limit})["count"] > 1024
    text = "x" * (limit + 1)
    messages = [{"role": "user", "content": text}]
    for path, body in (("/tokenize", {"prompt": text}), ("/tokenize", {"messages": messages}),
                       ("/v1/completions", {"prompt": text}), ("/v1/completions", {"prompt": ["a", text]}),
                       ("/v1/chat/completions", {"messages": messages}), ("/v1/responses", {"input": text}),
                       ("/v1/messages", {"messages": messages, "max_tokens": 1}),
                       ("/v1/messages/count_tokens", {"messages": messages})):
        answer = server.post(path, body)
        message = answer.json()["error"]["message"]
        assert answer.status_code == 400 and str(limit) in message and "1024 tokens" in message, (path, message)
    assert server.ok("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "x" * 5000}]})["input_tokens"] > 1024
    answer = server.post("/detokenize", {"tokens": [5] * 65537})
    assert answer.status_code == 400 and "65536" in answer.text
    assert server.ok("/detokenize", {"tokens": [5] * 65536})["prompt"]


def test_with_a_key_all_that_costs_work_needs_it(start):
    one = start("tiny", "--api-key", "secret", "--trust-request-chat-template", "--enable-tokenizer-info-endpoint")
    posts = ("/tokenize", "/detokenize", "/invocations", "/reset_prefix_cache", "/v1/chat/completions", "/v1/completions",
             "/v1/responses", "/v1/responses/input_tokens", "/v1/messages", "/v1/messages/count_tokens")
    assert one.http.get("/ps").status_code == 401
    for path in posts:
        answer = one.post(path, HEAVY)  # would run for two seconds
        assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer", path
        error = answer.json()["error"]
        assert "Authorization: Bearer KEY" in error["message"] and "x-api-key: KEY" in error["message"]
        if path.startswith("/v1/messages"):
            assert answer.json()["type"] == "error" and error["type"] == "authentication_error"
        else:
            assert error["code"] == 401 and error["param"] is None
    for path in ("/tokenizer_info", "/v1/models", "/v1/models/tiny", "/nothing"):
        assert one.http.get(path).status_code == 401, path
    for path in ("/health", "/ping", "/metrics", "/version", "/load", "/docs", "/openapi.json"):
        assert one.http.get(path).status_code == 200, path
    key = {"x-api-key": "secret"}
    assert one.post("/tokenize", {"prompt": "hello"}, headers=key).status_code == 200
    assert one.http.get("/tokenizer_info", headers=key).status_code == 200


def test_health_fails_while_no_waiting_request_is_started(start):
    one = start("tiny", "--trust-request-chat-template", "--health-stall-seconds", "0.2")
    assert one.http.get("/health").status_code == 200
    clients = [raw_post(one, "/tokenize", json.dumps(HEAVY).encode()) for _ in range(3)]
    wait_until(lambda: one.http.get("/health").status_code == 503)
    for client in clients:
        client.close()
    wait_until(lambda: one.http.get("/health").status_code == 200)
    assert "Requests have been waiting for a worker thread" in one.log


def test_sigterm_does_not_wait_for_bodies_that_are_half_sent(start):
    one = start("tiny", "--shutdown-timeout", 3600)
    client = raw_post(one, "/v1/completions", b'{"prompt": "hel', 100)
    assert one.http.get("/health").status_code == 200
    assert one.stop(60) == 0
    assert b"503" in (answer := read_all(client)) and b"stopping" in answer


def test_sigterm_ends_within_its_limit_while_workers_are_busy(start):
    """A minute of work is queued; the limit is a second."""
    one = start("tiny", "--trust-request-chat-template", "--shutdown-timeout", 1)
    clients = [raw_post(one, "/tokenize", json.dumps(HEAVY).encode()) for _ in range(60)]
    wait_until(lambda: one.http.get("/load").status_code == 200)
    assert one.stop(30) == 0
    answers = [read_all(client) for client in clients]
    assert sum(b"stopping" in answer for answer in answers) >= 50
    assert all(not answer or answer.startswith((b"HTTP/1.1 503", b"HTTP/1.1 400")) for answer in answers)  # b"": never accepted


def test_streams_that_shutdown_cuts_end_with_an_error(start):
    one = start("long", "--max-model-len", "200k", "--kv-cache-memory-bytes", "160MiB", "--shutdown-timeout", 0)
    many = {"max_tokens": 100000, "ignore_eos": True}
    asks = {
        "completions": ("/v1/completions", ENDLESS),
        "chat": ("/v1/chat/completions", {"messages": TURN, "stream": True} | many),
        "responses": ("/v1/responses", {"input": "hello", "stream": True, "max_output_tokens": 100000, "ignore_eos": True}),
        "messages": ("/v1/messages", {"messages": TURN, "stream": True, "max_tokens": 100000, "temperature": 0}),
        "whole": ("/v1/completions", ENDLESS | {"stream": False}),
    }
    texts = {}

    def ask(name):
        path, body = asks[name]
        texts[name] = httpx.post(one.url + path, json=body, timeout=60)

    threads = [threading.Thread(target=ask, args=[name]) for name in asks]
    for thread in threads:
        thread.start()
    wait_until(lambda: one.metric("vllm:num_requests_running") == 5)  # none of them ends by itself
    told = one.metric("vllm:generation_tokens_total")
    wait_until(lambda: one.metric("vllm:generation_tokens_total") > told + 100)  # so that every stream has begun
    assert one.stop() == 0
    for thread in threads:
        thread.join()
    for name in ("completions", "chat"):
        *_, error, done = [event for event in texts[name].text.split("\n\n") if event]
        assert done == "data: [DONE]" and json.loads(error[6:])["error"]["code"] == 503, texts[name].text[-300:]
    last = texts["responses"].text.rstrip().split("\n\n")[-1]
    assert last.startswith("event: response.failed") and "stopping" in last
    last = texts["messages"].text.rstrip().split("\n\n")[-1]
    assert last.startswith("event: error\n") and json.loads(last.split("data: ")[1])["error"]["type"] == "overloaded_error"
    assert texts["whole"].status_code == 503 and "stopping" in texts["whole"].json()["error"]["message"]


def test_one_wrong_prompt_of_a_list_is_named(server):
    """The bug: of many prompts, the error did not say which one was empty or too long."""
    for prompts, words in ((["hello", ""], "prompt[1]: "), ([[5], [5], [99999]], "prompt[2]: token id 99999"),
                           (["hello", "hello " * 5000], "prompt[1]: The model's maximum context length")):
        answer = server.post("/v1/completions", {"prompt": prompts, "max_tokens": 3})
        assert answer.status_code == 400 and words in answer.json()["error"]["message"], answer.text
    assert "prompt[" not in server.post("/v1/completions", {"prompt": ["hello " * 5000]}).text


def test_more_than_four_stop_strings_are_taken(server):
    """The bug: programs for vLLM and llama.cpp, which take any number, got a 400 for a fifth stop string."""
    body = {"prompt": "hello", "max_tokens": 40, "temperature": 0, "ignore_eos": True}
    text = server.ok("/v1/completions", body)["choices"][0]["text"]
    stop = [f"never said {i}" for i in range(127)] + [text[7:9]]
    (choice,) = server.ok("/v1/completions", body | {"stop": stop})["choices"]
    assert choice["text"] == text[:text.index(text[7:9])] and choice["stop_reason"] == text[7:9]
    answer = server.post("/v1/completions", body | {"stop": stop + ["x"]})
    assert answer.status_code == 400 and "at most 128" in answer.json()["error"]["message"]


@pytest.mark.parametrize("seed", [0, -2, 1 << 53, (1 << 63) - 512, (1 << 63) - 2, (1 << 63) - 1, -(1 << 63)])
def test_every_int64_is_a_seed(server, seed):
    body = {"prompt": "hello", "max_tokens": 8, "temperature": 1, "seed": seed, "ignore_eos": True}
    first, second = (server.ok("/v1/completions", body)["choices"][0]["text"] for _ in range(2))
    assert first == second
    assert server.ok("/v1/completions", body | {"n": 2})["choices"][0]["text"] == first


@pytest.mark.parametrize("seed", [1 << 63, 1 << 64, -(1 << 63) - 1, 1.5, 1e300])
def test_no_other_number_is_a_seed(server, seed):
    answer = server.post("/v1/completions", {"prompt": "hello", "seed": seed})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "seed"


@pytest.mark.parametrize("method, path, allowed", [
    ("GET", "/v1/completions", "POST"), ("PUT", "/v1/chat/completions", "POST"), ("DELETE", "/v1/models", "GET, HEAD"),
    ("POST", "/v1/models/a/b", "GET, HEAD"), ("POST", "/health", "GET, HEAD"), ("PATCH", "/ping", "GET, HEAD, POST"),
    ("GET", "/v1/messages", "POST"), ("POST", "/metrics", "GET, HEAD")])
def test_a_405_lists_the_allowed_methods(server, method, path, allowed):
    answer = server.http.request(method, path)
    assert answer.status_code == 405 and answer.headers["allow"] == allowed and allowed in answer.text


def test_roles(server, folder, start):
    for path in ("/v1/chat/completions", "/tokenize"):
        for role in ("system", "developer", "user", "assistant", "tool", "function"):
            messages = [{"role": role, "content": "hello"}, *TURN]
            assert server.post(path, {"messages": messages} | ({"max_tokens": 1} if "chat" in path else {})).status_code == 200, role
        for role in ("root", "", "User", "user<|im_end|>", "user\n"):
            answer = server.post(path, {"messages": [*TURN, {"role": role, "content": "hello"}]})
            error = answer.json()["error"]
            assert answer.status_code == 400 and error["param"] == "messages[1].role", role
            assert "system, developer, user, assistant, tool or function" in error["message"]
    for path, body, names in (("/v1/messages", {"messages": [{"role": "tool", "content": "x"}], "max_tokens": 1}, "user or assistant"),
                              ("/v1/responses", {"input": [{"role": "tool", "content": "x"}]}, "user, assistant, system or developer")):
        answer = server.post(path, body)
        assert answer.status_code == 400 and names in answer.json()["error"]["message"]
    template = "{% for m in messages %}{% if m.role == 'ipython' %}<out>{% endif %}{{ m.content }}{% endfor %}"
    (folder / "ipython.jinja").write_text(template)
    named = start("tiny", "--chat-template", "ipython.jinja")
    assert named.ok("/tokenize", {"messages": [{"role": "ipython", "content": "hello"}]})["count"] > 0
    assert named.post("/tokenize", {"messages": [{"role": "python", "content": "hello"}]}).status_code == 400


def test_an_empty_list_of_tools_is_none(server):
    chat = {"messages": TURN, "max_tokens": 2, "temperature": 0}
    assert server.ok("/v1/chat/completions", chat | {"tools": []})["choices"] == server.ok("/v1/chat/completions", chat)["choices"]
    assert server.ok("/v1/responses", {"input": "hello", "max_output_tokens": 1, "tools": []})
    assert server.ok("/v1/messages", {"messages": TURN, "max_tokens": 1, "tools": []})
    assert server.post("/v1/chat/completions", chat | {"tools": [{"type": "function"}]}).status_code == 400
