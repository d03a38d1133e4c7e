# SPDX-License-Identifier: Apache-2.0
"""Answers of the tiny model that end by themselves or fail half-way, which its random weights rarely give."""

import pathlib
import shutil

import numpy
from safetensors.numpy import load_file, save_file

PROMPT = [{"role": "user", "content": "Hello world"}]


def find_ending(server) -> tuple[int, str]:
    """A seed with which the answer to PROMPT ends with the model's end token after some text, and that text."""
    for seed in range(0, 4096, 128):
        body = {"messages": PROMPT, "seed": seed, "n": 128, "max_tokens": 24}
        for choice in server.ok("/v1/chat/completions", body)["choices"]:  # choice i has the seed seed + i
            if choice["finish_reason"] == "stop" and len(choice["message"]["content"]) > 3:
                return seed + choice["index"], choice["message"]["content"]
    raise AssertionError("no answer ended by itself")


def make_failing(server, folder: pathlib.Path) -> str:
    """The name of a copy of tiny that answers PROMPT greedily at first and then fails: the embedding of one token is
    NaN."""
    answer = server.ok("/v1/chat/completions", {"messages": PROMPT, "temperature": 0, "max_tokens": 60, "return_token_ids": True})
    said = answer["choices"][0]["token_ids"]
    fatal = next(token for i, token in enumerate(said) if i > 1 and token not in [*answer["prompt_token_ids"], *said[:2]])
    shutil.copytree(folder / "tiny", folder / "failing", dirs_exist_ok=True)
    weights = {name: value.copy() for name, value in load_file(folder / "tiny" / "model.safetensors").items()}
    weights["model.embed_tokens.weight"][fatal] = numpy.nan
    save_file(weights, folder / "failing" / "model.safetensors")
    return "failing"
