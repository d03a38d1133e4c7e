# SPDX-License-Identifier: Apache-2.0
"""The serving loads of bench/gpu: one client, `quire bench serve`, on a quire server and on a vLLM server of the same shape.

Every program is started in a process group of its own, and the whole group is ended: vLLM's server has children that
would otherwise keep the GPU's memory.
"""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import serving

# name: requests at once, tokens in, tokens out, prompts; lengths of None are ShareGPT's.
LOADS = {"single": (1, 128, 256, 8), "batch": (64, 512, 128, 256), "sharegpt": (256, None, None, None)}
SERVERS = ("quire", "vllm", "vllm-invariant")


class Failed(RuntimeError):
    """A part of the run that did not work; its words become the reason in the report."""


def end_group(process, patience=60):
    """Ends the process and everything that it started: SIGTERM, and SIGKILL for what is left."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(patience)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run_group(command, timeout, env=None):
    """(standard output, standard error) of a command in its own group; Failed if it fails or takes too long."""
    command = [str(word) for word in command]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, start_new_session=True)
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        raise Failed(f"{pathlib.Path(command[0]).name} took more than {timeout} s") from None
    finally:
        if process.poll() is None:
            end_group(process)
    if process.returncode != 0:
        why = err.strip().splitlines() or out.strip().splitlines()
        raise Failed(f"{pathlib.Path(command[0]).name} ended with {process.returncode}" + (f": {why[-1]}" if why else ""))
    return out, err


def run_json(command, timeout, env=None):
    """The JSON object in the last line that the command prints."""
    out, err = run_group(command, timeout, env)
    sys.stderr.write(err)
    return json.loads(out.splitlines()[-1])


@contextlib.contextmanager
def running(command, url, timeout, env=None):
    """A server in its own process group, yielded when it answers; the end of its log is in the error if it does not."""
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen([str(word) for word in command], stdout=log, stderr=log, env=env, start_new_session=True)

        def fail(what):
            log.seek(0)
            lines = [line for line in log.read().splitlines() if line.strip()]
            told = [line for line in lines if "rror" in line] or lines
            raise Failed(f"{pathlib.Path(str(command[0])).name} {what}" + (f": {told[-1].strip()}" if told else ""))

        started = time.monotonic()
        try:
            while not serving.is_up(url):
                if process.poll() is not None:
                    fail(f"ended with {process.returncode}")
                if time.monotonic() - started > timeout:
                    fail(f"was not ready after {timeout} s")
                time.sleep(0.2)
            yield process
        finally:
            end_group(process)


def vocabulary(tokenizer):
    """One more than the largest token id of a folder's tokenizer.json; 0 if it cannot be told."""
    try:
        told = json.loads((pathlib.Path(tokenizer) / "tokenizer.json").read_text())
        ids = list(told["model"]["vocab"].values()) if isinstance(told["model"]["vocab"], dict) else range(len(told["model"]["vocab"]))
        return 1 + max([*ids, *(token["id"] for token in told.get("added_tokens", []))])
    except (OSError, KeyError, ValueError):
        return 0


def server_command(server, args, model, tokenizer, port):
    """The command and environment of a server; all serve the same folder with the same limits."""
    same = ["--load-format", "dummy", "--dtype", "bfloat16", "--tokenizer", tokenizer, "--port", port, "--max-num-seqs", 256,
            "--max-model-len", args.max_model_len]
    if server == "quire":
        return [args.quire, "serve", model, "--device", args.device, *same], None
    if not args.vllm_python:
        raise Failed("it needs --vllm-python")
    env = dict(os.environ, VLLM_BATCH_INVARIANT="1") if server == "vllm-invariant" else None
    return [args.vllm_python, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--host", "127.0.0.1", *same], env


def client_arguments(load, args, tokenizer):
    """(arguments of quire bench serve, prompts of the measured run)"""
    at_once, tokens_in, tokens_out, prompts = LOADS[load]
    flags = ["--max-concurrency", at_once, "--temperature", 0, "--ignore-eos", "--tokenizer", tokenizer]
    if tokens_in is None:
        if not args.dataset_path:
            raise Failed("it needs --dataset-path")
        return [*flags, "--dataset-name", "sharegpt", "--dataset-path", args.dataset_path], args.num_prompts
    return [*flags, "--dataset-name", "random", "--random-input-len", tokens_in, "--random-output-len", tokens_out], prompts


def measure(args, url, load, tokenizer, during=None):
    """Figures of one load on a server that runs, after a short run of the same load; `during`, a context, holds the measured run."""
    flags, prompts = client_arguments(load, args, tokenizer)
    with tempfile.TemporaryDirectory() as folder:
        base = [args.quire, "bench", "serve", "--base-url", url, *flags]
        run_group([*base, "--num-prompts", min(prompts, LOADS[load][0])], args.timeout)
        with during or contextlib.nullcontext():
            run_group([*base, "--num-prompts", prompts, "--save-result", "--result-dir", folder, "--result-filename", "result.json"], args.timeout)
        found = json.loads(pathlib.Path(folder, "result.json").read_text())
    if found.get("completed") != prompts:
        raise Failed(f"{found.get('completed')} of {prompts} requests succeeded")
    return {key: found.get(key) for key in ("output_throughput", "total_token_throughput", "mean_ttft_ms", "mean_tpot_ms", "completed")}


def serve_loads(server, args, shape, config, model, tokenizer, left_out):
    """{load: figures} of one server and shape. A load that fails is noted, and the next one still runs."""
    found = {}
    if not tokenizer:
        raise Failed("it needs --tokenizer")
    if vocabulary(tokenizer) > config["vocab_size"]:
        raise Failed(f"the tokenizer has {vocabulary(tokenizer):,} tokens, the model {config['vocab_size']:,}: "
                     f"give another one as --tokenizer {shape}=FOLDER")
    port = serving.free_port()
    command, env = server_command(server, args, model, tokenizer, port)
    url = f"http://127.0.0.1:{port}"
    with running(command, url, args.start_timeout, env) as process:
        for load in args.loads:
            try:
                if process.poll() is not None:
                    raise Failed(f"the server ended with {process.returncode}")
                found[load] = measure(args, url, load, tokenizer)
            except (RuntimeError, OSError, ValueError) as error:
                left_out[f"{server} {shape} {load}"] = str(error)
    return found
