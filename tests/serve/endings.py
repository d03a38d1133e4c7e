# SPDX-License-Identifier: Apache-2.0
"""A seed whose answer ends by itself: the tiny models are random, so most answers of a few tokens do not."""

import json
import urllib.request


def find_ending(url: str, prompt: str = "Hello world") -> tuple[int, str]:
    """The seed and the text of a chat's answer that ended with the model's own end, after some text."""
    for seed in range(0, 4096, 128):
        body = {"messages": [{"role": "user", "content": prompt}], "seed": seed, "n": 128, "max_tokens": 24}
        request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as reply:
            choices = json.load(reply)["choices"]
        for choice in choices:  # choice i has the seed seed + i
            if choice["finish_reason"] == "stop" and len(choice["message"]["content"]) > 3:
                return seed + choice["index"], choice["message"]["content"]
    raise AssertionError("no answer ended by itself")
