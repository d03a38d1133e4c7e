# SPDX-License-Identifier: Apache-2.0
"""Receipts: answers of a busy server verify alone in a fresh process, and any change makes them fail."""

import asyncio
import copy
import json
import os
import random
import shutil
import stat
import subprocess

import httpx
import pytest

from conftest import BIN_DIR, export
from scripted import make_scripted
from test_same_bits import make_request
from test_tools import MARKERS, SCRIPTS, TOOLS, TURN, kwargs

BUSY = ("--max-model-len", 256, "--num-gpu-blocks-override", 24, "--max-num-seqs", 24, "--max-num-batched-tokens", 64)


def check(command: str, file, folder, *flags, model="tiny") -> tuple[int, str]:
    """The exit code and the output of quire verify or quire replay."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("QUIRE_", "HF_", "VLLM_"))}
    done = subprocess.run([str(BIN_DIR / "quire"), command, str(file), "--model", str(model), *map(str, flags)],
                          cwd=folder, env=environment | {"QUIRE_HOME": str(folder / "home")}, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def verify(folder, tmp_path):
    """verify(reply, ...): of a reply as JSON."""

    def run(reply, *flags, **options):
        (tmp_path / "reply.json").write_text(json.dumps(reply))
        return check("verify", tmp_path / "reply.json", folder, *flags, **options)

    return run


async def send_all(url: str, bodies: list[tuple[str, dict]]) -> list[str]:
    async def ask(client, path, body):
        answer = await client.post(path, json=body | {"return_receipt": True})
        assert answer.status_code == 200, answer.text
        return answer.text.strip()

    async with httpx.AsyncClient(base_url=url, timeout=300, limits=httpx.Limits(max_connections=None)) as client:
        return await asyncio.gather(*(ask(client, path, body) for path, body in bodies))


def make_traffic(rng: random.Random) -> list[tuple[str, dict]]:
    prefixes = [[rng.randrange(3, 250) for _ in range(80)] for _ in range(3)]
    traffic = []
    for i in range(60):
        body = make_request(rng, prefixes) | {"stream": i % 5 == 0}
        if i % 3 == 0:
            del body["seed"]  # one is drawn
        if i % 4 == 0:
            body |= {"ignore_eos": False, "stop": ["a", "xyz"], "bad_words": ["the"]}
        if i % 6 == 0:
            body["prompt"] = [body["prompt"], body["prompt"][:5]]
        if i % 7 == 0:
            body |= {"structured_outputs": {"regex": "[a-f]{3,9}"}, "ignore_eos": False}
        traffic.append(("/v1/completions", body))
    for i in range(12):
        body = {"messages": [{"role": "user", "content": f"Say {i}"}], "max_tokens": 20, "stream": i % 3 == 0}
        if i % 4 == 0:
            body["response_format"] = {"type": "json_object"}
        traffic.append(("/v1/chat/completions", body))
    return traffic


def test_receipts_of_random_traffic_verify_alone(start, folder, tmp_path):
    trace = tmp_path / "trace.jsonl"
    server = start("tiny", *BUSY, "--record-requests", trace)
    replies = asyncio.run(send_all(server.url, make_traffic(random.Random(8))))
    assert server.metric("vllm:num_preemptions_total") > 0, "the pool was not small enough to test anything"
    assert server.metric("vllm:prefix_cache_hits_total") > 0
    assert server.stop() == 0
    text = "\n".join(replies) + "\n"
    receipts = text.count('"receipt":')
    assert receipts > 80
    (tmp_path / "replies.jsonl").write_text(text)
    code, output = check("verify", tmp_path / "replies.jsonl", folder)
    assert code == 0, output
    assert output.count(": same bits: ") == receipts
    # The recorded file has the same receipts. Each pass has another crowd.
    assert stat.S_IMODE(trace.stat().st_mode) == 0o600
    assert sum(len(json.loads(line)["receipts"]) for line in trace.read_text().splitlines()) == receipts
    for flags in (("--concurrency", 1), ("--concurrency", 20, "--num-gpu-blocks-override", 40, "--max-num-seqs", 12),
                  ("--concurrency", 64, "--max-num-batched-tokens", 32, "--block-size", 8)):
        code, output = check("replay", trace, folder, *flags)
        assert code == 0, output
        assert output.endswith(f"{receipts} receipts, {flags[1]} at a time: {receipts} have the same bits, 0 differ, "
                               "0 could not be checked\n")


def test_receipts_of_speculation_verify_without_it(start, folder, tmp_path):
    trace = tmp_path / "trace.jsonl"
    drafts = json.dumps({"method": "ngram", "num_speculative_tokens": 6, "prompt_lookup_min": 1, "prompt_lookup_max": 3})
    server = start("tiny", *BUSY, "--record-requests", trace, "--speculative-config", drafts)
    asyncio.run(send_all(server.url, make_traffic(random.Random(10))))
    assert server.metric("vllm:spec_decode_num_accepted_tokens_total") > 0
    assert server.metric("vllm:spec_decode_num_draft_tokens_total") > server.metric("vllm:spec_decode_num_accepted_tokens_total")
    assert server.stop() == 0
    receipts = sum(len(json.loads(line)["receipts"]) for line in trace.read_text().splitlines())
    for flags in ((), ("--speculative-config", drafts)):
        code, output = check("replay", trace, folder, "--concurrency", 12, *flags)
        assert code == 0 and f" {receipts} have the same bits, 0 differ, 0 could not be checked" in output, output


def test_receipts_of_a_hybrid_and_from_the_tier_verify_alone(start, folder, tmp_path):
    """Batched, chunked, preempted, speculated, and with prefixes that come from the cache or from files."""
    if not (folder / "hybrid").exists():
        export.main(["--case", "qwen3.5", "--out", str(folder / "hybrid")])
    drafts = json.dumps({"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 3})
    traffic = make_traffic(random.Random(12))[:36]
    for model, pages in (("tiny", 24), ("hybrid", 48)):
        flags = (model, "--max-model-len", 256, "--num-gpu-blocks-override", pages, "--max-num-seqs", 24,
                 "--max-num-batched-tokens", 64, "--speculative-config", drafts,
                 "--kv-offload-dir", tmp_path / model, "--kv-offload-size", "200M")
        text, counts = "", {}
        for _ in range(2):
            server = start(*flags)
            text += "\n".join(asyncio.run(send_all(server.url, traffic))) + "\n"
            for name in ("num_preemptions", "prefix_cache_hits", "external_prefix_cache_hits", "spec_decode_num_draft_tokens"):
                counts[name] = counts.get(name, 0) + server.metric(f"vllm:{name}_total")
            assert server.stop() == 0
        assert all(counts.values()), f"{model}: the pool is too small or too large to test everything: {counts}"
        (tmp_path / "replies.jsonl").write_text(text)
        code, output = check("verify", tmp_path / "replies.jsonl", folder, model=model)
        assert code == 0 and output.count(": same bits: ") == text.count('"receipt":') > 60, output


def test_a_server_replays_what_another_recorded(start, folder, tmp_path):
    trace = tmp_path / "trace.jsonl"
    recording = start("tiny", *BUSY, "--record-requests", trace)
    asyncio.run(send_all(recording.url, make_traffic(random.Random(9))))
    receipts = sum(len(json.loads(line)["receipts"]) for line in trace.read_text().splitlines())
    other = start("tiny", "--max-model-len", 256, "--api-key", "secret", "--max-num-batched-tokens", 48)
    for flags, code, same in (((), 2, 0), (("--api-key", "secret"), 0, receipts)):
        found, output = check("replay", trace, folder, "--url", other.url, "--concurrency", 24, *flags)
        assert found == code and f"24 at a time: {same} have the same bits, 0 differ, {receipts - same} " in output, output
    lines = trace.read_text().splitlines()
    changed = json.loads(lines[0])
    CHANGES["last prompt token"](changed["receipts"][0])
    (tmp_path / "changed.jsonl").write_text(json.dumps(changed))
    flags = ("--url", recording.url)
    code, output = check("replay", tmp_path / "changed.jsonl", folder, *flags)
    assert code == 1 and "differs at token 0" in output, output
    code, output = check("replay", trace, folder, "--url", "http://127.0.0.1:9")
    assert code == 2 and " 0 have the same bits, 0 differ, " in output, output
    code, output = check("replay", trace, folder, "--url", "nowhere")
    assert code == 2, output


def test_other_endpoints_are_recorded(start, folder, tmp_path):
    trace = tmp_path / "trace.jsonl"
    server = start("tiny", "--record-requests", trace)
    message = [{"role": "user", "content": "Hello"}]
    server.ok("/v1/messages", {"model": "tiny", "messages": message, "max_tokens": 8})
    server.ok("/v1/responses", {"input": "Hello", "max_output_tokens": 8})
    server.post("/v1/responses", {"input": "Hello", "max_output_tokens": 9, "stream": True})
    plain = server.ok("/v1/completions", {"prompt": "Hello", "max_tokens": 4})
    assert "receipt" not in plain["choices"][0]
    server.ok("/v1/completions", {"prompt": "Hello", "max_tokens": 0, "echo": True})
    code, output = check("replay", trace, folder)
    assert (code, output) == (0, "5 receipts, 8 at a time: 5 have the same bits, 0 differ, 0 could not be checked\n")


@pytest.fixture(scope="module")
def reply(start):
    body = {"prompt": "Once upon a time", "max_tokens": 12, "temperature": 0.8, "ignore_eos": True, "n": 2,
            "return_receipt": True}
    return start("tiny").ok("/v1/completions", body)


def test_each_choice_has_a_receipt(reply, verify):
    first, second = (choice["receipt"] for choice in reply["choices"])
    assert int(second["sampling"]["seed"]) - int(first["sampling"]["seed"]) in (1, 1 - (1 << 64))
    assert len(first["token_ids"]) == 12 and len(first["logits"]) == 12 * 16 and len(first["digest"]) == 32
    code, output = verify(reply)
    assert code == 0 and output.count("same bits: 12 tokens") == 2, output


def test_a_pretty_printed_reply_and_standard_input_are_read(reply, folder, tmp_path):
    (tmp_path / "pretty.json").write_text(json.dumps(reply, indent=2, sort_keys=True))
    code, output = check("verify", tmp_path / "pretty.json", folder)
    assert code == 0, output
    done = subprocess.run([str(BIN_DIR / "quire"), "verify", "-", "--model", "tiny"], input=json.dumps(reply), text=True,
                          cwd=folder, capture_output=True)
    assert done.returncode == 0 and done.stdout.startswith("standard input, choice 0: same bits"), done


def test_a_constrained_reply_that_was_sorted_verifies(start, verify):
    """The bug: a database or program that sorts the members of JSON, or writes 1.0 as 1, made it a changed receipt."""
    schema = {"type": "object", "properties": {"b": {"type": "integer", "minimum": 0.0, "maximum": 9.0}, "a": {"type": "boolean"}},
              "required": ["b", "a"]}
    body = {"prompt": "x", "max_tokens": 40, "seed": 1, "return_receipt": True, "structured_outputs": {"json": schema}}
    reply = start("tiny").ok("/v1/completions", body)

    def tidy(value):
        if isinstance(value, dict):
            return {name: tidy(value[name]) for name in sorted(value)}
        if isinstance(value, list):
            return [tidy(item) for item in value]
        return int(value) if isinstance(value, float) and value.is_integer() else value

    code, output = verify(tidy(reply))
    assert code == 0 and "same bits" in output, output


def test_a_list_of_replies_is_read(reply, verify):
    """The bug: a file with a list of replies had "no receipt", and the advice was to ask for one."""
    code, output = verify([reply, {"answers": [], "choices": []}, reply])
    assert code == 0 and output.count("same bits: 12 tokens") == 4 and "reply.json[2], choice 1: " in output, output


CHANGES = {
    "temperature": lambda r: r["sampling"].update(temperature=0.81),
    "top_k": lambda r: r["sampling"].update(top_k=50),
    "seed": lambda r: r["sampling"].update(seed=str(int(r["sampling"]["seed"]) ^ 1)),
    "max_tokens": lambda r: r["sampling"].update(max_tokens=13),
    "stop": lambda r: r["sampling"].update(stop=["never seen"]),
    "ignore_eos": lambda r: r["sampling"].update(ignore_eos=False),
    "first prompt token": lambda r: r["prompt_token_ids"].__setitem__(0, r["prompt_token_ids"][0] ^ 1),
    "last prompt token": lambda r: r["prompt_token_ids"].__setitem__(-1, r["prompt_token_ids"][-1] ^ 1),
    "output token": lambda r: r["token_ids"].__setitem__(5, r["token_ids"][5] ^ 1),
    "logits": lambda r: r.update(logits=r["logits"][:80] + "0123456789abcdef" + r["logits"][96:]),
    "finish_reason": lambda r: r.update(finish_reason="stop"),
    "weights": lambda r: r.update(weights="0" * 32),
    "unknown prompt token": lambda r: r["prompt_token_ids"].__setitem__(0, 1 << 30),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_changed_receipt_fails(reply, verify, change):
    changed = copy.deepcopy(reply)
    change(changed["choices"][0]["receipt"])
    code, output = verify(changed)
    assert code == 1, output
    first, second = output.splitlines()
    assert "choice 0: the receipt was changed: its digest is not that of its contents" in first
    assert second.endswith("choice 1: same bits: 12 tokens")


def test_it_says_where_the_bits_first_differ(reply, verify):
    changed = copy.deepcopy(reply)
    CHANGES["logits"](changed["choices"][0]["receipt"])
    assert "differs at token 5 of 12: its logits have other bits" in verify(changed)[1]
    changed = copy.deepcopy(reply)
    CHANGES["last prompt token"](changed["choices"][0]["receipt"])
    assert "differs at token 0 of 12: its logits have other bits" in verify(changed)[1]
    changed = copy.deepcopy(reply)
    CHANGES["output token"](changed["choices"][0]["receipt"])
    assert "differs at token 5 of 12: from the same logits, token" in verify(changed)[1]


def test_a_changed_text_fails(reply, verify):
    changed = copy.deepcopy(reply)
    changed["choices"][1]["text"] += "!"
    code, output = verify(changed)
    assert code == 1 and "choice 1: the text of the reply is not that of its tokens" in output


@pytest.fixture(scope="module")
def talker(folder, start):
    """A server that says what it is told to, with tool calls and reasoning."""
    name = make_scripted(folder, "talker", SCRIPTS, special=MARKERS)
    return start(name, "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3", "--enable-auto-tool-choice")


def said(talker, script, **fields) -> dict:
    body = {"messages": TURN, "tools": TOOLS, "temperature": 0, "return_receipt": True} | kwargs(script) | fields
    return talker.ok("/v1/chat/completions", {name: value for name, value in body.items() if value is not None})


def completed(server, prompt, **fields) -> dict:
    return server.ok("/v1/completions", {"prompt": prompt, "temperature": 0, "max_tokens": 12, "return_receipt": True} | fields)


def verify_lines(replies, folder, tmp_path) -> tuple[int, list[str]]:
    texts = [reply if isinstance(reply, str) else json.dumps(reply) for reply in replies]
    (tmp_path / "lines.jsonl").write_text("\n".join(texts) + "\n")
    code, output = check("verify", tmp_path / "lines.jsonl", folder, model="talker")
    return code, output.splitlines()


def test_replies_of_every_kind_verify(talker, folder, tmp_path):
    last = TURN + [{"role": "assistant", "content": "Once upon"}]
    kinds = [{}, {"tools": None}, {"tool_choice": "none"}, {"parallel_tool_calls": False}, {"max_tokens": 4}, {"max_tokens": 7},
             {"stop": ["add"]}, {"stop": ["ad"], "include_stop_str_in_output": True}, {"skip_special_tokens": False},
             {"messages": last, "echo": True, "tools": None}]
    replies = [said(talker, script, **kind) for script in SCRIPTS for kind in kinds]
    for script in SCRIPTS:
        for fields in ({}, {"stream_interval": 3}):
            body = {"messages": TURN, "tools": TOOLS, "temperature": 0, "n": 1, "stream": True, "return_receipt": True}
            replies.append(talker.post("/v1/chat/completions", body | kwargs(script) | fields).text.strip())
    for echo in (False, True):
        for prompt in ("<|go_think|>", [410, 65, 66], "<|go_call|>"):
            for fields in ({}, {"skip_special_tokens": False}, {"stop": ["e"]}, {"stream": True}):
                body = {"prompt": prompt, "max_tokens": 6, "echo": echo, "temperature": 0, "return_receipt": True} | fields
                replies.append(talker.post("/v1/completions", body).text.strip())
    code, lines = verify_lines(replies, folder, tmp_path)
    assert code == 0 and len(lines) == len(replies), "\n".join(line for line in lines if "same bits" not in line)
    assert all(": same bits: " in line for line in lines)
    hidden = [line for line in lines if "its tokens have tool calls that the reply does not show" in line]
    assert hidden and len(hidden) <= len(SCRIPTS), "only of replies to tool_choice none and of one without parallel calls"


MARKUPS = {
    "qwen3_coder": ("qwen3", ["<think>", "Add.", "</think>", "\n\nSure.\n", "<tool_call>", "\n<function=add>\n<parameter=a>\n1\n</parameter>",
                              "\n<parameter=b>\n", "x\ny \"é\"", "\n</parameter>\n</function>", "\n", "</tool_call>"]),
    "glm45": ("none", ["<tool_call>", "add\n", "<arg_key>", "a", "</arg_key>", "\n<arg_value>", "7", "</arg_value>", "</tool_call>"]),
    "openai": ("openai_gptoss", ["<|channel|>", "analysis", "<|message|>", "I should add.", "<|end|>", "<|start|>", "assistant",
                                 "<|channel|>", "commentary to=functions.add ", "<|constrain|>", "json", "<|message|>",
                                 '{"a": 1, ', '"b": "x"}', "<|call|>"]),
    "pythonic": ("none", ["[add(a=1, ", "b='it is')", "]"]),
}


@pytest.mark.parametrize("markup", MARKUPS)
def test_calls_of_other_markups_verify(start, folder, tmp_path, markup):
    reasoning, texts = MARKUPS[markup]
    special = tuple(text for text in texts if text.startswith("<"))
    name = make_scripted(folder, f"talker_{markup}", {"call": texts}, special=special)
    server = start(name, "--tool-call-parser", markup, "--reasoning-parser", reasoning, "--enable-auto-tool-choice")
    fields = {"chat_template_kwargs": {"script": "call", "enable_thinking": True}}
    replies = [said(server, "call", **fields)]
    message = replies[0]["choices"][0]["message"]
    assert message["tool_calls"][0]["function"]["name"] == "add" and bool(message["reasoning"]) == (reasoning != "none")
    replies += [said(server, "call", **fields, max_tokens=tokens) for tokens in range(1, len(texts) + 1)]
    (tmp_path / "lines.jsonl").write_text("\n".join(map(json.dumps, replies)))
    code, output = check("verify", tmp_path / "lines.jsonl", folder, model=name)
    assert code == 0 and output.count(": same bits: ") == len(replies) and "not show" not in output, output
    function = message["tool_calls"][0]["function"]
    for change in (lambda: message.update(content="Hello"), lambda: function.update(name="now"),
                   lambda: function.update(arguments='{"a": 23, "b": "other"}')):
        change()
        (tmp_path / "changed.json").write_text(json.dumps(replies[0]))
        code, output = check("verify", tmp_path / "changed.json", folder, model=name)
        assert code == 1 and "of the reply" in output, output


def test_a_changed_answer_fails(talker, folder, tmp_path):
    text, calls = "the text of the reply is not that of its tokens", "the tool calls of the reply are not those of its tokens"
    changed, wanted = [], []

    def add(reply, sentence, change, message=True):
        choice = copy.deepcopy(reply)["choices"][0]
        change(choice["message"] if message else choice)
        changed.append({"id": str(len(changed)), "choices": [choice]})
        wanted.append(sentence)

    plain, call, two = said(talker, "plain"), said(talker, "call"), said(talker, "two")
    think, stopped = said(talker, "think"), completed(talker, "<|go_plain|>", stop=["It"])
    assert stopped["choices"][0]["text"] == "" and stopped["choices"][0]["finish_reason"] == "stop"
    add(stopped, text, lambda c: c.update(text="A wholly different answer."), message=False)
    whole = completed(talker, "<|go_plain|>", max_tokens=2)
    for other in ("X" + whole["choices"][0]["text"], "", whole["choices"][0]["text"][1:]):
        add(whole, text, lambda c, other=other: c.update(text=other), message=False)
    add(whole, "the finish_reason of the reply is stop, and its answer ended by length", lambda c: c.update(finish_reason="stop"), False)
    echoed = completed(talker, "AB<|go_plain|>", echo=True)
    add(echoed, text, lambda c: c.update(text=c["text"][1:]), message=False)
    for other in ("No. It is three.", "It is", "", "t is three.", None):
        add(plain, text, lambda m, other=other: m.update(content=other))
    add(call, text, lambda m: m.update(content="No. " + m["content"]))
    add(call, calls, lambda m: m["tool_calls"][0]["function"].update(arguments='{"a": 2, "b": "x\\ny é"}'))
    add(call, calls, lambda m: m["tool_calls"][0]["function"].update(name="now"))
    add(call, calls, lambda m: m.pop("tool_calls"))
    add(two, calls, lambda m: m["tool_calls"].pop(0))
    add(think, text, lambda m: m.update(reasoning="One and two are four."))
    add(think, text, lambda m: m.update(reasoning=None))
    add(think, text, lambda m: m.update(content="Four, I think."))
    code, lines = verify_lines(changed, folder, tmp_path)
    assert code == 1 and len(lines) == len(wanted)
    for line, sentence in zip(lines, wanted):
        assert line.endswith(sentence), lines


def test_a_changed_event_of_a_stream_fails(talker, folder, tmp_path):
    body = {"messages": TURN, "temperature": 0, "stream": True, "return_receipt": True} | kwargs("plain")
    stream = talker.post("/v1/chat/completions", body).text.strip()
    assert "three." in stream
    code, lines = verify_lines([stream.replace("three.", "four.")], folder, tmp_path)
    assert code == 1 and lines[0].endswith("the text of the reply is not that of its tokens")
    code, lines = verify_lines([stream.split("\n\n")[-2]], folder, tmp_path)
    assert code == 0 and lines[0].endswith("; the text of the reply was not checked")


def flip_a_bit(file, at):
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("place", [-1, -1000])
def test_one_changed_bit_of_the_weights_fails(reply, verify, folder, tmp_path, place):
    shutil.copytree(folder / "tiny", tmp_path / "tiny")
    code, output = verify(reply, model=tmp_path / "tiny")
    assert code == 0, output
    flip_a_bit(tmp_path / "tiny" / "model.safetensors", place)
    code, output = verify(reply, model=tmp_path / "tiny")
    assert code == 1 and output.count("the weights differ") == 2, output


def test_one_changed_bit_of_a_gguf_fails(start, verify, tmp_path):
    model = os.environ.get("QUIRE_TEST_MODEL")
    if not model:
        pytest.skip("QUIRE_TEST_MODEL is not set")
    server = start(model, "--max-model-len", 512, "--max-num-batched-tokens", 16)
    body = {"messages": [{"role": "user", "content": "Name three colours, please."}], "max_tokens": 12,
            "return_receipt": True}
    answer = server.ok("/v1/chat/completions", body)
    code, output = verify(answer, model=model)
    assert code == 0 and "same bits: " in output, output
    shutil.copy(model, tmp_path / "changed.gguf")
    flip_a_bit(tmp_path / "changed.gguf", -(10 << 20))
    code, output = verify(answer, model=tmp_path / "changed.gguf")
    assert code == 1 and "the weights differ" in output, output


def test_other_settings_cannot_be_checked(reply, verify):
    code, output = verify(reply, "--kv-cache-dtype", "bfloat16")
    assert code == 2
    assert output.count("it cannot be run: it was made with the KV cache type float32, and this is bfloat16; "
                        "pass --kv-cache-dtype float32\n") == 2, output
    code, output = verify(reply, model="missing")
    assert code == 2 and output.count("it cannot be run: the model could not be loaded\n") == 2, output


def test_files_without_receipts_are_refused(folder, tmp_path):
    for text, sentence in (("{}", "has no receipt"), ("[]", "has no receipt"), ("[3]", "has no receipt"), ("", "cannot be read or is empty"), ("{]", "line 1"),
                           ('{"choices": [{"receipt": {"version": 1}}]}', "choice 0: the receipt's quire is missing"),
                           ('{"choices": [{"receipt": 5}]}', "choice 0: the receipt is an integer"),
                           ('{"choices": [5], "receipts": [[]]}', "choice 0: the receipt is an array")):
        (tmp_path / "bad.json").write_text(text)
        code, output = check("verify", tmp_path / "bad.json", folder)
        assert code == 2 and sentence in output and output.count("\n") == 1, output


def test_the_stream_of_a_gpu_verifies(start, verify, folder, tmp_path):
    # The emulator samples in the device's memory, as GPUs do, and makes digests there.
    server = start("tiny", "--device", "emulator", "--max-num-batched-tokens", 8)
    body = {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 1, "n": 2, "stream": True,
            "return_receipt": True}
    text = server.post("/v1/completions", body).text
    (tmp_path / "stream.txt").write_text(text)
    code, output = check("verify", tmp_path / "stream.txt", folder)
    assert code == 0 and output.count("same bits: ") == 2, output
    code, output = check("verify", tmp_path / "stream.txt", folder, "--device", "cpu")
    assert code == 2 and "pass --device emulator" in output, output


def test_fields_that_do_not_go_together_are_refused(server):
    body = {"prompt": "Hello", "max_tokens": 0, "echo": True, "return_receipt": True}
    answer = server.post("/v1/completions", body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "return_receipt needs an answer, so max_tokens must not be 0."
    answer = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}],
                                                  "include_reasoning": False, "return_receipt": True})
    assert answer.status_code == 400 and "include_reasoning must not be false" in answer.text
