# SPDX-License-Identifier: Apache-2.0
"""The arguments that the workers of all peers take (llama_cpp_worker.py, openvino_worker.py)."""

import argparse


def worker_parser(description: str, commands: list[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("command", choices=commands)
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--input-len", type=int, default=512)
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--iters", type=int, default=1)
    parser.add_argument("--warmup", type=int, default=1)
    return parser
