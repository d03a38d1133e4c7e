# SPDX-License-Identifier: Apache-2.0
"""/v1/messages, called by the anthropic package: whole, streamed, async, continued, counted, rejected."""

import asyncio
import json

import anthropic
import openai
import pytest
from anthropic.types import Message, MessageTokensCount, RawMessageStreamEvent
from crafted import PROMPT, find_ending, make_failing
from pydantic import TypeAdapter

EVENT = TypeAdapter(RawMessageStreamEvent)
TALK = [*PROMPT, {"role": "assistant", "content": "the other"},
        {"role": "user", "content": "and then?"}]


@pytest.fixture(scope="module")
def client(server):
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as one:
        yield one


@pytest.fixture(scope="module")
def ending(server):
    return find_ending(server)


@pytest.fixture(scope="module")
def chat(server):
    """A chat completion with the same settings as ask()."""
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as one:
        yield lambda messages, **fields: one.chat.completions.create(
            model="", messages=messages, max_tokens=12, seed=7, extra_body=fields)


def ask(client, stream=False, **fields):
    """Without `model`, the served model answers. The fields bypass the client's own checks."""
    return client.messages.create(model="", max_tokens=12, messages=TALK[:1], stream=stream, extra_body={"seed": 7} | fields)


def test_the_whole_answer_is_a_message_in_every_field(client):
    raw = client.messages.with_raw_response.create(model="", max_tokens=5, messages=TALK, extra_body={"seed": 1})
    data = json.loads(raw.http_response.text)
    answer = Message.model_validate(data)  # unlike the client's own parsing, this validates
    assert answer.id.startswith("msg_") and answer.type == "message" and answer.role == "assistant"
    (block,) = answer.content
    assert block.type == "text" and block.text != ""
    assert (answer.stop_reason, answer.stop_sequence) == ("max_tokens", None)
    assert answer.usage.output_tokens == 5 and answer.usage.input_tokens > 0
    assert set(data["usage"]) == {
        "input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens"}


def test_the_answer_equals_that_of_a_chat(client, chat):
    assert ask(client).content[0].text == chat(TALK[:1]).choices[0].message.content
    same = chat([{"role": "system", "content": "Be brief."}, *TALK])
    whole = ask(client, messages=TALK, system="Be brief.")
    assert whole.content[0].text == same.choices[0].message.content
    blocks = [{"type": "text", "text": "Be ", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "brief."},
              {"type": "text", "text": "x-anthropic-billing-header: cch=4f5a1;"}]
    parts = [turn | {"content": [{"type": "text", "text": turn["content"]}]} for turn in TALK]
    assert ask(client, messages=parts, system=blocks).content == whole.content
    assert ask(client, messages=TALK, system="Be brief.", seed=8).content != whole.content


def test_several_blocks_are_lines_and_system_turns_stay_in_place(client, chat):
    turns = [{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
             {"role": "system", "content": "three"}, {"role": "user", "content": "four"}]
    same = chat([{"role": "user", "content": "one\ntwo"}, *turns[1:]])
    assert ask(client, messages=turns).content[0].text == same.choices[0].message.content


def test_a_last_turn_of_the_assistant_is_continued(client, chat):
    same = chat(TALK[:2], continue_final_message=True, add_generation_prompt=False)
    whole = ask(client, messages=TALK[:2])
    assert whole.content[0].text == same.choices[0].message.content
    count = client.messages.count_tokens(model="", messages=TALK[:2]).input_tokens
    assert count == same.usage.prompt_tokens


def test_stop_reasons_are_reported(client, ending):
    seed, text = ending
    done = ask(client, seed=seed, max_tokens=24)
    assert (done.stop_reason, done.stop_sequence, done.content[0].text) == ("end_turn", None, text)
    stopped = ask(client, seed=seed, max_tokens=24, stop_sequences=["never said", text[2]])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", text[2])
    assert stopped.content[0].text == text[:text.index(text[2])]


def test_sampling_takes_effect(client, chat):
    greedy = chat(TALK[:1], temperature=0).choices[0].message.content
    for fields in ({"temperature": 0}, {"top_k": 1}, {"top_p": 1e-6}):
        assert ask(client, **fields).content[0].text == greedy
    assert ask(client).content[0].text != greedy


@pytest.mark.parametrize("fields", [{}, {"max_tokens": 3}, {"stop_sequences": ["e", "a", "t", "q"]}])
def test_a_stream_has_the_whole_answer_in_order(client, ending, fields):
    fields = {"seed": ending[0], "max_tokens": 24} | fields
    whole = ask(client, **fields)
    events = [EVENT.validate_python(event.to_dict()) for event in ask(client, stream=True, **fields)]
    types = [event.type for event in events]
    assert types[:2] == ["message_start", "content_block_start"]
    assert types[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(types[2:-3]) <= {"content_block_delta"}
    start, end = events[0].message, events[-2]
    assert start.id.startswith("msg_") and start.content == [] and start.stop_reason is None
    assert start.usage.output_tokens == 0
    assert events[1].index == 0 and events[1].content_block.text == ""
    assert all(event.index == 0 and event.delta.type == "text_delta" for event in events[2:-3])
    assert "".join(event.delta.text for event in events[2:-3]) == whole.content[0].text
    assert (end.delta.stop_reason, end.delta.stop_sequence) == (whole.stop_reason, whole.stop_sequence)
    assert end.usage.output_tokens == whole.usage.output_tokens
    total = whole.usage.input_tokens + whole.usage.cache_read_input_tokens
    for usage in (start.usage, end.usage):
        assert usage.input_tokens + usage.cache_read_input_tokens == total


def test_events_are_named_and_there_is_no_done(server):
    reply = server.post("/v1/messages", {"messages": TALK, "max_tokens": 4, "stream": True})
    assert reply.headers["Content-Type"].startswith("text/event-stream")
    blocks = reply.text.split("\n\n")
    assert blocks.pop() == ""
    for block in blocks:
        name, data = block.split("\n")
        assert name.removeprefix("event: ") == json.loads(data.removeprefix("data: "))["type"]


def test_the_clients_own_streaming_helper_works(client, ending):
    with client.messages.stream(model="", max_tokens=24, messages=TALK[:1], extra_body={"seed": ending[0]}) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text == ending[1]
    assert final.stop_reason == "end_turn" and final.usage.output_tokens > 0


def test_the_async_client_gets_the_same(client, server):
    async def both():
        async with anthropic.AsyncAnthropic(base_url=server.url, api_key="none", max_retries=0) as one:
            async def streamed(seed):
                async with one.messages.stream(model="", max_tokens=12, messages=TALK, extra_body={"seed": seed}) as stream:
                    return await stream.get_final_text()
            async def whole(seed):
                return (await ask(one, messages=TALK, seed=seed)).content[0].text
            return await asyncio.gather(*[streamed(seed) for seed in range(6)], *[whole(seed) for seed in range(6)])
    answers = asyncio.run(both())
    alone = [ask(client, messages=TALK, seed=seed).content[0].text for seed in range(6)]
    assert answers[:6] == answers[6:] == alone and len(set(alone)) > 1


def test_tokens_are_counted_and_cached_ones_apart(client, chat):
    """The total input is the sum of the three counts, which is how Anthropic's clients add them up."""
    turns = [{"role": "user", "content": "the world and the other " * 20}]
    fields = {"messages": turns, "system": "Be brief.", "cache_salt": "messages"}
    counted = client.messages.with_raw_response.count_tokens(model="", messages=turns, system="Be brief.")
    total = MessageTokensCount.model_validate_json(counted.http_response.text).input_tokens
    assert total == chat([{"role": "system", "content": "Be brief."}, *turns]).usage.prompt_tokens
    first, again = ask(client, **fields).usage, ask(client, **fields).usage
    assert (first.input_tokens, first.cache_read_input_tokens, first.cache_creation_input_tokens) == (total, 0, 0)
    assert 0 < again.cache_read_input_tokens < total
    assert again.input_tokens + again.cache_read_input_tokens == total


def test_settings_that_ask_for_nothing_are_fine(client):
    plain = ask(client).content
    assert ask(client, thinking={"type": "disabled"}, tools=[], tool_choice={"type": "none"}, stop_sequences=[],
               metadata={"user_id": "me"}, output_config={"effort": "low"}, system="").content == plain


@pytest.mark.parametrize("fields, field", [
    ({"messages": []}, "messages"),
    ({"messages": "Hello"}, "messages"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"content": "Hello"}]}, "messages[0].role"),
    ({"messages": [*TALK, {"role": "tool", "content": "x"}]}, "messages[3].role"),
    ({"messages": [{"role": "user", "content": {"type": "text", "text": "x"}}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image", "source": {}}]}]},
     "messages[0].content[1].type"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "messages[0].content[0].tool_use_id"),
    ({"messages": [{"role": "assistant", "content": [{"type": "tool_result", "tool_use_id": "1"}]}]},
     "messages[0].content[0].type"),
    ({"max_tokens": None}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": "12"}, "max_tokens"),
    ({"max_tokens": 1 << 40}, "max_tokens"),
    ({"system": 5}, "system"),
    ({"system": [{"type": "image"}]}, "system[0].type"),
    ({"system": [{"type": "text", "text": None}]}, "system[0].text"),
    ({"temperature": 3}, "temperature"),
    ({"top_k": "many"}, "top_k"),
    ({"stop_sequences": ["a"] * 129}, "stop_sequences"),
    ({"stop_sequences": [""]}, "stop_sequences"),
    ({"stop_sequences": "a"}, "stop_sequences"),
    ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "always"}}, "thinking.type"),
    ({"tools": [{"name": "f", "input_schema": []}]}, "tools[0].input_schema"),
    ({"tool_choice": {"type": "any"}}, "tool_choice.type"),
    ({"tool_choice": {"type": 5}}, "tool_choice.type"),
    ({"output_config": {"effort": "mad"}}, "output_config.effort"),
    ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format"),
    ({"chat_template_kwargs": []}, "chat_template_kwargs"),
    ({"cache_salt": ""}, "cache_salt"),
])
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_wrong_is_a_400_that_names_the_field(client, fields, field, stream):
    with pytest.raises(anthropic.BadRequestError) as refused:
        ask(client, stream=stream, **fields)
    body = refused.value.body
    assert set(body) == {"type", "error"} and body["type"] == "error" and set(body["error"]) == {"type", "message"}
    assert body["error"]["type"] == "invalid_request_error" and body["error"]["message"].startswith(field)


def test_counting_refuses_what_messages_refuse(client):
    image = [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "x"}}]}]
    with pytest.raises(anthropic.BadRequestError) as refused:
        client.messages.count_tokens(model="", messages=image)
    assert refused.value.body["error"]["message"].startswith("messages[0].content[0].type")
    with pytest.raises(anthropic.NotFoundError):
        client.messages.count_tokens(model="unheard-of", messages=TALK)


def test_errors_of_the_route_itself_have_anthropics_shape(client, server):
    with pytest.raises(anthropic.NotFoundError) as missing:
        client.messages.create(model="unheard-of", max_tokens=1, messages=TALK)
    assert missing.value.body["error"]["type"] == "not_found_error"
    json_type = "application/json"
    calls = [("POST", "/v1/messages", b"{", json_type, 400), ("POST", "/v1/messages/count_tokens", b"[]", json_type, 400),
             ("POST", "/v1/messages", b"{}", "text/plain", 400), ("POST", "/v1/messages/batches", b"{}", json_type, 404),
             ("GET", "/v1/messages", b"", json_type, 405)]
    for method, path, body, media, status in calls:
        reply = server.http.request(method, path, content=body, headers={"Content-Type": media})
        assert reply.status_code == status and reply.json()["type"] == "error", (method, path)
        assert reply.json()["error"]["type"] == ("not_found_error" if status == 404 else "invalid_request_error")


def test_a_key_is_taken_from_either_header_and_details_can_be_off(start):
    locked = start("tiny", "--api-key", "secret", "--no-enable-prompt-tokens-details")
    used = []
    for options in ({"api_key": "secret"}, {"auth_token": "secret"}):
        with anthropic.Anthropic(base_url=locked.url, max_retries=0, **options) as client:
            used.append(ask(client, system="the world and the other").usage)
    assert used[0] == used[1] and used[0].cache_read_input_tokens is None  # although the second came from the cache
    with anthropic.Anthropic(base_url=locked.url, api_key="wrong", max_retries=0) as client:
        with pytest.raises(anthropic.AuthenticationError):
            ask(client)
    assert locked.stop() == 0


def test_fields_of_other_forms_and_unknown_ones_are_ignored(client):
    plain = ask(client).content
    odd = {"n": "three", "prompt_logprobs": {}, "stream_options": 5, "response_format": [], "logit_bias": 1, "stop": {},
           "min_tokens": "x", "unheard_of": {"deep": [1]}, "service_tier": "auto", "return_token_ids": "yes"}
    assert ask(client, **odd).content == plain


def test_a_failure_during_the_answer_is_reported(server, start, folder):
    failing = start(make_failing(server, folder))
    with anthropic.Anthropic(base_url=failing.url, api_key="none", max_retries=0) as client:
        seen = []
        with pytest.raises(anthropic.APIStatusError) as failed:
            for event in ask(client, stream=True, temperature=0, max_tokens=60):
                seen.append(event.type)
        assert seen[:3] == ["message_start", "content_block_start", "content_block_delta"] and "message_stop" not in seen
        assert failed.value.body["error"]["type"] == "api_error" and "NaN" in failed.value.body["error"]["message"]
        with pytest.raises(anthropic.InternalServerError) as whole:
            ask(client, temperature=0, max_tokens=60)
        assert whole.value.body["error"]["type"] == "api_error"
    assert failing.stop() == 0
