# SPDX-License-Identifier: Apache-2.0
"""/v1/responses, called by the openai package: whole, streamed, async, continued, truncated, rejected."""

import asyncio
import json

import openai
import pytest
from crafted import PROMPT, find_ending, make_failing
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

EVENT = TypeAdapter(ResponseStreamEvent)
LOGPROBS = ["message.output_text.logprobs"]
TALK = [*PROMPT, {"role": "assistant", "content": "the other"},
        {"role": "user", "content": "and then?"}]
HEAD = ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"]
TAIL = ["response.output_text.done", "response.content_part.done", "response.output_item.done"]


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as one:
        yield one


@pytest.fixture(scope="module")
def ending(server):
    return find_ending(server)


def ask(client, **fields):
    """Without `model`, the served model answers."""
    fields = {"input": "Hello world", "max_output_tokens": 12, "seed": 7} | fields
    known = {name: fields.pop(name) for name in ("input", "max_output_tokens", "stream") if name in fields}
    return client.responses.create(model="", extra_body=fields, **known)


def chat(client, messages, **fields):
    return client.chat.completions.create(model="", messages=messages, max_tokens=12, seed=7, extra_body=fields)


def test_the_whole_answer_is_a_response_in_every_field(client):
    raw = client.responses.with_raw_response.create(
        model="", input="Hello", instructions="Be brief.", max_output_tokens=5, temperature=0.5, top_p=0.9,
        metadata={"a": "b"}, user="me", store=True, parallel_tool_calls=False, service_tier="default",
        reasoning={"effort": "low"}, text={"format": {"type": "text"}, "verbosity": "low"}, extra_body={"seed": 1})
    data = json.loads(raw.text)
    answer = Response.model_validate(data)  # unlike the client's own parsing, this validates
    assert answer.id.startswith("resp_") and answer.object == "response" and answer.created_at > 1.7e9
    assert answer.model == client.models.list().data[0].id
    assert (answer.instructions, answer.metadata, answer.user) == ("Be brief.", {"a": "b"}, "me")
    assert (answer.temperature, answer.top_p, answer.max_output_tokens) == (0.5, 0.9, 5)
    assert (answer.parallel_tool_calls, answer.tool_choice, answer.tools) == (False, "auto", [])
    assert (answer.truncation, answer.background, answer.service_tier) == ("disabled", False, "default")
    assert (answer.reasoning.effort, answer.text.format.type, answer.text.verbosity) == ("low", "text", "low")
    assert data["store"] is False and data["error"] is None and data["previous_response_id"] is None
    (item,) = answer.output
    assert item.type == "message" and item.role == "assistant" and item.id.startswith("msg_")
    (part,) = item.content
    assert part.type == "output_text" and part.annotations == [] and part.logprobs == []
    assert answer.output_text == part.text != ""
    usage = answer.usage
    assert usage.output_tokens == 5 and usage.total_tokens == usage.input_tokens + 5
    assert usage.output_tokens_details.reasoning_tokens == 0


def test_the_length_makes_it_incomplete_and_the_models_end_completes_it(client, ending):
    cut = ask(client)
    assert (cut.status, cut.output[0].status, cut.incomplete_details.reason) == (
        "incomplete", "incomplete", "max_output_tokens")
    assert cut.completed_at is None
    seed, text = ending
    done = ask(client, seed=seed, max_output_tokens=None)
    assert (done.status, done.output[0].status, done.incomplete_details) == ("completed", "completed", None)
    assert done.output_text == text and done.completed_at >= done.created_at


def test_the_answer_equals_that_of_a_chat(client):
    assert ask(client).output_text == chat(client, TALK[:1]).choices[0].message.content
    whole = ask(client, input=TALK, instructions="Be brief.")
    same = chat(client, [{"role": "system", "content": "Be brief."}, *TALK])
    assert whole.output_text == same.choices[0].message.content
    assert whole.usage.input_tokens == same.usage.prompt_tokens
    assert whole.output_text != ask(client, input=TALK, instructions="Be brief.", seed=8).output_text


def test_input_tokens_counts_the_prompt_of_the_same_body(client, server):
    whole = ask(client, input=TALK, instructions="Be brief.")
    counted = client.responses.input_tokens.count(model="", input=TALK, instructions="Be brief.")
    assert (counted.object, counted.input_tokens) == ("response.input_tokens", whole.usage.input_tokens)
    assert client.responses.input_tokens.count(input="hello").input_tokens < counted.input_tokens
    with pytest.raises(openai.NotFoundError, match="unheard-of"):
        client.responses.input_tokens.count(model="unheard-of", input="hello")
    with pytest.raises(openai.BadRequestError, match="previous_response_id is not supported"):
        client.responses.input_tokens.count(input="hello", previous_response_id="resp_1")
    assert "input" in server.post("/v1/responses/input_tokens", {}).json()["error"]["message"]


def test_messages_come_in_all_their_shapes(client):
    parts = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello world"}]},
             {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
              "content": [{"type": "output_text", "text": "the other", "annotations": []}]},
             {"role": "user", "content": [{"type": "input_text", "text": "and then?"}]}]
    assert ask(client, input=parts).output_text == ask(client, input=TALK).output_text
    several = [{"role": "developer", "content": [{"type": "input_text", "text": "one"}, {"type": "input_text", "text": "two"}]},
               {"role": "system", "content": "three"}]
    same = chat(client, [{"role": "developer", "content": "one\ntwo"}, {"role": "system", "content": "three"}])
    assert ask(client, input=several).output_text == same.choices[0].message.content


def test_an_answer_can_be_sent_back_as_it_came(client):
    first = ask(client)
    turn = {"role": "user", "content": "more"}
    items = [{"role": "user", "content": "Hello world"}, first.output[0].model_dump() | {"status": "completed"}, turn]
    same = chat(client, [TALK[0], {"role": "assistant", "content": first.output_text}, turn])
    assert ask(client, input=items).output_text == same.choices[0].message.content


def test_an_unfinished_answer_is_continued(client):
    item = {"type": "message", "role": "assistant", "status": "incomplete", "id": "msg_1",
            "content": [{"type": "output_text", "text": "the other", "annotations": []}]}
    same = chat(client, TALK[:2], continue_final_message=True, add_generation_prompt=False)
    assert ask(client, input=[TALK[0], item]).output_text == same.choices[0].message.content
    assert ask(client, input=[TALK[0], item | {"status": "completed"}]).output_text != same.choices[0].message.content


@pytest.mark.parametrize("logprobs", [False, True])
def test_a_stream_has_the_whole_answer_in_order(client, ending, logprobs):
    fields = {"seed": ending[0], "max_output_tokens": None, "top_logprobs": 2} | ({"include": LOGPROBS} if logprobs else {})
    whole = ask(client, **fields)
    events = [EVENT.validate_python(event.to_dict()) for event in ask(client, stream=True, **fields)]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    types = [event.type for event in events]
    assert types[:4] == HEAD and types[-4:] == [*TAIL, "response.completed"]
    assert set(types[4:-4]) == {"response.output_text.delta"}
    deltas = events[4:-4]
    assert "".join(event.delta for event in deltas) == whole.output_text == events[-4].text == events[-3].part.text
    created, last = events[0].response, events[-1].response
    assert created.status == events[1].response.status == "in_progress" and created.output == [] and created.usage is None
    assert created.id == last.id and last.output[0].id == events[2].item.id == deltas[0].item_id == events[-2].item.id
    assert events[2].item.status == "in_progress" and events[2].item.content == []
    assert last.output_text == whole.output_text and last.output[0] == events[-2].item
    assert last.usage.output_tokens == whole.usage.output_tokens and last.status == "completed"
    expected = whole.output[0].content[0].logprobs
    assert len(expected) == (whole.usage.output_tokens if logprobs else 0)
    streamed = [entry for event in deltas for entry in event.logprobs]
    for some in (streamed, events[-4].logprobs):
        assert [(e.token, e.logprob) for e in some] == [(e.token, e.logprob) for e in expected]
    assert last.output[0].content[0].logprobs == expected


def test_a_truncated_stream_ends_incomplete(client):
    events = list(ask(client, stream=True, max_output_tokens=3))
    assert events[-1].type == "response.incomplete" and events[-1].response.status == "incomplete"
    assert events[-1].response.incomplete_details.reason == "max_output_tokens"
    assert events[-2].item.status == "incomplete" and events[-1].response.usage.output_tokens == 3


def test_events_are_named_and_there_is_no_done(server):
    reply = server.post("/v1/responses", {"input": "Hello", "max_output_tokens": 4, "stream": True, "seed": 1})
    assert reply.headers["Content-Type"].startswith("text/event-stream")
    blocks = reply.text.split("\n\n")
    assert blocks.pop() == ""
    for block in blocks:
        name, data = block.split("\n")
        assert name.removeprefix("event: ") == json.loads(data.removeprefix("data: "))["type"]


def test_logprobs_are_those_of_a_chat(client):
    answer = ask(client, include=LOGPROBS, top_logprobs=3)
    same = chat(client, TALK[:1], logprobs=True, top_logprobs=3)
    ours, theirs = answer.output[0].content[0].logprobs, same.choices[0].logprobs.content
    assert [e.model_dump() for e in ours] == [e.model_dump() for e in theirs] and len(ours) == 12
    assert all(len(entry.top_logprobs) == 3 for entry in ours)
    assert ask(client, top_logprobs=3).output[0].content[0].logprobs == []


def test_the_clients_own_streaming_helper_works(client, ending):
    with client.responses.stream(model="", input="Hello world", extra_body={"seed": ending[0]}) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        assert stream.get_final_response().output_text == text == ending[1]


def test_the_async_client_gets_the_same(client, server):
    async def both():
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as one:
            async def streamed(seed):
                events = [event async for event in await ask(one, stream=True, seed=seed)]
                return events[-1].response.output_text
            return await asyncio.gather(*[streamed(seed) for seed in range(6)], *[ask(one, seed=seed) for seed in range(6)])
    answers = asyncio.run(both())
    alone = [ask(client, seed=seed).output_text for seed in range(6)]
    assert answers[:6] == [answer.output_text for answer in answers[6:]] == alone
    assert len(set(alone)) > 1


def test_stop_and_bias_and_the_rest_of_sampling_take_effect(client):
    text = ask(client, temperature=0).output_text
    assert text == chat(client, TALK[:1], temperature=0).choices[0].message.content
    stop = text[len(text) // 2]
    assert ask(client, temperature=0, stop=stop).output_text == text[:text.index(stop)]
    assert ask(client, temperature=0, logit_bias={"65": 100}).output_text == "A" * 12
    biased = ask(client, logit_bias={"65": 100}, presence_penalty=1, temperature=0)
    assert biased.to_dict()["presence_penalty"] == 1


def test_the_prefix_cache_is_counted(client):
    words = "the world and the other " * 20
    fields = {"input": words, "cache_salt": "responses"}
    assert ask(client, **fields).usage.input_tokens_details.cached_tokens == 0
    again = ask(client, **fields).usage
    assert 0 < again.input_tokens_details.cached_tokens < again.input_tokens


def test_truncation_auto_drops_the_oldest_turns(client):
    turns = [{"role": role, "content": f"{i} " + "word " * 40} for i in range(20) for role in ("user", "assistant")]
    turns.append({"role": "user", "content": "the last"})
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, input=turns, instructions="Be brief.")
    assert "context length" in refused.value.message
    answer = ask(client, input=turns, instructions="Be brief.", truncation="auto", max_output_tokens=50)
    assert answer.truncation == "auto" and answer.usage.output_tokens == 50
    # The longest tail of turns that fits after the instructions.
    system = {"role": "system", "content": "Be brief."}
    for first in range(2, len(turns), 2):
        try:
            same = client.chat.completions.create(model="", messages=[system, *turns[first:]], max_tokens=50, seed=7)
        except openai.BadRequestError:
            continue
        if same.usage.completion_tokens == 50:
            break
    assert answer.usage.input_tokens == same.usage.prompt_tokens
    assert answer.output_text == same.choices[0].message.content
    short = ask(client, truncation="auto")
    assert short.output_text == ask(client).output_text


@pytest.mark.parametrize("fields, param", [
    ({"input": None}, "input"),
    ({"input": []}, "input"),
    ({"input": 5}, "input"),
    ({"input": ["Hello"]}, "input"),
    ({"input": [{"role": "user"}]}, "input[0].content"),
    ({"input": [{"content": "Hello"}]}, "input[0].role"),
    ({"input": [*TALK, {"role": "robot", "content": "Hello"}]}, "input[3].role"),
    ({"input": [{"role": "user", "content": 5}]}, "input[0].content"),
    ({"input": [{"role": "user", "content": ["x"]}]}, "input[0].content[0]"),
    ({"input": [{"role": "user", "content": [{"type": "input_text", "text": "see"},
                                             {"type": "input_image", "image_url": "x"}]}]}, "input[0].content[1].type"),
    ({"input": [{"role": "user", "content": [{"type": "input_text", "text": 5}]}]}, "input[0].content[0].text"),
    ({"input": [{"type": "function_call_output", "call_id": 1, "output": "x"}]}, "input[0].call_id"),
    ({"input": [{"type": "web_search_call", "id": "1"}]}, "input[0].type"),
    ({"input": [{"type": "item_reference", "id": "1"}]}, "input[0].type"),
    ({"instructions": 5}, "instructions"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"max_output_tokens": 1 << 40}, "max_output_tokens"),
    ({"temperature": 3}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_logprobs": 21}, "top_logprobs"),
    ({"stop": ["a"] * 129}, "stop"),
    ({"stop": ""}, "stop"),
    ({"metadata": {"a": 1}}, "metadata"),
    ({"truncation": "sometimes"}, "truncation"),
    ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema"),
    ({"text": {"format": "text"}}, "text.format"),
    ({"text": {"verbosity": {}}}, "text.verbosity"),
    ({"tools": [{"type": "function", "name": ""}]}, "tools[0].name"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice"),
    ({"reasoning": {"effort": "mad"}}, "reasoning.effort"),
    ({"reasoning": {"effort": 5}}, "reasoning.effort"),
    ({"background": True}, "background"),
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"prompt": {"id": "pmpt_1"}}, "prompt"),
    ({"structured_outputs": {"regex": 1}}, "structured_outputs.regex"),
    ({"cache_salt": ""}, "cache_salt"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
])
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_wrong_is_a_400_that_names_the_field(client, fields, param, stream):
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, stream=stream, **fields)
    assert refused.value.param == param and refused.value.body["message"].startswith(param.partition("[")[0])


def test_fields_of_other_forms_and_unknown_ones_are_ignored(client):
    plain = ask(client).output_text
    odd = {"n": "three", "prompt_logprobs": {}, "stream_options": 5, "response_format": [], "messages": 1, "best_of": [],
           "request_id": None, "unheard_of": {"deep": [1]}, "max_tokens": "x", "include": ["reasoning.encrypted_content"]}
    assert ask(client, **odd).output_text == plain


def test_the_log_names_an_ignored_field_once(start):
    server = start("tiny")
    for _ in range(2):
        reply = server.post("/v1/completions", {"prompt": "Hello", "max_token": 1, "max_tokens": 2, "odd\nname": 1, "nothing": None})
        assert reply.status_code == 200
    assert server.log.count("Requests have the field 'max_token', which is ignored; did you mean 'max_tokens'?") == 1
    assert "odd" not in server.log and "'nothing'" not in server.log


def test_unknown_models_and_kept_answers_are_404s(client, server):
    with pytest.raises(openai.NotFoundError) as missing:
        client.responses.create(model="gpt-unheard-of", input="Hello")
    assert missing.value.param == "model"
    kept = ask(client)
    for call in (client.responses.retrieve, client.responses.cancel, client.responses.delete,
                 client.responses.input_items.list):
        with pytest.raises(openai.NotFoundError) as gone:
            page = call(kept.id)
            list(page or [])
        assert "not kept" in gone.value.message
    for reply in (server.http.get("/v1/responses/resp_1"), server.post("/v1/responses/resp_1/cancel", {})):
        assert reply.status_code == 404 and reply.json()["error"]["type"] == "NotFoundError"


def test_a_failure_during_the_answer_is_reported(server, start, folder):
    failing = start(make_failing(server, folder))
    with openai.OpenAI(base_url=failing.url + "/v1", api_key="none", max_retries=0) as client:
        stream = ask(client, stream=True, temperature=0, max_output_tokens=60)
        events = [EVENT.validate_python(event.to_dict()) for event in stream]
        assert [event.type for event in events][:5] == [*HEAD, "response.output_text.delta"]
        last = events[-1]
        assert last.type == "response.failed" and last.sequence_number == len(events) - 1
        assert last.response.status == "failed" and last.response.id == events[0].response.id
        assert last.response.error.code == "server_error" and "NaN" in last.response.error.message
        with pytest.raises(openai.InternalServerError, match="NaN"):
            ask(client, temperature=0, max_output_tokens=60)
        assert ask(client, input="x", max_output_tokens=1).output_text  # other requests go on
    assert failing.stop() == 0
