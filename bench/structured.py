# SPDX-License-Identifier: Apache-2.0
"""Measures what constraints cost: a batch whose answers follow JSON Schemas against the same batch without.

Usage: python bench/structured.py [--model DIR] [--batch-size 32] [--rounds 3] [-- FLAG ...]

Both are `quire bench latency`, in turn; the figure is the ratio of their decode rates. The schemas ask for long lists, so
that no answer ends early. What follows -- goes to both, for example for a GPU and the shape of a model without its weights:
  python bench/structured.py --model tools/shapes/qwen3-0.6b --batch-size 256 -- --device cuda --load-format dummy --tokenizer DIR
The target is 95% or more. Standard library only.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]


def many(item: dict) -> dict:
    return {"type": "array", "items": item, "minItems": 1000}


def record(**properties) -> dict:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


SCHEMAS = [
    many(record(name={"type": "string", "maxLength": 40}, age={"type": "integer", "minimum": 0, "maximum": 130},
                email={"type": "string", "format": "email"})),
    many(record(id={"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"}, price={"type": "number", "minimum": 0},
                tags={"type": "array", "items": {"enum": ["new", "old", "sale", "sold out"]}, "maxItems": 4})),
    many(record(title={"type": "string"}, done={"type": "boolean"}, due={"type": "string", "format": "date"})),
    many({"anyOf": [record(kind={"const": "circle"}, radius={"type": "number"}),
                    record(kind={"const": "rectangle"}, width={"type": "number"}, height={"type": "number"}),
                    record(kind={"const": "text"}, text={"type": "string", "minLength": 5})]}),
]


def decode_rate(options, flags: list, schemas: list) -> float:
    command = [options.quire, "bench", "latency", "--batch-size", options.batch_size, "--input-len", options.input_len,
               "--output-len", options.output_len, "--num-iters", options.iters, "--num-iters-warmup", 1, "--json", *flags]
    if options.model:
        command += ["--model", options.model]
    for path in schemas:
        command += ["--json-schema", path]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}\nended with {done.returncode}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout)["decode_tokens_per_s"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="", help="default: the default model")
    parser.add_argument("--quire", type=pathlib.Path, default=ROOT / "build" / "quire")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--input-len", type=int, default=64)
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--iters", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("flags", nargs="*", help="for quire bench latency")
    options = parser.parse_args()
    free, held = [], []
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for i, schema in enumerate(SCHEMAS):
            paths.append(pathlib.Path(folder) / f"schema{i}.json")
            paths[-1].write_text(json.dumps(schema))
        for _ in range(options.rounds):
            free.append(decode_rate(options, options.flags, []))
            held.append(decode_rate(options, options.flags, paths))
            print(f"free {free[-1]:10.1f} tok/s   constrained {held[-1]:10.1f} tok/s   {100 * held[-1] / free[-1]:6.1f} %", flush=True)
    ratio = statistics.median(held) / statistics.median(free)
    print(f"{options.batch_size} sequences: {100 * ratio:.1f} % of the rate without constraints (wanted: 95 or more)")
    return 0 if ratio >= 0.95 else 1


if __name__ == "__main__":
    sys.exit(main())
