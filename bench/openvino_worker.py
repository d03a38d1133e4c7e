# SPDX-License-Identifier: Apache-2.0
"""Drives OpenVINO GenAI on a GGUF file; run with the Python of its venv.

    openvino_worker.py speed --model FILE --threads N --attention PA ...      one JSON line of measured seconds
    openvino_worker.py batch --model FILE --threads N --batch-size 32 ...     the same for steps of many sequences

A file that OpenVINO cannot read gives {"unreadable": reason}. Without --precision, arithmetic has the precision that OpenVINO
chooses for this CPU; that and the precision of the KV cache are in "system_info".
"""

import json
import resource
import sys
import time

import numpy as np
import openvino
import openvino_genai as genai
from worker_options import worker_parser

BLOCK = 32  # tokens in a block of its paged KV cache on a CPU
MEMORY_BEFORE = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)  # bytes


class Unreadable(Exception):
    """OpenVINO does not load the model; the message is the last line of its reason."""


def properties(options) -> dict:
    chosen = {"INFERENCE_PRECISION_HINT": options.precision} if options.precision else {}
    return {"INFERENCE_NUM_THREADS": options.threads, "PERFORMANCE_HINT": "LATENCY", **chosen}


def load(make):
    """What `make` returns; its failure as Unreadable."""
    try:
        return make()
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise Unreadable(lines[-1] if lines else "no reason given") from error


def scheduler(options, batch: int) -> genai.SchedulerConfig:
    """Prompts run whole and before any decode step, no prompt is kept for the next one, and the cache is allocated at the start.

    By default the cache grows during the decode, and the copy would be part of the measurement.
    """
    config = genai.SchedulerConfig()
    config.max_num_batched_tokens = max(options.input_len, batch)
    config.max_num_seqs = batch
    config.dynamic_split_fuse = False
    config.enable_prefix_caching = False
    config.num_kv_blocks = batch * (-(-(options.input_len + options.output_len + 1) // BLOCK) + 1)
    return config


def greedy(steps: int) -> genai.GenerationConfig:
    """The prompt gives the first token, and each decode step one more."""
    config = genai.GenerationConfig()
    config.max_new_tokens, config.ignore_eos, config.do_sample = steps + 1, True, False
    return config


def random_ids(generator, tokenizer, length: int) -> openvino.Tensor:
    return openvino.Tensor(generator.integers(10, len(tokenizer.get_vocab()) - 10, (1, length)).astype(np.int64))


def facts(options) -> dict:
    core, chosen = openvino.Core(), {}
    for name in ("INFERENCE_PRECISION_HINT", "KV_CACHE_PRECISION", "DYNAMIC_QUANTIZATION_GROUP_SIZE"):
        try:
            chosen[name] = str(core.get_property("CPU", name))
        except RuntimeError:
            continue  # not a property of this CPU's plugin
    shown = ", ".join(f"{name} {value}" for name, value in {**chosen, **properties(options)}.items())
    return {"system_info": shown, "log": [], "version": genai.__version__, "memory_before_mb": MEMORY_BEFORE / 1e6}


def run_speed(options) -> dict:
    more = {"scheduler_config": scheduler(options, 1)} if options.attention == "PA" else {}
    pipeline = load(lambda: genai.LLMPipeline(options.model, "CPU", ATTENTION_BACKEND=options.attention, **properties(options), **more))
    tokenizer, generator = pipeline.get_tokenizer(), np.random.default_rng(0)
    mask = openvino.Tensor(np.ones((1, options.input_len), np.int64))
    prefill, decode, steps, depth = [], [], [], []
    for iteration in range(options.warmup + options.iters):
        prompt = genai.TokenizedInputs(random_ids(generator, tokenizer, options.input_len), mask)
        metrics = pipeline.generate(prompt, greedy(options.output_len)).perf_metrics
        if iteration >= options.warmup:
            prefill.append(metrics.get_ttft().mean / 1e3)
            decode.append(sum(metrics.raw_metrics.m_durations) / 1e6)
            steps.append(len(metrics.raw_metrics.m_durations))
            depth.append(metrics.get_num_input_tokens())
    return {"prefill_s": prefill, "decode_s": decode, "decode_steps": steps, "depth": depth, **facts(options)}


def run_batch(options) -> dict:
    """Steps of `batch_size` sequences that have `input_len` tokens each, of its continuous batching."""
    pipeline = load(lambda: genai.ContinuousBatchingPipeline(options.model, scheduler(options, options.batch_size), "CPU", properties(options)))
    tokenizer, generator = pipeline.get_tokenizer(), np.random.default_rng(0)
    decode, counted, depth = [], [], []
    for iteration in range(options.warmup + options.iters):
        timed = iteration >= options.warmup
        length, steps = (options.input_len, options.output_len) if timed else (min(options.input_len, 16), 2)
        handles = [pipeline.add_request(number, random_ids(generator, tokenizer, length), greedy(steps)) for number in range(options.batch_size)]
        seconds, whole = 0.0, 0
        tokens = 0  # that the sequences have got so far
        while pipeline.has_non_finished_requests():
            all_started = tokens >= options.batch_size
            begin = time.perf_counter()
            pipeline.step()
            end = time.perf_counter()
            scheduled = pipeline.get_metrics().scheduled_requests
            tokens += scheduled
            if all_started and scheduled == options.batch_size:
                seconds += end - begin
                whole += 1
        answers = [handle.read_all() for handle in handles]
        if any(len(answer[0].generated_ids) != steps + 1 for answer in answers):
            raise SystemExit("a sequence got another number of tokens than asked for")
        if timed:
            decode.append(seconds)
            counted.append(whole)
            depth.append(length)
    return {"decode_s": decode, "decode_steps": counted, "depth": depth, **facts(options)}


def main() -> int:
    parser = worker_parser(__doc__, ["speed", "batch"])
    parser.add_argument("--attention", choices=["PA", "SDPA"], default="PA", help="its paged attention or its plain one; a batch has PA")
    parser.add_argument("--precision", choices=["f32", "bf16", "f16"], help="of arithmetic; default: OpenVINO's choice for this CPU")
    options = parser.parse_args()
    try:
        result = {"speed": run_speed, "batch": run_batch}[options.command](options)
    except Unreadable as error:
        result = {"unreadable": str(error)}
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
