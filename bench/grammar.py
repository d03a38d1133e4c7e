#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares constrained decoding with llguidance and xgrammar: compile times and mask times on real JSON schemas.

usage: bench/grammar.py --tokenizer FOLDER --schemas FOLDER [--build build] [--peer-python build/grammar-venv/bin/python]
                        [--count 200] [--seed 1] [--peers llguidance,xgrammar]
FOLDER with the tokenizer has a tokenizer.json (128k tokens for the published figures); the schemas are *.json files in
any depth. Each engine compiles the same schemas and walks the same texts, one thread each, one after the other, so that
all see the same machine. A text is made from its schema by a small generator below; texts that an engine refuses count
as refused there. The peers come from PyPI and need an environment of their own:
  python3 -m venv build/grammar-venv && build/grammar-venv/bin/pip install llguidance tokenizers xgrammar torch
or, without the weight of torch, for whose arrays numpy then stands in,
  build/grammar-venv/bin/pip install llguidance tokenizers transformers apache-tvm-ffi pydantic numpy
  build/grammar-venv/bin/pip install --no-deps xgrammar
An engine that cannot be imported there is left out, and the reason is printed. Times are CPU times of one thread.
"""
import argparse
import json
import random
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
WORDS = ("the quick brown fox jumps over a lazy dog while rivers of data flow through quiet servers and nobody "
         "counts tokens like Müller does in Köln").split()


class Generator:
    """Makes a plausible instance of a schema; it may be wrong where keywords interact, which the engines then say."""

    def __init__(self, schema, rng):
        self.root, self.rng = schema, rng

    def resolve(self, schema):
        for _ in range(20):
            ref = schema.get("$ref") if isinstance(schema, dict) else None
            if not isinstance(ref, str) or not ref.startswith("#"):
                break
            target = self.root
            for part in [p for p in ref[1:].split("/") if p]:
                part = part.replace("~1", "/").replace("~0", "~")
                target = target[int(part)] if isinstance(target, list) else target[part]
            schema = target
        return schema if isinstance(schema, dict) else {}

    def string(self, schema):
        formats = {"date-time": "2024-05-01T12:30:00Z", "date": "2024-05-01", "time": "12:30:00Z", "ipv4": "10.0.0.1",
                   "email": "ada@example.com", "uri": "https://example.com/a?b=c", "hostname": "example.com",
                   "uuid": "123e4567-e89b-12d3-a456-426614174000", "ipv6": "2001:db8::1", "duration": "P3D"}
        if schema.get("format") in formats:
            return formats[schema["format"]]
        text = " ".join(self.rng.choice(WORDS) for _ in range(self.rng.randint(1, 14)))
        text = text.ljust(schema.get("minLength", 0), "x")
        return text[: schema.get("maxLength", len(text))]

    def number(self, schema, whole):
        low = schema.get("minimum", schema.get("exclusiveMinimum", 0))
        low = low + 1 if isinstance(low, (int, float)) and not isinstance(low, bool) else 1
        high = schema.get("maximum", low + 1000)
        value = self.rng.randint(int(low), max(int(low), int(high)))
        step = schema.get("multipleOf")
        if isinstance(step, int) and step > 0:
            value = -(-value // step) * step
        return value if whole else value + self.rng.choice([0, 0.5, 0.25])

    def object(self, schema, depth):
        result, required = {}, schema.get("required", [])
        for name, inner in schema.get("properties", {}).items():
            if name in required or (depth < 5 and self.rng.random() < 0.6):
                result[name] = self.make(inner, depth + 1)
        extra = schema.get("additionalProperties", {})
        for name in required if isinstance(required, list) else []:
            if name not in result:
                result[name] = self.make(extra if isinstance(extra, dict) else {}, depth + 1)
        if not result and isinstance(extra, dict) and extra and depth < 5:
            result["name"] = self.make(extra, depth + 1)
        return result

    def make(self, schema, depth=0):
        schema = self.resolve(schema)
        if depth > 30:
            raise RecursionError
        if "const" in schema:
            return schema["const"]
        if schema.get("enum"):
            return self.rng.choice(schema["enum"])
        for key in ("anyOf", "oneOf", "allOf"):
            if schema.get(key):
                options = schema[key] if key == "allOf" else [self.rng.choice(schema[key])]
                merged = {k: v for k, v in schema.items() if k != key}
                for option in options:
                    option = dict(self.resolve(option))
                    option["properties"] = {**merged.get("properties", {}), **option.get("properties", {})}
                    option["required"] = [*merged.get("required", []), *option.get("required", [])]
                    merged.update(option)
                return self.make(merged, depth + 1)
        kind = schema.get("type")
        if isinstance(kind, list):
            kind = self.rng.choice(kind)
        if kind is None:
            kind = "object" if schema.get("properties") else "array" if "items" in schema else "string"
        if kind == "object":
            return self.object(schema, depth)
        if kind == "array":
            count = max(schema.get("minItems", 0), self.rng.randint(1, 3) if depth < 5 else 0)
            items = schema.get("items", {})
            return [self.make(items if isinstance(items, dict) else {}, depth + 1)
                    for _ in range(min(count, schema.get("maxItems", count)))]
        if kind in ("integer", "number"):
            return self.number(schema, kind == "integer")
        return {"boolean": True, "null": None}[kind] if kind in ("boolean", "null") else self.string(schema)


def cases(folder, count, seed):
    """(name, schema, texts) of a sample; schemas without any instance from the generator have no text."""
    rng = random.Random(seed)
    files = sorted(folder.rglob("*.json"))
    for path in rng.sample(files, min(count, len(files))):
        schema = json.loads(path.read_text())
        texts = []
        for _ in range(2):
            try:
                value = Generator(schema, rng).make(schema)
            except (RecursionError, KeyError, TypeError, ValueError, IndexError, AttributeError):
                continue
            texts.append(json.dumps(value, ensure_ascii=False, indent=rng.choice([None, 2])))
        yield str(path.relative_to(folder)), schema, texts


class Results:
    """What one engine did: times in microseconds."""

    def __init__(self, name):
        self.name, self.compiles, self.masks = name, [], []
        self.errors, self.refused, self.accepted, self.wrong = 0, 0, 0, []

    def line(self):
        def quantile(values, q):
            return sorted(values)[min(len(values) - 1, int(q * len(values)))] if values else float("nan")

        c, m = self.compiles, self.masks
        return (f"{self.name:11} schemas {len(c)} ({self.errors} refused)  texts {self.accepted} ({self.refused} refused)  "
                f"compile p50 {quantile(c, .5) / 1000:.2f} p99 {quantile(c, .99) / 1000:.1f} max {max(c, default=0) / 1000:.1f} ms  "
                f"mask avg {sum(m) / max(1, len(m)):.1f} p50 {quantile(m, .5):.1f} p90 {quantile(m, .9):.1f} "
                f"p99 {quantile(m, .99):.1f} max {max(m, default=0):.0f} us  ({len(m)} masks)")


def run_quire(build, tokenizer, work, verbose, any_order):
    results = Results("quire")
    process = subprocess.Popen([str(Path(build) / "quire_grammar_check"), str(tokenizer)], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, text=True)
    for name, schema, texts in work:
        spec = {"json": schema, "any_order": any_order}
        process.stdin.write(json.dumps({"spec": spec, "instances": texts, "walk": "tokenizer"}) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            sys.exit(f"quire_grammar_check ended at {name}")
        answer = json.loads(line)
        if not answer["ok"]:
            results.errors += 1
            if verbose:
                print(f"quire refuses {name}: {answer['error']}")
            continue
        results.compiles.append(answer["first_mask_us"])
        results.masks += answer["mask_us"]
        results.accepted += sum(answer["accepted"])
        results.refused += len(texts) - sum(answer["accepted"])
        results.wrong += [f"{name}: {wrong}" for wrong in answer["wrong"]]
        if verbose:
            masks = answer["mask_us"] or [0]
            print(f"{name}: compile {answer['first_mask_us']:.0f} us, masks avg {sum(masks) / len(masks):.1f} "
                  f"max {max(masks):.0f} us of {len(masks)}, {answer['bytes']} bytes, accepted {answer['accepted']}")
    process.stdin.close()
    process.wait()
    return results


def run_peer(python, engine, tokenizer, work):
    """Runs this file again with the peers' Python, which writes its results as JSON."""
    process = subprocess.run([str(python), str(Path(__file__).resolve()), "--worker", engine, "--tokenizer", str(tokenizer)],
                             input="\n".join(json.dumps(case) for case in work), capture_output=True, text=True)
    if process.returncode != 0:
        reason = process.stderr.strip().splitlines()
        print(f"{engine}: left out ({reason[-1] if reason else 'it ended'})")
        return None
    results = Results(engine)
    results.__dict__.update(json.loads(process.stdout.splitlines()[-1]))
    return results


def stand_in_for_torch():
    """xgrammar imports torch, but needs only an array for its masks: without torch, numpy gives that."""
    import importlib.util
    if importlib.util.find_spec("torch") is not None:
        return
    import types
    import numpy
    import tvm_ffi  # noqa: F401: these two look for torch and do without
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast, LogitsProcessor  # noqa: F401
    torch = types.ModuleType("torch")
    torch.int32 = numpy.int32
    torch.tensor = lambda value, dtype=None: numpy.array(value, dtype)
    torch.full = lambda shape, value, dtype=None: numpy.full(shape, value, dtype)
    torch.__getattr__ = lambda name: numpy.ndarray  # the types in annotations
    sys.modules["torch"] = torch


def worker(engine, tokenizer_folder):
    """One peer: reads cases from standard input and writes its Results as JSON."""
    import time
    from tokenizers import Tokenizer
    path = tokenizer_folder / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    results = Results(engine)

    def now():
        return time.thread_time() * 1e6

    if engine == "llguidance":
        import llguidance
        llg = llguidance.LLTokenizer(path.read_text())
        mask = bytearray((llg.vocab_size + 31) // 32 * 4)
        pointer = __import__("ctypes").addressof((__import__("ctypes").c_char * len(mask)).from_buffer(mask))

        def start(schema):
            grammar = llguidance.LLMatcher.grammar_from_json_schema(schema)
            matcher = llguidance.LLMatcher(llg, grammar)
            if matcher.is_error():
                raise ValueError(matcher.get_error())
            matcher.unsafe_compute_mask_ptr(pointer, len(mask))
            return matcher

        def step(matcher, token):
            begin = now()
            matcher.unsafe_compute_mask_ptr(pointer, len(mask))
            took = now() - begin
            allowed = (mask[token // 8] >> (token % 8)) & 1
            return took, bool(allowed) and matcher.consume_token(token)

        fresh = start
        done = lambda matcher: matcher.is_accepting()  # noqa: E731
    else:
        stand_in_for_torch()
        import xgrammar
        vocabulary = [None] * tokenizer.get_vocab_size()
        for piece, index in tokenizer.get_vocab().items():
            vocabulary[index] = piece
        info = xgrammar.TokenizerInfo(vocabulary, vocab_type=xgrammar.VocabType.BYTE_LEVEL)
        compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        bits = xgrammar.allocate_token_bitmask(1, info.vocab_size)

        def start(schema):
            return compiler.compile_json_schema(json.dumps(schema), strict_mode=False)

        def fresh(schema, compiled=None):
            return xgrammar.GrammarMatcher(compiled)

        def step(matcher, token):
            begin = now()
            matcher.fill_next_token_bitmask(bits)
            took = now() - begin
            return took, matcher.accept_token(token)

        done = lambda matcher: matcher.is_terminated() or True  # noqa: E731

    for line in sys.stdin:
        _, schema, texts = json.loads(line)
        try:
            begin = now()
            compiled = start(schema)
            results.compiles.append(now() - begin)
        except Exception:  # noqa: BLE001: each engine has its own kinds
            results.errors += 1
            continue
        for text in texts:
            matcher = fresh(schema) if engine == "llguidance" else fresh(schema, compiled)
            accepted = True
            for token in tokenizer.encode(text, add_special_tokens=False).ids:
                took, accepted = step(matcher, token)
                results.masks.append(took)
                if not accepted:
                    break
            accepted = accepted and done(matcher)
            results.accepted += bool(accepted)
            results.refused += not accepted
    print(json.dumps(results.__dict__))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--schemas", type=Path)
    parser.add_argument("--build", default=REPO / "build")
    parser.add_argument("--peer-python", type=Path, default=REPO / "build" / "grammar-venv" / "bin" / "python")
    parser.add_argument("--peers", default="llguidance,xgrammar")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--verbose", action="store_true", help="a line for each schema")
    parser.add_argument("--any-order", action="store_true",
                        help="let quire accept members in any order (by default in the schema's, as servers write them)")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return worker(args.worker, args.tokenizer)
    if not args.schemas:
        parser.error("--schemas is missing")
    work = list(cases(args.schemas, args.count, args.seed))
    results = [run_quire(args.build, args.tokenizer, work, args.verbose, args.any_order)]
    for engine in [peer for peer in args.peers.split(",") if peer]:
        if not args.peer_python.exists():
            print(f"{engine}: left out ({args.peer_python} is missing; see the top of this file)")
        elif (found := run_peer(args.peer_python, engine, args.tokenizer, work)) is not None:
            results.append(found)
    for result in results:
        print(result.line())
        for wrong in result.wrong[:20]:
            print("  wrong:", wrong)


if __name__ == "__main__":
    main()
