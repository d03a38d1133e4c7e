# SPDX-License-Identifier: Apache-2.0
"""quire bench latency, throughput and kernels on this machine: what is counted and reported. Nothing asserts on time.
"""

import json

import pytest


def figures(bench, *arguments):
    done = bench(*arguments, "--json")
    assert done.returncode == 0, (done.stdout, done.stderr)
    return json.loads(done.stdout) | {"stderr": done.stderr}


def latency(bench, *arguments):
    return figures(bench, "latency", "--model", bench.model, "--num-iters", 2, "--num-iters-warmup", 1, *arguments)


def test_latency_reports_prefill_decode_and_memory(bench):
    out = latency(bench, "--input-len", 8, "--output-len", 5, "--batch-size", 3)
    assert out["decode_steps"] == 4  # all prompts fit into one step, so all but the first token come together
    assert out["prefill_tokens_per_s"] == pytest.approx(3 * 8 / out["prefill_s"])
    assert out["decode_tokens_per_s"] == pytest.approx(3 * 4 / out["decode_s"])
    assert len(out["latencies"]) == len(out["prefill_times"]) == len(out["decode_times"]) == 2
    assert list(out["percentiles"]) == ["10", "25", "50", "75", "90", "99"]
    assert out["peak_rss_bytes"] > out["weights_bytes"] > 0 and out["kv_bytes"] > 0


def test_latency_counts_only_the_steps_of_the_whole_batch_as_decode(bench):
    """Two prompts per step: the first pair has its first token two steps before the last, and ends two steps
    earlier."""
    out = latency(bench, "--input-len", 8, "--output-len", 6, "--batch-size", 6, "--max-num-batched-tokens", 20)
    assert 0 < out["decode_steps"] < 5
    assert out["decode_tokens_per_s"] == pytest.approx(6 * out["decode_steps"] / out["decode_s"])


def test_latency_says_when_the_batch_never_decoded_as_a_whole(bench):
    flags = ("--input-len", 8, "--output-len", 2, "--batch-size", 6, "--max-num-batched-tokens", 8)
    assert latency(bench, *flags)["decode_tokens_per_s"] is None
    assert "raise --output-len" in bench("latency", "--model", bench.model, "--num-iters", 1, *flags).stdout


@pytest.mark.parametrize("flags", [[], ["--batch-size", 2, "--speculative-config", '{"method": "suffix"}']], ids=["ngram", "suffix"])
def test_speculation_compares_answers_with_and_without(bench, flags):
    out = figures(bench, "speculation", "--model", bench.model, "--num-iters", 2, "--output-len", 40, *flags)
    assert out["identical"] and len(out["tasks"]) == 3
    for task in out["tasks"]:
        assert task["num_draft_tokens"] >= task["num_accepted_tokens"] == sum(task["num_accepted_tokens_per_pos"])
        assert task["gain"] == pytest.approx(task["tokens_per_second_with"] / task["tokens_per_second_without"])
        assert task["output_tokens"] > 0 and task["tokens_per_step"] >= 1
    # How many drafts a step has follows measured times, so the steps with most rows may never occur.
    rows = [row["rows"] for row in out["rows"]]
    assert rows and rows[0] == 1 and set(rows) <= {1, 2, 4, 8}
    text = bench("speculation", "--model", bench.model, "--num-iters", 1, "--output-len", 8, "--prompt", "a b a b").stdout
    assert "accepted by position" in text and "same bits" in text
    done = bench("speculation", "--model", bench.model, "--num-iters", 0)
    assert done.returncode == 2 and "--num-iters" in done.stderr
    done = bench("speculation", "--model", bench.model, "--num-iters", 1, "--acceptance", 0.5)
    assert done.returncode == 2 and "needs a draft model" in done.stderr


def test_speculation_assumes_an_acceptance(bench):
    draft = json.dumps({"model": str(bench.model), "num_speculative_tokens": 3})
    out = figures(bench, "speculation", "--model", bench.model, "--num-iters", 1, "--output-len", 40, "--prompt", "a b c",
                  "--speculative-config", draft, "--acceptance", 0.01)
    task = out["tasks"][0]
    assert out["identical"] and 10 * task["num_accepted_tokens"] <= task["num_draft_tokens"], "the model is its own draft model"


def test_throughput_of_random_tokens(bench):
    out = figures(bench, "throughput", "--model", bench.model, "--input-len", 8, "--output-len", 4, "--num-prompts", 5,
                  "--num-warmups", 2)
    assert (out["num_requests"], out["total_num_prompt_tokens"], out["total_num_output_tokens"]) == (5, 40, 20)
    assert out["tokens_per_second"] == pytest.approx(60 / out["elapsed_time"]) and out["peak_rss_bytes"] > 0


def test_throughput_takes_the_samples_of_a_dataset(bench, sharegpt, tokenizer):
    flags = ("throughput", "--model", bench.model, "--dataset-path", sharegpt, "--num-prompts", 6, "--disable-shuffle")
    out = figures(bench, *flags)
    usable = []
    for entry in json.loads(sharegpt.read_text()):
        turns = entry.get("conversations", [])
        lengths = [len(tokenizer.encode(turn["value"]).ids) for turn in turns[:2]]
        if len(turns) >= 2 and min(lengths) >= 4 and lengths[0] <= 1024 and sum(lengths) <= 2048:
            usable.append(lengths)
    assert out["total_num_prompt_tokens"] == sum(prompt for prompt, _ in usable[:6])
    assert out["total_num_output_tokens"] == sum(answer for _, answer in usable[:6])
    assert figures(bench, *flags, "--output-len", 3)["total_num_output_tokens"] == 6 * 3
    named = figures(bench, "throughput", "--model", bench.model, "--dataset-name", "random", "--input-len", 9, "--output-len", 2,
                    "--num-prompts", 3)
    assert (named["total_num_prompt_tokens"], named["total_num_output_tokens"]) == (27, 6)


@pytest.mark.parametrize("flags,words", [
    (["--dataset-name", "sharegpt"], "--dataset-path"), (["--dataset-name", "poems", "--dataset-path", "x"], "choose sharegpt"),
    (["--num-warmups", "-1"], "--num-warmups"), (["--dataset-path", "missing.json"], "missing.json")])
def test_throughput_names_what_is_wrong(bench, flags, words):
    done = bench("throughput", "--model", bench.model, "--num-prompts", 2, *flags)
    assert done.returncode in (1, 2) and words in done.stderr and done.stderr.count("\n") == 1


def test_kernels_compares_each_case_with_the_machines_limits(bench):
    # Attention is slow at the portable level, and so is measured at the best one alone.
    flags = ("kernels", "--quick", "--samples", "1", "--threads", "2")
    done = bench(*flags, "--isa", "all", "--ops", "linear", "--types", "q8_0,BF16,F32", "--rows", "1,8", "--shapes", "256x512",
                 "--json", "kernels.json")
    assert done.returncode == 0, done.stderr
    out = json.loads((bench.folder / "kernels.json").read_text())
    attention = bench(*flags, "--ops", "attention", "--kv-types", "f32", "--json")
    assert attention.returncode == 0, attention.stderr
    out["kernels"] += json.loads(attention.stdout)["kernels"]
    assert "Limits of this machine, 2 threads" in done.stdout and "256x512" in done.stdout and "Q8_0" in done.stderr
    kinds = {limit["kind"] for limit in out["limits"]}
    assert {"read", "fp32"} <= kinds <= {"read", "fp32", "bf16", "int8"}
    assert all(limit.get("gop_per_s", limit.get("gb_per_s")) > 0 for limit in out["limits"])
    levels = {kernel["isa"] for kernel in out["kernels"]}
    assert "portable" in levels and len(out["kernels"]) == len(levels) * 3 * 2 + 2
    for kernel in out["kernels"]:
        assert kernel["us"] > 0 and kernel["share_fp32"] > 0 and kernel["share_read"] > 0
        assert kernel["share_peak"] == kernel["share_" + kernel["peak_kind"]]
        if kernel["op"] == "linear":
            operations = 2 * 256 * 512 * kernel["rows"]
            assert kernel["gop_per_s"] == pytest.approx(operations / kernel["us"] * 1e-3)
    assert {kernel["op"] for kernel in out["kernels"]} == {"linear", "decode", "prefill"}
    alone = bench("kernels", "--quick", "--ops", "limits", "--samples", 1, "--json")
    assert json.loads(alone.stdout)["kernels"] == []


@pytest.mark.parametrize("flags,words", [
    (["--types", "Q9"], "choose all, or from: F32"), (["--shapes", "12"], "NxK"), (["--shapes", "0x5"], "NxK"),
    (["--rows", "0"], "--rows"), (["--isa", "mmx"], "portable"), (["--ops", "sum"], "choose from linear"),
    (["--samples", "0"], "--samples"), (["--threads", "-2"], "--threads")])
def test_kernels_name_what_is_wrong(bench, flags, words):
    done = bench("kernels", *flags)
    assert done.returncode == 2 and words in done.stderr.splitlines()[-1]
