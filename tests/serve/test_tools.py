# SPDX-License-Identifier: Apache-2.0
"""Tool calls and reasoning through the openai and anthropic packages, on a model that says what it is told to."""

import json
import re

import anthropic
import openai
import pytest
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter
from scripted import make_scripted

EVENT = TypeAdapter(ResponseStreamEvent)
TURN = [{"role": "user", "content": "What is 1 and 2?"}]
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a", "b"]}
TOOLS = [{"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": PARAMETERS}},
         {"type": "function", "function": {"name": "now"}}]
FLAT = [{"type": "function", **tool["function"]} for tool in TOOLS]
MESSAGES_TOOLS = [{"name": "add", "description": "Adds.", "input_schema": PARAMETERS},
          {"name": "now", "input_schema": {"type": "object"}}]
ARGUMENTS = '{"a": 1, "b": "x\\ny \\u00e9"}'
SCRIPTS = {
    "plain": ["It ", "is ", "three."],
    "call": ["I will ", "add them.\n", "<tool_call>", '\n{"name": "ad', 'd", "argu', 'ments": {"a": 1', ', "b": "x\\', 'ny \\u00',
             'e9"}', "}\n", "</tool_call>"],
    "only": ["<tool_call>", '\n{"name": "now", "arguments": {}}\n', "</tool_call>"],
    "two": ["<tool_call>", '\n{"name": "add", "arguments": ', ARGUMENTS + "}\n", "</tool_call>", "\n", "<tool_call>",
            '\n{"name": "now", "arguments": {}}\n', "</tool_call>"],
    "think": ["<think>", "\nOne and ", "two ", "are three.\n", "</think>", "\n\nThree, ", "I think."],
    "think_call": ["<think>", "\nI should add.\n", "</think>", "\n\n", "<tool_call>", '\n{"name": "now", "arguments": {}}\n',
                   "</tool_call>"],
    "nonsense": ["<tool_call>", "this is no JSON", "</tool_call>", " at all"],
    "cut": ["<tool_call>", '\n{"name": "add", "arguments": {"a": 1', ", ", '"b": "never', " ends", " and", " goes", " on"],
    "lines": ["one\u2028", "two\u0085", "three\u2029", "four"],
    "after": ["The sum ", "is 3."],
}
MARKERS = ("<tool_call>", "</tool_call>", "<think>", "</think>")


@pytest.fixture(scope="module")
def scripted(folder, start):
    name = make_scripted(folder, "scripted", SCRIPTS, special=MARKERS)
    return start(name, "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3", "--enable-auto-tool-choice")


@pytest.fixture(scope="module")
def client(scripted):
    with openai.OpenAI(base_url=scripted.url + "/v1", api_key="none", max_retries=0) as one:
        yield one


@pytest.fixture(scope="module")
def messages_client(scripted):
    with anthropic.Anthropic(base_url=scripted.url, api_key="none", max_retries=0) as one:
        yield one


def kwargs(script: str) -> dict:
    """qwen3 begins in the reasoning unless thinking is off; the scripts that do not think say so."""
    return {"chat_template_kwargs": {"script": script, "enable_thinking": script.startswith("think")}}


def chat(client, script, messages=TURN, **fields):
    fields = {"tools": TOOLS, "temperature": 0} | fields
    extra = kwargs(script) | fields.pop("extra_body", {})
    return client.chat.completions.create(model="", messages=messages, extra_body=extra, **fields)


def streamed(client, script, **fields):
    """The chunks of a stream joined to a message, as clients do."""
    out = {"content": "", "reasoning": "", "tool_calls": [], "finish": None, "chunks": 0}
    for chunk in chat(client, script, stream=True, **fields):
        assert len(chunk.choices) == 1
        choice = chunk.choices[0]
        out["chunks"] += 1
        out["content"] += choice.delta.content or ""
        out["reasoning"] += (choice.delta.model_extra or {}).get("reasoning") or ""
        for call in choice.delta.tool_calls or []:
            if call.id:
                assert call.index == len(out["tool_calls"]) and call.type == "function"
                out["tool_calls"].append({"id": call.id, "name": call.function.name, "arguments": ""})
            assert call.index == len(out["tool_calls"]) - 1
            out["tool_calls"][call.index]["arguments"] += call.function.arguments or ""
        assert out["finish"] is None, "nothing follows the finish reason"
        out["finish"] = choice.finish_reason
    return out


def calls_of(message) -> list[tuple[str, str]]:
    return [(call.function.name, call.function.arguments) for call in message.tool_calls or []]


# --- Chat completions ---

def test_a_call_is_taken_out_of_the_text(client):
    choice = chat(client, "call").choices[0]
    assert choice.message.content == "I will add them." and choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    assert re.fullmatch("chatcmpl-tool-[0-9a-f]{32}", call.id) and call.type == "function"
    assert call.function.name == "add" and json.loads(call.function.arguments) == {"a": 1, "b": "x\ny é"}


def test_content_is_null_beside_nothing_but_calls(client):
    message = chat(client, "only").choices[0].message
    assert message.content is None and calls_of(message) == [("now", "{}")]


def test_two_calls_have_two_ids_and_parallel_false_keeps_one(client):
    message = chat(client, "two").choices[0].message
    assert [name for name, _ in calls_of(message)] == ["add", "now"] and message.content is None
    assert message.tool_calls[0].id != message.tool_calls[1].id
    one = chat(client, "two", parallel_tool_calls=False).choices[0]
    assert [name for name, _ in calls_of(one.message)] == ["add"] and one.finish_reason == "tool_calls"


@pytest.mark.parametrize("interval", [1, 3, 100])
@pytest.mark.parametrize("script", [key for key in SCRIPTS if key != "cut"])
def test_a_stream_equals_the_whole_answer(client, script, interval):
    whole = chat(client, script).choices[0]
    parts = streamed(client, script, extra_body={"stream_interval": interval})
    assert parts["content"] == (whole.message.content or "")
    assert parts["reasoning"] == (whole.message.model_extra.get("reasoning") or "")
    assert [(call["name"], call["arguments"]) for call in parts["tool_calls"]] == calls_of(whole.message)
    assert parts["finish"] == whole.finish_reason


@pytest.mark.parametrize("path, body", [("/v1/chat/completions", {"messages": TURN}), ("/v1/responses", {"input": TURN}),
                                        ("/v1/messages", {"messages": TURN, "max_tokens": 50})])
def test_no_event_has_a_line_end_that_clients_split_at(scripted, path, body):
    """httpx and others split a stream at the line ends of Unicode, too."""
    with scripted.http.stream("POST", path, json=body | kwargs("lines") | {"stream": True, "temperature": 0}) as answer:
        lines = [line for line in answer.iter_lines() if line]
    assert all(line.startswith(("data: ", "event: ")) for line in lines), lines
    text = "".join(line for line in lines if line.startswith("data: {"))
    assert "\\u2028" in text and "\\u0085" in text and "\\u2029" in text
    assert all(json.loads(line[6:]) for line in lines if line.startswith("data: {"))


def test_arguments_are_streamed_as_they_come_and_never_with_markers(client):
    pieces, names = [], []
    for chunk in chat(client, "call", stream=True):
        delta = chunk.choices[0].delta
        assert not any(marker[:5] in (delta.content or "") for marker in MARKERS)
        for call in delta.tool_calls or []:
            names.append(call.function.name)
            pieces.append(call.function.arguments)
    assert [name for name in names if name] == ["add"], "the name comes once and whole"
    assert len([piece for piece in pieces if piece]) >= 3
    assert json.loads("".join(pieces)) == {"a": 1, "b": "x\ny é"}


def test_without_tools_or_with_none_nothing_is_parsed(client):
    choice = chat(client, "call", tools=openai.NOT_GIVEN).choices[0]
    assert choice.message.tool_calls is None and choice.finish_reason == "stop" and '"name": "add"' in choice.message.content
    choice = chat(client, "call", tool_choice="none").choices[0]
    assert choice.message.tool_calls is None and choice.finish_reason == "stop"
    assert choice.message.content.strip() == "I will add them.", "the markup of a call that was not asked for is removed"


def test_nonsense_is_text(client):
    choice = chat(client, "nonsense").choices[0]
    assert choice.message.tool_calls is None and "this is no JSON" in choice.message.content and choice.finish_reason == "stop"
    assert streamed(client, "nonsense")["content"] == choice.message.content


def test_a_call_that_the_length_cuts_ends_with_length(client):
    for tokens in range(1, 9):
        choice = chat(client, "cut", max_tokens=tokens).choices[0]
        assert choice.finish_reason == "length"
        parts = streamed(client, "cut", max_tokens=tokens)
        assert parts["finish"] == "length" and parts["content"] == (choice.message.content or "")
        assert [(call["name"], call["arguments"]) for call in parts["tool_calls"]] == calls_of(choice.message)


def test_several_choices_are_parsed_each_on_its_own(client):
    answer = chat(client, "call", n=3, temperature=0.01)
    assert [calls_of(choice.message)[0][0] for choice in answer.choices] == ["add"] * 3
    assert len({choice.message.tool_calls[0].id for choice in answer.choices}) == 3
    calls = {}
    for chunk in chat(client, "call", n=3, temperature=0.01, stream=True):
        for choice in chunk.choices:
            for call in choice.delta.tool_calls or []:
                calls[choice.index] = calls.get(choice.index, "") + (call.function.arguments or "")
    assert [json.loads(calls[i]) for i in range(3)] == [{"a": 1, "b": "x\ny é"}] * 3


def test_a_conversation_goes_on_with_the_result(client):
    message = chat(client, "call").choices[0].message
    turns = [*TURN, message.model_dump(exclude_none=True),
             {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "3"}]
    done = chat(client, "call", messages=turns).choices[0]
    assert (done.message.content, done.finish_reason, done.message.tool_calls) == ("The sum is 3.", "stop", None)
    assert streamed(client, "call", messages=turns)["content"] == "The sum is 3."


def test_broken_arguments_in_the_history_do_no_harm(scripted, client):
    def prompt(arguments):
        call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": arguments}}
        turns = [*TURN, {"role": "assistant", "content": None, "tool_calls": [call]}]
        ids = scripted.ok("/tokenize", {"messages": turns, "add_generation_prompt": False})["tokens"]
        return scripted.ok("/detokenize", {"tokens": ids})["prompt"]
    for broken in ('{"a": ', "[1]", "7", "", '"{}"'):
        assert '"arguments": {}' in prompt(broken)
    assert '"arguments": {"a": 1}' in prompt('{"a": 1}') and '"arguments": {"a": 1}' in prompt({"a": 1})
    plain = scripted.ok("/tokenize", {"messages": [*TURN, {"role": "assistant", "content": "x"}]})
    assert plain == scripted.ok("/tokenize", {"messages": [*TURN, {"role": "assistant", "content": "x", "tool_calls": []}]})


NAMED = {"type": "function", "function": {"name": "add"}}
TOOL = TOOLS[0]


@pytest.mark.parametrize("body, param", [
    ({"tool_choice": "auto"}, "tool_choice"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": NAMED}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": "sometimes"}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": 5}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.type"),
    ({"tools": [TOOL], "tool_choice": {"type": "function"}}, "tool_choice.function"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "function": "add"}}, "tool_choice.function"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {}}}, "tool_choice.function.name"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": ""}}}, "tool_choice.function.name"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "sub"}}}, "tool_choice.function.name"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": [{"type": "retrieval", "function": {"name": "f"}}]}, "tools[0].type"),
    ({"tools": [TOOL, {"type": "function", "function": {}}]}, "tools[1].function.name"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
    ({"tools": [{"type": "function", "function": {"name": "f" * 257}}]}, "tools[0].function.name"),
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]}, "tools[0].function.parameters"),
    ({"tools": [{"type": "function", "function": {"name": "f", "strict": 1}}]}, "tools[0].function.strict"),
    ({"messages": [*TURN, {"role": "assistant", "tool_calls": [{"type": "custom"}]}]}, "messages[1].tool_calls[0].type"),
    ({"messages": [*TURN, {"role": "assistant", "tool_calls": {}}]}, "messages[1].tool_calls"),
    ({"messages": [*TURN, {"role": "assistant", "tool_calls": [{"function": {}}]}]}, "messages[1].tool_calls[0].function.name"),
])
def test_what_is_wrong_is_a_400_that_names_the_member(scripted, body, param):
    answer = scripted.post("/v1/chat/completions", {"messages": TURN, "max_tokens": 2} | body)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == param, answer.text
    assert answer.json()["error"]["message"].startswith(param)


def test_many_tools_are_served_or_refused(scripted):
    many = [{"type": "function", "function": {"name": f"tool_{i}"}} for i in range(10_000)]
    answer = scripted.post("/v1/chat/completions", {"messages": TURN, "tools": many, "max_tokens": 1})
    assert answer.status_code == 400, "the prompt is longer than the context"
    deep = {}
    for _ in range(60):
        deep = {"type": "object", "properties": {"x": deep}}
    tool = {"type": "function", "function": {"name": "deep", "parameters": deep}}
    assert scripted.post("/v1/chat/completions", {"messages": TURN, "tools": [tool], "max_tokens": 1}).status_code in (200, 400)


# --- Reasoning ---

def test_reasoning_is_apart_from_the_content(client):
    choice = chat(client, "think", tools=openai.NOT_GIVEN).choices[0]
    assert choice.message.content.strip() == "Three, I think."
    assert choice.message.model_extra["reasoning"].strip() == "One and two are three."
    assert choice.message.model_extra["reasoning_content"] == choice.message.model_extra["reasoning"]


def test_reasoning_is_counted_and_may_be_left_out(client):
    answer = chat(client, "think")
    assert answer.usage.completion_tokens_details.reasoning_tokens == 3
    hidden = chat(client, "think", extra_body={"include_reasoning": False})
    assert hidden.choices[0].message.model_extra["reasoning"] is None
    assert hidden.choices[0].message.content == answer.choices[0].message.content
    assert streamed(client, "think", extra_body={"include_reasoning": False})["reasoning"] == ""


def test_reasoning_that_the_length_cuts_is_all_there_is(client):
    choice = chat(client, "think", max_tokens=3).choices[0]
    assert choice.message.content is None and choice.finish_reason == "length"
    assert "One and two" in choice.message.model_extra["reasoning"]


def test_reasoning_and_a_call_come_together(client):
    choice = chat(client, "think_call").choices[0]
    assert "I should add." in choice.message.model_extra["reasoning"] and choice.message.content is None
    assert calls_of(choice.message) == [("now", "{}")] and choice.finish_reason == "tool_calls"


def test_reasoning_goes_back_into_the_history(scripted):
    turn = {"role": "assistant", "content": "x"}
    plain = scripted.ok("/tokenize", {"messages": [*TURN, turn]})["count"]
    for name in ("reasoning", "reasoning_content"):
        assert scripted.ok("/tokenize", {"messages": [*TURN, turn | {name: "thoughts"}]})["count"] > plain


# --- Responses ---

def respond(client, script, **fields):
    fields = {"input": TURN, "tools": FLAT, "temperature": 0} | fields
    return client.responses.create(model="", extra_body=kwargs(script), **fields)


def test_responses_have_items_in_order(client):
    answer = respond(client, "call")
    message, call = answer.output
    assert (message.type, answer.output_text) == ("message", "I will add them.")
    assert call.type == "function_call" and call.name == "add" and json.loads(call.arguments)["a"] == 1
    assert call.id.startswith("fc_") and call.call_id.startswith("call_") and call.status == "completed"
    assert [tool.name for tool in answer.tools] == ["add", "now"] and answer.tool_choice == "auto"
    reasoning, call = respond(client, "think_call").output
    assert reasoning.type == "reasoning" and "I should add." in reasoning.content[0].text and call.name == "now"
    assert respond(client, "think").usage.output_tokens_details.reasoning_tokens == 3


@pytest.mark.parametrize("script", ["plain", "call", "two", "think", "think_call"])
def test_a_stream_of_a_response_has_its_events(client, script):
    whole = respond(client, script)
    events = [EVENT.validate_python(event.to_dict()) for event in respond(client, script, stream=True)]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    final = events[-1].response
    strip = lambda item: {k: v for k, v in item.to_dict().items() if k not in ("id", "call_id")}  # noqa: E731
    assert [strip(item) for item in final.output] == [strip(item) for item in whole.output]
    added = [event for event in events if event.type == "response.output_item.added"]
    done = [event for event in events if event.type == "response.output_item.done"]
    assert [event.output_index for event in added] == [event.output_index for event in done] == list(range(len(final.output)))
    assert [event.item.to_dict() for event in done] == [item.to_dict() for item in final.output]
    for event in added:
        kinds = [other.type.removeprefix("response.") for other in events
                 if getattr(other, "item_id", None) == event.item.id]
        unique = list(dict.fromkeys(kinds))
        if event.item.type == "function_call":
            assert event.item.arguments == "" and unique == ["function_call_arguments.delta", "function_call_arguments.done"]
        else:
            name = "reasoning_text" if event.item.type == "reasoning" else "output_text"
            assert unique == ["content_part.added", f"{name}.delta", f"{name}.done", "content_part.done"]
    for event in events:
        if event.type == "response.function_call_arguments.done":
            pieces = [other.delta for other in events
                      if other.type == "response.function_call_arguments.delta" and other.item_id == event.item_id]
            assert "".join(pieces) == event.arguments


def test_the_output_of_a_response_goes_back_in(client):
    first = respond(client, "think_call")
    result = {"type": "function_call_output", "call_id": first.output[-1].call_id, "output": "12:00"}
    items = [*TURN, *[item.to_dict() for item in first.output], result]
    assert respond(client, "call", input=items).output_text == "The sum is 3."


def test_custom_tools_take_a_text(folder, start):
    scripts = {"run": ["<tool_call>", '\n{"name": "shell", "arguments": {"input": "ls ', '-l"}}\n', "</tool_call>"], "after": ["Done."]}
    one = start(make_scripted(folder, "custom", scripts), "--tool-call-parser", "hermes", "--reasoning-parser", "none")
    body = {"input": TURN, "tools": [{"type": "custom", "name": "shell"}], "temperature": 0, **kwargs("run")}
    (item,) = one.ok("/v1/responses", body)["output"]
    assert (item["type"], item["name"], item["input"]) == ("custom_tool_call", "shell", "ls -l") and item["id"].startswith("ctc_")
    text = one.post("/v1/responses", body | {"stream": True}).text
    assert '"type":"response.custom_tool_call_input.done"' in text and '"input":"ls -l"' in text
    back = [*TURN, {"type": "custom_tool_call", "call_id": item["call_id"], "name": "shell", "input": "ls -l"},
            {"type": "custom_tool_call_output", "call_id": item["call_id"], "output": "empty"}]
    assert one.ok("/v1/responses", body | {"input": back})["output"][0]["content"][0]["text"] == "Done."
    one.stop()


@pytest.mark.parametrize("body, param", [
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": {"type": "function", "name": "add"}}, "tool_choice"),
    ({"tools": FLAT, "tool_choice": {"type": "function", "name": "sub"}}, "tool_choice.name"),
    ({"tools": FLAT, "tool_choice": {"type": "web_search"}}, "tool_choice.type"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"type": "custom", "name": "c", "format": {"type": "grammar"}}]}, "tools[0].format"),
    ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[0].call_id"),
    ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input[0].output"),
])
def test_what_is_wrong_in_a_response_is_named(scripted, body, param):
    answer = scripted.post("/v1/responses", {"input": "hi", "max_output_tokens": 2} | body)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == param, answer.text


# --- Messages ---

def say(messages_client, script, stream=False, **fields):
    fields = {"messages": TURN, "tools": MESSAGES_TOOLS, "max_tokens": 64} | fields
    return messages_client.messages.create(model="", stream=stream, extra_body={"temperature": 0, **kwargs(script)}, **fields)


def test_messages_have_blocks_in_order(messages_client):
    answer = say(messages_client, "call")
    text, use = answer.content
    assert (text.type, text.text) == ("text", "I will add them.") and answer.stop_reason == "tool_use"
    assert use.type == "tool_use" and use.name == "add" and use.input == {"a": 1, "b": "x\ny é"} and use.id.startswith("toolu_")
    thinking, text = say(messages_client, "think").content
    assert thinking.type == "thinking" and "One and two" in thinking.thinking and thinking.signature
    assert text.text.strip() == "Three, I think."
    assert say(messages_client, "plain").stop_reason == "end_turn"
    assert say(messages_client, "cut", max_tokens=5).stop_reason == "max_tokens"


@pytest.mark.parametrize("script", ["plain", "call", "only", "two", "think", "think_call"])
def test_a_stream_of_messages_equals_the_whole(messages_client, script):
    whole = say(messages_client, script)
    with messages_client.messages.stream(model="", messages=TURN, tools=MESSAGES_TOOLS, max_tokens=64,
                                extra_body={"temperature": 0, **kwargs(script)}) as stream:
        events = list(stream)
        final = stream.get_final_message()
    strip = lambda block: {k: v for k, v in block.to_dict().items() if k not in ("id", "signature")}  # noqa: E731
    assert [strip(block) for block in final.content] == [strip(block) for block in whole.content]
    assert final.stop_reason == whole.stop_reason
    starts = [event.index for event in events if event.type == "content_block_start"]
    assert starts == list(range(len(whole.content)))
    if script.startswith("think"):
        assert final.content[0].signature


def test_blocks_go_back_into_the_history(messages_client):
    first = say(messages_client, "think_call")
    use = first.content[-1]
    turns = [*TURN, {"role": "assistant", "content": [*first.content, {"type": "redacted_thinking", "data": "x"}]},
             {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": [{"type": "text", "text": "12:00"}]}]}]
    assert say(messages_client, "call", messages=turns).content[0].text == "The sum is 3."
    count = messages_client.messages.count_tokens(model="", messages=turns, tools=MESSAGES_TOOLS).input_tokens
    assert count > messages_client.messages.count_tokens(model="", messages=turns).input_tokens > 0


def test_thinking_can_be_disabled_and_has_a_budget(messages_client):
    blocks = say(messages_client, "think", thinking={"type": "disabled"}).content
    assert all(block.type == "text" for block in blocks)
    for wrong in ({"type": "enabled"}, {"type": "enabled", "budget_tokens": 10}, {"type": "enabled", "budget_tokens": 4096}):
        with pytest.raises(anthropic.BadRequestError, match="budget_tokens"):
            say(messages_client, "think", max_tokens=2048, thinking=wrong)
    assert say(messages_client, "think", max_tokens=2048, thinking={"type": "enabled", "budget_tokens": 1024}).content[0].type == "thinking"


# --- The server ---

def test_the_choice_of_parsers_is_logged_and_names_are_checked(scripted, folder):
    import subprocess

    from conftest import BIN_DIR
    assert re.search(r"tool calls: hermes.*reasoning: qwen3", scripted.log)
    for flag in ("--tool-call-parser", "--reasoning-parser"):
        wrong = subprocess.run([str(BIN_DIR / "quire"), "serve", "scripted", flag, "qwem3"], cwd=folder, capture_output=True,
                               text=True, timeout=60)
        assert wrong.returncode == 2 and "qwen3" in wrong.stderr, wrong.stderr


def test_without_a_parser_tools_are_refused_unless_the_choice_is_none(folder, start, scripted):
    bare = start("scripted", "--tool-call-parser", "none", "--reasoning-parser", "none")
    body = {"messages": TURN, "tools": TOOLS, "max_tokens": 2}
    assert bare.post("/v1/chat/completions", body).json()["error"]["param"] == "tools"
    assert bare.post("/v1/chat/completions", body | {"tool_choice": "none"}).status_code == 200
    assert bare.post("/v1/chat/completions", {"messages": TURN, "thinking_token_budget": 5}).status_code == 400
    bare.stop()


def test_a_template_without_tools_gets_a_description(server):
    plain = server.ok("/tokenize", {"messages": TURN})
    shown = server.ok("/tokenize", {"messages": TURN, "tools": TOOLS})
    text = server.ok("/detokenize", {"tokens": shown["tokens"]})["prompt"]
    assert shown["count"] > plain["count"] and text.startswith("system: ")
    assert '"name":"add"' in text and "<tool_call>" in text
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    turns = [{"role": "system", "content": "Be brief."}, *TURN, {"role": "assistant", "content": None, "tool_calls": [call]},
             {"role": "tool", "tool_call_id": "c", "content": "3"}, {"role": "tool", "tool_call_id": "d", "content": "4"}]
    ids = server.ok("/tokenize", {"messages": turns, "tools": TOOLS})["tokens"]
    text = server.ok("/detokenize", {"tokens": ids})["prompt"]
    assert text.startswith("system: Be brief.\n\n") and text.count("system: ") == 1
    assert 'assistant: <tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>' in text
    assert text.count("user: <tool_response>") == 1 and "3\n</tool_response>\n<tool_response>\n4" in text


# --- Calls that are constrained ---

FORECAST = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
            "required": ["city", "days"], "additionalProperties": False}
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
FORCED = [{"type": "function", "function": {"name": "forecast", "parameters": FORECAST}},
          {"type": "function", "function": {"name": "ping", "parameters": NOTHING}}]


def check_call(name: str, arguments: str) -> None:
    value = json.loads(arguments)
    if name == "ping":
        assert value == {}
    else:
        assert name == "forecast" and set(value) == {"city", "days"}
        assert value["city"] in ("Oslo", "Rome") and value["days"] in range(1, 10)


def events_of(reply) -> list[dict]:
    return [json.loads(line.removeprefix("data: ")) for line in reply.text.splitlines()
            if line.startswith("data: ") and line != "data: [DONE]"]


@pytest.mark.parametrize("seed", range(4))
def test_a_required_call_always_parses(server, seed):
    """The tiny model writes noise, so that only the grammar can make a call of it."""
    body = {"messages": TURN, "tools": FORCED, "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 300, "seed": seed}
    choice = server.ok("/v1/chat/completions", body)["choices"][0]
    (call,) = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None
    check_call(call["function"]["name"], call["function"]["arguments"])
    name, arguments = "", ""
    for event in events_of(server.post("/v1/chat/completions", body | {"stream": True})):
        for piece in event["choices"][0]["delta"].get("tool_calls", []):
            name += piece["function"].get("name", "")
            arguments += piece["function"].get("arguments", "")
    assert (name, arguments) == (call["function"]["name"], call["function"]["arguments"])


def test_white_space_does_not_fill_a_forced_call(server):
    """A small model could write line breaks inside a call until its length was up."""
    for seed in range(6):
        body = {"messages": TURN, "tools": FORCED, "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 300, "seed": seed}
        (call,) = server.ok("/v1/chat/completions", body)["choices"][0]["message"]["tool_calls"]
        assert re.search(r"[\n\t]|  ", call["function"]["arguments"]) is None, call


def test_forced_calls_have_only_the_parameters_of_the_tool(server):
    """Models were free to invent parameters, with which a function cannot be called. vLLM closes objects, too."""
    two = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "minProperties": 2}
    for parameters, words in ((two, "matches no text"), ({"type": "string"}, 'write "object"'), (two | {"additionalProperties": True}, "")):
        tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
        answer = server.post("/v1/chat/completions", {"messages": TURN, "tools": [tool], "tool_choice": "required", "max_tokens": 8})
        if words:
            assert answer.status_code == 400 and words in answer.json()["error"]["message"], answer.text
        else:
            assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("name", ["forecast", "ping"])
def test_a_named_call_is_of_that_tool(server, name):
    body = {"messages": TURN, "tools": FORCED, "tool_choice": {"type": "function", "function": {"name": name}}, "max_tokens": 300,
            "seed": 3}
    choice = server.ok("/v1/chat/completions", body)["choices"][0]
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == name and choice["finish_reason"] == "stop"
    check_call(name, call["function"]["arguments"])
    flat = [{"type": "function", **tool["function"]} for tool in FORCED]
    answer = server.ok("/v1/responses", {"input": "hi", "tools": flat, "tool_choice": {"type": "function", "name": name}, "seed": 4,
                                         "max_output_tokens": 300})
    assert [item["name"] for item in answer["output"]] == [name]
    tools = [{"name": tool["function"]["name"], "input_schema": tool["function"]["parameters"]} for tool in FORCED]
    said = server.ok("/v1/messages", {"messages": TURN, "tools": tools, "tool_choice": {"type": "tool", "name": name}, "seed": 5,
                                      "max_tokens": 300})
    assert [block["name"] for block in said["content"]] == [name] and said["stop_reason"] == "tool_use"
    check_call(name, json.dumps(said["content"][0]["input"]))


@pytest.mark.parametrize("seed", range(3))
def test_a_format_and_tools_give_one_or_the_other(server, seed):
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}
    body = {"messages": TURN, "tools": FORCED, "seed": seed, "max_tokens": 300, "parallel_tool_calls": False,
            "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}}
    (choice,) = server.ok("/v1/chat/completions", body)["choices"]
    message = choice["message"]
    if message.get("tool_calls"):  # whose strings a model with random weights may not end
        assert choice["finish_reason"] == "length" or json.loads(message["tool_calls"][0]["function"]["arguments"]) is not None
    else:
        assert set(json.loads(message["content"])) == {"ok"}


def test_schema_thinking_streaming_and_tools_in_one_request(client):
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"enum": ["yes", "no"]}}}
    for fields in ({}, {"tool_choice": "none"}, {"tools": openai.NOT_GIVEN}):
        parts = streamed(client, "think", response_format=form, max_tokens=100, **fields)
        assert parts["reasoning"].strip() == "One and two are three."
        if not parts["tool_calls"]:
            assert json.loads(parts["content"]) in ("yes", "no")


def test_a_thinking_budget_ends_the_reasoning(client):
    whole = chat(client, "think").choices[0].message
    for budget in (0, 1, 2):
        choice = chat(client, "think", extra_body={"thinking_token_budget": budget}).choices[0]
        assert len(choice.message.model_extra["reasoning"] or "") < len(whole.model_extra["reasoning"])
        assert choice.message.content == whole.content
