# SPDX-License-Identifier: Apache-2.0
"""The text of /metrics: parsed by prometheus_client, and compared with vLLM's names, labels and buckets."""

import re

from conftest import ROOT
from prometheus_client import generate_latest
from prometheus_client.registry import Collector

MODEL = "odd \"name\" \\ é\n"  # the name in the unit test
OWN = {"model_name", "engine"}
INF = float("inf")

TTFT = [.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560]
ITL = [.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80]
LATENCY = [.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680]
TOKENS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000]  # the unit test's longest sequence is 2048
ITERATION = [1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384]

GAUGES = {
    "num_requests_running": None,
    "num_requests_waiting": None,
    "num_requests_waiting_by_reason": ("reason", {"capacity", "deferred"}),
    "engine_sleep_state": ("sleep_state", {"awake", "weights_offloaded", "discard_all"}),
    "kv_cache_usage_perc": None,
}
COUNTERS = {
    "prefix_cache_queries": None,
    "prefix_cache_hits": None,
    "external_prefix_cache_queries": None,
    "external_prefix_cache_hits": None,
    "num_preemptions": None,
    "prompt_tokens": None,
    "prompt_tokens_by_source": ("source", {"local_compute", "local_cache_hit", "external_kv_transfer"}),
    "prompt_tokens_cached": None,
    "prompt_tokens_cached_by_source": ("source", {"device", "host", "disk", "p2p", "external_unspecified"}),
    "generation_tokens": None,
    "spec_decode_num_drafts": None,
    "spec_decode_num_draft_tokens": None,
    "spec_decode_num_accepted_tokens": None,
    "spec_decode_num_accepted_tokens_per_pos": ("position", {"0", "1"}),
    "request_success": ("finished_reason", {"stop", "length", "abort", "error", "repetition"}),
}
HISTOGRAMS = {
    "time_to_first_token_seconds": TTFT,
    "inter_token_latency_seconds": ITL,
    "request_time_per_output_token_seconds": ITL,
    "e2e_request_latency_seconds": LATENCY,
    "request_queue_time_seconds": LATENCY,
    "request_prefill_time_seconds": LATENCY,
    "request_decode_time_seconds": LATENCY,
    "request_inference_time_seconds": LATENCY,
    "request_prompt_tokens": TOKENS,
    "request_generation_tokens": TOKENS,
    "request_max_num_generation_tokens": TOKENS,
    "request_params_max_tokens": TOKENS,
    "request_prefill_kv_computed_tokens": TOKENS,
    "request_params_n": [1, 2, 5, 10, 20],
    "request_num_preemptions": [1, 2, 3, 4, 5, 10, 20],
    "iteration_tokens_total": ITERATION,
}
CACHE_CONFIG = set(
    "block_size user_specified_block_size kv_cache_layout prefix_match_unit gpu_memory_utilization cache_dtype "
    "is_attention_free num_gpu_blocks_override sliding_window enable_prefix_caching prefix_caching_hash_algo "
    "prefix_cache_retention_interval kv_cache_dtype_skip_layers mamba_page_size_padded skip_page_size_padded "
    "mamba_block_size mamba_cache_dtype mamba_ssm_cache_dtype mamba_cache_mode enable_mamba_shared_prefix_checkpoint "
    "replayssm_buffer_len use_replayssm use_kda_recoverssm num_gpu_blocks num_cpu_blocks effective_attention_block_size "
    "kv_cache_size_tokens kv_cache_max_concurrency hash_block_size cache_hit_alignment_tokens kv_sharing_fast_prefill "
    "swa_bounded_replay kv_cache_memory_bytes kv_offloading_size kv_offloading_backend _block_size_resolved engine".split())


def by_name(families):
    found = {family.name: family for family in families}
    assert len(found) == len(families), "a family was exposed twice"
    return found


def check_labels(samples, extra):
    """One sample for each value of the extra label, and no further label except the engine's own."""
    for sample in samples:
        assert set(sample.labels) == OWN | ({extra[0]} if extra else set())
        assert sample.labels["model_name"] == MODEL and sample.labels["engine"] == "0"
    if extra:
        assert {sample.labels[extra[0]] for sample in samples} == extra[1]
    assert len(samples) == (len(extra[1]) if extra else 1)


def test_the_python_client_would_write_the_same_bytes(exposition, families):
    class Parsed(Collector):
        def collect(self):
            return families

    assert generate_latest(Parsed()).decode("utf-8") == exposition


def test_gauges_have_vllms_names_and_labels(families):
    found = by_name(families)
    for name, extra in GAUGES.items():
        family = found["vllm:" + name]
        assert family.type == "gauge"
        check_labels(family.samples, extra)


def test_counters_have_vllms_names_and_labels(families):
    found = by_name(families)
    for name, extra in COUNTERS.items():
        family = found["vllm:" + name]
        assert family.type == "counter"
        assert {sample.name for sample in family.samples} == {"vllm:" + name + "_total"}
        check_labels(family.samples, extra)
        check_labels(found["vllm:" + name + "_created"].samples, extra)


def test_rejections_carry_the_model_but_no_engine(families):
    samples = by_name(families)["vllm:admission_rejections"].samples
    assert {sample.labels["reason"] for sample in samples} == {
        "max_num_queued_reqs", "max_num_queued_tokens", "max_request_bytes"}
    assert all(set(sample.labels) == {"model_name", "reason"} for sample in samples)


def test_histograms_have_vllms_buckets(families):
    found = by_name(families)
    for name, bounds in HISTOGRAMS.items():
        family = found["vllm:" + name]
        assert family.type == "histogram"
        buckets = [sample for sample in family.samples if sample.name.endswith("_bucket")]
        assert [float(sample.labels["le"]) for sample in buckets] == bounds + [INF], name
        assert all(set(sample.labels) == OWN | {"le"} for sample in buckets)
        values = [sample.value for sample in buckets]
        assert values == sorted(values)
        count, total = family.samples[len(buckets):]
        assert count.name == "vllm:" + name + "_count" and count.value == values[-1]
        assert total.name == "vllm:" + name + "_sum"
        check_labels([count], None)
    assert found["vllm:e2e_request_latency_seconds"].samples[0].labels["le"] == "0.3"
    assert found["vllm:request_prompt_tokens"].samples[0].labels["le"] == "1.0"


def test_nothing_else_claims_to_be_vllms(families):
    known = {"vllm:" + name for name in [*GAUGES, *COUNTERS, *HISTOGRAMS]}
    known |= {"vllm:admission_rejections", "vllm:cache_config_info", "vllm:lora_requests_info"}
    exported = {family.name for family in families if family.name.startswith("vllm:")}
    assert {re.sub("_created$", "", name) for name in exported} == known


def test_adapters_are_named_in_labels(families):
    (sample,) = by_name(families)["vllm:lora_requests_info"].samples  # what was the case before is gone
    assert sample.labels == {"max_lora": "4", "running_lora_adapters": "a,b", "waiting_lora_adapters": "c"}
    assert sample.value > 1e9


def test_the_cache_is_described_in_labels(families):
    (sample,) = by_name(families)["vllm:cache_config_info"].samples
    assert sample.value == 1
    assert set(sample.labels) == CACHE_CONFIG
    assert sample.labels["block_size"] == "16" and sample.labels["num_gpu_blocks"] == "513"
    assert sample.labels["mamba_cache_mode"] == "None"


def documented():
    """The table of docs/metrics.md: {series: (type, labels)}."""
    text = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    table = text.split("<!-- series -->")[1].split("<!-- end -->")[0]
    rows = {}
    for line in table.strip().splitlines()[2:]:
        name, kind, labels, meaning = (cell.strip() for cell in line.strip("|").split("|"))
        assert meaning, name
        assert name not in rows, name
        rows[name.strip("`")] = (kind, labels)
    return rows


def test_the_documentation_lists_what_is_exported(families):
    rows = documented()
    exported = {}
    for family in families:
        if family.name.endswith("_created"):
            continue
        name = family.name + ("_total" if family.type == "counter" else "")
        labels = set().union(*(sample.labels for sample in family.samples)) - {"le"}
        exported[name] = (family.type, labels)
    linux_alone = {"process_" + name for name in ("virtual_memory_bytes", "resident_memory_bytes", "start_time_seconds",
                                                  "open_fds", "max_fds")}
    assert set(rows) - linux_alone == set(exported) - linux_alone
    for name, (kind, labels) in exported.items():
        assert rows[name][0] == kind, name
        if name == "vllm:cache_config_info":
            continue  # too many to list; they are checked above
        assert {label.strip() for label in rows[name][1].split(",") if label.strip()} == labels, name


def test_the_documentation_lists_the_buckets():
    text = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    for bounds in (TTFT, ITL, LATENCY, ITERATION):
        assert " ".join("%g" % bound for bound in bounds) in text
