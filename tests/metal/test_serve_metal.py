# SPDX-License-Identifier: Apache-2.0
"""The openai client against a server on the Metal driver: its answers are the emulator's, and no Metal object leaks.

With the fake of Metal, the kernels' flattened Metal sources run on the emulator. Both sum in the same order, so the
answers must be equal to the last digit. If deferred, work runs only when the driver waits for it, so a step that is
read too early gives other answers.
"""

import concurrent.futures
import subprocess

import pytest

from conftest import BIN_DIR, FAKE

pytestmark = pytest.mark.skipif(not FAKE.exists(), reason="quire_fake_metal is not built: it needs clang++ and metal-cpp, "
                                "which scripts/test fetches")
MODELS = ("llama", "qwen3.5")


def answers(server, model):
    """The server's answers to a greedy chat, a seeded stream, logprobs, and four requests at once."""
    chat, text = server.client.chat.completions, server.client.completions
    messages = [{"role": "user", "content": "hello"}]
    found = {}
    greedy = chat.create(model=model, messages=messages, max_tokens=6, temperature=0, logprobs=True, top_logprobs=3)
    found["greedy"] = (greedy.choices[0].message.content, greedy.choices[0].logprobs.model_dump())
    stream = chat.create(model=model, messages=messages, max_tokens=6, temperature=1, seed=7, top_p=0.9, stream=True)
    found["stream"] = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)

    def one(seed):
        options = dict(max_tokens=6, temperature=0.8, seed=seed, presence_penalty=0.5, logprobs=2)
        return text.create(model=model, prompt="once upon a time " * (1 + 2 * seed), **options).choices[0].model_dump()

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        found["together"] = list(pool.map(one, range(4)))
    return found


@pytest.fixture(scope="session", params=MODELS)
def expected(request, start):
    """The name of a model, and its answers on the emulator, without Metal."""
    server = start(BIN_DIR / "quire", request.param, "emulator")
    found = answers(server, request.param)
    assert server.stop() == 0, server.log
    return request.param, found


@pytest.mark.parametrize("deferred", [False, True], ids=["normal", "deferred"])
def test_metal_gives_the_answers_of_the_emulator(start, expected, deferred):
    model, wanted = expected
    server = start(FAKE, model, "metal", **({"FAKE_METAL_DEFER": "1"} if deferred else {}))
    assert answers(server, model) == wanted
    assert server.stop() == 0, server.log
    assert "fake Metal: 0 objects alive at exit" in server.log, server.log


def test_the_selftest_passes():
    """What the user of a Mac is asked to run: every kernel is compiled, every op compared with the CPU."""
    tested = subprocess.run([str(FAKE), "selftest", "--device", "metal"], capture_output=True, text=True)
    assert tested.returncode == 0 and "FAILED" not in tested.stdout, tested.stdout + tested.stderr
    assert "metal: Apple M0 (fake), apple7" in tested.stdout
    assert "0 objects alive at exit" in tested.stderr


def test_the_device_is_listed():
    listed = subprocess.run([str(FAKE), "devices"], capture_output=True, text=True, check=True)
    assert "Apple M0 (fake), apple7" in listed.stdout
    assert "0 objects alive at exit" in listed.stderr


def test_a_build_without_metal_says_so():
    listed = subprocess.run([str(BIN_DIR / "quire"), "devices"], capture_output=True, text=True, check=True)
    assert "this build has no Metal; it needs macOS on Apple silicon" in listed.stdout
