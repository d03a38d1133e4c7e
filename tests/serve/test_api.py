# SPDX-License-Identifier: Apache-2.0
"""The routes one by one, over plain HTTP: the small endpoints, the tables, models without a tokenizer."""

import gzip
import json
import pathlib
import re
import subprocess

import pytest
from conftest import BIN_DIR, ROOT

CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}


def test_the_small_endpoints(server):
    for path, method in (("/health", "GET"), ("/ping", "GET"), ("/ping", "POST")):
        answer = server.http.request(method, path)
        assert answer.status_code == 200 and answer.content == b""
    assert re.fullmatch(r"\d+\.\d+\.\d+", server.http.get("/version").json()["version"])
    assert server.http.get("/load").json() == {"server_load": 0}
    info = server.http.get("/tokenizer_info").json()
    assert info["vocab_size"] > 0 and "chat_template" in info
    page = server.http.get("/docs")
    assert page.headers["content-type"].startswith("text/html") and "/v1/chat/completions" in page.text
    assert server.http.head("/health").status_code == 200


def test_unknown_paths_and_methods(server):
    assert server.http.get("/v1/nothing").status_code == 404
    assert "did you mean /v1/models? " in server.http.get("/v1/v1/models").json()["error"]["message"]
    answer = server.http.get("/v1/completions")
    assert answer.status_code == 405 and "POST" in answer.json()["error"]["message"]
    answer = server.http.post("/v1/completions", content="prompt=hello",
                              headers={"Content-Type": "application/x-www-form-urlencoded"})
    assert answer.status_code == 400 and "application/json" in answer.json()["error"]["message"]


def test_a_compressed_body_is_refused_by_name(server):
    """It used to be called malformed JSON."""
    body = gzip.compress(b'{"prompt": "hello"}')
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    for path in ("/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/embeddings"):
        answer = server.http.post(path, content=body, headers=headers)
        assert answer.status_code == 415 and answer.headers["Accept-Encoding"] == "identity", answer.text
        assert "Content-Encoding: gzip" in answer.json()["error"]["message"], answer.text
    plain = {"Content-Type": "application/json", "Content-Encoding": "Identity"}
    answer = server.http.post("/v1/completions", content=b'{"prompt": "hello", "max_tokens": 1}', headers=plain)
    assert answer.status_code == 200


@pytest.mark.parametrize("body", ["", "{", "[]", "null", "\"x\"", "{\"prompt\": \"x\"", "[" * 100, "{\"prompt\": NaN}"])
def test_bodies_that_are_not_objects(server, body):
    answer = server.http.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400 and answer.json()["error"]["code"] == 400


LONG = "a" + "é" * 300  # an even number of its bytes ends inside a character
TURN = [{"role": "user", "content": "hello"}]
FUNCTION = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize("path, body", [
    ("/v1/completions", {"model": LONG}), ("/v1/completions", {"logit_bias": {LONG: 1}}),
    ("/v1/completions", {"structured_outputs": {LONG: 1}}), ("/v1/completions", {"response_format": {"type": LONG}}),
    ("/v1/completions", {"max_tokens": LONG}), ("/v1/completions", {"request_id": LONG}),
    ("/v1/chat/completions", {"messages": [{"role": LONG, "content": "x"}]}),
    ("/v1/chat/completions", {"messages": TURN, "tools": [FUNCTION],
                              "tool_choice": {"type": "function", "function": {"name": LONG}}}),
    ("/v1/responses", {"input": [{"role": LONG, "content": "x"}]}), ("/v1/responses", {"input": "x", "tools": [{"type": LONG}]}),
    ("/v1/responses", {"input": "x", "text": {"format": {"type": LONG}}}), ("/v1/responses", {"input": "x", "request_id": LONG}),
    ("/v1/messages", {"messages": [{"role": LONG, "content": "x"}]}),
    ("/v1/messages", {"messages": [{"role": "user", "content": [{"type": LONG}]}]}),
    ("/v1/messages", {"messages": TURN, "request_id": LONG})])
def test_a_text_that_is_cut_ends_between_characters(server, path, body):
    """The bug: answers quoted the first so many bytes, so that they were not UTF-8 and clients could not read them."""
    limits = {"/v1/completions": "max_tokens", "/v1/chat/completions": "max_tokens", "/v1/responses": "max_output_tokens",
              "/v1/messages": "max_tokens"}
    whole = {limits[path]: 2} | ({"prompt": "hello"} if path == "/v1/completions" else {}) | body
    answer = server.post(path, whole)
    assert answer.status_code == (200 if "request_id" in body else 404 if "model" in body else 400), answer.content
    assert "aé" in json.dumps(json.loads(answer.content.decode("utf-8")), ensure_ascii=False)


def test_an_error_that_quotes_a_header_is_utf_8(server):
    body = {"prompt": "hello", "max_tokens": 1}
    answer = server.post("/v1/completions", body, headers={b"X-data-parallel-rank": b"\xff"})
    assert answer.status_code == 400 and "\ufffd" in answer.content.decode("utf-8")


def test_tokenize_and_detokenize(server):
    text = "hello there, and good day"
    plain = server.ok("/tokenize", {"prompt": text, "return_token_strs": True})
    assert plain["count"] == len(plain["tokens"]) == len(plain["token_strs"]) and plain["max_model_len"] > 0
    assert server.ok("/detokenize", {"tokens": plain["tokens"]})["prompt"].endswith(text)
    chat = server.ok("/tokenize", {"messages": CHAT["messages"]})
    assert chat["count"] == server.ok("/v1/chat/completions", CHAT)["usage"]["prompt_tokens"]
    assert server.post("/tokenize", {}).status_code == 400
    assert server.post("/tokenize", {"prompt": "x", "messages": []}).status_code == 400
    assert server.post("/detokenize", {"tokens": [10**8]}).status_code == 400
    assert server.post("/detokenize", {"tokens": [-1]}).json()["error"]["param"] == "tokens"


def test_invocations_take_both_forms(server):
    assert server.ok("/invocations", CHAT)["object"] == "chat.completion"
    assert server.ok("/invocations", {"prompt": "hello", "max_tokens": 1})["object"] == "text_completion"
    answer = server.ok("/invocations", {"prompt": ["messages"], "max_tokens": 1})  # a text, not a member
    assert answer["object"] == "text_completion"
    for body, field in (({}, "prompt"), ({"input": "hello"}, "prompt"), ({"messages": []}, "messages")):
        refused = server.post("/invocations", body)
        assert refused.status_code == 400 and refused.json()["error"]["param"] == field, refused.text
    assert server.http.post("/invocations", content="{", headers={"Content-Type": "application/json"}).status_code == 400


def test_unknown_fields_are_accepted(server):
    assert server.ok("/v1/chat/completions", CHAT | {"never_heard_of": {"a": [1]}})


def test_the_request_id_becomes_the_answers(server):
    answer = server.post("/v1/chat/completions", CHAT, headers={"X-Request-Id": "mine-7"}).json()
    assert answer["id"] == "chatcmpl-mine-7"
    assert server.ok("/v1/completions", {"prompt": "a", "request_id": "own"})["id"] == "cmpl-own"


def test_stream_interval_and_usage(server):
    def events(**fields):
        text = server.post("/v1/completions", {"prompt": "hello", "max_tokens": 10, "seed": 1, "stream": True, "ignore_eos": True} | fields).text
        lines = [line[6:] for line in text.split("\n\n") if line]
        assert lines[-1] == "[DONE]"
        return [json.loads(line) for line in lines[:-1]]
    fine, coarse = events(return_token_ids=True), events(return_token_ids=True, stream_interval=4)
    assert [len(e["choices"][0]["token_ids"]) for e in fine] == [1] * 10
    assert [len(e["choices"][0]["token_ids"]) for e in coarse] == [1, 4, 4, 1]
    assert "".join(e["choices"][0]["text"] for e in fine) == "".join(e["choices"][0]["text"] for e in coarse)
    assert fine[0]["choices"][0]["prompt_token_ids"] and fine[1]["choices"][0]["prompt_token_ids"] is None
    counted = events(stream_options={"include_usage": True, "continuous_usage_stats": True})
    assert [e["usage"]["completion_tokens"] for e in counted] == [*range(1, 11), 10]


def test_reset_prefix_cache(server, start):
    long_prompt = {"prompt": [7] * 64, "max_tokens": 1}
    server.ok("/v1/completions", long_prompt)
    assert server.ok("/v1/completions", long_prompt)["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert server.http.post("/reset_prefix_cache").json() == {"success": True}
    assert server.ok("/v1/completions", long_prompt)["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_flags_of_the_api(start, folder):
    one = start("tiny", "--served-model-name", "first", "--served-model-name", "second", "--trust-request-chat-template",
                "--no-enable-prompt-tokens-details", "--enable-force-include-usage", "--return-tokens-as-token-ids",
                "--fingerprint-mode", "none", "--disable-fastapi-docs", "--api-key", "k1", "--api-key", "k2",
                "--default-chat-template-kwargs", '{"who": "me"}')
    assert one.http.get("/v1/models").status_code == 401 and one.http.get("/health").status_code == 200
    assert one.http.get("/v1/models", headers={"Authorization": "Bearer k3"}).json() ["error"]["message"].startswith("The API key is not one")
    one.http.headers["Authorization"] = "Bearer k2"
    assert [c["id"] for c in one.http.get("/v1/models").json()["data"]] == ["first", "second"]
    answer = one.ok("/v1/chat/completions", CHAT | {"model": "second", "logprobs": True, "chat_template": "{{ who }}",
                                                    "return_token_ids": True})
    assert answer["model"] == "first" and answer["system_fingerprint"] is None
    assert answer["usage"]["prompt_tokens_details"] is None
    assert answer["prompt_token_ids"] == one.ok("/tokenize", {"prompt": "me", "add_special_tokens": False})["tokens"]
    assert answer["choices"][0]["logprobs"]["content"][0]["token"].startswith("token_id:")
    assert one.http.get("/docs").status_code == 404
    assert one.http.post("/reset_prefix_cache").json()["success"] is True
    last = one.post("/v1/completions", {"prompt": "x", "stream": True, "ignore_eos": True}).text.split("\n\n")[-3]
    assert json.loads(last[6:])["usage"]["completion_tokens"] == 16


def test_a_model_without_a_tokenizer_takes_token_ids(start):
    bare = start("bare")
    answer = bare.ok("/v1/completions", {"prompt": [5, 6, 7], "max_tokens": 4, "return_token_ids": True, "logprobs": 1,
                                         "ignore_eos": True})
    choice = answer["choices"][0]
    assert len(choice["token_ids"]) == 4 and choice["text"] == ""
    assert choice["logprobs"]["tokens"] == [f"token_id:{i}" for i in choice["token_ids"]]
    for path, body in (("/v1/completions", {"prompt": "hello"}), ("/v1/chat/completions", CHAT),
                       ("/tokenize", {"prompt": "hello"}), ("/detokenize", {"tokens": [1]}),
                       ("/v1/completions", {"prompt": [1], "stop": "x"})):
        answer = bare.post(path, body)
        assert answer.status_code == 400 and "tokenizer" in answer.json()["error"]["message"], path
    assert bare.stop() == 0


def schema_of(document, name):
    return document["components"]["schemas"][name]["properties"]


def wrong_value(field):
    """A value that the field's type does not allow."""
    types = field.get("type", [])
    if "anyOf" in field:
        return 17.5 if all("type" in one for one in field["anyOf"]) else None
    if "string" in types or "object" in types or "boolean" in types:
        return 17.5
    return "words" if types else None


def test_every_field_of_the_tables_is_checked(server):
    document = server.http.get("/openapi.json").json()
    bases = {"CompletionRequest": ("/v1/completions", {"prompt": "a", "max_tokens": 1}),
             "ChatCompletionRequest": ("/v1/chat/completions", CHAT), "TokenizeRequest": ("/tokenize", {"prompt": "a"}),
             "ResponsesRequest": ("/v1/responses", {"input": "a", "max_output_tokens": 1}),
             "DetokenizeRequest": ("/detokenize", {"tokens": [1]})}
    checked = 0
    for name, (path, base) in bases.items():
        for field, shape in schema_of(document, name).items():
            value = wrong_value(shape)
            if value is None:
                continue
            answer = server.post(path, base | {field: value})
            assert answer.status_code == 400, (path, field, answer.text)
            assert answer.json()["error"]["param"] == field, (path, field, answer.text)
            checked += 1
            for bound, beyond in (("minimum", -1), ("maximum", 1)):
                if abs(shape.get(bound, 1 << 62)) < 1 << 52:
                    answer = server.post(path, base | {field: shape[bound] + beyond})
                    assert answer.status_code == 400 and answer.json()["error"]["param"] == field, (path, field)
    assert checked > 100


def test_the_document_and_docs_api_md_are_those_of_the_tables(server):
    document = server.http.get("/openapi.json").json()
    printed = json.loads(subprocess.run([BIN_DIR / "quire", "schema"], capture_output=True, check=True).stdout)
    assert printed == document and document["openapi"].startswith("3.1")
    markdown = subprocess.run([BIN_DIR / "quire", "schema", "markdown"], capture_output=True, check=True, text=True).stdout
    assert (ROOT / "docs" / "api.md").read_text() == markdown, "run: build/quire schema markdown > docs/api.md"


def test_every_route_is_hit_by_a_test():
    document = json.loads(subprocess.run([BIN_DIR / "quire", "schema"], capture_output=True, check=True).stdout)
    here = pathlib.Path(__file__).parent
    tests = "".join(path.read_text() for folder in (here, here.parent / "pooling") for path in folder.glob("*.py"))
    clients = {"/v1/chat/completions": "chat.completions.create", "/v1/completions": "client.completions.create"}
    for path in document["paths"]:
        stem = path.split("{")[0]
        assert f'"{stem}' in tests or clients.get(path, "\0") in tests, f"no test asks for {path}"
