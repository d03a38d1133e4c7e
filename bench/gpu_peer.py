# SPDX-License-Identifier: Apache-2.0
"""The part of bench/gpu that uses torch and transformers: the GPU's limits, and their speed on a model with random weights.

Prints one line of JSON. `latency` decodes one sequence with a static cache and the compiled model; `batch` runs
continuous batching over many. Tokens per second come from the difference of two lengths, so that neither the prefill nor
the start counts; `batch` also prints the figure of the whole longer run. Use --device cpu and a small shape to test it.
"""

import argparse
import json
import statistics
import sys
import time

import torch


def seconds_of(call, rounds=10):
    """The median over rounds, timed with device events."""
    for _ in range(3):
        call()
    times = []
    for _ in range(rounds):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return statistics.median(times)


def ceilings(_):
    source = torch.randn(1 << 30, device="cuda", dtype=torch.float32)
    target = torch.empty_like(source)
    copy = 2 * source.numel() * 4 / seconds_of(lambda: target.copy_(source))
    del source, target
    side = 8192
    a, b = (torch.randn(side, side, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    product = 2 * side**3 / seconds_of(lambda: a @ b)
    return {"device": torch.cuda.get_device_name(), "copy_tb_per_s": copy * 1e-12, "matmul_tflop_per_s": product * 1e-12,
            "torch": torch.__version__}


def model_of(args):
    import transformers

    config = transformers.AutoConfig.from_pretrained(args.config)
    torch.manual_seed(0)
    with torch.device(args.device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa")
    return model.eval(), config, transformers.__version__


@torch.inference_mode()
def latency(args):
    model, config, version = model_of(args)
    prompt = torch.randint(0, config.vocab_size, (1, 128), device=args.device)
    settle = torch.cuda.synchronize if args.device == "cuda" else lambda: None

    def seconds(tokens):
        settle()
        start = time.perf_counter()
        model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False,
                       cache_implementation="static", pad_token_id=0)
        settle()
        return time.perf_counter() - start

    short, long = 64, 256
    for tokens in (long, long):
        seconds(tokens)  # compiles; the cache is as long as the longest output
    passed = [seconds(long) - seconds(short) for _ in range(3)]
    return {"tokens_per_s": (long - short) / statistics.median(passed), "transformers": version}


def made_tokens(made, args, tokens, version):
    """The number of tokens in the outputs. generate_batch returns failed requests like others, so each one is checked."""
    answers = list(made.values())
    errors = [answer.error for answer in answers if answer.error]
    short = [answer for answer in answers if len(answer.generated_tokens) != tokens]
    if errors or short or len(answers) != args.sequences:
        sys.exit(f"continuous batching of transformers {version} answered {len(answers) - len(short)} of {args.sequences} requests with {tokens} tokens: "
                 + (errors[0] if errors else "it gave no reason"))
    return sum(len(answer.generated_tokens) for answer in answers)


# No inference_mode here: generate_batch works in its own thread, which the caller's mode does not affect, and there a
# tensor created in that mode must not be written, so that all requests would fail. It sets no_grad itself.
def batch(args):
    from transformers import ContinuousBatchingConfig, GenerationConfig

    model, config, version = model_of(args)
    prompts = torch.randint(0, config.vocab_size, (args.sequences, args.input_len), generator=torch.Generator().manual_seed(0)).tolist()
    batching = ContinuousBatchingConfig(num_blocks=args.blocks, max_batch_tokens=args.blocks and 2048)

    def run(tokens):
        settings = GenerationConfig(max_new_tokens=tokens, do_sample=False, eos_token_id=-1, pad_token_id=0)
        start = time.perf_counter()
        made = model.generate_batch(inputs=prompts, generation_config=settings, continuous_batching_config=batching, progress_bar=False)
        return made_tokens(made, args, tokens, version), time.perf_counter() - start

    run(2)
    (few, short), (tokens, seconds) = run(2), run(args.output_len)
    return {"tokens_per_s": (tokens - few) / (seconds - short), "whole_tokens_per_s": tokens / seconds, "tokens": tokens, "seconds": seconds,
            "transformers": version}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["ceilings", "latency", "batch"])
    parser.add_argument("--config", required=True)
    parser.add_argument("--device", default="cuda", help="cpu: latency and batch only")
    parser.add_argument("--sequences", type=int, default=256)
    parser.add_argument("--input-len", type=int, default=448)
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--blocks", type=int, help="pages of 256 positions for continuous batching, in steps of 2,048 tokens; default: nine tenths of the memory")
    args = parser.parse_args()
    print(json.dumps({"ceilings": ceilings, "latency": latency, "batch": batch}[args.what](args)))


if __name__ == "__main__":
    main()
