# SPDX-License-Identifier: Apache-2.0
"""Quire's own greedy answers to six prompts: the golden that detects any change of the shared arithmetic.

Usage: python -m tools.goldens.six_prompts --model FILE.gguf [--quire build/quire]            writes quire_default.json
       python -m tools.goldens.six_prompts --model FILE.gguf [--quire build/quire] --check    compares instead

The answers are the same on the ISA levels portable, avx2 and avx512, of which the fastest here is taken, so one file serves all
machines; they change only when that arithmetic is changed on purpose. Needs nothing but Python and the binary.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests" / "goldens" / "smollm2"
GOLDEN = FOLDER / "quire_default.json"


def answer(quire: str, model: str, text: str, form: str, tokens: int, *flags: str) -> dict:
    """Runs one prompt with `quire run`, as text, to include the tokenizer and the chat template."""
    command = [quire, "run", model, text, "--json", "--temperature", "0", "--ignore-eos", "--no-skip-special-tokens",
               "--max-tokens", str(tokens), *(["--raw"] if form == "raw" else []), *flags]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("QUIRE_")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip())
    out = json.loads(done.stdout)
    choice = out["choices"][0]
    return {"text": text, "form": form, "prompt_tokens": out["usage"]["prompt_tokens"], "greedy": choice["token_ids"],
            "answer": choice["text"]}


def common_level(quire: str, model: str) -> str:
    """The fastest ISA level of this machine whose arithmetic is the same on every machine."""
    for level in ("avx512", "avx2"):
        done = subprocess.run([quire, "run", model, "a", "--raw", "--max-tokens", "1", "--cpu-isa", level],
                              capture_output=True, stdin=subprocess.DEVNULL)
        if done.returncode == 0:
            return level
    return "portable"


def make(quire: str, model: str) -> list[dict]:
    flags = ["--cpu-isa", common_level(quire, model)]
    prompts = json.loads((FOLDER / "six_greedy.json").read_text())["prompts"]
    return [answer(quire, model, p["text"], p["form"], len(p["greedy"]), *flags) for p in prompts]


def differences(wanted: list[dict], got: list[dict]) -> list[str]:
    return [f"{a['text']!r} ({a['form']}): {b['answer']!r} instead of {a['answer']!r}"
            for a, b in zip(wanted, got, strict=True) if a != b]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="SmolLM2-135M-Instruct.Q4_1.gguf")
    parser.add_argument("--quire", default=str(ROOT / "build" / "quire"), help="the binary (build/quire)")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if an answer differs")
    options = parser.parse_args()
    got = make(options.quire, options.model)
    if options.check:
        problems = differences(json.loads(GOLDEN.read_text())["prompts"], got)
        for problem in problems:
            print(problem, file=sys.stderr)
        return 1 if problems else 0
    lines = ",\n".join("  " + json.dumps(entry, separators=(",", ":"), ensure_ascii=False) for entry in got)
    GOLDEN.write_text('{\n "prompts": [\n' + lines + "\n ]\n}\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
