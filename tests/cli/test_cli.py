# SPDX-License-Identifier: Apache-2.0
"""The commands as a user runs them, except chat: arguments, output, exit codes, and error messages."""

import json
import os
import pty
import re
import select
import shutil
import signal
import socket
import struct
import subprocess

import pytest

from conftest import export

GREEDY = ("--temperature", "0", "--max-tokens", "8")


def ids_of(out):
    return [choice["token_ids"] for choice in out["choices"]]


def one_sentence(done, code, *words):
    """Checks that it failed with this code and gave the reason on one line (CLI11's own messages add where to look)."""
    assert done.returncode == code, (done.returncode, done.errors)
    lines = [line for line in done.errors.splitlines() if not line.startswith("Try: ")]
    assert len(lines) == 1 and lines[0].startswith("quire: "), done.errors
    for word in words:
        assert word in lines[0], lines[0]
    assert done.text == ""


def written_to(terminal: int) -> bytes:
    """What a program that has ended wrote to this pseudo-terminal."""
    os.set_blocking(terminal, False)
    out = b""
    try:
        while part := os.read(terminal, 65536):  # a read may give a part of it
            out += part
    except OSError:  # nothing more: EAGAIN, or EIO when nobody has the other end open
        pass
    return out


# quire run

def test_run_streams_while_it_computes(quire):
    process = quire.start("run", "endless", "hello", "--ignore-eos", "--max-tokens", "1000000")
    try:
        assert len(process.stdout.read(20)) == 20
        assert process.poll() is None
    finally:
        process.kill()
        process.communicate()


def test_run_says_the_same_from_both_formats_and_in_all_ways_to_give_the_prompt(quire):
    wanted = quire("run", "tiny", "hello", *GREEDY)
    assert wanted.returncode == 0 and wanted.errors == "" and wanted.stdout.endswith(b"\n")
    for arguments, stdin in ((["tiny.gguf", "hello"], None), (["--model", "tiny", "hello"], None), (["tiny", "-"], "hello\n"),
                             (["tiny"], "hello\n"), (["--model", "tiny", "-"], "hello"), (["--model", "tiny"], "hello")):
        assert quire("run", *arguments, *GREEDY, stdin=stdin).stdout == wanted.stdout, arguments
    assert quire("run", "hello", *GREEDY, env={"QUIRE_MODEL": "tiny"}).stdout == wanted.stdout


def test_run_takes_one_word_as_the_prompt_unless_it_names_a_model_and_stdin_is_piped(quire):
    # Not piped: it is the prompt, for the default model, which this cache does not have.
    one_sentence(quire("run", "tiny"), 1, "SmolLM2-135M-Instruct", "get it with")
    # Piped, but not the name of a model: it is the prompt.
    one_sentence(quire("run", "good morning", stdin="hello"), 1, "SmolLM2-135M-Instruct")
    # With --model the word is the prompt, whatever it is.
    named = quire.json("run", "--model", "tiny", "tiny.gguf", "--raw", *GREEDY)
    assert named["usage"]["prompt_tokens"] == quire.json("tokenize", "tiny", "tiny.gguf")["count"]


def test_run_sends_the_prompt_an_empty_line_and_what_is_piped(quire):
    def prompt(*arguments, stdin):
        return quire.json("run", *arguments, "--raw", *GREEDY, stdin=stdin)["usage"]["prompt_tokens"]
    both = quire.json("tokenize", "tiny", "-", stdin="Summarise\n\nfirst\nsecond")["count"]
    assert prompt("--model", "tiny", "Summarise", stdin="first\nsecond\n") == both
    assert prompt("tiny", "Summarise", stdin="first\nsecond") == both
    alone = quire.json("tokenize", "tiny", "Summarise")["count"]
    assert prompt("tiny", "Summarise", stdin="") == prompt("tiny", "Summarise", stdin=None) == alone
    ids = quire.json("run", "tiny", "[1, 2]", "--prompt-token-ids", *GREEDY, stdin="first")
    assert ids["usage"]["prompt_tokens"] == 2


def test_run_says_that_it_waits_for_standard_input(quire):
    process = subprocess.Popen([quire.path, "run", "tiny", "hello", *GREEDY], cwd=quire.folder, env=quire.environment,
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    select.select([process.stderr], [], [], 30)  # it says so after a while
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 0 and out and b"waiting for standard input" in errors


def test_an_installed_program_names_a_way_to_the_default_model_that_it_has(quire, tmp_path):
    """The bug: it named scripts/get-default-model, which only a source tree has."""
    (tmp_path / "bin").mkdir()
    shutil.copy(quire.path, tmp_path / "bin" / "quire")
    installed = subprocess.run([tmp_path / "bin" / "quire", "run", "hello"], env=quire.environment, stdin=subprocess.DEVNULL,
                               capture_output=True, text=True, timeout=60)
    assert installed.returncode == 1 and "scripts/" not in installed.stderr
    assert "quire pull HuggingFaceTB/SmolLM2-135M-Instruct" in installed.stderr
    # What that command puts into the cache is the default model from then on.
    shutil.copytree(quire.folder / "tiny", tmp_path / "models" / "HuggingFaceTB" / "SmolLM2-135M-Instruct")
    assert quire("run", "hello", *GREEDY, env={"QUIRE_HOME": str(tmp_path)}).text == quire("run", "tiny", "hello", *GREEDY).text


def test_run_without_a_prompt_says_so(quire):
    one_sentence(quire("run", env={"QUIRE_MODEL": "tiny"}), 2, "no prompt")
    one_sentence(quire("run", "tiny", "--raw", stdin=""), 2, "prompt is empty")


@pytest.mark.parametrize("prompt", ["[INST] hi [/INST]", "[1, 2, 3]", "[]", "  two  spaces ", "--dashes_and_underscores", "é 🙂"])
def test_run_takes_a_prompt_as_it_is(quire, prompt):
    count = quire.json("tokenize", "tiny", "-", stdin=prompt)["count"]
    for place in (["--", "tiny", prompt], ["--model", "tiny", "--", prompt]):
        done = quire("run", "--raw", "--json", *GREEDY, *place)
        assert done.returncode == 0, done.errors
        assert json.loads(done.text)["usage"]["prompt_tokens"] == count


def test_run_puts_the_prompt_into_the_chat_template_unless_raw(quire):
    rendered = quire.json("tokenize", "tiny", "-", stdin="user: hello\nassistant: ")["tokens"]
    chat = quire.json("run", "tiny", "hello", *GREEDY)
    assert chat["usage"]["prompt_tokens"] == len(rendered)
    assert ids_of(chat) == ids_of(quire.json("run", "tiny", json.dumps(rendered), "--prompt-token-ids", *GREEDY))
    raw = quire.json("run", "tiny", "user: hello\nassistant: ", "--raw", *GREEDY)
    assert ids_of(raw) == ids_of(chat)
    told = quire.json("run", "tiny", "hello", "--system", "be brief", *GREEDY)
    assert told["usage"]["prompt_tokens"] == quire.json("tokenize", "tiny", "system: be brief\nuser: hello\nassistant: ")["count"]


def test_run_takes_another_chat_template(quire):
    (quire.folder / "other.jinja").write_text("{% for m in messages %}<{{ m.content }}>{% endfor %}")
    out = quire.json("run", "tiny", "hello", "--chat-template", "other.jinja", *GREEDY)
    assert out["usage"]["prompt_tokens"] == quire.json("tokenize", "tiny", "<hello>")["count"]
    one_sentence(quire("run", "tiny", "hello", "--chat-template", "none.jinja"), 1, "none.jinja")
    whole = "{% for m in messages %}<{{ m.content }}>{% endfor %}"  # vLLM takes the template itself, too
    assert quire.json("run", "tiny", "hello", "--chat-template", whole, *GREEDY)["usage"] == out["usage"]
    one_sentence(quire("run", "tiny", "hello", "--chat-template", "{% for m in %}"), 2, "--chat-template")
    (quire.folder / "broken.jinja").write_text("{% for m in %}")
    done = quire("run", "tiny", "hello", "--chat-template", "broken.jinja")
    assert done.returncode in (1, 2) and "broken.jinja" in done.errors


def test_a_schema_and_a_grammar_may_stand_on_the_command_line(quire):
    schema = '{"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}'
    (quire.folder / "ok.json").write_text(schema)
    texts = [quire.json("run", "tiny", "hello", "--json-schema", flag, "--max-tokens", "200", "--seed", "1")["choices"][0]["text"]
             for flag in ("ok.json", schema)]
    assert texts[0] == texts[1] and set(json.loads(texts[0])) == {"ok"}
    assert quire.json("run", "tiny", "hello", "--grammar", 'root ::= "a" | "b"')["choices"][0]["text"] in ("a", "b")
    one_sentence(quire("run", "tiny", "hello", "--json-schema", '{"type":'), 2, "--json-schema: ")
    one_sentence(quire("run", "tiny", "hello", "--json-schema", "none.json"), 1, "--json-schema", "none.json")


def test_run_json_has_its_fields(quire):
    out = quire.json("run", "tiny", "hello", *GREEDY)
    assert set(out) == {"model", "choices", "usage", "timings"}
    assert out["model"] == "tiny" and set(out["timings"]) == {"first_token_s", "total_s"}
    choice = out["choices"][0]
    assert set(choice) == {"index", "text", "token_ids", "finish_reason", "stop_reason"}
    assert choice["finish_reason"] == "length" and choice["stop_reason"] is None and len(choice["token_ids"]) == 8
    assert out["usage"] == {"prompt_tokens": out["usage"]["prompt_tokens"], "completion_tokens": 8, "cached_tokens": 0}
    assert quire("run", "tiny", "hello", *GREEDY).text == choice["text"] + "\n"


@pytest.mark.parametrize("model", ["tiny", "tiny.gguf"])
def test_run_gives_the_references_greedy_tokens(quire, llama_goldens, model):
    for prompt in llama_goldens[1:4]:
        out = quire.json("run", model, json.dumps(prompt["tokens"]), "--prompt-token-ids", "--temperature", "0", "--ignore-eos",
                         "--max-tokens", "64", "--dtype", "float32")
        assert ids_of(out) == [prompt["greedy"]]


def test_run_n_answers_use_the_seeds_from_the_first_on(quire):
    sampled = ("run", "tiny", "hello", "--max-tokens", "8", "--temperature", "1")
    three = quire.json(*sampled, "--n", "3", "--seed", "11")
    assert [choice["index"] for choice in three["choices"]] == [0, 1, 2]
    assert three["usage"]["completion_tokens"] == 24
    alone = [ids_of(quire.json(*sampled, "--seed", str(11 + i)))[0] for i in range(3)]
    assert ids_of(three) == alone and len({tuple(ids) for ids in alone}) == 3
    shown = quire(*sampled, "--n", "3", "--seed", "11").text
    assert [line for line in shown.splitlines() if line.startswith("--- ")] == ["--- 1", "--- 2", "--- 3"]


def test_run_repeats_with_a_seed_and_changes_with_another(quire):
    def sampled(*flags):
        return ids_of(quire.json("run", "tiny", "hello", "--max-tokens", "16", "--temperature", "1", *flags))[0]
    assert sampled("--seed", "7") == sampled("--seed", "7")
    assert sampled("--seed", "7") != sampled("--seed", "8")
    assert sampled() == sampled() == sampled("--seed", "0")
    assert sampled("--seed", "-5") == sampled("--seed=-5")
    assert sampled("--top-k", "1") == ids_of(quire.json("run", "tiny", "hello", "--max-tokens", "16", "--temperature", "0"))[0]


def test_run_stops_at_a_text(quire):
    whole = quire.json("run", "tiny", "hello", "--temperature", "0", "--max-tokens", "40", "--ignore-eos")["choices"][0]["text"]
    stop = re.search(r"nused_\d+", whole).group()
    before = whole[:whole.index(stop)]
    flags = ("run", "tiny", "hello", "--temperature", "0", "--max-tokens", "40", "--ignore-eos", "--stop", stop)
    choice = quire.json(*flags, "--stop", "never seen")["choices"][0]
    assert choice["text"] == before and choice["finish_reason"] == "stop" and choice["stop_reason"] == stop
    assert quire.json(*flags, "--include-stop-str-in-output")["choices"][0]["text"] == before + stop
    assert quire(*flags).text == before + "\n"


def test_run_stops_at_a_token_and_not_before_min_tokens(quire):
    flags = ("run", "tiny", "hello", "--temperature", "0", "--ignore-eos")
    ids = ids_of(quire.json(*flags, "--max-tokens", "20"))[0]
    end = ids[5]
    first = ids.index(end)
    choice = quire.json(*flags, "--max-tokens", "20", "--stop-token-ids", end)["choices"][0]
    assert choice["token_ids"] == ids[:first + 1] and choice["finish_reason"] == "stop" and choice["stop_reason"] == end
    later = quire.json(*flags, "--max-tokens", "20", "--stop-token-ids", end, "--min-tokens", "15")["choices"][0]
    assert len(later["token_ids"]) >= 15


LOOKUP = '{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4, "prompt_lookup_min": 2}'


@pytest.mark.parametrize("flags", [(), ("--temperature", 0.8, "--seed", 3), ("--regex", "([A-Z][a-z]+ ?)+")])
def test_speculation_changes_no_answer_of_the_default_model(quire, flags):
    model = os.environ.get("QUIRE_TEST_MODEL")
    if not model:
        pytest.skip("needs the default model (QUIRE_TEST_MODEL)")
    names = ", ".join(f"{name} {i}" for i, name in enumerate(["Anna", "Bertram", "Cecilia", "Dorothea", "Emil"] * 2))
    arguments = ("run", model, f"Repeat this list exactly: {names}", "--max-tokens", 60, "--logprobs", 3, *flags)
    without = quire.json(*arguments)
    for config in (LOOKUP, json.dumps({"model": model, "num_speculative_tokens": 3})):  # the model as its own draft model
        with_drafts = quire.json(*arguments, "--speculative-config", config)
        assert with_drafts["choices"] == without["choices"] and with_drafts["usage"] == without["usage"]


def test_run_gives_logprobs(quire):
    out = quire.json("run", "tiny", "hello", "--raw", *GREEDY, "--logprobs", "3", "--prompt-logprobs", "2")
    choice = out["choices"][0]
    assert len(choice["logprobs"]) == 8
    for token, row in zip(choice["token_ids"], choice["logprobs"], strict=True):
        assert set(row[0]) == {"token_id", "token", "logprob", "rank"}
        # The sampled token, then the most likely one: the same when greedy.
        assert row[0] == row[1] and row[0]["token_id"] == token
        assert [entry["rank"] for entry in row] == [1, 1, 2, 3]
        assert all(0 >= a["logprob"] >= b["logprob"] for a, b in zip(row, row[1:]))
    tokens = quire.json("tokenize", "tiny", "hello")["tokens"]
    assert len(out["prompt_logprobs"]) == len(tokens)
    assert out["prompt_logprobs"][0] is None  # nothing precedes the first token
    for token, row in zip(tokens[1:], out["prompt_logprobs"][1:], strict=True):
        assert row[0]["token_id"] == token and [entry["rank"] for entry in row[1:]] == [1, 2]


def test_run_bounds_the_answer_by_the_context(quire):
    out = quire.json("run", "tiny", "hello", "--raw", "--temperature", "0", "--ignore-eos", "--max-model-len", "64")
    assert out["usage"]["prompt_tokens"] + out["usage"]["completion_tokens"] == 64
    assert out["choices"][0]["finish_reason"] == "length"
    one_sentence(quire("run", "tiny", "x" * 100, "--raw", "--max-model-len", "64"), 2, "100 tokens", "64")


def test_run_on_sigint_stops_with_130(quire):
    process = quire.start("run", "endless", "hello", "--ignore-eos", "--max-tokens", "1000000")
    assert process.stdout.read(5)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and errors == b""


@pytest.mark.parametrize("arguments", [("run", "endless", "hello", "--ignore-eos", "--max-tokens", "1000000"),
                                       ("inspect", "tiny", "--tensors", "--json")])
def test_a_closed_stdout_ends_it(quire, arguments):
    process = quire.start(*arguments)
    assert process.stdout.read(10)
    process.stdout.close()
    assert process.wait(timeout=60) in (0, 1, -signal.SIGPIPE)
    assert b"terminate" not in process.stderr.read()
    process.stderr.close()


# Flags

@pytest.mark.parametrize(("flags", "words"), [
    (["--temperature", "-1"], ["temperature", "-1"]), (["--temperature", "nan"], ["temperature", "nan"]),
    (["--temperature", "abc"], ["--temperature", "abc"]), (["--top-p", "0"], ["top_p", "0"]),
    (["--top-p", "1.5"], ["top_p", "1.5"]), (["--top-k", "-5"], ["top_k", "-5"]), (["--min-p", "2"], ["min_p", "2"]),
    (["--repetition-penalty", "0"], ["repetition_penalty"]), (["--presence-penalty", "-3"], ["presence_penalty", "-3"]),
    (["--frequency-penalty", "3"], ["frequency_penalty", "3"]), (["--max-tokens", "0"], ["max_tokens", "0"]),
    (["--max-tokens", "1.5"], ["--max-tokens", "1.5"]), (["--min-tokens", "9", "--max-tokens", "3"], ["min_tokens", "9"]),
    (["--n", "0"], ["n must be", "0"]), (["--n", "1000000000000"], ["n must be"]),
    (["--n", "2", "--temperature", "0"], ["n must be 1"]), (["--stop", ""], ["stop"]),
    (["--stop-token-ids", "9999"], ["stop_token_ids", "9999"]), (["--logprobs", "100"], ["logprobs", "--max-logprobs"]),
    (["--prompt-logprobs", "100"], ["prompt_logprobs"]), (["--max-tokens"], ["--max-tokens"]),
    (["--dtype", "int3"], ["--dtype", "int3"]), (["--load-format", "pickle"], ["--load-format", "pickle"]),
    (["--max-model-len", "abc"], ["--max-model-len", "abc", "8192"]), (["--max-model-len", "0"], ["--max-model-len"]),
    (["--max-model-len", "99999999999999999999k"], ["--max-model-len"]), (["--max-model-len", "2k"], ["2000", "1024"]),
    (["--threads", "-5"], ["--threads"]), (["--threads", "100000"], ["--threads"]), 
    (["--block-size", "7"], ["--block-size", "multiple of 8 from 8 to 65536"]), (["--block-size", "-8"], ["--block-size"]),
    (["--block-size", "0"], ["--block-size"]), (["--kv-cache-dtype", "int3"], ["kv-cache-dtype", "int3"]),
    (["--num-gpu-blocks-override", "1"], ["--num-gpu-blocks-override"]), (["--max-num-seqs", "-1"], ["--max-num-seqs", "-1"]),
    (["--max-num-batched-tokens", "-1"], ["--max-num-batched-tokens"]),
    (["--max-logprobs", "-2"], ["--max-logprobs is -2", "-1"]),
    (["--max-num-seqs", "9223372036854775807"], ["--max-num-seqs"]), (["--kv-cache-memory-bytes", "many"], ["many"]),
    (["--device", "tpu"], ["--device", "tpu", "emulator"]), (["--cpu-isa", "z80"], ["z80"]),
    (["--device", "emulator", "--gpu-memory-utilization", "1.5"], ["--gpu-memory-utilization", "1.5"]),
    (["--device", "cpu", "--gpu-memory-utilization", "0"], ["--gpu-memory-utilization", "above 0"]),
    (["--scheduling-policy", "lifo"], ["--scheduling-policy", "lifo"]), (["--no-such-flag"], ["--no-such-flag"]),
    (["--generation-config", "nowhere"], ["nowhere"]), (["--override-generation-config", "{"], ["--override-generation-config"]),
    (["--override-generation-config", '{"top_k": "many"}'], ["--override-generation-config", "top_k"]),
    (["--override-generation-config", '{"temperature": 9}'], ["--override-generation-config: temperature", "got 9"]),
    (["--speculative-config", "ngram"], ["--speculative-config", "JSON object"]),
    (["--speculative-config", '{"method": "eagle", "num_speculative_tokens": 2}'], ["eagle", "ngram"]),
    (["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 0}'], ["num_speculative_tokens"]),
    (["--kv-offload-dir", "pages"], ["--kv-offload-size"]), (["--kv-offload-size", "1GiB"], ["--kv-offload-dir"]),
    (["--kv-offload-dir", "pages", "--kv-offload-size", "many"], ["--kv-offload-size", "many"]),
    (["--kv-offload-dir", "pages", "--kv-offload-size", "0"], ["--kv-offload-size", "1 byte"]),
    (["--kv-offload-dir", "pages", "--kv-offload-size", "1G", "--no-enable-prefix-caching"], ["--no-enable-prefix-caching"]),
    (["--device", "cpu", "--kv-offload-host-bytes", "1G"], ["--kv-offload-host-bytes", "GPUs"]),
    (["a third word"], ["a third word"]),
])
def test_wrong_flags_are_named_with_their_value(quire, flags, words):
    done = quire("run", "tiny", "hello", *flags)
    one_sentence(done, 1 if flags[0] in ("--generation-config",) else 2, *words)


def test_a_gpu_s_share_of_memory_has_no_effect_on_a_cpu_and_a_warning_says_so(quire):
    """It was an error, which programs for vLLM met that set it on every machine."""
    done = quire("run", "tiny", "hello", "--max-tokens", "1", "--device", "cpu", "--gpu-memory-utilization", "0.5")
    assert done.returncode == 0, done.errors
    assert done.errors.count("--gpu-memory-utilization has no effect") == 1 and "--kv-cache-memory-bytes" in done.errors


def test_a_draft_model_that_is_not_there_is_named(quire):
    config = '{"model": "nowhere/at-all", "num_speculative_tokens": 2}'
    one_sentence(quire("run", "tiny", "hello", "--speculative-config", config), 1, "draft model", "nowhere/at-all")


def test_devices_lists_what_is_available_and_why_not(quire):
    listed = quire.json("devices")
    rows = {row["device"]: row for row in listed["devices"]}
    assert list(rows) == ["cpu", "cuda", "metal", "emulator"]
    assert rows["cpu"]["available"] and rows["cpu"]["compute_units"] >= 1 and rows["cpu"]["memory_bytes"] > 0
    assert rows["emulator"]["available"]
    for row in listed["devices"]:
        assert ("why" in row) != row["available"], row
    assert rows[listed["auto"]]["available"] and listed["auto"] != "emulator"
    text = quire("devices").text
    assert all(name in text for name in rows) and "* " + listed["auto"] in text


def test_selftest_compares_every_op_of_a_device_with_the_cpu(quire):
    tested = quire.json("selftest", "--device", "emulator")
    assert tested["passed"] and tested["device"]["device"] == "emulator" and tested["kernels"] > 50
    assert tested["broken_kernels"] == [] and tested["version"] and tested["system"]
    ops = {check["op"].split(",")[0] for check in tested["checks"]}
    assert {"rms_norm", "rope", "linear", "attention", "gated_delta_net", "experts", "sampling"} <= ops
    assert all(check["passed"] and check["error"] <= check["bound"] for check in tested["checks"])
    # 16-bit results are near the CPU's floats, but not equal.
    assert any(check["error"] > 0 for check in tested["checks"])


def test_heads_that_a_gpu_cannot_hold_are_refused_at_load(quire):
    config = json.loads((export.GOLDENS / "llama" / "config.json").read_text()) | {"head_dim": 640}
    folder = quire.folder / "wide-heads"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    small = ("bench", "latency", "--model", folder, "--load-format", "dummy", "--batch-size", 1, "--input-len", 4, "--output-len", 2,
             "--num-iters", 1, "--num-iters-warmup", 0)
    one_sentence(quire(*small, "--device", "emulator"), 1, "640", "576", "emulator", "--device cpu")
    assert quire(*small, "--device", "cpu").returncode == 0


def test_selftest_wants_a_gpu(quire):
    one_sentence(quire("selftest", "--device", "cpu"), 2, "--device is cpu", "cuda", "metal", "emulator")
    one_sentence(quire("selftest", "--device", "gpu"), 2, "--device", "gpu")
    # A variable that is set for the other commands does not prevent the use of a GPU.
    if quire.json("devices")["auto"] == "cpu":
        one_sentence(quire("selftest", env={"QUIRE_DEVICE": "cpu"}), 1, "no GPU to test", "--device emulator")
    else:
        tested = quire("selftest", "--json", env={"QUIRE_DEVICE": "cpu"})
        assert json.loads(tested.text)["passed"] and "QUIRE_DEVICE is cpu" in tested.errors
    chosen = quire("selftest", "--device", "emulator", env={"QUIRE_DEVICE": "cpu", "QUIRE_EMULATOR_ORDER": "junk"})
    one_sentence(chosen, 2, "QUIRE_EMULATOR_ORDER", "junk")


def test_wrong_prompt_ids_are_named(quire):
    one_sentence(quire("run", "tiny", "[99999]", "--prompt-token-ids"), 2, "99999", "511")
    for wrong in ("[1, 2", "12", '["a"]', "[-1]", "[1.5]", "[99999999999]"):
        one_sentence(quire("run", "tiny", wrong, "--prompt-token-ids"), 2, "--prompt-token-ids")


def test_underscores_and_equal_signs_are_accepted(quire):
    wanted = quire("run", "tiny", "hello", *GREEDY).stdout
    assert quire("run", "tiny", "hello", "--temperature=0", "--max_tokens=8").stdout == wanted
    assert quire("run", "tiny", "hello", "--temperature", "0", "--max_tokens", "8", "--no_ignore_eos").stdout == wanted


def test_flags_come_from_the_environment_and_the_command_line_wins(quire):
    def length(*flags, **env):
        return quire.json("run", "tiny", "hello", "--ignore-eos", *flags, env=env)["usage"]["completion_tokens"]
    prompt = quire.json("run", "tiny", "hello", *GREEDY)["usage"]["prompt_tokens"]
    assert length(QUIRE_MAX_MODEL_LEN="64") == 64 - prompt
    assert length("--max-model-len", "128", QUIRE_MAX_MODEL_LEN="64") == 128 - prompt
    assert length(QUIRE_MAX_TOKENS="5") == 5
    one_sentence(quire("run", "tiny", "hello", env={"QUIRE_DEVICE": "gpu"}), 2, "--device", "gpu")
    one_sentence(quire("run", "tiny", "hello", env={"QUIRE_MAX_MODEL_LEN": "abc"}), 2, "--max-model-len", "abc")
    one_sentence(quire("run", "tiny", "hello", env={"QUIRE_TOP_K": "x"}), 2, "--top-k", "x")


def test_booleans_have_negative_forms_and_can_come_from_the_environment(quire):
    def is_json(*flags, **env):
        return quire("tokenize", "tiny", "hi", *flags, env=env).text.startswith("{")
    assert is_json("--json") and not is_json() and not is_json("--json", "--no-json") and is_json("--no-json", "--json")
    for yes in ("1", "true", "on"):
        assert is_json(QUIRE_JSON=yes) and not is_json("--no-json", QUIRE_JSON=yes)
    for no in ("0", "false", "off"):
        assert not is_json(QUIRE_JSON=no) and is_json("--json", QUIRE_JSON=no)
    one_sentence(quire("tokenize", "tiny", "hi", env={"QUIRE_JSON": "maybe"}), 2, "--json", "maybe")
    off = quire.json("run", "tiny", "hello", *GREEDY, "--no-enable-prefix-caching", "--no-enable-chunked-prefill")
    assert ids_of(off) == ids_of(quire.json("run", "tiny", "hello", *GREEDY))


@pytest.mark.parametrize(("command", "flags"), [
    (["run"], ["--raw", "--json", "--prompt-token-ids", "--system", "--temperature", "--stop", "--n", "--dtype", "--threads"]),
    (["chat"], ["--system", "--temperature", "--chat-template", "--kv-cache-dtype"]),
    (["tokenize"], ["--decode", "--ids", "--json", "--add-special-tokens"]),
    (["inspect"], ["--tensors", "--show-chat-template", "--json", "--max-model-len"]), (["pull"], ["--revision", "--quant"]),
    (["bench", "latency"], ["--batch-size", "--input-len", "--output-len", "--num-iters", "--output-json"]),
    (["bench", "throughput"], ["--num-prompts", "--dataset-path", "--json"])])
def test_help_lists_every_flag_with_its_variable(quire, command, flags):
    done = quire(*command, "--help")
    assert done.returncode == 0 and done.errors == "" and f"quire {' '.join(command)}" in done.text
    for flag in flags:
        assert re.search(rf"^  {flag}[ ,]", done.text, re.MULTILINE), flag
    for entry in re.findall(r"^  --[a-z].*(?:\n {8,}.*)*", done.text, re.MULTILINE):
        flag = re.match(r"  --([a-z-]+)", entry).group(1)
        if command != ["pull"]:
            assert f"(Env:QUIRE_{flag.replace('-', '_').upper()})" in entry, entry
        if "," in entry.split(" ")[2]:
            assert f"--no-{flag}" in entry, entry


@pytest.mark.parametrize("command", [[], ["serve"], ["run"], ["chat"], ["tokenize"], ["pull"], ["bench", "serve"]])
def test_help_wraps_to_the_width(quire, command):
    for columns in (None, 50, 100):
        text = quire(*command, "--help", env={"COLUMNS": str(columns)} if columns else None).text
        words = [line for line in text.splitlines() if len(line) > (columns or 80)]
        # What cannot be broken may exceed the width: the two names of a switch, a variable, a command to copy.
        assert all(len(line.split()) == 1 for line in words), words
        assert "{false}" not in text and "INT in [" not in text
    for wrong in ("0", "-5", "many", "99999999999999"):
        assert quire(*command, "--help", env={"COLUMNS": wrong}).returncode == 0


def test_version_help_and_unknown_commands(quire):
    assert re.fullmatch(r"quire \d+\.\d+\.\d+\n", quire("--version").text)
    assert quire("-v").text == quire("version").text == quire("--version").text
    help_text = quire("--help").text
    for command in ("run", "chat", "tokenize", "inspect", "pull", "bench", "help", "version"):
        assert re.search(rf"^  {command} ", help_text, re.MULTILINE)
    assert quire().returncode == 2 and quire().text == help_text == quire("help").text
    assert quire("help", "run").text == quire("run", "--help").text
    assert quire("help", "bench", "serve").text == quire("bench", "serve", "--help").text
    one_sentence(quire("frobnicate"), 2, "frobnicate", "serve")
    one_sentence(quire("help", "frobnicate"), 2, "frobnicate")
    one_sentence(quire("bench"), 2, "latency")
    one_sentence(quire("bench", "nothing"), 2, "nothing")


@pytest.mark.parametrize(("wrong", "meant"), [
    (["sevre"], "'serve'"), (["tokenise", "x"], "'tokenize'"), (["bench", "latncy"], "'latency'"), (["help", "srve"], "'serve'"),
    (["serve", "--prot", "80"], "'--port'"), (["run", "tiny", "hi", "--max-token=5"], "'--max-tokens'"),
    (["run", "tiny", "hi", "--temprature", "0"], "'--temperature'"), (["run", "--log-levle", "info", "hi"], "'--log-level'"),
])
def test_a_misspelt_command_or_flag_gets_a_suggestion(quire, wrong, meant):
    one_sentence(quire(*wrong), 2, "did you mean " + meant)


# The bug: a number out of range became the nearest one that there is, 010 was eight, and an empty value zero.
@pytest.mark.parametrize(("arguments", "sentence"), [
    (["--max-tokens", "abc"], "--max-tokens is 'abc'; it must be a whole number"),
    (["--max-tokens", ""], "--max-tokens is ''; it must be a whole number"),
    (["--max-tokens=5.5"], "--max-tokens is '5.5'; it must be a whole number"),
    (["--seed", "9223372036854775808"], "--seed is '9223372036854775808'; it must be a whole number"),
    (["--top-k", "0x10"], "--top-k is '0x10'; it must be a whole number"),
    (["--temperature", "0,5"], "--temperature is '0,5'; it must be a number"),
    (["--log-level", "inof"], "--log-level is 'inof'; did you mean 'info'?"),
    (["--log-level", "loud"], "--log-level is 'loud'; it must be one of debug, info, warning, error"),
    (["--max-tokens"], "--max-tokens needs a value"),
    (["--max-tokens", "1", "--max-tokens", "2"], "--max-tokens was given 2 times; give it once"),
])
def test_a_value_that_does_not_suit_a_flag_is_refused(quire, arguments, sentence):
    done = quire("run", "tiny", "hello", *arguments)
    assert done.returncode == 2 and done.errors == f"quire: {sentence}\nTry: quire run --help\n" and done.text == ""


def test_a_range_is_named_with_a_value_outside_of_it(quire):
    assert "--port is '70000'; it must be a whole number from 0 to 65535" in quire("serve", "tiny", "--port", "70000").errors


@pytest.mark.parametrize("address", ["http://", "127.0.0.1:8000", "ftp://host", "http://127.0.0.1:99999"])
def test_ps_wants_an_address(quire, address):
    one_sentence(quire("ps", "--base-url", address), 2, f"--base-url is '{address}'", "http://127.0.0.1:8000")


def test_numbers_are_decimal(quire):
    for ten in ("10", "010", "+10", " 10 "):
        answer = quire.json("run", "tiny", "hello", "--ignore-eos", "--temperature", "0", "--max-tokens", ten)
        assert answer["usage"]["completion_tokens"] == 10, ten
    assert quire("run", "tiny", "hello", "--max-tokens", "1", "--seed=-9223372036854775808").returncode == 0


def test_a_misspelt_model_gets_a_suggestion(quire, tmp_path):
    shutil.copytree(quire.folder / "tiny", tmp_path / "models" / "acme" / "Tiny-Llama")
    home = {"QUIRE_HOME": str(tmp_path)}
    one_sentence(quire("run", "Tiny-Lama", "hi", env=home), 1, "did you mean 'Tiny-Llama'?")
    one_sentence(quire("run", "amce/tiny-llama", "hi", env=home), 1, "did you mean 'acme/Tiny-Llama'?")
    one_sentence(quire("run", "something-else", "hi", env=home), 1, "quire pull something-else")


# The environment

def test_a_bad_variable_does_not_beat_a_flag(quire):
    for name in ("QUIRE_MAX_TOKENS", "QUIRE_TEMPERATURE"):
        done = quire("run", "tiny", "hello", *GREEDY, env={name: "junk"})
        assert done.returncode == 0 and done.errors == "", done.errors
    # Nor does a variable of another command.
    done = quire("tokenize", "tiny", "hello", env={"QUIRE_PORT": "junk", "QUIRE_TEMPERATURE": "hot"})
    assert done.returncode == 0 and done.errors == "", done.errors


@pytest.mark.parametrize(("name", "value", "words"), [
    ("QUIRE_TOP_K", "x", ["'x'", "--top-k", "a whole number"]), ("QUIRE_TEMPERATURE", "hot", ["'hot'", "a number"]),
    ("QUIRE_JSON", "maybe", ["'maybe'", "--json", "true or false"]), ("QUIRE_LOG_LEVEL", "loud", ["'loud'", "debug, info"]),
    # These are found to be wrong later, where they are used.
    ("QUIRE_MAX_MODEL_LEN", "abc", ["--max-model-len", "abc", "from QUIRE_MAX_MODEL_LEN"]),
    ("QUIRE_TOP_P", "7", ["top_p", "7", "from QUIRE_TOP_P"]), ("QUIRE_DEVICE", "gpu", ["--device", "gpu", "from QUIRE_DEVICE"]),
])
def test_a_bad_variable_is_named_with_what_it_should_be(quire, name, value, words):
    one_sentence(quire("run", "tiny", "hello", *GREEDY[2:], env={name: value}), 2, name, *words)


def test_a_flag_is_not_blamed_on_the_environment(quire):
    done = quire("run", "tiny", "hello", "--top-p", "7", env={"QUIRE_TOP_K": "3"})
    assert done.returncode == 2 and "environment" not in done.errors


def test_misspelt_variables_are_pointed_out_and_others_are_not(quire):
    done = quire("tokenize", "tiny", "hello", env={"QUIRE_MAX_MODEL_LENGHT": "5", "QUIRE_TEMPRATURE": "1"})
    assert done.returncode == 0
    assert "did you mean QUIRE_MAX_MODEL_LEN?" in done.errors and "did you mean QUIRE_TEMPERATURE?" in done.errors
    quiet = {"QUIRE_CPU_ISA": "portable", "QUIRE_CUDA_SYNCH": "1", "QUIRE_TEST_MODEL_X": "x", "QUIRE_IMAGE_TAG": "3", "QUIRE_X": "1",
             "QUIRE_SERVICE_HOST": "10.0.0.1", "QUIRE_SERVICE_PORT": "80", "QUIRE_SERVICE_PORT_HTTP": "80",
             "QUIRE_PORT_80_TCP": "tcp://10.0.0.1:80", "QUIRE_PORT_80_TCP_ADDR": "10.0.0.1", "QUIRE_PORT": "tcp://10.0.0.1:80",
             "QUIRE_HOSTS_PORT": "tcp://10.0.0.1:80"}
    assert quire("tokenize", "tiny", "hello", env=quiet).errors == ""
    assert quire("--log-level", "error", "tokenize", "tiny", "hello", env={"QUIRE_MODLE": "x"}).errors == ""


def test_a_busy_port_is_noticed_before_the_model_is_loaded(quire):
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        done = quire("serve", "bad-model.gguf", "--port", port)
        assert done.returncode == 1 and f"port {port}" in done.errors and "--port 0" in done.errors
        assert "bad-model" not in done.errors


def test_logs_have_no_colour_outside_a_terminal_or_with_no_color(quire):
    for no_color in ("", "1"):
        master, slave = pty.openpty()
        subprocess.run([quire.path, "run", "tiny", "hello", "--log-level", "info", *GREEDY], stderr=slave, stdout=subprocess.DEVNULL,
                       stdin=subprocess.DEVNULL, cwd=quire.folder, env=quire.environment | {"NO_COLOR": no_color}, check=True)
        seen = written_to(master)
        assert b"Llama" in seen and (re.search(rb"\x1b\[[0-9;]*m", seen) is None) == bool(no_color)
        os.close(slave)
        os.close(master)
    assert "\x1b" not in quire("run", "tiny", "hello", "--log-level", "info", *GREEDY).errors


# Models that are missing or broken

@pytest.fixture(scope="module")
def broken(quire):
    """Copies of the tiny model, each wrong in one way."""
    def change(name, **fields):
        shutil.copytree(quire.folder / "tiny", quire.folder / name)
        config = json.loads((quire.folder / name / "config.json").read_text())
        (quire.folder / name / "config.json").write_text(json.dumps(config | fields))
    whole = (quire.folder / "tiny.gguf").read_bytes()
    (quire.folder / "cut.gguf").write_bytes(whole[:5000])
    (quire.folder / "cut-data.gguf").write_bytes(whole[:-50_000])
    (quire.folder / "text.gguf").write_bytes(b"hello, this is a letter\n" * 10)
    (quire.folder / "empty.gguf").write_bytes(b"")
    (quire.folder / "version.gguf").write_bytes(whole[:4] + struct.pack("<I", 99) + whole[8:])
    (quire.folder / "other.gguf").write_bytes(whole.replace(b"general.architecture\x08\0\0\0\x05\0\0\0\0\0\0\0llama",
                                                            b"general.architecture\x08\0\0\0\x05\0\0\0\0\0\0\0mamba"))
    (quire.folder / "no-config").mkdir()
    shutil.copy(quire.folder / "tiny" / "model.safetensors", quire.folder / "no-config")
    change("architecture", architectures=["MambaForCausalLM"])
    change("maths", attn_logit_softcapping=30.0)
    change("sizes", hidden_size=128)
    change("absurd", vocab_size=-3)
    change("no-weights")
    (quire.folder / "no-weights" / "model.safetensors").unlink()
    change("cut-weights")
    weights = (quire.folder / "tiny" / "model.safetensors").read_bytes()
    (quire.folder / "cut-weights" / "model.safetensors").write_bytes(weights[:100_000])
    change("bad-json")
    (quire.folder / "bad-json" / "config.json").write_text('{"hidden_size": 64,')
    change("bad-tokenizer")
    (quire.folder / "bad-tokenizer" / "tokenizer.json").write_text('{"model": {"type": "Alphabet"}}')
    change("bad-generation")
    (quire.folder / "bad-generation" / "generation_config.json").write_text('{"temperature": "hot"}')
    return quire


@pytest.mark.parametrize(("model", "words"), [
    ("nowhere", ["'nowhere'", "quire pull nowhere"]), ("./nowhere", ["'./nowhere'", "does not exist"]),
    ("nowhere.gguf", ["'nowhere.gguf'", "does not exist"]), ("endless.json", ["endless.json", ".gguf"]),
    ("cut.gguf", ["'cut.gguf'", "tokenizer.ggml.tokens", "fetch it again"]),
    ("cut-data.gguf", ["'cut-data.gguf'", "tensor", "fetch it again"]),
    ("text.gguf", ["'text.gguf'", "not a GGUF file"]), ("empty.gguf", ["'empty.gguf'", "empty"]),
    ("version.gguf", ["'version.gguf'", "99"]), ("other.gguf", ["'other.gguf'", "'mamba'", "llama"]),
    ("no-config", ["'no-config'", "config.json"]), ("architecture", ["config.json", "'MambaForCausalLM'", "LlamaForCausalLM"]),
    ("maths", ["maths/config.json", "'attn_logit_softcapping'", "30"]),
    ("sizes", ["model.embed_tokens.weight", "[512, 64]", "[512, 128]", "sizes/model.safetensors"]),
    ("absurd", ["absurd/config.json", "'vocab_size'", "-3"]), ("no-weights", ["'no-weights'", "safetensors"]),
    ("cut-weights", ["cut-weights/model.safetensors", "fetch it again"]), ("bad-json", ["bad-json/config.json", "line 1"]),
    ("bad-tokenizer", ["bad-tokenizer/tokenizer.json", "Alphabet"]),
    ("bad-generation", ["bad-generation/generation_config.json", "'temperature'"]),
])
def test_a_model_that_cannot_be_used_is_one_sentence_about_its_file(broken, model, words):
    done = broken("run", model, "hello", *GREEDY)
    assert done.returncode in (1, 2)
    one_sentence(done, done.returncode, *words)


@pytest.mark.parametrize("command", [["inspect", "maths"], ["chat", "maths"], ["bench", "latency", "--model", "maths"]])
def test_every_command_says_it_the_same_way(broken, command):
    one_sentence(broken(*command), 1, "maths/config.json", "'attn_logit_softcapping'")


# Dummy weights

def test_dummy_weights_need_only_a_config(quire):
    flags = ("run", "endless.json", "[1, 2, 3]", "--load-format", "dummy", "--prompt-token-ids", *GREEDY)
    out = quire.json(*flags)
    assert len(ids_of(out)[0]) == 8
    # Seed 0 of the dummy weights' rule.
    assert ids_of(out) == ids_of(quire.json("run", "endless", "[1, 2, 3]", "--prompt-token-ids", *GREEDY))
    assert ids_of(out) != ids_of(quire.json(*flags, "--seed", "5"))
    one_sentence(quire("run", "hello", "--load-format", "dummy"), 2, "--load-format dummy", "config.json")


def test_dummy_weights_have_the_type_that_quantization_names(quire):
    flags = ("run", "endless.json", "[1, 2, 3]", "--load-format", "dummy", "--prompt-token-ids", *GREEDY)
    outs = {kind: ids_of(quire.json(*flags, "--quantization", kind)) for kind in ("q8_0", "awq", "fp8_per_block")}
    assert all(len(out[0]) == 8 for out in outs.values())
    assert outs["q8_0"] == ids_of(quire.json(*flags, "--quantization", "Q8_0"))
    one_sentence(quire(*flags, "--quantization", "q4_k_m"), 2, "--quantization is 'q4_k_m'", "q4_k,")
    one_sentence(quire("run", "endless", "hello", "--quantization", "awq"), 2, "--quantization is 'awq'", "--load-format dummy")


def test_dummy_weights_too_large_for_the_memory_are_refused(quire):
    config = json.loads((quire.folder / "endless.json").read_text())
    huge = config | {"hidden_size": 1 << 16, "num_attention_heads": 256, "num_key_value_heads": 8, "intermediate_size": 1 << 18,
                     "num_hidden_layers": 90}
    (quire.folder / "huge.json").write_text(json.dumps(huge))
    done = quire("run", "huge.json", "[1]", "--load-format", "dummy", "--prompt-token-ids", most_memory=4 << 30)
    one_sentence(done, 1, "huge.json", "of memory, but", "are free")


# tokenize

def test_tokenize_shows_tokens_in_three_forms(quire):
    out = quire.json("tokenize", "tiny", "Hello world, hello")
    assert set(out) == {"count", "tokens", "token_strs"} and out["count"] == len(out["tokens"]) == len(out["token_strs"])
    assert quire("tokenize", "tiny", "Hello world, hello", "--ids").text.split() == [str(i) for i in out["tokens"]]
    lines = quire("tokenize", "tiny", "Hello world, hello").text.splitlines()
    assert lines[-1] == f"{out['count']} tokens" and lines[0].split() == [str(out["tokens"][0]), '"Hello"']
    assert quire.json("tokenize", "tiny.gguf", "Hello world, hello")["tokens"] == out["tokens"]


@pytest.mark.parametrize("text", ["Hello world", "a\n\n  b\t", "é 🙂 中文", "<|bos|>x<|eos|>", ""])
def test_tokenize_and_back(quire, text):
    ids = quire("tokenize", "tiny", "-", "--ids", stdin=text).text
    for arguments, stdin in ((["tiny", ids], None), (["tiny", "-"], ids), (["tiny"], ids), (["--model", "tiny"], ids)):
        assert quire("tokenize", *arguments, "--decode", stdin=stdin).text == text + "\n", arguments
    assert quire("tokenize", "tiny", "--decode", json.dumps([int(i) for i in ids.split()])).text == text + "\n"


def test_tokenize_reads_special_tokens_unless_told_not_to(quire):
    assert quire.json("tokenize", "tiny", "<|eos|>")["tokens"] == [257]
    assert quire.json("tokenize", "tiny", "<|eos|>", "--no-parse-special")["count"] > 3


def test_tokenize_refuses_ids_that_are_none(quire):
    one_sentence(quire("tokenize", "tiny", "1 9999", "--decode"), 2, "9999")
    one_sentence(quire("tokenize", "tiny", "99999999999", "--decode"), 2, "2147483647")
    one_sentence(quire("tokenize", env={"QUIRE_MODEL": "tiny"}), 2, "no text")
    for text in ("1.5", "0x10", "7-8", "abc 7", "[1;2]"):
        one_sentence(quire("tokenize", "tiny", text, "--decode"), 2, "whole numbers")
    assert quire("tokenize", "tiny", "[5, 6]", "--decode").text == quire("tokenize", "tiny", "5 6\n", "--decode").text


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
@pytest.mark.parametrize("arguments", [("inspect", "tiny"), ("tokenize", "tiny", "hello"), ("devices",), ("--help",), ("schema",),
                                       ("completions", "zsh"), ("run", "tiny", "hello", "--json", "--max-tokens", "2")])
def test_a_full_disk_is_noticed(quire, arguments):
    with open("/dev/full", "wb") as full:
        done = subprocess.run([quire.path, *arguments], stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE,
                              cwd=quire.folder, env=quire.environment, timeout=300)
    assert done.returncode == 1 and b"quire: cannot write to standard output" in done.stderr, done


@pytest.fixture(scope="module")
def tokenizer_only(quire):
    """A folder with a tokenizer and nothing else."""
    folder = quire.folder / "tokenizer-only"
    folder.mkdir()
    shutil.copy(quire.folder / "tiny" / "tokenizer.json", folder)
    return "tokenizer-only"


def test_tokenize_needs_only_a_tokenizer(quire, tokenizer_only):
    wanted = quire.json("tokenize", "tiny", "Hello world")
    assert quire.json("tokenize", tokenizer_only, "Hello world") == wanted
    for name in (tokenizer_only, "./" + tokenizer_only, quire.folder / tokenizer_only):
        assert quire.json("tokenize", name, stdin="Hello world") == wanted
    assert quire.json("tokenize", "--model", tokenizer_only, "Hello world") == wanted
    assert quire("tokenize", tokenizer_only, "--decode", "-", stdin=json.dumps(wanted["tokens"])).text == "Hello world\n"


def test_tokenize_does_not_take_a_wrong_path_for_the_text(quire):
    (quire.folder / "an-empty-folder").mkdir(exist_ok=True)
    for path in ("./nowhere", "nowhere.gguf", "an-empty-folder", "/nowhere"):
        done = quire("tokenize", path, stdin="Hello")
        assert done.returncode != 0 and path in done.errors and done.text == "", path


def test_tokenize_takes_one_text_per_line(quire, tokenizer_only):
    texts = ["Hello world", "", "é 🙂", "two  words "]
    ids = [quire.json("tokenize", "tiny", "-", stdin=text)["tokens"] for text in texts]
    for model in ("tiny", tokenizer_only, "tiny.gguf"):
        plain = quire("tokenize", model, "--lines", stdin="\n".join(texts))
        assert [[int(i) for i in line.split()] for line in plain.text.split("\n")[:-1]] == ids
    objects = quire("tokenize", "--model", "tiny", "--lines", "--json", stdin="\n".join(texts) + "\n").text.splitlines()
    assert [json.loads(line) for line in objects] == [{"count": len(i), "tokens": i} for i in ids]
    back = quire("tokenize", "tiny", "--lines", "--decode", stdin="\n".join(" ".join(map(str, i)) for i in ids) + "\n")
    assert back.text == "\n".join(texts) + "\n"


def test_tokenize_takes_json_lines(quire, tokenizer_only):
    texts = ["Hello\nworld", "", "é 🙂 \u2028", "x" * 100_000]
    ids = [quire.json("tokenize", "tiny", "-", stdin=text)["tokens"] for text in texts]
    lines = [json.dumps(text) if i % 2 else json.dumps({"id": i, "text": text}) for i, text in enumerate(texts)]
    done = quire("tokenize", tokenizer_only, "--jsonl", stdin="\n".join(lines))
    assert [json.loads(line) for line in done.text.splitlines()] == [{"count": len(i), "tokens": i} for i in ids]
    back = quire("tokenize", tokenizer_only, "--jsonl", "--decode", stdin=done.text)
    assert [json.loads(line)["text"] for line in back.text.split("\n")[:-1]] == texts
    for wrong, words in (('"a"\n{"x": 1}', ["line 2", "text"]), ("17", ["line 1", "string"]), ('"a"\n\n', ["line 2", "JSON"]),
                         ('{"text": 5}', ["line 1"]), ('"a', ["line 1", "JSON"])):
        refused = quire("tokenize", tokenizer_only, "--jsonl", stdin=wrong)
        assert refused.returncode == 2 and all(word in refused.errors for word in words), refused.errors
    one_sentence(quire("tokenize", "tiny", "text", "--jsonl"), 2, "--jsonl", "standard input")


# inspect

def test_overrides_of_a_config_that_is_not_there_are_refused(quire):
    overrides = ("--hf-overrides", '{"rope_theta": 5.0}', *GREEDY)
    one_sentence(quire("run", "tiny.gguf", "hello", *overrides), 2, "--hf-overrides", "config.json", "tiny.gguf")
    assert quire("run", "tiny", "hello", *overrides).errors == ""


def test_names_in_files_do_not_reach_the_terminal_as_they_are(quire, tmp_path):
    """The bug: a model's files could move the cursor, or hide what was printed."""
    shutil.copytree(quire.folder / "tiny", tmp_path / "odd")
    config = json.loads((tmp_path / "odd" / "config.json").read_text())
    (tmp_path / "odd" / "config.json").write_text(json.dumps(config | {"hidden_act": "\x1b[2Jsilu"}))
    one_sentence(quire("run", tmp_path / "odd", "hello"), 1, "'\\x1b[2Jsilu'")
    (tmp_path / "odd" / "config.json").write_text(json.dumps(config))
    (tmp_path / "odd" / "chat_template.jinja").write_text("{{ messages[0].content }}\x1b[2J\n")
    for command in (("inspect", "--show-chat-template"), ("show",)):
        shown = quire(*command, tmp_path / "odd").text
        assert "\x1b" not in shown and "{{ messages[0].content }}\\x1b[2J\n" in shown


def test_inspect_describes_a_model(quire):
    out = quire.json("inspect", "tiny.gguf", "--tensors")
    assert out["architecture"]["family"] == "llama" and out["architecture"]["head_dim"] == 16
    assert out["architecture"]["max_position"] == 1024 and out["architecture"]["vocab_size"] == 512
    assert out["weights"]["types"]["F32"]["tensors"] == 30 and out["weights"]["parameters"] == 195008
    assert {"name": "token_embd.weight", "type": "F32", "shape": [512, 64], "bytes": 131072} in out["tensors"]
    assert "KV cache" in out["memory"] and "pages" in out["memory"]
    assert "messages" in out["chat_template"] and out["text"]["eos"].startswith("257")
    folder = quire.json("inspect", "tiny")
    assert "tensors" not in folder and folder["weights"]["parameters"] == 195008
    assert {k: v for k, v in folder["architecture"].items() if k != "architecture"} == {
        k: v for k, v in out["architecture"].items() if k != "architecture"}


def test_inspect_names_the_experts(quire, tmp_path):
    export.main(["--case", "mixtral", "--out", str(tmp_path / "mixtral")])
    about = quire.json("inspect", tmp_path / "mixtral")["architecture"]
    assert about["experts"] == 5 and about["experts_per_token"] == 2
    assert "experts" not in quire.json("inspect", "tiny")["architecture"]


def test_inspect_in_words(quire):
    text = quire("inspect", "tiny").text
    for part in ("Architecture", "LlamaForCausalLM", "Weights", "Memory", "KV cache", "Text", "chat_templates"):
        assert part in text
    assert "model.layers.0.self_attn.q_proj.weight" not in text and "{% for" not in text
    assert "model.layers.0.self_attn.q_proj.weight" in quire("inspect", "tiny", "--tensors").text
    assert "{% for" in quire("inspect", "tiny", "--show-chat-template").text
    plan = quire("inspect", "tiny", "--kv-cache-dtype", "float16", "--num-gpu-blocks-override", "101", "--block-size", "32").text
    assert "pages of 32 tokens, float16" in plan
    assert "pages of 8 tokens" in quire("inspect", "tiny", "--block-size", "8").text


# bench

def test_bench_latency_gives_its_figures(quire):
    (quire.folder / "figures").mkdir(exist_ok=True)
    out = quire.json("bench", "latency", "--model", "tiny", "--input-len", "8", "--output-len", "4", "--batch-size", "2",
                     "--num-iters", "2", "--num-iters-warmup", "1", "--output-json", "figures/latency.json")
    assert {"machine", "batch_size", "input_len", "output_len", "num_iters", "avg_latency", "percentiles", "prefill_s", "decode_s",
            "prefill_tokens_per_s", "decode_tokens_per_s", "latencies"} <= set(out)
    assert out["batch_size"] == 2 and out["input_len"] == 8 and len(out["latencies"]) == 2 and out["avg_latency"] > 0
    assert json.loads((quire.folder / "figures" / "latency.json").read_text()) == out


def test_bench_throughput_gives_its_figures(quire):
    out = quire.json("bench", "throughput", "--model", "tiny", "--input-len", "8", "--output-len", "4", "--num-prompts", "5")
    assert {"machine", "elapsed_time", "num_requests", "total_num_tokens", "requests_per_second", "tokens_per_second",
            "output_tokens_per_second"} <= set(out)
    assert out["num_requests"] == 5 and out["total_num_tokens"] == 5 * 12
    words = quire("bench", "throughput", "--model", "tiny", "--input-len", "8", "--output-len", "4", "--num-prompts", "5").text
    assert "tokens" in words


@pytest.mark.parametrize("command", [
    ["latency", "--model", "tiny", "--input-len", "8", "--output-len", "4", "--num-iters", "2", "--num-iters-warmup", "0"],
    ["throughput", "--model", "tiny", "--input-len", "8", "--output-len", "4", "--num-prompts", "5"],
    ["engine", "--num-streams", "2", "--output-len", "300"]])
def test_bench_shows_progress_only_on_a_terminal(quire, command):
    master, slave = pty.openpty()
    done = subprocess.run([quire.path, "bench", *command], stderr=slave, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL,
                          cwd=quire.folder, env=quire.environment, check=True)
    seen = written_to(master)
    os.close(slave)
    os.close(master)
    assert re.search(rb"(rounds|requests|steps): \d+ of \d+", seen) and seen.endswith(b"\r\x1b[K") and done.stdout
    assert quire("bench", *command).errors == ""


@pytest.mark.parametrize("flags", [["--input-len", "0"], ["--output-len", "0"], ["--input-len", "5000"], ["--batch-size", "-1"],
                                   ["--num-iters", "0"]])
def test_bench_refuses_wrong_workloads(quire, flags):
    one_sentence(quire("bench", "latency", "--model", "tiny", *flags), 2, flags[0].strip("-").split("-")[0])
