# SPDX-License-Identifier: Apache-2.0
"""LLM: the calls that wait, from the build folder, on the default model."""

import dataclasses
import gc
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy
import pytest

from conftest import PACKAGE, ROOT

PROMPT = "The capital of France is"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


def greedy(**more):
    from quire import SamplingParams
    return SamplingParams(**({"temperature": 0, "max_tokens": 12} | more))


def python(model_path, source, **options):
    """Runs a program of its own; the last line of its output is what it has to say."""
    return subprocess.run([sys.executable, "-c", textwrap.dedent(source), model_path], capture_output=True, text=True,
                          timeout=300, env=os.environ | {"PYTHONPATH": str(PACKAGE)}, **options)


def test_one_prompt_has_vllms_shape(llm):
    [output] = llm.generate(PROMPT, greedy())
    assert output.prompt == PROMPT and output.finished and output.prompt_logprobs is None
    assert output.prompt_token_ids == llm.get_tokenizer().encode(PROMPT).tolist()
    [answer] = output.outputs
    assert "Paris" in answer.text and answer.index == 0
    assert len(answer.token_ids) == 12 and answer.finish_reason == "length" and answer.stop_reason is None
    assert answer.logprobs is None and answer.cumulative_logprob is None and answer.finished()
    assert llm.get_tokenizer().decode(answer.token_ids) == answer.text


def test_prompts_in_every_form_get_the_same_answer(llm):
    ids = llm.get_tokenizer().encode(PROMPT)
    assert ids.dtype == numpy.int32
    forms = [PROMPT, ids, ids.tolist(), ids.astype(numpy.int64)[::1], {"prompt": PROMPT}, {"prompt_token_ids": ids},
             {"prompt_token_ids": ids.tolist(), "prompt": "its text"}, {"prompt": PROMPT, "cache_salt": "pepper"}]
    outputs = llm.generate(forms, greedy())
    assert len(outputs) == len(forms)
    assert len({output.outputs[0].text for output in outputs}) == 1
    assert [output.prompt for output in outputs[:2]] == [PROMPT, None]
    assert outputs[6].prompt == "its text"  # as in vLLM; it was left out
    for form in (ids, ids.tolist(), {"prompt_token_ids": ids}):
        assert len(llm.generate(form, greedy())) == 1


def test_programs_for_vllm_find_its_other_names(llm):
    from quire import SamplingParams, TextPrompt, TokensPrompt
    tokenizer = llm.get_tokenizer()
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text.startswith("<|im_start|>system") and text.endswith("<|im_start|>assistant\n")
    ids = tokenizer.apply_chat_template(messages)
    assert tokenizer(text) == {"input_ids": ids.tolist(), "attention_mask": [1] * len(ids)}
    assert tokenizer([text, "a"])["input_ids"] == [ids.tolist(), tokenizer.encode("a").tolist()]
    assert tokenizer.decode(int(ids[4])) == tokenizer.decode(ids[4:5])
    assert tokenizer.batch_decode([ids[4:6], ids[5:9]]) == [tokenizer.decode(ids[4:6]), tokenizer.decode(ids[5:9])]
    assert tokenizer.decode(tokenizer.eos_token_id, skip_special_tokens=False) == "<|im_end|>" and len(tokenizer) == 49152
    chat, plain = llm.chat(messages, greedy(), chat_template_content_format="auto")[0], llm.generate(text, greedy())[0]
    assert chat.outputs[0].token_ids == plain.outputs[0].token_ids
    forms = [TextPrompt(prompt=text), TokensPrompt(prompt_token_ids=ids)]
    assert [output.outputs[0].token_ids for output in llm.generate(forms, greedy())] == [plain.outputs[0].token_ids] * 2
    assert (plain.lora_request, plain.metrics, plain.encoder_prompt, plain.outputs[0].lora_request) == (None,) * 4
    none = SamplingParams.from_optional(temperature=0, top_p=None, max_tokens=None, stop=None)
    assert none == SamplingParams(temperature=0, max_tokens=None)


def test_prompts_are_cut_and_texts_left_out_on_request(llm):
    from quire import SamplingParams
    ids = llm.get_tokenizer().encode("one two three four five").tolist()
    for prompt in ("one two three four five", ids, numpy.array(ids)):
        for params, options in ((SamplingParams(max_tokens=1, truncate_prompt_tokens=3), {}),
                                (SamplingParams(max_tokens=1), {"tokenization_kwargs": {"truncate_prompt_tokens": 3}})):
            assert llm.generate(prompt, params, **options)[0].prompt_token_ids == ids[-3:]
    with pytest.raises(ValueError, match="but not padding"):
        llm.generate("x", tokenization_kwargs={"padding": True})
    [with_text, without] = llm.generate([PROMPT] * 2, [greedy(), dataclasses.replace(greedy(), detokenize=False)])
    assert without.outputs[0].text == "" and without.outputs[0].token_ids == with_text.outputs[0].token_ids
    for name, value in (("logits_processors", [print]), ("extra_args", {"a": 1}), ("flat_logprobs", True)):
        with pytest.raises(ValueError, match=f"{name} is not supported: "):
            SamplingParams(**{name: value})


def test_many_prompts_have_the_bits_of_each_alone(llm):
    from quire import SamplingParams
    prompts = [f"Number {i} is" for i in range(40)]
    params = [SamplingParams(temperature=1, seed=i, max_tokens=6 + i % 5) for i in range(40)]
    together = llm.generate(prompts, params)
    alone = [llm.generate(prompt, one)[0] for prompt, one in zip(prompts[:5], params)]
    assert [output.outputs[0].token_ids for output in together[:5]] == [output.outputs[0].token_ids for output in alone]
    assert [len(output.outputs[0].token_ids) <= one.max_tokens for output, one in zip(together, params)]


def test_n_answers(llm):
    from quire import SamplingParams
    [output] = llm.generate("Once", SamplingParams(n=3, seed=5, max_tokens=6, temperature=1))
    assert [answer.index for answer in output.outputs] == [0, 1, 2]
    assert len({answer.text for answer in output.outputs}) == 3


def test_without_settings_the_models_defaults_hold(llm):
    defaults = llm.get_default_sampling_params()
    assert defaults.n == 1 and defaults.max_tokens == 16
    [output] = llm.generate(PROMPT)
    assert 0 < len(output.outputs[0].token_ids) <= 16


def test_stop_strings_and_tokens(llm):
    [output] = llm.generate(PROMPT, greedy(stop=["Paris"]))
    assert output.outputs[0].stop_reason == "Paris" and "Paris" not in output.outputs[0].text
    assert output.outputs[0].finish_reason == "stop"
    token = llm.generate(PROMPT, greedy())[0].outputs[0].token_ids[2]
    [output] = llm.generate(PROMPT, greedy(stop_token_ids=[token]))
    assert output.outputs[0].stop_reason == token and len(output.outputs[0].token_ids) == 3
    [output] = llm.generate(PROMPT, greedy(logit_bias={token: -100}, bad_words=["Paris"]))
    assert token not in output.outputs[0].token_ids and "Paris" not in output.outputs[0].text


def test_a_stop_string_may_have_zeros(llm):
    """stop_reason had what stands before the first zero."""
    [zero] = llm.get_tokenizer().encode("\0").tolist()
    [output] = llm.generate("x", greedy(allowed_token_ids=[zero], stop=["\0\0"]))
    assert output.outputs[0].stop_reason == "\0\0" and output.outputs[0].finish_reason == "stop"


def test_no_max_tokens_goes_on_to_the_end_of_the_context(llm):
    [output] = llm.generate(PROMPT, greedy(max_tokens=None, ignore_eos=True))
    assert len(output.prompt_token_ids) + len(output.outputs[0].token_ids) == llm.max_model_len == 1024


def test_chat_answers_one_conversation_or_several(llm):
    [output] = llm.chat(QUESTION, greedy(max_tokens=24))
    assert "Paris" in output.outputs[0].text
    assert output.prompt.count("<|im_start|>") == 3 and "capital of France" in output.prompt  # the template's text
    other = [{"role": "system", "content": "Answer in one word."}, {"role": "user", "content": "Is water wet?"}]
    both = llm.chat([QUESTION, other], greedy(max_tokens=24))
    assert both[0].outputs[0].token_ids == output.outputs[0].token_ids and len(both) == 2
    ids = llm.get_tokenizer().apply_chat_template(QUESTION)
    assert output.prompt_token_ids == ids.tolist()
    [started] = llm.chat([*QUESTION, {"role": "assistant", "content": "The answer is: Par"}], greedy(),
                         add_generation_prompt=False, continue_final_message=True)
    assert started.outputs[0].text.startswith("is")


def test_logprobs(llm):
    [output] = llm.generate(PROMPT, greedy(logprobs=3, prompt_logprobs=1))
    [answer] = output.outputs
    assert len(answer.logprobs) == len(answer.token_ids)
    for token, row in zip(answer.token_ids, answer.logprobs):
        assert next(iter(row)) == token  # as in vLLM
        assert len(row) == 3 and row[token].rank == 1  # greedy: the token is one of the likeliest
        assert row[token].decoded_token == llm.get_tokenizer().decode([token], skip_special_tokens=False)
        assert max(entry.logprob for entry in row.values()) == row[token].logprob < 0
    assert answer.cumulative_logprob == pytest.approx(
        sum(row[token].logprob for token, row in zip(answer.token_ids, answer.logprobs)))
    assert len(output.prompt_logprobs) == len(output.prompt_token_ids) and output.prompt_logprobs[0] is None
    for token, row in zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:]):
        assert next(iter(row)) == token
        assert token in row and 1 <= len(row) <= 2


def test_structured_output(llm):
    from quire import StructuredOutputsParams
    def ask(**constraint):
        [output] = llm.chat(QUESTION, greedy(max_tokens=80, structured_outputs=StructuredOutputsParams(**constraint)))
        return output.outputs[0].text
    assert ask(choice=["London", "Paris"]) in ("London", "Paris")
    assert ask(regex="[A-Z]{5}").isupper()
    schema = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}, "required": ["city"]}
    assert set(json.loads(ask(json=schema))) == {"city"}
    assert set(json.loads(ask(json=json.dumps(schema)))) == {"city"}
    assert ask(grammar='root ::= "yes" | "no"') in ("yes", "no")


def test_a_stream_adds_up_to_the_answer(llm):
    from quire import RequestOutputKind
    [whole] = llm.generate(PROMPT, greedy(logprobs=1))
    pieces = list(llm.stream(PROMPT, greedy(logprobs=1, output_kind=RequestOutputKind.DELTA)))
    assert "".join(piece.outputs[0].text for piece in pieces) == whole.outputs[0].text
    assert sum((piece.outputs[0].token_ids for piece in pieces), []) == whole.outputs[0].token_ids
    assert sum((piece.outputs[0].logprobs or [] for piece in pieces), []) == whole.outputs[0].logprobs
    assert [piece.finished for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    growing = list(llm.stream(PROMPT, greedy(logprobs=1)))
    assert all(b.outputs[0].text.startswith(a.outputs[0].text) for a, b in zip(growing, growing[1:]))
    assert growing[-1].outputs == whole.outputs and len(growing) > 1
    [final] = llm.stream(PROMPT, greedy(logprobs=1, output_kind=RequestOutputKind.FINAL_ONLY))
    assert final.outputs == whole.outputs
    assert "Paris" in list(llm.stream_chat(QUESTION, greedy(max_tokens=24)))[-1].outputs[0].text


def test_a_stream_that_is_closed_early_is_aborted(llm):
    stream = llm.stream(PROMPT, greedy(max_tokens=None, ignore_eos=True))
    next(stream)
    stream.close()
    unread = llm.stream(PROMPT, greedy(max_tokens=None, ignore_eos=True))
    del unread
    gc.collect()
    assert len(llm.generate(PROMPT, greedy())) == 1  # the model is free for others


@pytest.mark.parametrize("settings,words", [
    ({"temperature": -1}, "temperature must be from 0 to 2, got -1."),
    ({"top_p": 0}, "top_p"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"temperature": "hot"}, "temperature must be a number"),
    ({"logprobs": 21}, "logprobs"),
    ({"stop_token_ids": [10**12]}, "stop_token_ids"),
])
def test_wrong_settings_are_value_errors_with_the_engines_sentence(llm, settings, words):
    with pytest.raises(ValueError) as raised:
        llm.generate(PROMPT, greedy(**settings))
    assert words in str(raised.value) and "\n" not in str(raised.value)


def test_a_clone_of_sampling_params_shares_nothing():
    from quire import SamplingParams
    params = SamplingParams(stop=["a"], logit_bias={1: 2.0}, temperature=0)
    copy = params.clone()
    assert copy == params
    copy.stop.append("b")
    copy.logit_bias[1] = 3.0
    copy.temperature = 1
    assert (params.stop, params.logit_bias, params.temperature) == (["a"], {1: 2.0}, 0)


def test_wrong_requests_are_errors(llm):
    from quire import StructuredOutputsParams
    for prompt, words in (("", "empty"), ([49152 * 2], "out of the vocabulary"), ([-1], "negative"),
                          ([2**31], "too large"), ({"text": "x"}, "prompt"), ({}, "prompt"),
                          ([5] * 1024, "context holds 1024"), (numpy.array([], dtype=numpy.int32), "no tokens")):
        with pytest.raises(ValueError, match=words):
            llm.generate(prompt, greedy())
    for prompt in ([1.5], numpy.zeros((2, 2)), 5):
        with pytest.raises(TypeError):
            llm.generate(prompt, greedy())
    with pytest.raises(ValueError, match="2 prompts and 1 sampling_params"):
        llm.generate(["a", "b"], [greedy()])
    with pytest.raises(ValueError, match="role"):
        llm.chat([{"content": "no role"}], greedy())
    with pytest.raises(ValueError, match="structured_outputs"):
        llm.generate(PROMPT, greedy(structured_outputs=StructuredOutputsParams(regex="[")))
    with pytest.raises(ValueError, match="structured_outputs"):
        llm.generate(PROMPT, greedy(structured_outputs=StructuredOutputsParams(regex="a", choice=["b"])))
    with pytest.raises(ValueError, match="out of the vocabulary"):
        llm.get_tokenizer().decode([10**6])
    with pytest.raises(TypeError):
        from quire import SamplingParams
        SamplingParams(temprature=1)


@pytest.mark.parametrize("prompts", [None, 5])
def test_what_is_no_prompt_is_named(llm, prompts):
    with pytest.raises(TypeError, match=f"prompts must be a text.*not {type(prompts).__name__}"):
        llm.generate(prompts)


def test_a_value_of_the_wrong_type_is_named(llm):
    """They were an AttributeError of the package, or an error about something else."""
    from quire import BeamSearchParams, SamplingParams
    beams = BeamSearchParams(beam_width=1, max_tokens=1)
    for call, words in (
            (lambda: llm.generate("x", {"temperature": 0}), "sampling_params must be a SamplingParams, .* not a dict"),
            (lambda: llm.generate("x", [{"temperature": 0}]), "sampling_params must be of the type SamplingParams, not dict"),
            (lambda: llm.generate("x", "greedy"), "sampling_params must be a SamplingParams, .* not a str"),
            (lambda: llm.generate("x", beams), "not a BeamSearchParams"),
            (lambda: list(llm.stream("x", beams)), "of the type SamplingParams, not BeamSearchParams"),
            (lambda: list(llm.stream("x", greedy(output_kind="delta"))), "output_kind must be of .* RequestOutputKind, not str"),
            (lambda: BeamSearchParams(beam_width=2.5, max_tokens=1), "beam_width must be an integer, not float"),
            (lambda: BeamSearchParams(beam_width=2, max_tokens=1, length_penalty="a"), "length_penalty must be a number"),
            (lambda: type(llm).from_engine_args({"model": "x"}), "engine_args must be of the type EngineArgs, not dict"),
            (lambda: llm.beam_search("x", greedy()), "of the type BeamSearchParams, not SamplingParams"),
            (lambda: llm.generate("x", lora_request="path"), "lora_requests must be a LoRARequest, .* not a str"),
            (lambda: llm.generate("x", priority=3), "priority must be a list"),
            (lambda: llm.generate("x", greedy(structured_outputs={"choice": ["a"]})), "a StructuredOutputsParams, not dict"),
            (lambda: llm.generate("x", greedy(logit_bias=[1])), "logit_bias must map token ids to numbers, not be a list"),
            (lambda: llm.generate(b"x"), "not bytes"), (lambda: llm.generate(["x", b"x"]), "not bytes"),
            (lambda: llm.generate(["x", None]), "a prompt is a text.* not NoneType"),
            (lambda: llm.generate(["x", 5]), "a prompt is a text.* not int"),
            (lambda: llm.generate([["x", "y"]]), "several prompts where one"),
            (lambda: list(llm.stream(["x", "y"])), "several prompts where one"),
            (lambda: llm.chat("x"), "messages must be a list of messages, .* not a str"),
            (lambda: llm.chat(QUESTION[0]), "not a dict"), (lambda: llm.chat(None), "not a NoneType"),
            (lambda: llm.encode("x", {"task": "embed"}), "pooling_params must be a PoolingParams")):
        with pytest.raises(TypeError, match=words):
            call()
    with pytest.raises(ValueError, match="logit_bias"):
        llm.generate("x", SamplingParams(logit_bias={"x": 1}))
    texts = numpy.array(["a", "b"])  # its dtype is <U1
    assert [output.prompt for output in llm.generate(texts, greedy(max_tokens=1))] == ["a", "b"]
    assert llm.generate({"prompt": "a", "multi_modal_data": None}, greedy(max_tokens=1))[0].finished
    expected = llm.chat(QUESTION, greedy())[0].outputs
    assert llm.chat((message for message in QUESTION), greedy(), False, None)[0].outputs == expected


def test_sampling_params_take_the_forms_that_vllm_gives_them(llm):
    from quire import SamplingParams
    params = SamplingParams(stop="x", seed=-1, logprobs=True, prompt_logprobs=True)
    assert (params.stop, params.stop_token_ids, params.bad_words) == (["x"], [], [])
    assert (params.seed, params.logprobs, params.prompt_logprobs) == (None, 1, 1)
    params = greedy()
    params.stop.append("Paris")
    params.stop_token_ids += [7]
    assert llm.generate(PROMPT, params)[0].outputs[0].stop_reason == "Paris"
    # -1 was a seed like any other, so that all answers were the same.
    texts = {llm.generate("Once", SamplingParams(seed=-1, max_tokens=12))[0].outputs[0].text for _ in range(4)}
    assert len(texts) > 1


def test_strange_texts_and_numbers_are_taken_or_refused(llm):
    for prompt in ("\0", "a\0b", "\ud800", "\U0001f600" * 20, "<|im_end|>"):
        assert llm.generate(prompt, greedy(max_tokens=2))[0].finished
    for temperature in (float("nan"), float("inf"), 1e308):
        with pytest.raises(ValueError, match="temperature"):
            llm.generate(PROMPT, greedy(temperature=temperature))
    output = llm.generate(PROMPT, greedy(temperature=numpy.float32(0), n=numpy.int64(1), stop=("\n", "x")))[0]
    assert output.finished
    for stop in ({"a"}, object(), b"bytes"):
        with pytest.raises((TypeError, ValueError)):
            llm.generate(PROMPT, greedy(stop=stop))


def test_one_wrong_prompt_of_several_leaves_nothing_running(llm):
    with pytest.raises(ValueError):
        llm.generate([PROMPT, ""], greedy(max_tokens=None, ignore_eos=True))
    assert len(llm.generate(PROMPT, greedy())) == 1


def test_wrong_models_and_options_are_errors(model_path, tmp_path):
    from quire import LLM
    with pytest.raises(FileNotFoundError, match="nothing-here"):
        LLM("nothing-here")
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + bytes(60))
    with pytest.raises((RuntimeError, ValueError), match="bad.gguf"):
        LLM(tmp_path / "bad.gguf")
    for options, words in (({"max_modle_len": 5}, "did you mean 'max_model_len'"), ({"dtype": "float12"}, "float12"),
                           ({"enable_prefix_caching": 3}, "true or false"), ({"block_size": "x"}, "block-size"),
                           ({"threads": True}, "true or false"), ({"device": "abacus"}, "abacus")):
        with pytest.raises(ValueError, match=words):
            LLM(model_path, **options)


def test_a_tokenizer_that_does_not_exist_is_named(model_path, tmp_path):
    """The folder above it was looked into instead."""
    from quire import LLM
    for name in ("Qwen/Qwen3-0.6B", tmp_path / "typo"):
        with pytest.raises(FileNotFoundError, match="'[^']*(Qwen3-0.6B|typo)' does not exist; give a folder with a tokenizer"):
            LLM(model_path, tokenizer=name)


def test_options_of_vllm_that_ask_for_nothing_are_taken_and_others_refused_with_the_reason(model_path):
    """`trust_remote_code is no option of a model` was all that a program for vLLM was told."""
    from quire import LLM
    llm = LLM(model_path, max_model_len=64, trust_remote_code=False, enforce_eager=False, swap_space=0, tokenizer_mode="auto",
              revision=None, disable_log_stats=True)
    assert llm.max_model_len == 64
    for option, words in (({"cpu_offload_gb": 4}, "does not offload weights"), ({"tokenizer_mode": "slow"}, "from its files"),
                          ({"trust_remote_code": "yes"}, "true or false"), ({"swap_space": "much"}, "a number"),
                          ({"gpu_memory_utilization": 1.5}, "at most 1"), ({"threads": 1.5}, "threads"),
                          ({"hf_overrides": {"hidden_size": 5}}, "config.json, which the GGUF file"), ({"task": "sing"}, "choose auto, generate"),
                          ({"task": "embed", "runner": "generate"}, "leave one or the other out"), ({"task": 3}, "a string")):
        with pytest.raises(ValueError, match=words):
            LLM(model_path, device="cpu", **option)


def test_options_of_vllm_that_change_nothing_are_taken_with_a_warning(model_path):
    """They were refused, although a typical program for vLLM has some of them."""
    taken = {"trust_remote_code": "never runs code", "enforce_eager": "ahead of time", "swap_space": "not swapped out",
             "gpu_memory_utilization": "it is for GPUs", "disable_log_stats": "only quire serve"}
    program = """
        import sys
        from quire import LLM
        llm = LLM(sys.argv[1], device="cpu", max_model_len=64, task="generate", trust_remote_code=True, enforce_eager=True,
                  swap_space=4, gpu_memory_utilization=0.8, disable_log_stats=False)
        print(llm.max_model_len)
    """
    done = python(model_path, program)
    assert done.returncode == 0 and done.stdout == "64\n", done.stderr
    for name, why in taken.items():
        lines = [line for line in done.stderr.splitlines() if "has no effect" in line and why in line]
        assert len(lines) == 1 and (name in lines[0] or name.replace("_", "-") in lines[0]), done.stderr
    quiet = python(model_path, program.replace("trust_remote_code=True, enforce_eager=True", "trust_remote_code=False")
                   .replace("swap_space=4, gpu_memory_utilization=0.8, disable_log_stats=False", "disable_log_stats=True"))
    assert quiet.returncode == 0 and "no effect" not in quiet.stderr, quiet.stderr


def test_a_task_of_vllm_chooses_the_runner(model_path):
    from quire import LLM, AsyncLLMEngine, EngineArgs
    embedder = LLM(model_path, max_model_len=64, task="embed")
    expected = LLM(model_path, max_model_len=64, runner="pooling", convert="embed")
    assert embedder.embed("hello")[0].outputs.embedding.tolist() == expected.embed("hello")[0].outputs.embedding.tolist()
    with pytest.raises(ValueError, match="classifier"):
        LLM(model_path, max_model_len=64, task="classify")
    assert AsyncLLMEngine.from_engine_args(EngineArgs(model_path, max_model_len=64, task="auto")).max_model_len == 64


def test_engine_args_have_the_options_of_a_model(model_path):
    from quire import LLM, AsyncEngineArgs, AsyncLLM, AsyncLLMEngine, EngineArgs
    llm = LLM.from_engine_args(EngineArgs(model=pathlib.Path(model_path), max_model_len="128", enforce_eager=False,
                                          override_generation_config={"temperature": 0.5}))
    assert type(llm) is LLM and llm.max_model_len == 128
    assert llm.get_default_sampling_params().temperature == 0.5
    assert AsyncLLMEngine is AsyncLLM
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model_path, max_model_len=64, disable_log_requests=True))
    assert type(engine) is AsyncLLM and engine.max_model_len == 64
    assert LLM(**dataclasses.asdict(EngineArgs(model_path, max_model_len=32))).max_model_len == 32
    # Each field is an option, and each flag of a model has a field.
    fields = {field.name for field in dataclasses.fields(AsyncEngineArgs)}
    for name in fields - {"model"}:
        try:
            LLM("nothing-here", **{name: {"no": "such value"}})
        except (ValueError, FileNotFoundError) as error:
            assert "is no option" not in str(error), name
    usage = subprocess.run([sys.executable, "-m", "quire", "serve", "--help"], capture_output=True, text=True,
                           env=os.environ | {"PYTHONPATH": str(PACKAGE)}, timeout=60).stdout
    flags = set()
    for group in ("Model", "KV cache", "Scheduler", "Adapters", "Device"):
        part = re.search(rf"^{group}:\n(.*?)(?=^\S|\Z)", usage, re.M | re.S)
        assert part is not None, group
        flags |= {flag.replace("-", "_") for flag in re.findall(r"^\s+--([a-z][a-z-]+)", part[1], re.M)}
    assert len(flags) > 40 and {flag.removeprefix("no_") for flag in flags} - fields == {"lora_modules"}


def test_engine_args_are_flags_of_a_program(model_path, capsys):
    import argparse
    from quire import AsyncEngineArgs, EngineArgs, FlexibleArgumentParser, LLM
    parser = FlexibleArgumentParser()
    assert EngineArgs.add_cli_args(parser) is parser
    parser.add_argument("--max-tokens", type=int)
    parser.set_defaults(model=model_path)
    args = parser.parse_args(["--max_model_len", "64", "--no-enable-prefix-caching", "-tp", "1", "--max_tokens=3",
                              "--override-generation-config", '{"temperature": 0.5}', "--kv-cache-memory-bytes", "64MiB",
                              "--enable-lora", "--lora-target-modules", "q_proj", "v_proj"])
    found = EngineArgs.from_cli_args(args)
    assert found == EngineArgs(model_path, max_model_len=64, enable_prefix_caching=False, tensor_parallel_size=1,
                               override_generation_config='{"temperature": 0.5}', kv_cache_memory_bytes="64MiB",
                               enable_lora=True, lora_target_modules=["q_proj", "v_proj"])
    llm = LLM.from_engine_args(found)
    assert llm.max_model_len == 64 and llm.get_default_sampling_params().temperature == 0.5
    # As in vLLM's examples: flags in a group, and all of them as arguments of LLM.
    parser = argparse.ArgumentParser()
    group = parser.add_argument_group("Engine arguments")
    EngineArgs.add_cli_args(group)
    group.set_defaults(model=model_path, max_model_len=32)
    assert LLM(**vars(parser.parse_args([]))).max_model_len == 32
    parser = AsyncEngineArgs.add_cli_args(argparse.ArgumentParser())
    assert AsyncEngineArgs.from_cli_args(parser.parse_args(["--enable-log-requests"])) == AsyncEngineArgs(
        enable_log_requests=True)
    alone = AsyncEngineArgs.add_cli_args(argparse.ArgumentParser(), async_args_only=True)
    assert set(vars(alone.parse_args([]))) == {"enable_log_requests", "disable_log_requests"}
    with pytest.raises(SystemExit):
        parser.parse_args(["--help"])
    assert "longest that fits in memory" in " ".join(capsys.readouterr().out.split())


def test_an_llm_engine_steps_through_its_requests(llm, model_path):
    from quire import EngineArgs, LLMEngine, PoolingParams, RequestOutputKind, SamplingParams
    engine = LLMEngine.from_engine_args(EngineArgs(model_path, max_model_len=512, max_num_seqs=8))
    assert engine.step() == [] and not engine.has_unfinished_requests()
    settings = {"0": greedy(logprobs=1, prompt_logprobs=1), "1": SamplingParams(n=2, temperature=1, seed=3, max_tokens=5),
                "2": greedy(output_kind=RequestOutputKind.FINAL_ONLY), "3": greedy(output_kind=RequestOutputKind.DELTA)}
    waiting, found, pieces = list(settings.items()), {}, []
    while waiting or engine.has_unfinished_requests():
        if waiting:
            name, params = waiting.pop(0)
            engine.add_request(name, PROMPT, params)
        for output in engine.step():
            assert output.request_id in settings
            if output.request_id == "3":
                pieces.append(output.outputs[0].text)
            if output.finished:
                found[output.request_id] = output
    assert engine.get_num_unfinished_requests() == 0 and set(found) == set(settings)
    for name in ("0", "1", "2"):
        assert found[name].outputs == llm.generate(PROMPT, settings[name])[0].outputs
    assert "".join(pieces) == found["2"].outputs[0].text
    for name in ("a", "b"):
        engine.add_request(name, PROMPT, greedy(max_tokens=None, ignore_eos=True))
    with pytest.raises(ValueError, match="'a' is running already"):
        engine.add_request("a", PROMPT, greedy())
    with pytest.raises(ValueError, match="temperature"):
        engine.add_request("c", PROMPT, greedy(temperature=-1))
    with pytest.raises(ValueError, match="load it with"):
        engine.add_request("c", PROMPT, PoolingParams(task="embed"))
    assert {output.request_id for output in engine.step()} <= {"a", "b"}
    engine.abort_request(["a", "nobody"])
    engine.abort_request("b")
    assert engine.step() == [] and not engine.has_unfinished_requests()
    engine.add_request("a", PROMPT, greedy(max_tokens=1))
    assert engine.step()[0].finished
    embedder = LLMEngine(model_path, max_model_len=64, runner="pooling")
    embedder.add_request("x", PROMPT, PoolingParams(task="embed"))
    [output] = embedder.step()
    assert output.request_id == "x" and output.outputs.data.ndim == 1 and not embedder.has_unfinished_requests()


def test_names_are_found_in_vllms_modules():
    done = subprocess.run([sys.executable, "-c", textwrap.dedent("""
        import pickle
        from quire.lora.request import LoRARequest
        from quire.sampling_params import BeamSearchParams, RequestOutputKind, SamplingParams, StructuredOutputsParams
        from quire.beam_search import BeamSearchOutput, BeamSearchSequence
        from quire.engine.arg_utils import AsyncEngineArgs, EngineArgs
        from quire.engine.async_llm_engine import AsyncLLMEngine
        from quire.engine.llm_engine import LLMEngine
        from quire.entrypoints.llm import LLM
        from quire.inputs import TextPrompt, TokensPrompt
        from quire.outputs import CompletionOutput, EmbeddingRequestOutput, PoolingOutput, RequestOutput
        from quire.pooling_params import PoolingParams
        from quire.utils import FlexibleArgumentParser
        from quire.v1.engine.async_llm import AsyncLLM
        import quire, quire.lora.request
        assert quire.lora.request.LoRARequest is quire.LoRARequest is LoRARequest
        assert pickle.loads(pickle.dumps(SamplingParams(top_k=3))) == SamplingParams(top_k=3)
        try:
            import quire.lora.nothing
        except ModuleNotFoundError:
            print("good")
    """)], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(PACKAGE)}, timeout=60)
    assert done.returncode == 0 and done.stdout == "good\n", done.stderr


def test_beam_search_finds_what_a_search_by_hand_finds(llm):
    from quire import BeamSearchParams
    tokenizer = llm.get_tokenizer()
    prompt = tokenizer.encode(PROMPT).tolist()
    width, steps, penalty = 3, 5, 0.7
    beams = [(0.0, prompt)]
    for _ in range(steps):
        longer = []
        for total, tokens in beams:
            row = llm.generate([tokens], greedy(max_tokens=1, logprobs=2 * width, ignore_eos=True))[0].outputs[0].logprobs[0]
            longer += [(total + entry.logprob, tokens + [token]) for token, entry in row.items()]
        beams = sorted(longer, key=lambda beam: -beam[0])[:width]
    params = BeamSearchParams(beam_width=width, max_tokens=steps, length_penalty=penalty, ignore_eos=True)
    [found, other] = llm.beam_search([PROMPT, {"prompt_token_ids": prompt[:3]}], params)
    assert [(round(one.cum_logprob, 9), one.tokens) for one in found.sequences] == [(round(a, 9), b) for a, b in beams]
    for one in found.sequences:
        assert one.text == tokenizer.decode(one.tokens, skip_special_tokens=False) and one.text.startswith(PROMPT)
        assert one.finish_reason == "length" and len(one.logprobs) == steps
        again = llm.generate([one.tokens], greedy(max_tokens=1, prompt_logprobs=0))[0].prompt_logprobs[len(prompt):]
        assert sum(row[token].logprob for row, token in zip(again, one.tokens[len(prompt):])) == pytest.approx(one.cum_logprob)
    alone = llm.beam_search({"prompt_token_ids": prompt[:3]}, params, concurrency_limit=1)
    assert [one.tokens for one in alone[0].sequences] == [one.tokens for one in other.sequences]
    [narrow] = llm.beam_search(PROMPT, BeamSearchParams(beam_width=1, max_tokens=12, ignore_eos=True))
    assert narrow.sequences[0].tokens[len(prompt):] == llm.generate(PROMPT, greedy(ignore_eos=True))[0].outputs[0].token_ids


def test_beam_search_ends_beams_and_says_what_is_wrong(llm):
    from quire import BeamSearchParams
    tokenizer = llm.get_tokenizer()
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "Say only: yes"}])
    params = BeamSearchParams(beam_width=2, max_tokens=24)
    [found] = llm.beam_search([ids], params)
    ended = [one for one in found.sequences if one.finish_reason == "stop"]
    assert ended and all(one.stop_reason is not None and one.tokens[-1] != one.stop_reason for one in ended)
    [kept] = llm.beam_search([ids], dataclasses.replace(params, include_stop_str_in_output=True))
    ended = [one for one in kept.sequences if one.finish_reason == "stop"]
    assert ended and all(one.tokens[-1] == one.stop_reason for one in ended)
    assert llm.beam_search([], params) == []
    for options, words in (({"temperature": 0.5}, "temperature"), ({"beam_width": 0}, "beam_width")):
        with pytest.raises(ValueError, match=words):
            BeamSearchParams(**({"beam_width": 2, "max_tokens": 2} | options))
    with pytest.raises(ValueError, match="logprobs"):
        llm.beam_search(PROMPT, BeamSearchParams(beam_width=50, max_tokens=1))
    with pytest.raises(ValueError, match="1024"):
        llm.beam_search([[5] * 1024], params)
    [last] = llm.beam_search([[5] * 1022], params)
    assert {len(one.tokens) for one in last.sequences if one.finish_reason == "length"} <= {1024}


def test_options_of_every_type_are_understood(model_path):
    from quire import LLM
    llm = LLM(model_path, max_model_len="256", enable_prefix_caching=False, threads=1, kv_cache_dtype="float32", seed=None,
              override_generation_config={"temperature": 0.5, "max_new_tokens": 3})
    assert llm.max_model_len == 256
    assert llm.get_default_sampling_params().temperature == 0.5
    assert len(llm.generate(PROMPT)[0].outputs[0].token_ids) == 3
    assert llm.generate([PROMPT, PROMPT])[1].num_cached_tokens == 0


def test_the_prefix_cache_can_be_reset(llm):
    prompt = list(range(100, 150))
    llm.generate([prompt], greedy())
    first = llm.generate([prompt], greedy())[0]
    assert first.num_cached_tokens > 0
    assert llm.reset_prefix_cache() is True
    again = llm.generate([prompt], greedy())[0]
    assert again.num_cached_tokens == 0
    assert again.outputs[0].token_ids == first.outputs[0].token_ids
    running = llm.stream("Once", greedy(max_tokens=400, ignore_eos=True))
    next(running)
    assert llm.reset_prefix_cache() is False
    running.close()


def test_the_environment_sets_options_that_are_not_given(model_path, monkeypatch):
    from quire import LLM
    monkeypatch.setenv("QUIRE_MAX_MODEL_LEN", "128")
    assert LLM(model_path).max_model_len == 128
    assert LLM(model_path, max_model_len=64).max_model_len == 64


def test_threads_can_share_a_model(llm):
    answers = {}
    def work(number):
        answers[number] = llm.generate(PROMPT, greedy())[0].outputs[0].text
    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 8 and len(set(answers.values())) == 1


def test_other_threads_run_while_the_model_computes(model_path):
    # The GIL is released: a thread counts while the main thread waits for the answer.
    done = python(model_path, """
        import sys, threading
        from quire import LLM, SamplingParams
        llm = LLM(sys.argv[1])
        counted, stop = 0, threading.Event()
        def count():
            global counted
            while not stop.is_set():
                counted += 1
        thread = threading.Thread(target=count)
        thread.start()
        llm.generate("x", SamplingParams(max_tokens=64, ignore_eos=True))
        at_end = counted
        stop.set()
        thread.join()
        print(at_end > 1000)
    """)
    assert done.returncode == 0 and done.stdout.strip() == "True", done.stderr


@pytest.mark.parametrize("call", ["llm.generate(['x'] * 4, endless)", "list(llm.stream('x', endless))",
                                  "asyncio.run(last(AsyncLLM(sys.argv[1]).generate('x', endless)))"])
def test_ctrl_c_aborts_and_raises(model_path, call):
    # The signal is sent when the main thread waits for an answer.
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(f"""
        import asyncio, sys, threading
        from quire import AsyncLLM, LLM, SamplingParams
        llm = LLM(sys.argv[1], max_model_len=8192)
        endless = SamplingParams(max_tokens=None, ignore_eos=True)
        async def last(outputs):
            async for output in outputs:
                pass
        def tell():
            names = set()
            while not names & {{"_run", "_iterate", "run_until_complete"}}:
                frame, names = sys._current_frames()[threading.main_thread().ident], set()
                while frame is not None:
                    names.add(frame.f_code.co_name)
                    frame = frame.f_back
            print("waits", flush=True)
        threading.Thread(target=tell).start()
        try:
            {call}
        except KeyboardInterrupt:
            print("interrupted", len(llm.generate("x", SamplingParams(max_tokens=2, ignore_eos=True))[0].outputs[0].token_ids))
        """), model_path], stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(PACKAGE)})
    try:
        assert process.stdout.readline() == "waits\n"
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 0 and out == "interrupted 2\n"


def test_ctrl_c_ends_loading():
    """It had no effect before the model was loaded."""
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent("""
        import sys
        from quire import LLM
        print("loads", flush=True)
        try:
            LLM(sys.argv[1], load_format="dummy", threads=1, hf_overrides={"num_hidden_layers": 4000})
        except KeyboardInterrupt:
            print("interrupted")
        """), ROOT / "tests" / "goldens" / "llama" / "config.json"], stdout=subprocess.PIPE, text=True,
                               env=os.environ | {"PYTHONPATH": str(PACKAGE)})
    try:
        assert process.stdout.readline() == "loads\n"
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0 and out == "interrupted\n"


def test_a_forked_process_ends_and_may_load_its_own(model_path):
    """It hung as soon as it used the parent's model, and even when it ended."""
    done = python(model_path, """
        import os, sys
        from quire import LLM, SamplingParams
        params = SamplingParams(temperature=0, max_tokens=2)
        llm = LLM(sys.argv[1], max_model_len=64)
        stream = llm.stream("x", SamplingParams(max_tokens=30, ignore_eos=True))
        next(stream)
        def child(work):
            pid = os.fork()
            if pid == 0:
                work()
                sys.exit(0)
            assert os.waitpid(pid, 0)[1] == 0
        def use():
            for call in (lambda: llm.generate("x", params), lambda: next(stream)):
                try:
                    call()
                    sys.exit("no error")
                except RuntimeError as error:
                    assert "fork()" in str(error)
            assert llm.get_tokenizer().encode("a b").size > 0
        def drop():
            global llm, stream
            del llm, stream
        child(lambda: None)
        child(use)
        child(drop)
        child(lambda: LLM(sys.argv[1], max_model_len=64).generate("x", params))
        print(len(list(stream)) > 0, llm.generate("x", params)[0].finished)
    """)
    assert done.returncode == 0 and done.stdout == "True True\n", done.stdout + done.stderr


def test_a_program_may_end_with_requests_under_way(model_path):
    done = python(model_path, """
        import sys
        from quire import LLM, SamplingParams
        llm = LLM(sys.argv[1])
        stream = llm.stream("x", SamplingParams(max_tokens=None, ignore_eos=True))
        next(stream)
        print("end")
    """)
    assert done.returncode == 0 and done.stdout == "end\n" and done.stderr == ""


def test_the_command_is_the_program(model_path):
    environment = os.environ | {"PYTHONPATH": str(PACKAGE)}
    version = subprocess.run([sys.executable, "-m", "quire", "--version"], capture_output=True, text=True, env=environment)
    import quire
    assert version.stdout == f"quire {quire.__version__}\n"
    wrong = subprocess.run([sys.executable, "-m", "quire", "frobnicate"], capture_output=True, text=True, env=environment)
    assert wrong.returncode == 2


def test_the_examples_of_the_manual_work_as_they_stand(model_path, tmp_path):
    text = (ROOT / "docs" / "python.md").read_text()
    examples = [part.split("```")[0] for part in text.split("```python\n")[1:]]
    assert len(examples) >= 3
    home = pathlib.Path(model_path)
    cache = tmp_path / "home" / "models" / "SmolLM2-135M-Instruct"
    cache.mkdir(parents=True)
    (cache / home.name).symlink_to(home)
    for example in examples:
        done = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, cwd=tmp_path, timeout=300,
                              env=os.environ | {"PYTHONPATH": str(PACKAGE), "QUIRE_HOME": str(tmp_path / "home")})
        assert done.returncode == 0 and done.stdout.strip(), (example, done.stderr)


def test_hints_of_types_are_installed():
    assert (PACKAGE / "quire" / "py.typed").exists() and (PACKAGE / "quire" / "_quire.pyi").exists()
