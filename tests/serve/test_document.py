# SPDX-License-Identifier: Apache-2.0
"""The OpenAPI document says what the server does with null, empty and odd values of every field."""

import itertools

import pytest

TURN = [{"role": "user", "content": "hello"}]
# For each schema a request that is accepted, in which one field at a time is replaced.
BASES = {
    "CompletionRequest": ("/v1/completions", {"prompt": "a", "max_tokens": 1}),
    "ChatCompletionRequest": ("/v1/chat/completions", {"messages": TURN, "max_tokens": 1}),
    "ResponsesRequest": ("/v1/responses", {"input": "a", "max_output_tokens": 1}),
    "InputTokensRequest": ("/v1/responses/input_tokens", {"input": "a"}),
    "MessagesRequest": ("/v1/messages", {"messages": TURN, "max_tokens": 1}),
    "CountTokensRequest": ("/v1/messages/count_tokens", {"messages": TURN}),
    "TokenizeRequest": ("/tokenize", {"prompt": "a"}),
    "DetokenizeRequest": ("/detokenize", {"tokens": [1]}),
}
VALUES = [None, "", [], {}, [""], [None], [[]], [{}], 0, False, "words"]
# What depends on other fields, on the tokenizer or on a flag is described in words, not in the schema, so these values
# are left out.
IN_WORDS = {
    "prompt": ["", [""]],  # a tokenizer may add a token to an empty text
    "messages": [[{}]],  # what a message must have is checked per message, and likewise items and blocks
    "input": [[{}]],
    "system": [[{}]],
    "tools": [[{}]],
    "guided_json": [[], [""], [None], [[]], [{}], 0, False, "words"],  # is a schema or the text of one
    "json_schema": [[], [""], [None], [[]], [{}], 0, False, "words"],
    "guided_choice": [[]],  # needs a choice
    "guided_grammar": ["words"],  # is no grammar
    "grammar": ["words"],
    "structured_outputs": [{}],  # needs one kind of constraint
    "thinking_token_budget": [0],  # only with a reasoning parser
    "max_tokens": [0],  # only with echo
    "truncate_prompt_tokens": [0],  # would leave no tokens
    "stream_options": [{}],  # only with stream
    "continue_final_message": VALUES,  # not with add_generation_prompt
    "chat_template": ["", "words"],  # only with --trust-request-chat-template
    "model": ["words"],  # 404
}
KINDS = {"string": str, "array": list, "object": dict, "boolean": bool, "null": type(None)}


def has_kind(value, kind: str) -> bool:
    if kind in ("integer", "number"):
        return type(value) is int or (type(value) is float and (kind == "number" or value.is_integer()))
    return type(value) is KINDS[kind]


def allows(schema: dict, value) -> bool:
    """The keywords of JSON Schema that the document uses; an unknown one is an error in this test."""
    known = {"type", "anyOf", "enum", "minimum", "maximum", "exclusiveMinimum", "minLength", "maxLength", "minItems", "maxItems",
             "maxProperties", "items", "additionalProperties", "required", "properties", "description"}
    assert set(schema) <= known, set(schema) - known
    kinds = schema.get("type", [])
    if kinds and not any(has_kind(value, kind) for kind in ([kinds] if isinstance(kinds, str) else kinds)):
        return False
    if "anyOf" in schema and not any(allows(one, value) for one in schema["anyOf"]):
        return False
    if "enum" in schema and not any(type(one) is type(value) and one == value for one in schema["enum"]):
        return False
    if type(value) in (int, float):
        return (value >= schema.get("minimum", value) and value <= schema.get("maximum", value)
                and ("exclusiveMinimum" not in schema or value > schema["exclusiveMinimum"]))
    if isinstance(value, str):
        return schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", 1 << 30)
    if isinstance(value, list):
        return (schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", 1 << 30)
                and all(allows(schema.get("items", {}), one) for one in value))
    if isinstance(value, dict):
        more = schema.get("additionalProperties", {})
        fields = schema.get("properties", {})
        return (len(value) <= schema.get("maxProperties", 1 << 30) and all(name in value for name in schema.get("required", []))
                and all(allows(fields.get(name, {} if more is True else more), one) for name, one in value.items()))
    return True


@pytest.mark.parametrize("name", BASES)
def test_null_and_empty_values_are_taken_as_the_document_says(server, name):
    document = server.http.get("/openapi.json").json()["components"]["schemas"][name]
    path, base = BASES[name]
    assert allows(document, base) and server.post(path, base).status_code == 200
    wrong = []
    for field, value in itertools.product(document["properties"], VALUES):
        if any(type(value) is type(one) and value == one for one in IN_WORDS.get(field, [])):
            continue
        if name == "TokenizeRequest" and field in ("prompt", "messages"):  # exactly one of the two
            continue
        body = base | {field: value}
        answer = server.post(path, body)
        assert answer.status_code in (200, 400), answer.text
        if allows(document, body) != (answer.status_code == 200):
            wrong.append((field, value, answer.status_code, answer.text[:160]))
    assert not wrong, "\n".join(map(str, wrong))
    for field in document["required"]:
        assert server.post(path, {k: v for k, v in base.items() if k != field}).status_code == 400
