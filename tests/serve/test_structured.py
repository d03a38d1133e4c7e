# SPDX-License-Identifier: Apache-2.0
"""Constrained answers: response_format, structured_outputs and their like, over HTTP and with the clients of users."""

import json
import re
import threading

import anthropic
import openai
import pydantic
import pytest

MESSAGES = [{"role": "user", "content": "hello"}]
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "kind": {"enum": ["cat", "dog", None]},
        "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}
# A model with random weights would write white space for a long time.
COMPACT = {"disable_any_whitespace": True}


def is_person(value) -> bool:
    assert set(value) <= set(PERSON["properties"]) and {"name", "age", "kind"} <= set(value), value
    assert isinstance(value["name"], str) and len(value["name"]) <= 8
    assert value["age"] == int(value["age"]) and 0 <= value["age"] <= 130
    assert value["kind"] in ("cat", "dog", None)
    tags = value.get("tags", [])
    return len(tags) <= 3 and all(type(tag) is bool for tag in tags)


def chat(server, body: dict) -> dict:
    return server.ok("/v1/chat/completions",
                     {"messages": MESSAGES, "max_tokens": 200, "temperature": 1, "seed": 3} | body)["choices"]


def schema_format(schema) -> dict:
    return {"type": "json_schema", "json_schema": {"name": "it", "schema": schema, "strict": True}}


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.mark.parametrize("temperature", [0, 1, 1.8])
def test_a_json_schema_holds(server, temperature):
    for seed in range(6):
        (choice,) = chat(server, {"response_format": schema_format(PERSON), "structured_outputs": COMPACT,
                                  "temperature": temperature, "seed": seed})
        assert choice["finish_reason"] == "stop", choice
        assert is_person(json.loads(choice["message"]["content"])), choice


def test_every_field_that_takes_a_schema(server):
    whole = {"structured_outputs": COMPACT | {"json": PERSON}}
    (first,) = chat(server, whole)
    (text,) = chat(server, {"structured_outputs": COMPACT | {"json": json.dumps(PERSON)}})
    (format_,) = chat(server, {"response_format": schema_format(PERSON), "structured_outputs": COMPACT})
    assert first["message"] == text["message"] == format_["message"]
    answer = server.ok("/v1/completions", {"prompt": "hello", "max_tokens": 200, "seed": 3} | whole)
    assert is_person(json.loads(answer["choices"][0]["text"]))


def test_integers_of_64_bits_without_a_sign_keep_their_digits(server):
    for schema in ('{"const": 18446744073709551615}', {"const": 18446744073709551615}, {"enum": [18446744073709551615]}):
        (choice,) = chat(server, {"structured_outputs": COMPACT | {"json": schema}})
        assert choice["message"]["content"] == "18446744073709551615", choice  # with a point it would be read as a double


def test_members_come_in_the_order_of_the_schema_unless_any_is_allowed(server):
    schema = {"properties": {name: {"type": "boolean"} for name in "abc"}, "required": ["a", "b", "c"], "type": "object"}
    orders = {False: set(), True: set()}
    for any_order, seen in orders.items():
        for seed in range(8):
            (choice,) = chat(server, {"structured_outputs": COMPACT | {"json": schema, "any_order": any_order}, "seed": seed})
            seen.add("".join(json.loads(choice["message"]["content"], object_pairs_hook=lambda pairs: [name for name, _ in pairs])))
    assert orders[False] == {"abc"}
    assert len(orders[True]) > 1 and all(sorted(order) == ["a", "b", "c"] for order in orders[True])


def test_white_space_is_as_the_options_say(server):
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"type": "array", "items": {"type": "null"},
              "minItems": 2, "maxItems": 2}}, "required": ["a", "b"]}
    tight = r'\{"a":(true|false),"b":\[null,null\]\}'
    # Each option, the whole answers that it allows, and whether white space must have been seen.
    cases = [({"disable_any_whitespace": True}, tight), ({"whitespace_pattern": ""}, tight),
             ({"whitespace_pattern": " "}, r'\{ "a" : (true|false) , "b" : \[ null , null \] \}'),
             ({"whitespace_pattern": r"\n{1,2}"}, r'\{\n+"a"\n+:\n+(true|false)\n+,\n+"b"\n+:\n+\[\n+null\n+,\n+null\n+\]\n+\}')]
    for options, pattern in cases:
        for seed in range(3):
            (choice,) = chat(server, {"structured_outputs": {"json": schema} | options, "seed": seed})
            assert choice["finish_reason"] == "stop", choice
            assert re.fullmatch(pattern, choice["message"]["content"]), (options, choice["message"]["content"])
    for options, words in (({"whitespace_pattern": "("}, "whitespace_pattern"), ({"whitespace_pattern": "x"}, "whitespace_pattern"),
                           ({"whitespace_pattern": 3}, "whitespace_pattern"),
                           ({"disable_any_whitespace": "yes"}, "disable_any_whitespace")):
        answer = server.post("/v1/chat/completions", {"messages": MESSAGES, "structured_outputs": {"json": schema} | options})
        assert answer.status_code == 400 and words in answer.json()["error"]["message"], answer.text


@pytest.mark.parametrize("options, ends", [({}, True), ({"structured_outputs": {"whitespace_pattern": r"\s*"}}, False)])
def test_a_model_that_likes_white_space_comes_to_an_end(server, options, ends):
    """One more blank or line break was always allowed, so that an answer could be white space up to max_tokens."""
    likes = {}
    for text in (" ", "\n", "\t", "\r"):
        likes |= dict.fromkeys(map(str, server.ok("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]), 100)
    schema = {"type": "object", "properties": {"a": {"enum": ["b"]}}, "required": ["a"]}
    body = {"response_format": schema_format(schema), "logit_bias": likes, "temperature": 0, "max_tokens": 300} | options
    (choice,) = chat(server, body)
    written = choice["message"]["content"]
    assert (choice["finish_reason"] == "stop") == ends and (re.search(r"\s{45}", written) is None) == ends, written
    assert not ends or json.loads(written) == {"a": "b"}
    (choice,) = chat(server, body | {"response_format": {"type": "json_object"}})
    assert (re.search(r"\s{45}", choice["message"]["content"]) is None) == ends, choice


def test_older_names_of_constraints_hold(server):
    """They were without effect, as they are in vLLM: clients that asked for JSON got free text."""
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    for body, pattern in (({"guided_json": schema}, r'\s*\{\s*"ok"\s*:\s*(true|false)\s*\}'), ({"guided_json": json.dumps(schema)}, None),
                          ({"json_schema": schema}, None), ({"guided_regex": "[ab]{2}"}, "[ab]{2}"),
                          ({"guided_choice": ["yes", "no"]}, "yes|no"), ({"guided_grammar": 'root ::= "x" | "y"'}, "x|y"),
                          ({"grammar": 'root ::= "x" | "y"', "guided_json": None, "guided_regex": ""}, "x|y")):
        asked = {"messages": MESSAGES, "max_tokens": 200, "seed": 1} | body
        (choice,) = server.ok("/v1/chat/completions", asked)["choices"]
        content = choice["message"]["content"]
        assert re.fullmatch(pattern, content) if pattern else set(json.loads(content)) == {"ok"}, (body, content)
        text = server.ok("/v1/completions", {"prompt": "a", "max_tokens": 200, "seed": 1} | body)["choices"][0]["text"]
        assert pattern is None or re.fullmatch(pattern, text), (body, text)
    for body, words in (({"guided_json": 3}, "guided_json"), ({"guided_regex": "("}, "guided_regex"), ({"guided_choice": []}, "guided_choice"),
                        ({"guided_json": {}, "guided_regex": "a"}, "cannot be combined with guided_json"),
                        ({"grammar": "root ::= x", "response_format": {"type": "json_object"}}, "cannot be combined with response_format")):
        answer = server.post("/v1/chat/completions", {"messages": MESSAGES} | body)
        assert answer.status_code == 400 and words in answer.json()["error"]["message"], (body, answer.text)


@pytest.mark.parametrize("kind, value", [
    ("json", {"type": "string", "pattern": "|".join(f"k{i * 7919 % 1000003}" for i in range(40000))}),
    ("json", {"$ref": "#/" + "é" * 100000}), ("json", {"properties": {"x" * 100000: {"type": "y"}}}),
    ("grammar", "root ::= " + "a" * 100000), ("structural_tag", {"type": "x" * 100000})])
def test_an_error_does_not_repeat_a_long_constraint(server, kind, value):
    answer = server.post("/v1/completions", {"prompt": "a", "structured_outputs": {kind: value}})
    message = answer.json()["error"]["message"]
    assert answer.status_code == 400 and len(message.encode()) < 1100 and " ... " in message, message
    assert message.startswith(f"structured_outputs.{kind}: ")


def test_json_object_is_an_object(server):
    for seed in range(4):
        (choice,) = chat(server, {"response_format": {"type": "json_object"}, "structured_outputs": COMPACT, "seed": seed,
                                  "max_tokens": 60})
        content = choice["message"]["content"]
        assert content.startswith("{")
        if choice["finish_reason"] == "stop":
            assert isinstance(json.loads(content), dict)


@pytest.mark.parametrize("constraint, pattern", [
    ({"regex": "[0-9]{3}-[a-f]+x"}, "[0-9]{3}-[a-f]+x"),
    ({"choice": ["yes", "no", "perhaps not", "ünïcode\n"]}, "yes|no|perhaps not|ünïcode\n"),
    ({"grammar": 'root ::= "(" root ")" | [a-c]{1,3}'}, r"\(*[a-c]{1,3}\)*"),
    ({"grammar": 'start: "the " ANIMAL\nANIMAL: "cat" | "dog"'}, "the (cat|dog)"),
    ({"structural_tag": json.dumps({"type": "structural_tag", "format": {"type": "const_string", "value": "a b"}})},
     "a b"),
    ({"regex": ""}, ""),
])
def test_other_kinds_hold(server, constraint, pattern):
    for seed in range(4):
        body = {"structured_outputs": constraint, "max_tokens": 150, "seed": seed, "temperature": 1}
        answer = server.ok("/v1/completions", {"prompt": "hello"} | body)["choices"][0]
        if answer["finish_reason"] == "stop":
            assert re.fullmatch(pattern, answer["text"]), answer
        (choice,) = chat(server, body)
        if choice["finish_reason"] == "stop":
            assert re.fullmatch(pattern, choice["message"]["content"]), choice


def test_a_schema_beside_json_object_holds(server):
    """It was ignored: clients made for llama.cpp's server, which takes it there, got any JSON object."""
    def format_(schema):
        return {"type": "json_object", "schema": schema}

    for seed in range(4):
        (choice,) = chat(server, {"response_format": format_(PERSON), "structured_outputs": COMPACT, "seed": seed})
        assert is_person(json.loads(choice["message"]["content"])), choice
    any_object = {"structured_outputs": COMPACT, "max_tokens": 20}
    assert chat(server, any_object | {"response_format": {"type": "json_object"}}) == chat(server, any_object | {"response_format": format_({})})
    for wrong in (3, {"type": "strnig"}):
        answer = server.post("/v1/chat/completions", {"messages": MESSAGES, "response_format": format_(wrong)})
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "response_format.schema", answer.text


def test_all_members_of_vllms_class_are_taken(server):
    """dataclasses.asdict() of vLLM's StructuredOutputsParams has members about its backends, which were refused."""
    members = {"json": None, "regex": "[ab]{3}", "choice": None, "grammar": None, "json_object": None, "structural_tag": None,
               "disable_fallback": False, "disable_any_whitespace": False, "disable_additional_properties": False,
               "whitespace_pattern": None, "_backend": "xgrammar", "_backend_was_auto": True}
    (choice,) = chat(server, {"structured_outputs": members})
    assert re.fullmatch("[ab]{3}", choice["message"]["content"])


def test_text_is_no_constraint(server):
    (plain,) = chat(server, {"max_tokens": 20})
    (text,) = chat(server, {"max_tokens": 20, "response_format": {"type": "text"}})
    assert plain == text


def test_n_answers_are_constrained_each(server):
    choices = chat(server, {"structured_outputs": {"choice": ["alpha", "beta", "gamma"]}, "n": 6})
    texts = [choice["message"]["content"] for choice in choices]
    assert set(texts) <= {"alpha", "beta", "gamma"} and len(texts) == 6
    for i, text in enumerate(texts):
        (alone,) = chat(server, {"structured_outputs": {"choice": ["alpha", "beta", "gamma"]}, "seed": 3 + i})
        assert alone["message"]["content"] == text


def test_a_stream_is_the_whole_answer(server):
    body = {"messages": MESSAGES, "max_tokens": 200, "temperature": 1, "seed": 9,
            "response_format": schema_format(PERSON), "structured_outputs": COMPACT}
    whole = server.ok("/v1/chat/completions", body)["choices"][0]
    text, finish = "", None
    with server.http.stream("POST", "/v1/chat/completions", json=body | {"stream": True}) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                choice = json.loads(line[6:])["choices"][0]
                text += choice["delta"].get("content") or ""
                finish = choice["finish_reason"] or finish
    assert text == whole["message"]["content"] and finish == whole["finish_reason"]


def test_stop_strings_lengths_and_min_tokens(server):
    regex = {"structured_outputs": {"regex": "[ab]{4}STOP[ab]{40}"}}
    (choice,) = chat(server, regex | {"stop": ["STOP"]})
    assert re.fullmatch("[ab]{4}", choice["message"]["content"]) and choice["stop_reason"] == "STOP"
    (cut,) = chat(server, regex | {"max_tokens": 3})
    assert cut["finish_reason"] == "length"
    # The grammar is over before min_tokens: the answer ends all the same.
    (short,) = chat(server, {"structured_outputs": {"choice": ["yes"]}, "min_tokens": 50})
    assert short["message"]["content"] == "yes" and short["finish_reason"] == "stop"
    (both,) = chat(server, {"structured_outputs": {"regex": "[ab]+"}, "min_tokens": 20, "max_tokens": 40})
    assert len(both["message"]["content"]) >= 20


def test_logprobs_are_those_under_the_mask(server):
    (choice,) = chat(server, {"structured_outputs": {"choice": ["yes", "no"]}, "logprobs": True, "top_logprobs": 20})
    entries = choice["logprobs"]["content"]
    for entry in entries[:-1]:
        assert entry["logprob"] > -100
        allowed = [top for top in entry["top_logprobs"] if top["logprob"] > -9999]
        assert all("yes".startswith(top["token"]) or "no".startswith(top["token"]) or top["token"] in "yesno"
                   for top in allowed), allowed
        assert any(top["logprob"] == -9999 for top in entry["top_logprobs"])


def test_requests_beside_others_keep_their_bits(server):
    plain = {"max_tokens": 40, "seed": 4}
    held = {"response_format": schema_format(PERSON), "structured_outputs": COMPACT, "seed": 5}
    alone = chat(server, plain), chat(server, held)
    results = {}

    def ask(key, body):
        results[key] = chat(server, body)

    threads = [threading.Thread(target=ask, args=((kind, i), body))
               for i in range(6) for kind, body in enumerate((plain, held))]
    threads += [threading.Thread(target=ask, args=(("other", i), {"structured_outputs": {"regex": f"[a-z]{{{i + 1},30}}"}}))
                for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i in range(6):
        assert results[0, i] == alone[0] and results[1, i] == alone[1]


@pytest.mark.parametrize("body, field", [
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}}, "response_format.json_schema.schema"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": {"type": 3}}, "response_format"),
    ({"response_format": schema_format({"type": "object", "properties": {"a": {"type": "strnig"}}})},
     "response_format.json_schema.schema"),
    ({"structured_outputs": {}}, "structured_outputs"),
    ({"structured_outputs": {"json": PERSON, "regex": "a"}}, "structured_outputs"),
    ({"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}}, "structured_outputs"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
    ({"structured_outputs": {"choice": [1]}}, "structured_outputs.choice"),
    ({"structured_outputs": {"json": " "}}, "structured_outputs.json"),
    ({"structured_outputs": {"json": "{"}}, "structured_outputs.json"),
    ({"structured_outputs": {"grammar": " "}}, "structured_outputs.grammar"),
    ({"structured_outputs": {"grammar": "root ::= ("}}, "structured_outputs.grammar"),
    ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
    ({"structured_outputs": {"regex": "a\0"}}, "structured_outputs.regex"),
    ({"structured_outputs": {"json_object": False}}, "structured_outputs.json_object"),
    ({"structured_outputs": {"structural_tag": "no"}}, "structured_outputs.structural_tag"),
    ({"structured_outputs": {"jsn": {}}}, "structured_outputs.jsn"),
    ({"thinking_token_budget": 5}, "thinking_token_budget"),
])
def test_a_wrong_constraint_is_named(server, body, field):
    answer = server.post("/v1/chat/completions", {"messages": MESSAGES} | body)
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"] == field and field in error["message"], error


def test_the_place_in_the_schema_is_named(server):
    schema = {"type": "object", "properties": {"deep": {"type": "array", "items": {"type": "strnig"}}}}
    error = server.post("/v1/chat/completions", {"messages": MESSAGES, "response_format": schema_format(schema)}).json()
    assert "/properties/deep/items" in error["error"]["message"], error


def test_a_constraint_needs_a_tokenizer(start):
    bare = start("bare")
    answer = bare.post("/v1/completions", {"prompt": [1, 2, 3], "structured_outputs": {"regex": "a"}})
    assert answer.status_code == 400 and "tokenizer" in answer.json()["error"]["message"]


class Pet(pydantic.BaseModel):
    legs: bool
    kind: str = pydantic.Field(pattern="^(cat|dog)$")


def test_the_openai_client_parses_models(client):
    options = dict(model=client.models.list().data[0].id, max_tokens=300, temperature=1)
    answers = [client.chat.completions.create(messages=MESSAGES, response_format=schema_format(Pet.model_json_schema()),
                                              extra_body={"structured_outputs": COMPACT}, seed=seed, **options)
               for seed in range(3)]
    for answer in answers:
        assert Pet.model_validate_json(answer.choices[0].message.content).kind in ("cat", "dog")
    parsed = client.chat.completions.parse(messages=MESSAGES, response_format=Pet, seed=1,
                                           extra_body={"structured_outputs": COMPACT}, **options)
    assert isinstance(parsed.choices[0].message.parsed, Pet)


def test_responses_take_a_text_format(client):
    format_ = {"type": "json_schema", "name": "it", "schema": PERSON, "strict": True}
    answer = client.responses.create(model=client.models.list().data[0].id, input="hello", max_output_tokens=300,
                                     text={"format": format_}, extra_body={"structured_outputs": COMPACT})
    assert is_person(json.loads(answer.output_text))
    assert answer.text.format.type == "json_schema"
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="tiny", input="hello", text={"format": {"type": "json_schema", "name": "x"}})
    assert caught.value.body["param"] == "text.format.schema"


def test_messages_take_an_output_format(server):
    client = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"],
              "additionalProperties": False}
    body = {"output_config": {"format": {"type": "json_schema", "schema": schema}}}
    for _ in range(3):
        answer = client.messages.create(model="tiny", max_tokens=400, messages=MESSAGES, extra_body=body)
        if answer.stop_reason == "end_turn":
            assert type(json.loads(answer.content[0].text)["ok"]) is bool
    bad = server.post("/v1/messages", {"max_tokens": 5, "messages": MESSAGES,
                                       "output_config": {"format": {"type": "json_schema"}}})
    assert bad.status_code == 400 and "output_config.format.schema" in bad.text


def test_a_stop_token_that_the_constraint_needs_is_named(server):
    # The bug: the error listed everything that may forbid a token, but for the cause.
    body = {"prompt": "hello", "max_tokens": 20, "temperature": 0, "structured_outputs": {"regex": "a[12]b"}}
    first, *_, stop = server.ok("/tokenize", {"prompt": "ab", "add_special_tokens": False})["tokens"]
    for token in (first, stop):
        refused = server.post("/v1/completions", body | {"stop_token_ids": [token]})
        assert refused.status_code == 400 and "stop_token_ids" in refused.json()["error"]["message"], refused.text
    other = server.ok("/tokenize", {"prompt": "2", "add_special_tokens": False})["tokens"]
    assert server.ok("/v1/completions", body | {"stop_token_ids": other})["choices"][0]["text"] == "a1b"
