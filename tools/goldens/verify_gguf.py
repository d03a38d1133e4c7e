# SPDX-License-Identifier: Apache-2.0
"""Runs every exported GGUF in llama.cpp and holds its greedy tokens and logits to the goldens.

This checks the exporter (keys, names, row order, RoPE) with an implementation that knows nothing of ours.
Usage: python -m tools.goldens.verify_gguf --peer-python VENV/bin/python [--case NAME]...
The peer's venv has llama-cpp-python, made by bench/compare.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import gguf
import numpy as np

from tools.goldens import cases, export, floats, gguf_file, philox

WORKER = pathlib.Path(__file__).resolve().parents[2] / "bench" / "llama_cpp_worker.py"
# llama.cpp in float32 with float32 pages: its own rounding (RoPE by repeated products, fast exp) stays well below this.
TOLERANCE = 2e-3


def ask_llama_cpp(python: str, model: pathlib.Path, requests: dict, scratch: pathlib.Path) -> list[dict]:
    (scratch / "requests.json").write_text(json.dumps(requests))
    subprocess.run([python, str(WORKER), "greedy", "--model", str(model), "--threads", "1", "--cache-type", "f32",
                    "--flash-attn", "off", "--n-batch", "512", "--requests", str(scratch / "requests.json"),
                    "--out", str(scratch / "answers.json")], check=True, stdout=subprocess.DEVNULL)
    return json.loads((scratch / "answers.json").read_text())


def verify_case(case: cases.Case, python: str, scratch: pathlib.Path) -> list[str]:
    expected = json.loads((export.GOLDENS / case.name / "expected.json").read_text())
    model = scratch / f"{case.name}.gguf"
    export.main(["--case", case.name, "--out", str(model), "--max-model-len", str(case.max_model_len)])
    prompts, rope = expected["prompts"], case.arguments["rope_parameters"]
    # The context of 1,024 chooses longrope's factors, as max_model_len does. Of yarn's keys llama.cpp reads the two
    # betas in a few architectures only, so they are also passed by hand.
    answers = ask_llama_cpp(python, model, {
        "context": 1024, "new_tokens": cases.NEW_TOKENS, "prompts": [p["tokens"] for p in prompts],
        "context_params": {f"yarn_{k}": rope[k] for k in ("beta_fast", "beta_slow") if k in rope}}, scratch)
    problems, worst = [], 0.0
    for prompt, answer in zip(prompts, answers, strict=True):
        difference = np.abs(floats.decode(prompt["rows"][-1]["logits"]) - np.array(answer["logits"])).max()
        worst = max(worst, float(difference))
        gaps = floats.decode(prompt["gaps"])
        step = next((i for i, (a, b) in enumerate(zip(prompt["greedy"], answer["greedy"])) if a != b), None)
        if difference > TOLERANCE or (step is not None and gaps[step] > 2 * TOLERANCE):
            problems.append(f"{case.name}, prompt of {len(prompt['tokens'])}: logits differ by {difference:.3g}, "
                            f"first other token at step {step}")
    print(f"{case.name}: largest difference of logits {worst:.2e}{'' if problems else ', tokens equal'}", flush=True)
    return problems


def verify_quantisers() -> list[str]:
    """Each block type unpacks to something near the values: a wrong layout is off by more than the type's own step."""
    values = philox.tensor("quantisers.weight", (8, 512))
    allowed = {"F32": 0, "F16": 1e-3, "BF16": 8e-3, "Q8_0": 8e-3, "Q6_K": 4e-2, "Q5_0": 8e-2, "Q5_1": 4e-2, "Q5_K": 4e-2,
               "Q4_0": 0.15, "Q4_1": 8e-2, "Q4_K": 8e-2, "Q3_K": 0.3, "Q2_K": 0.4}
    problems = []
    for name in gguf_file.TYPES:
        back = gguf.quants.dequantize(gguf_file.quantize(values, name), gguf.GGMLQuantizationType[name])
        error = np.abs(back - values).max() / np.abs(values).max()
        if not error <= allowed[name]:
            problems.append(f"{name}: off by {error:.3g} of the largest value, more than {allowed[name]}")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer-python", required=True)
    parser.add_argument("--case", action="append")
    options = parser.parse_args()
    chosen = [cases.find_case(n) for n in options.case] if options.case else cases.CASES
    problems = verify_quantisers()
    with tempfile.TemporaryDirectory() as folder:
        for case in chosen:
            problems += verify_case(case, options.peer_python, pathlib.Path(folder))
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
