# SPDX-License-Identifier: Apache-2.0
"""The samples of each dataset against the generators of CPython and numpy; and the engine's benchmarks on a tiny model.
"""

import json
import math
import pathlib
import random
import shutil
import subprocess
import sys

import numpy
import pytest

from fake_server import FakeServer

ROOT = pathlib.Path(__file__).resolve().parents[2]


def sent(bench, *arguments, backend="openai", field="prompt"):
    """The bodies that the server got, in the order of the samples."""
    with FakeServer() as server:
        out = bench.serve(server, *arguments, "--max-concurrency", "1", "--backend", backend)
        assert out["failed"] == 0
        return [body for _, _, body in server.requests], out


@pytest.mark.parametrize("seed, count", [(0, 20), (7, 20), (123456, 200)])
def test_sharegpt_takes_the_samples_that_vllm_takes(bench, sharegpt, tokenizer, seed, count):
    entries = [entry for entry in json.loads(sharegpt.read_text()) if len(entry.get("conversations", [])) >= 2]
    random.seed(seed)
    random.shuffle(entries)
    wanted = []
    for entry in entries:
        prompt, answer = (entry["conversations"][i]["value"] for i in (0, 1))
        sizes = [len(tokenizer.encode(text).ids) for text in (prompt, answer)]
        if len(wanted) < count and min(sizes) >= 4 and sizes[0] <= 1024 and sum(sizes) <= 2048:
            wanted.append((prompt, sizes[1]))
    random.seed(seed)
    taken = list(wanted)
    while len(wanted) < count:
        wanted.append(random.choice(taken))
    bodies, _ = sent(bench, "--dataset-name", "sharegpt", "--dataset-path", sharegpt, "--seed", seed, "--num-prompts", count)
    assert [(body["prompt"], body["max_tokens"]) for body in bodies] == wanted
    assert "ignore_eos" not in bodies[0]


def test_sharegpt_in_order_and_without_repeats(bench, sharegpt):
    bodies, out = sent(bench, "--dataset-name", "sharegpt", "--dataset-path", sharegpt, "--disable-shuffle", "--no-oversample",
                       "--num-prompts", "1000", "--output-len", "11")
    first = json.loads(sharegpt.read_text())[0]["conversations"][0]["value"]
    assert bodies[0]["prompt"] == first and len(bodies) < 120 and {body["max_tokens"] for body in bodies} == {11}


@pytest.mark.parametrize("prefix, ratio, special", [(0, 0.0, {256, 257}), (5, 0.5, {256, 257}), (5, 0.2, {257, 300})])
def test_random_follows_numpys_generator(bench, tokenizer, prefix, ratio, special):
    """Only the tokens that tokenizer_config.json names are left out, not all that are marked as special."""
    folder = bench.folder / f"named{min(special)}"
    folder.mkdir(exist_ok=True)
    shutil.copy(bench.model + "/tokenizer.json", folder)
    config = {"eos_token": "<|eos|>", "additional_special_tokens": [{"content": tokenizer.id_to_token(min(special - {257}))}]}
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"pad_token": None}))
    count, input_len, output_len, seed = 12, 30, 20, 5
    generator = numpy.random.default_rng(seed)

    def bounds(length):
        return math.floor(length * (1 - ratio)), math.ceil(length * (1 + ratio)) + 1
    inputs = generator.integers(*bounds(input_len), size=count)
    outputs = generator.integers(*bounds(output_len), size=count)
    vocab = tokenizer.get_vocab_size(with_added_tokens=False)
    offsets = generator.integers(0, vocab, size=count)
    allowed = [i for i in range(vocab) if i not in special]
    front = [allowed[i] for i in generator.integers(0, len(allowed), size=prefix)] if prefix else []
    prompts, sizes = [], []
    for index in range(count):
        ids = front + [allowed[(int(offsets[index]) + index + i) % len(allowed)] for i in range(int(inputs[index]))]
        wanted = len(ids)
        for left in range(10, -1, -1):
            text = tokenizer.decode(ids, skip_special_tokens=False)
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            if len(ids) == wanted or left == 0:
                break
            ids = ids[:wanted] if len(ids) > wanted else ids + generator.integers(0, vocab, size=wanted - len(ids)).tolist()
        prompts.append(text)
        sizes.append(len(ids))
    bodies, _ = sent(bench, "--dataset-name", "random", "--random-input-len", input_len, "--random-output-len", output_len,
                     "--random-range-ratio", ratio, "--random-prefix-len", prefix, "--seed", seed, "--num-prompts", count,
                     "--tokenizer", folder)
    assert [body["max_tokens"] for body in bodies] == outputs.tolist()
    assert [body["prompt"] for body in bodies] == prompts
    assert all(body["ignore_eos"] for body in bodies)


def test_random_prompts_are_cut_to_the_servers_count(bench, tokenizer):
    with FakeServer(tokens=lambda text: list(range(2 * len(tokenizer.encode(text).ids)))) as server:
        out = bench.serve(server, "--dataset-name", "random", "--random-input-len", "9", "--random-output-len", "2", "--num-prompts", "2")
    assert "the server counts" in out["stderr"]


def test_prefix_repetition_repeats_its_prefixes(bench, tokenizer):
    flags = ("--dataset-name", "prefix_repetition", "--prefix-repetition-prefix-len", "24", "--prefix-repetition-suffix-len", "8",
             "--prefix-repetition-num-prefixes", "3", "--prefix-repetition-output-len", "6", "--num-prompts", "13")
    bodies, _ = sent(bench, *flags)
    assert len(bodies) == 12 and {body["max_tokens"] for body in bodies} == {6} and len({body["prompt"] for body in bodies}) > 3
    heads = [body["prompt"][:12] for body in bodies]
    assert sorted(heads.count(head) for head in set(heads)) == [4, 4, 4]
    random.seed(0)
    order = list(range(12))
    random.shuffle(order)
    straight, _ = sent(bench, *flags, "--disable-shuffle")
    assert [body["prompt"] for body in bodies] == [straight[i]["prompt"] for i in order]


def test_sonnet_shares_its_first_lines(bench):
    lines = [f"line {i} of the poem that goes on and on\n" for i in range(40)]
    path = bench.folder / "poem.txt"
    path.write_text("".join(lines))
    bodies, _ = sent(bench, "--dataset-name", "sonnet", "--dataset-path", path, "--num-prompts", "6", "--sonnet-prefix-len", "160",
                     "--sonnet-input-len", "300", "--sonnet-output-len", "9")
    head = "user: Pick as many lines as you can from these poem lines:\n" + lines[0]
    assert all(body["prompt"].startswith(head) and body["prompt"].endswith("\nassistant: ") for body in bodies)
    assert len({body["prompt"] for body in bodies}) > 1 and {body["max_tokens"] for body in bodies} == {9}


def test_custom_rows_and_their_lengths(bench):
    path = bench.folder / "custom.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"question {i}", "output_tokens": i + 1}) + "\n" for i in range(9)))
    rows = list(range(9))
    random.seed(3)
    random.shuffle(rows)
    bodies, _ = sent(bench, "--dataset-name", "custom", "--dataset-path", path, "--num-prompts", "9", "--seed", "3",
                     "--custom-output-len", "-1")
    assert [(body["prompt"], body["max_tokens"]) for body in bodies] == [(f"user: question {i}\nassistant: ", i + 1) for i in rows]
    bodies, _ = sent(bench, "--dataset-name", "custom", "--dataset-path", path, "--num-prompts", "2", "--skip-chat-template",
                     "--disable-shuffle")
    assert [(body["prompt"], body["max_tokens"]) for body in bodies] == [("question 0", 256), ("question 1", 256)]
    path.write_text('{"prompt": "a"}\n{"text": "b"}\n')
    done = bench("serve", "--base-url", "http://127.0.0.1:9", "--model", bench.model, "--dataset-name", "custom", "--dataset-path", path)
    assert done.returncode == 2 and "line 2" in done.stderr and "prompt" in done.stderr


def test_burstgpt_draws_rows_as_pandas_does(bench):
    path = bench.folder / "burst.csv"
    rows = [(i, "GPT-4" if i % 3 else "ChatGPT", 4 + i, i % 7) for i in range(60)]
    path.write_text("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n" + "".join(
        f"{t},{model},{ask},{answer},{ask + answer},API log\n" for t, model, ask, answer in rows))
    usable = [row for row in rows if row[1] == "GPT-4" and row[3] > 0]
    for count in (10, 80):
        chosen = numpy.random.RandomState(4).choice(len(usable), size=count, replace=count > len(usable))
        bodies, _ = sent(bench, "--dataset-name", "burstgpt", "--dataset-path", path, "--num-prompts", count, "--seed", "4")
        assert [body["max_tokens"] for body in bodies] == [usable[i][3] for i in chosen]


def test_traces_keep_lengths_order_and_shared_prefixes(bench, tokenizer):
    path = bench.folder / "trace.jsonl"
    rows = [{"timestamp": 3000, "input_length": 40, "output_length": 2, "hash_ids": [0, 1, 2]},
            {"timestamp": 1000, "input_length": 33, "output_length": 3, "hash_ids": [0, 1, 5]},
            {"timestamp": 2000, "input_length": 16, "output_length": 4, "hash_ids": [9]},
            {"timestamp": 9000, "input_length": 17, "output_length": 0, "hash_ids": [9, 1]}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = ("--dataset-name", "timed_trace", "--dataset-path", path, "--timed-trace-sec-multiplier", "0.00001")
    bodies, out = sent(bench, *flags)
    assert "stands for 16 tokens" in out["stderr"]
    assert [body["max_tokens"] for body in bodies] == [3, 4, 2, 1] and all(body["ignore_eos"] for body in bodies)
    second, third, first, last = (body["prompt"] for body in bodies)
    assert [len(prompt) for prompt in (first, second, third, last)] == [40, 33, 16, 17]
    assert first[:32] == second[:32] and first[32] != second[32] and third == last[:16]
    assert last[16] == first[16]  # block 1 again, at another place
    specials = set(tokenizer.get_added_tokens_decoder())
    assert all(0 <= token < 512 and token not in specials for token in first + second + third)
    again, _ = sent(bench, *flags, "--timed-trace-max-input-len", "20", "--timed-trace-max-output-len", "2", "--num-prompts", "3")
    assert [(len(body["prompt"]), body["max_tokens"]) for body in again] == [(20, 2), (16, 2), (20, 2)]
    assert again[0]["prompt"] == second[:20]
    texts, _ = sent(bench, *flags, "--no-self-timed", backend="openai-chat")
    contents = [body["messages"][0]["content"][0]["text"] for body in texts]
    assert contents[0] == tokenizer.decode(second, skip_special_tokens=False)


def test_azure_traces(bench):
    path = bench.folder / "azure.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,48,10\n2023-11-16 18:17:04.0319600,31,8\n"
                    "2023-11-16 18:17:59.0000000,11,27\n")
    bodies, _ = sent(bench, "--dataset-name", "timed_trace", "--dataset-path", path, "--timed-trace-sec-multiplier", "0.001")
    assert [(len(body["prompt"]), body["max_tokens"]) for body in bodies] == [(48, 10), (31, 8), (11, 27)]


def test_a_trace_whose_lengths_do_not_go_with_its_hashes_is_refused(bench):
    path = bench.folder / "odd.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 40, "output_length": 2, "hash_ids": [0, 1]}\n'
                    '{"timestamp": 1, "input_length": 4000, "output_length": 2, "hash_ids": [0, 1]}\n')
    done = bench("serve", "--base-url", "http://127.0.0.1:9", "--model", bench.model, "--dataset-name", "timed_trace", "--dataset-path", path)
    assert done.returncode == 2 and "--timed-trace-chunk-hash-size" in done.stderr


# quire bench lengths and quire bench engine

def test_lengths_are_the_same_to_the_bit_and_the_flag_takes_effect(bench, sharegpt):
    done = bench("lengths", "--model", bench.model, "--dataset-path", sharegpt, "--num-prompts", "24", "--output-len", "40",
                 "--max-num-seqs", "1", "8", "32", "--temperature", "1", "--json")
    assert done.returncode == 0, done.stderr
    out = json.loads(done.stdout)
    rows = out["rows"]
    assert out["identical"] and [row["max_num_seqs"] for row in rows] == [1, 8, 32]
    assert len({(row["n"], row["mean_tokens"], row["std_tokens"]) for row in rows}) == 1 and rows[0]["n"] > 8
    assert [row["peak_running"] for row in rows] == [1, 8, min(32, rows[0]["n"])]
    assert rows[0]["steps"] > rows[1]["steps"] > rows[2]["steps"]
    assert rows[0]["steps"] >= rows[0]["n"] * rows[0]["mean_tokens"]
    text = bench("lengths", "--model", bench.model, "--dataset-path", sharegpt, "--num-prompts", "4", "--output-len", "5",
                 "--max-num-seqs", "2").stdout
    assert "max_num_seqs      N   Mean tokens        Std" in text and "at most 2 sequences in one" in text


def test_engine_counts_its_steps(bench):
    out = json.loads(bench("engine", "--num-streams", "7", "--input-len", "20", "--output-len", "30", "--text", "--model", bench.model,
                           "--json").stdout)
    assert (out["num_streams"], out["steps"], out["tokens"]) == (7, 29, 203) and out["text_bytes"] > 203
    assert bench("engine", "--num-streams", "0").returncode == 2


# The server of this binary under the load of its own client

@pytest.fixture(scope="module")
def served(bench):
    sys.path.insert(0, str(ROOT / "bench"))
    from serving import server
    with server(bench.path, bench.model, "--threads", "1", "--max-num-seqs", "4") as (url, _):
        yield url


def test_the_servers_counts_and_the_clients_agree(bench, served, sharegpt, tokenizer):
    class Here:
        url = served
    out = bench.serve(Here, "--dataset-name", "sharegpt", "--dataset-path", sharegpt, "--num-prompts", "12", "--output-len", "9",
                      "--ignore-eos", "--temperature", "0", "--max-concurrency", "6", model=False)
    assert (out["completed"], out["failed"]) == (12, 0) and out["output_lens"] == [9] * 12
    assert out["tokenizer_id"] == bench.model
    again = bench.serve(Here, "--dataset-name", "sharegpt", "--dataset-path", sharegpt, "--num-prompts", "12", "--output-len", "9",
                        "--ignore-eos", "--temperature", "0", "--max-concurrency", "1", model=False)
    assert again["generated_texts"] == out["generated_texts"] and again["input_lens"] == out["input_lens"]
    chat = bench.serve(Here, "--dataset-name", "sharegpt", "--dataset-path", sharegpt, "--num-prompts", "3", "--output-len", "4",
                       "--ignore-eos", "--backend", "openai-chat", model=False)
    assert chat["output_lens"] == [4] * 3 and all(more > less for more, less in zip(chat["input_lens"], out["input_lens"]))


def test_the_smoke_test_of_the_examples(served):
    if not shutil.which("curl"):
        pytest.skip("curl is not installed")
    done = subprocess.run(["sh", ROOT / "examples" / "smoke.sh", served], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("=====")] == ["===== one"] + [f"===== req {i}" for i in range(1, 5)]
    none = subprocess.run(["sh", ROOT / "examples" / "smoke.sh", "http://127.0.0.1:9"], capture_output=True, text=True, timeout=300)
    assert none.returncode != 0
