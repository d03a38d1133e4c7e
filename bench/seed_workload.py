# SPDX-License-Identifier: Apache-2.0
"""The seed workload: ShareGPT, 100 prompts, 10 requests per second, at most 32 at once, with `quire serve` by default and with
--max-num-seqs 1, in one run; with --peer-url also with another server.

Usage: python bench/seed_workload.py --dataset-path sharegpt_1k_multiturn.json [--model FILE.gguf] [--peer-url URL]

The targets are at least twice the output tok/s of --max-num-seqs 1, and at most a third of its mean time to first token.
Exits with 1 if they are missed. Answers are greedy, so that all sides generate the same tokens. Standard library only.
"""

import argparse
import json
import pathlib
import sys

from serving import ROOT, bench_serve, server

ROWS = (("output tokens/s", "output_throughput", 1), ("total tokens/s", "total_token_throughput", 1),
        ("requests/s", "request_throughput", 2), ("mean TTFT ms", "mean_ttft_ms", 1), ("median TTFT ms", "median_ttft_ms", 1),
        ("P99 TTFT ms", "p99_ttft_ms", 1), ("mean TPOT ms", "mean_tpot_ms", 2), ("mean ITL ms", "mean_itl_ms", 2),
        ("generated tokens", "total_output_tokens", 0), ("failed", "failed", 0))


def print_table(results: dict[str, dict]) -> None:
    print(f"{'':18}" + "".join(f"{name:>22}" for name in results))
    for label, key, digits in ROWS:
        print(f"{label:18}" + "".join(f"{result[key]:22.{digits}f}" for result in results.values()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset-path", type=pathlib.Path, required=True, help="a ShareGPT JSON file")
    parser.add_argument("--model", default="", help="for quire serve; default: the default model")
    parser.add_argument("--quire", type=pathlib.Path, default=ROOT / "build" / "quire")
    parser.add_argument("--num-prompts", type=int, default=100)
    parser.add_argument("--request-rate", type=float, default=10)
    parser.add_argument("--max-concurrency", type=int, default=32)
    parser.add_argument("--peer-url", help="another OpenAI-compatible server with the same model, already running")
    parser.add_argument("--peer-model", help="name of its model in requests, if it has no /v1/models")
    parser.add_argument("--json", type=pathlib.Path, help="also write the results here")
    parser.add_argument("--serve-args", nargs=argparse.REMAINDER, default=[], help="additional arguments for quire serve; must be last")
    options = parser.parse_args()
    load = ["--dataset-name", "sharegpt", "--dataset-path", options.dataset_path, "--num-prompts", options.num_prompts,
            "--request-rate", options.request_rate, "--max-concurrency", options.max_concurrency, "--temperature", 0]
    results = {}
    for name, arguments in (("quire", []), ("quire, one at a time", ["--max-num-seqs", 1])):
        print(f"--- {name}", flush=True)
        with server(options.quire, options.model, *arguments, *options.serve_args) as (url, _):
            results[name] = bench_serve(options.quire, url, "--ready-check-timeout-sec", 60, *load)
    if options.peer_url:
        print(f"--- {options.peer_url}", flush=True)
        tokenizer = ["--tokenizer", options.model or "SmolLM2-135M-Instruct"]
        named = ["--model", options.peer_model] if options.peer_model else []
        results["peer"] = bench_serve(options.quire, options.peer_url, *load, *tokenizer, *named)
    print_table(results)
    many, one = results["quire"], results["quire, one at a time"]
    speed = many["output_throughput"] / one["output_throughput"]
    wait = many["mean_ttft_ms"] / one["mean_ttft_ms"]
    same = many["total_output_tokens"] == one["total_output_tokens"]
    fine = speed >= 2 and wait <= 1 / 3 and same and many["failed"] == one["failed"] == 0
    print(f"output tokens/s: {speed:.2f}x (wanted: 2 or more); mean TTFT: {wait:.3f}x (wanted: 0.333 or less); "
          f"generated tokens {'equal' if same else 'DIFFER'}: {'fine' if fine else 'MISSED'}")
    if "peer" in results:
        print(f"against the peer: output tokens/s {many['output_throughput'] / results['peer']['output_throughput']:.2f}x, "
              f"mean TTFT {many['mean_ttft_ms'] / results['peer']['mean_ttft_ms']:.3f}x")
    if options.json:
        options.json.write_text(json.dumps({"results": results, "speed": speed, "wait": wait}, indent=1) + "\n")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
