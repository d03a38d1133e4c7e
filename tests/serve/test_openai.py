# SPDX-License-Identifier: Apache-2.0
"""The openai package against the server, as its users call it."""

import asyncio
import json

import openai
import pytest

MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def model(client):
    return client.models.list().data[0].id


def test_models(client):
    (card,) = client.models.list().data
    assert card.id == "tiny" and card.object == "model" and card.max_model_len > 0


def test_chat(client, model):
    answer = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=8, temperature=0)
    (choice,) = answer.choices
    assert answer.object == "chat.completion" and choice.message.role == "assistant" and choice.message.content
    assert choice.finish_reason == "length" and answer.usage.completion_tokens == 8
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 8
    assert answer.usage.prompt_tokens_details.cached_tokens >= 0 and answer.system_fingerprint.startswith("quire-")


def test_a_streamed_chat_is_the_whole_chat(client, model):
    options = dict(model=model, messages=MESSAGES, max_tokens=12, temperature=1, seed=7, logprobs=True, top_logprobs=3)
    whole = client.chat.completions.create(**options).choices[0]
    chunks = list(client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant" and chunks[0].choices[0].delta.content == ""
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 12
    assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1]) == whole.message.content
    assert chunks[-2].choices[0].finish_reason == whole.finish_reason == "length"
    streamed = [entry for c in chunks[:-1] if c.choices[0].logprobs for entry in c.choices[0].logprobs.content]
    assert streamed == whole.logprobs.content and len(streamed) == 12
    assert all(len(entry.top_logprobs) == 3 and entry.logprob <= 0 for entry in streamed)
    assert all(bytes(entry.bytes) for entry in streamed)


def test_n_answers_with_seeds(client, model):
    options = dict(model=model, messages=MESSAGES, max_tokens=8, temperature=1)
    answers = client.chat.completions.create(**options, n=3, seed=5).choices
    assert [c.index for c in answers] == [0, 1, 2] and len({c.message.content for c in answers}) > 1
    for i, choice in enumerate(answers):
        alone = client.chat.completions.create(**options, seed=5 + i).choices[0]
        assert alone.message.content == choice.message.content
    streamed = ["", "", ""]
    for chunk in client.chat.completions.create(**options, n=3, seed=5, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert streamed == [c.message.content for c in answers]


def test_completions_of_texts_and_token_ids(client, model, server):
    ids = server.ok("/tokenize", {"prompt": "hello"})["tokens"]
    options = dict(model=model, max_tokens=6, temperature=0)
    text = client.completions.create(prompt="hello", **options).choices[0].text
    assert client.completions.create(prompt=ids, **options).choices[0].text == text
    both = client.completions.create(prompt=["hello", "good day"], **options).choices
    assert [c.index for c in both] == [0, 1] and both[0].text == text
    lists = client.completions.create(prompt=[ids, ids], n=2, **(options | {"temperature": 1, "seed": 3})).choices
    assert [c.index for c in lists] == [0, 1, 2, 3] and lists[0].text == lists[2].text
    streamed = "".join(c.choices[0].text for c in client.completions.create(prompt="hello", stream=True, **options))
    assert streamed == text


def test_logprobs_and_echo(client, model, server):
    prompt = server.ok("/tokenize", {"prompt": "hello there"})
    answer = client.completions.create(model=model, prompt="hello there", max_tokens=4, temperature=0, logprobs=2,
                                       echo=True).choices[0]
    rows = answer.logprobs
    total = prompt["count"] + 4
    assert len(rows.tokens) == len(rows.token_logprobs) == len(rows.top_logprobs) == len(rows.text_offset) == total
    assert rows.token_logprobs[0] is None and rows.top_logprobs[0] is None
    assert all(2 <= len(top) <= 3 for top in rows.top_logprobs[1:])
    for token, value, top in zip(rows.tokens[1:], rows.token_logprobs[1:], rows.top_logprobs[1:]):
        assert top[token] == value
    whole = client.completions.create(model=model, prompt="hello there", max_tokens=4, temperature=0).choices[0]
    assert answer.text.endswith(whole.text) and answer.text != whole.text
    alone = client.completions.create(model=model, prompt="hello there", max_tokens=0, logprobs=2, echo=True)
    assert alone.choices[0].logprobs.token_logprobs == rows.token_logprobs[:prompt["count"]]
    assert alone.usage.completion_tokens == 0


def test_echo_shows_the_prompt_as_it_was_sent(server):
    prompt = "<|bos|>héllo\nhi<|eos|>"
    ids = server.ok("/tokenize", {"prompt": prompt})["tokens"]

    def echoed(prompt, **fields):
        body = {"prompt": prompt, "max_tokens": 3, "temperature": 0, "logprobs": 1, "echo": True} | fields
        choice = server.ok("/v1/completions", body)["choices"][0]
        rows = choice["logprobs"]
        for token, offset in zip(rows["tokens"], rows["text_offset"]):
            special = token in ("<|bos|>", "<|eos|>")
            assert choice["text"][offset:].startswith(token) or special, (choice["text"], rows)
        return choice["text"]

    answer = server.ok("/v1/completions", {"prompt": prompt, "max_tokens": 3, "temperature": 0})["choices"][0]["text"]
    assert echoed(prompt) == prompt + answer
    assert echoed(ids) == "héllo\nhi" + answer
    assert echoed(ids, skip_special_tokens=False).startswith(prompt)
    assert echoed(prompt, truncate_prompt_tokens=2).startswith("i")
    assert echoed(prompt, truncate_prompt_tokens=2, skip_special_tokens=False).startswith("i<|eos|>")
    body = {"prompt": [prompt, "x"], "max_tokens": 3, "temperature": 0, "echo": True, "stream": True, "logprobs": 1}
    events = [json.loads(line[6:]) for line in server.post("/v1/completions", body).text.splitlines() if line.startswith("data: {")]
    texts = ["".join(e["choices"][0]["text"] for e in events if e["choices"][0]["index"] == i) for i in (0, 1)]
    assert texts[0] == prompt + answer and texts[1].startswith("x")


def test_offsets_are_those_of_the_text_where_logprobs_name_ids(server):
    def rows(**fields):
        body = {"prompt": "héllo\nhi", "max_tokens": 8, "temperature": 0, "logprobs": 1} | fields
        return server.ok("/v1/completions", body)["choices"][0]["logprobs"]

    for echo in (False, True):
        texts, ids = rows(echo=echo), rows(echo=echo, return_tokens_as_token_ids=True)
        assert all(token.startswith("token_id:") for token in ids["tokens"]), ids
        assert ids["text_offset"] == texts["text_offset"] and len(set(texts["text_offset"])) > 1


def test_stop_strings_and_tokens(client, model):
    options = dict(model=model, prompt="hello", temperature=0, max_tokens=24)
    whole = client.completions.create(**options).choices[0].text
    stop = whole[len(whole) // 2:len(whole) // 2 + 3]
    for extra in ({}, {"stream": True}):
        answer = client.completions.create(**options, stop=["never", stop], **extra)
        choices = [answer.choices[0]] if not extra else [c.choices[0] for c in answer]
        assert "".join(c.text for c in choices) == whole[:whole.index(stop)]
        assert choices[-1].finish_reason == "stop" and choices[-1].stop_reason == stop
    kept = client.completions.create(**options, stop=stop, extra_body={"include_stop_str_in_output": True}).choices[0]
    assert kept.text == whole[:whole.index(stop) + len(stop)]
    ids = client.completions.create(**options, extra_body={"return_token_ids": True}).choices[0].token_ids
    by_id = client.completions.create(**options, extra_body={"stop_token_ids": [ids[5]], "return_token_ids": True})
    assert by_id.choices[0].finish_reason == "stop" and by_id.choices[0].stop_reason == ids[5]
    assert by_id.choices[0].token_ids == ids[:ids.index(ids[5]) + 1]


def test_logit_bias_and_allowed_tokens(client, model):
    answer = client.completions.create(model=model, prompt="hello", max_tokens=4, temperature=0,
                                       logit_bias={"70": 100}, extra_body={"return_token_ids": True})
    assert answer.choices[0].token_ids == [70] * 4
    answer = client.completions.create(model=model, prompt="hello", max_tokens=8,
                                       extra_body={"return_token_ids": True, "allowed_token_ids": [80, 81]})
    assert set(answer.choices[0].token_ids) <= {80, 81}


def test_prompt_logprobs(client, model, server):
    extra = {"prompt_logprobs": 1, "return_token_ids": True}
    answer = client.completions.create(model=model, prompt="hello there", max_tokens=1, extra_body=extra).choices[0]
    assert answer.prompt_logprobs[0] is None and len(answer.prompt_logprobs) == len(answer.prompt_token_ids)
    for token, row in zip(answer.prompt_token_ids[1:], answer.prompt_logprobs[1:]):
        assert row[str(token)]["logprob"] <= 0 and row[str(token)]["rank"] >= 1
    several = client.completions.create(model=model, prompt="hello there", max_tokens=1, n=3, extra_body=extra).choices
    assert [choice.prompt_logprobs for choice in several] == [answer.prompt_logprobs] * 3
    chat = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=1, extra_body=extra)
    assert len(chat.prompt_logprobs) == len(chat.prompt_token_ids) and chat.choices[0].token_ids


def test_continuing_a_message(client, model, server):
    messages = MESSAGES + [{"role": "assistant", "content": "Once upon"}]
    extra = {"continue_final_message": True, "add_generation_prompt": False, "echo": True}
    answer = client.chat.completions.create(model=model, messages=messages, max_tokens=4, temperature=0, extra_body=extra)
    assert answer.choices[0].message.content.startswith("Once upon")
    parts = [{"type": "text", "text": "Once"}, {"type": "text", "text": "upon"}]
    listed = client.chat.completions.create(model=model, messages=MESSAGES + [{"role": "assistant", "content": parts}],
                                            max_tokens=4, temperature=0, extra_body=extra).choices[0].message.content
    joined = client.chat.completions.create(model=model, messages=MESSAGES + [{"role": "assistant", "content": "Once\nupon"}],
                                            max_tokens=4, temperature=0, extra_body=extra).choices[0].message.content
    assert listed == joined and listed.startswith("Once\nupon")


@pytest.mark.parametrize("body, field", [
    ({"temperature": 3}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"n": 0}, "n"),
    ({"n": 2, "temperature": 0}, "n"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 10**9}, "max_tokens"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"stop": [""]}, "stop"),
    ({"stop": ["a"] * 129}, "stop"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {"99999999": 1}}, "logit_bias"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"messages": []}, "messages"),
    ({"messages": "hello"}, "messages"),
    ({"messages": [{"content": "no role"}]}, "messages"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "messages"),
    ({"tools": [{"type": "function", "function": {"name": 5, "parameters": {}}}]}, "tools[0].function.name"),
    ({"response_format": {"type": 1}}, "response_format"),
    ({"structured_outputs": {}}, "structured_outputs"),
    ({"use_beam_search": True}, "use_beam_search"),
    ({"chat_template": "{{ messages }}"}, "chat_template"),
    ({"continue_final_message": True}, "continue_final_message"),
    ({"cache_salt": ""}, "cache_salt"),
    ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    ({"min_tokens": 50, "max_tokens": 5}, "min_tokens"),
    ({"allowed_token_ids": []}, "allowed_token_ids"),
])
def test_a_wrong_field_is_named(client, model, body, field):
    options = dict(model=model, messages=MESSAGES) | {k: v for k, v in body.items() if k == "messages"}
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**options, extra_body=body)
    error = caught.value.body
    assert error["param"] == field and error["code"] == 400 and field in error["message"], error


def test_completions_refuse_what_they_cannot_do(client, model):
    for body, field in (({"suffix": "end"}, "suffix"), ({"prompt": []}, "prompt"), ({"prompt": [10**6]}, "token"),
                        ({"prompt": [[1], "a"]}, "prompt"), ({"echo": 1}, "echo"), ({"best_of": 3}, "best_of")):
        with pytest.raises(openai.BadRequestError) as caught:
            client.completions.create(**(dict(model=model, prompt="hello") | body))
        assert field in caught.value.body["message"], caught.value.body


def test_settings_that_forbid_every_token_are_the_requests_fault(client, model):
    for stream in (False, True):
        with pytest.raises(openai.APIError) as caught:
            list(client.completions.create(model=model, prompt="hello", max_tokens=2, stream=stream, extra_body={
                "allowed_token_ids": [80], "min_tokens": 1, "stop_token_ids": [80]}))
        assert caught.value.body["code"] == 400 and "no token is left" in caught.value.body["message"], caught.value.body
        assert caught.value.body["message"].startswith("Sampling: "), caught.value.body  # no number of a request


def test_an_unknown_model_is_not_found(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-none", messages=MESSAGES)
    assert caught.value.body["param"] == "model" and "tiny" in caught.value.body["message"]


def test_a_prompt_that_is_too_long_is_refused_with_the_numbers(client, model, server):
    most = client.models.list().data[0].max_model_len
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=model, prompt=[5] * (most + 3))
    assert str(most) in caught.value.body["message"] and str(most + 3) in caught.value.body["message"]
    cut = client.completions.create(model=model, prompt=[5] * (most + 3), max_tokens=1,
                                    extra_body={"truncate_prompt_tokens": 10})
    assert cut.usage.prompt_tokens == 10


def test_async_streams_together(server, model):
    async def ask(client, i):
        text = ""
        async for chunk in await client.chat.completions.create(
                model=model, messages=[{"role": "user", "content": f"hello {i}"}], max_tokens=16, temperature=1, seed=i,
                stream=True):
            text += chunk.choices[0].delta.content or ""
        return text

    async def together():
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none") as client:
            return await asyncio.gather(*(ask(client, i) for i in range(16)))

    first, second = asyncio.run(together()), asyncio.run(together())
    assert first == second and len(set(first)) > 1


def test_multi_turn_chats_reuse_their_history(client, model):
    messages = [{"role": "user", "content": "a long enough first message to fill some pages " * 3}]
    for turn in range(3):
        answer = client.chat.completions.create(model=model, messages=messages, max_tokens=8, temperature=0)
        if turn > 0:
            assert answer.usage.prompt_tokens_details.cached_tokens >= 32
        messages += [{"role": "assistant", "content": answer.choices[0].message.content},
                     {"role": "user", "content": f"go on {turn}"}]
    salted = client.chat.completions.create(model=model, messages=messages[:1], max_tokens=1,
                                            extra_body={"cache_salt": "mine"})
    assert salted.usage.prompt_tokens_details.cached_tokens == 0
