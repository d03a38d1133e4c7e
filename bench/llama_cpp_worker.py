# SPDX-License-Identifier: Apache-2.0
"""Drives llama.cpp through llama-cpp-python's low-level bindings; run with the Python of the peer's venv.

    llama_cpp_worker.py speed  --model FILE --threads N ...   one JSON line of measured seconds
    llama_cpp_worker.py batch  --model FILE --threads N --batch-size 32 ...   the same for steps of many sequences
    llama_cpp_worker.py logits --model FILE --tokens IDS.json --out logits.f32   raw float32 rows [tokens, vocabulary]
    llama_cpp_worker.py greedy --model FILE --requests R.json --out A.json       greedy tokens of given prompts
"""

import ctypes
import json
import resource
import sys
import time

import llama_cpp as lib
import numpy as np
from worker_options import worker_parser

FLASH = {"auto": lib.LLAMA_FLASH_ATTN_TYPE_AUTO, "on": lib.LLAMA_FLASH_ATTN_TYPE_ENABLED,
         "off": lib.LLAMA_FLASH_ATTN_TYPE_DISABLED}
CACHE_TYPES = {"f16": 1, "f32": 0}  # ggml's type numbers
MEMORY_BEFORE = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)  # bytes
_log_lines: list[str] = []


@lib.llama_log_callback
def _keep_log(level, text, user_data):
    _log_lines.append(text.decode("utf-8", "replace"))


class Session:
    """One model and one context, freed together; used by one thread."""

    def __init__(self, options, context_length: int, more_params: dict | None = None):
        lib.llama_log_set(_keep_log, ctypes.c_void_p(0))
        lib.llama_backend_init()
        model_params = lib.llama_model_default_params()
        model_params.use_extra_bufts = not options.no_repack
        self.model = lib.llama_model_load_from_file(options.model.encode(), model_params)
        if not self.model:
            raise SystemExit("llama.cpp could not load the model:\n" + "".join(_log_lines[-20:]))
        params = lib.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = context_length, options.n_batch, options.n_ubatch
        params.n_threads = params.n_threads_batch = options.threads
        params.flash_attn_type = FLASH[options.flash_attn]
        params.type_k = params.type_v = CACHE_TYPES[options.cache_type]
        params.no_perf = True
        for name, value in (more_params or {}).items():
            setattr(params, name, value)
        self.context = lib.llama_init_from_model(self.model, params)
        if not self.context:
            raise SystemExit("llama.cpp could not create a context:\n" + "".join(_log_lines[-20:]))
        self.vocab_size = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self.model))
        self.batch = lib.llama_batch_init(options.n_batch, 0, 1)

    def close(self):
        lib.llama_batch_free(self.batch)
        lib.llama_free(self.context)
        lib.llama_model_free(self.model)

    def clear(self):
        lib.llama_memory_clear(lib.llama_get_memory(self.context), True)

    def lengths(self, sequences: int = 1) -> set[int]:
        """The numbers of tokens that the first sequences have in the cache; one number if all have the same."""
        memory = lib.llama_get_memory(self.context)
        return {lib.llama_memory_seq_pos_max(memory, sequence) + 1 for sequence in range(sequences)}

    def decode(self, tokens: list[int], start: int, all_logits: bool = False) -> None:
        """One llama_decode of `tokens` at positions start, start + 1, ...; keeps the logits of the last (or of all)."""
        self.batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            self.batch.token[i], self.batch.pos[i] = token, start + i
            self.batch.n_seq_id[i], self.batch.seq_id[i][0] = 1, 0
            self.batch.logits[i] = all_logits or i + 1 == len(tokens)
        status = lib.llama_decode(self.context, self.batch)
        if status != 0:
            raise SystemExit(f"llama_decode failed with {status}")

    def decode_batch(self, tokens: list[int], position: int) -> None:
        """One llama_decode of one token of each sequence, all at one position; keeps all logits."""
        self.batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            self.batch.token[i], self.batch.pos[i] = token, position
            self.batch.n_seq_id[i], self.batch.seq_id[i][0] = 1, i
            self.batch.logits[i] = True
        status = lib.llama_decode(self.context, self.batch)
        if status != 0:
            raise SystemExit(f"llama_decode failed with {status}")

    def logits(self, row: int = -1) -> np.ndarray:
        return np.ctypeslib.as_array(lib.llama_get_logits_ith(self.context, row), shape=(self.vocab_size,))


def wanted_logs() -> list[str]:
    words = ("buffer size", "flash", "AMX", "REPACK")
    return [line.strip() for line in _log_lines if any(w in line for w in words)]


def facts() -> dict:
    return {"system_info": lib.llama_print_system_info().decode(), "log": wanted_logs(), "version": lib.__version__,
            "memory_before_mb": MEMORY_BEFORE / 1e6}


def random_prompt(session: Session, length: int) -> list[int]:
    return [int(t) for t in np.random.default_rng(0).integers(10, session.vocab_size - 10, length)]


class Steps:
    """Where the decode of each timed iteration began and how many steps it had, as the cache says."""

    def __init__(self):
        self.depth, self.steps = [], []

    def add(self, before: set[int], after: set[int]) -> None:
        if len(before) != 1 or len(after) != 1:
            raise SystemExit(f"the sequences have different lengths in llama.cpp's cache: {before}, later {after}")
        self.depth.append(min(before))
        self.steps.append(min(after) - min(before))

    def facts(self) -> dict:
        return {"decode_steps": self.steps, "depth": self.depth}


def run_speed(options) -> dict:
    session = Session(options, options.input_len + options.output_len + 16)
    prompt = random_prompt(session, options.input_len)
    prefill, decode, steps = [], [], Steps()
    for iteration in range(options.warmup + options.iters):
        session.clear()
        begin = time.perf_counter()
        for at in range(0, len(prompt), options.n_batch):
            session.decode(prompt[at:at + options.n_batch], at)
        token = int(np.argmax(session.logits()))  # waits for the result
        before, middle = session.lengths(), time.perf_counter()
        for step in range(options.output_len):
            session.decode([token], len(prompt) + step)
            token = int(np.argmax(session.logits()))
        end = time.perf_counter()
        if iteration >= options.warmup:
            prefill.append(middle - begin)
            decode.append(end - middle)
            steps.add(before, session.lengths())
    session.close()
    return {"prefill_s": prefill, "decode_s": decode, **steps.facts(), **facts()}


def run_batch(options) -> dict:
    """Steps of `batch_size` sequences that have `input_len` tokens each: one llama_batch with a row for each of them.

    Each sequence has its own stretch of the cache (kv_unified is off), so that the copies of the first one's prefill cost
    as much to read as prompts of their own would.
    """
    length = -(-(options.input_len + options.output_len + 1) // 256) * 256  # the cache is divided into such pieces
    session = Session(options, options.batch_size * length, {"n_seq_max": options.batch_size, "kv_unified": False})
    prompt = random_prompt(session, options.input_len)
    memory, decode, steps = lib.llama_get_memory(session.context), [], Steps()
    for iteration in range(options.warmup + options.iters):
        session.clear()
        for at in range(0, len(prompt), options.n_batch):
            session.decode(prompt[at:at + options.n_batch], at)
        tokens = [int(np.argmax(session.logits()))] * options.batch_size
        for sequence in range(1, options.batch_size):
            lib.llama_memory_seq_cp(memory, 0, sequence, -1, -1)
        before, begin = session.lengths(options.batch_size), time.perf_counter()
        for step in range(options.output_len if iteration >= options.warmup else 2):
            session.decode_batch(tokens, len(prompt) + step)
            tokens = [int(np.argmax(session.logits(row))) for row in range(options.batch_size)]
        if iteration >= options.warmup:
            decode.append(time.perf_counter() - begin)
            steps.add(before, session.lengths(options.batch_size))
    session.close()
    return {"decode_s": decode, **steps.facts(), **facts()}


def run_logits(options) -> dict:
    tokens = json.load(open(options.tokens))
    session = Session(options, len(tokens) + 16)
    with open(options.out, "wb") as out:
        for at in range(0, len(tokens), options.n_batch):
            piece = tokens[at:at + options.n_batch]
            session.decode(piece, at, all_logits=True)
            for row in range(len(piece)):
                out.write(session.logits(row).astype("<f4").tobytes())
    session.close()
    return {"tokens": len(tokens), "vocab_size": session.vocab_size, "log": wanted_logs()}


def run_greedy(options) -> dict:
    """requests: {"context": N, "new_tokens": M, "prompts": [[ids], ...], "context_params": {...}}; answers the tokens and the first logits."""
    requests = json.load(open(options.requests))
    session = Session(options, requests["context"], requests.get("context_params"))
    answers = []
    for prompt in requests["prompts"]:
        session.clear()
        for at in range(0, len(prompt), options.n_batch):
            session.decode(prompt[at:at + options.n_batch], at)
        first, out = session.logits().copy(), []
        for step in range(requests["new_tokens"]):
            out.append(int(np.argmax(session.logits())))
            session.decode([out[-1]], len(prompt) + step)
        answers.append({"greedy": out, "logits": [float(x) for x in first]})
    session.close()
    with open(options.out, "w") as file:
        json.dump(answers, file)
    return {"answers": len(answers)}


def main() -> int:
    parser = worker_parser(__doc__, ["speed", "batch", "logits", "greedy"])
    parser.add_argument("--n-batch", type=int, default=512)
    parser.add_argument("--n-ubatch", type=int, default=512)
    parser.add_argument("--flash-attn", choices=sorted(FLASH), default="auto")
    parser.add_argument("--cache-type", choices=sorted(CACHE_TYPES), default="f16")
    parser.add_argument("--no-repack", action="store_true", help="turn off its AMX and repacked weight buffers")
    parser.add_argument("--tokens")
    parser.add_argument("--requests")
    parser.add_argument("--out")
    options = parser.parse_args()
    run = {"speed": run_speed, "batch": run_batch, "logits": run_logits, "greedy": run_greedy}[options.command]
    print(json.dumps(run(options)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
