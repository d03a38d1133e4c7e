# SPDX-License-Identifier: Apache-2.0
"""Runs every exported GGUF in llama.cpp and compares its greedy tokens and logits with the goldens.

This checks the exporter (keys, names, row order, RoPE) with an implementation that knows nothing of ours.
Usage: python -m tools.goldens.verify_gguf --peer-python VENV/bin/python [--quire-logits BINARY] [--case NAME]...
The peer's venv has llama-cpp-python, made by bench/compare. Cases that llama.cpp cannot hold are changed a little
(gguf_variants.py), and quire's logits stand in for the goldens.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import gguf
import numpy as np

from tools.goldens import cases, export, floats, gguf_families, gguf_file, gguf_variants, philox

WORKER = pathlib.Path(__file__).resolve().parents[2] / "bench" / "llama_cpp_worker.py"
# llama.cpp in float32 with a float32 KV cache: its own rounding (repeated products, fast exp) is well below this.
TOLERANCE = 2e-3
GELU_TOLERANCE = 6e-2  # its GELU is a table of half-precision numbers
# llama.cpp treats Phi-MoE as a Mixtral with RMS norms: it loads the file, but computes something else.
NOT_ITS_MATHS = {"phimoe"}


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
    prompts, rope = expected["prompts"], case.arguments.get("rope_parameters", {})
    before = gguf_families.NO_WINDOW.get(case.name, 1 << 30)
    prompts = [p for p in prompts if len(p["tokens"]) < before]
    allowed = GELU_TOLERANCE if case.name.startswith("gemma") else TOLERANCE
    # The context of 1,024 selects longrope's factors, as max_model_len does. llama.cpp reads yarn's two betas only for
    # a few architectures, so they are also passed explicitly.
    answers = ask_llama_cpp(python, model, {
        "context": 1024, "new_tokens": cases.NEW_TOKENS, "prompts": [p["tokens"] for p in prompts],
        "context_params": {f"yarn_{k}": rope[k] for k in ("beta_fast", "beta_slow") if k in rope}}, scratch)
    problems, worst = [], 0.0
    for prompt, answer in zip(prompts, answers, strict=True):
        difference = np.abs(floats.decode(prompt["rows"][-1]["logits"]) - np.array(answer["logits"])).max()
        worst = max(worst, float(difference))
        gaps = floats.decode(prompt["gaps"])
        step = next((i for i, (a, b) in enumerate(zip(prompt["greedy"], answer["greedy"])) if a != b), None)
        seen = step is not None and len(prompt["tokens"]) - 1 + step < before
        if difference > allowed or (seen and gaps[step] > 2 * allowed):
            problems.append(f"{case.name}, prompt of {len(prompt['tokens'])}: logits differ by {difference:.3g}, "
                            f"first other token at step {step}")
    print(f"{case.name}: largest difference of logits {worst:.2e}{'' if problems else ', tokens equal'}", flush=True)
    return problems


def verify_variant(name: str, python: str, quire_logits: str, scratch: pathlib.Path) -> list[str]:
    model, prompts = scratch / f"variant-{name}.gguf", [cases.make_prompt(n, 512) for n in (1, 2, 17, 64)]
    gguf_variants.write(name, model)
    answers = ask_llama_cpp(python, model, {"context": 1024, "new_tokens": 16, "prompts": prompts}, scratch)
    problems, worst = [], 0.0
    for prompt, answer in zip(prompts, answers, strict=True):
        (scratch / "ids.json").write_text(json.dumps(prompt + answer["greedy"][:-1]))
        subprocess.run([quire_logits, "--model", str(model), "--tokens", str(scratch / "ids.json"), "--out",
                        str(scratch / "logits.f32"), "--dtype", "float32", "--threads", "1"], check=True)
        logits = np.fromfile(scratch / "logits.f32", dtype="<f4").reshape(len(prompt) + 15, -1)[len(prompt) - 1:]
        difference = float(np.abs(logits[0] - np.array(answer["logits"])).max())
        worst = max(worst, difference)
        if difference > TOLERANCE or np.argmax(logits, axis=1).tolist() != answer["greedy"]:
            problems.append(f"variant of {name}, prompt of {len(prompt)}: logits differ by {difference:.3g}, or the tokens do")
    print(f"variant of {name}: largest difference of logits {worst:.2e}{'' if problems else ', tokens equal'}", flush=True)
    return problems


def verify_quantisers() -> list[str]:
    """Each block type must unpack to nearly the same values: a wrong layout differs by more than the step of the type."""
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
    parser.add_argument("--quire-logits", help="the binary quire_logits, for the cases that llama.cpp cannot run unchanged")
    parser.add_argument("--case", action="append")
    options = parser.parse_args()
    chosen = [cases.find_case(n) for n in options.case] if options.case else cases.CASES
    problems = verify_quantisers()
    with tempfile.TemporaryDirectory() as folder:
        for case in chosen:
            if case.name in gguf_variants.VARIANTS:
                if options.quire_logits:
                    problems += verify_variant(case.name, options.peer_python, options.quire_logits, pathlib.Path(folder))
            elif case.name not in gguf_families.NOT_IN_GGUF and case.name not in NOT_ITS_MATHS:
                problems += verify_case(case, options.peer_python, pathlib.Path(folder))
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
