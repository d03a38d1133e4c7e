# SPDX-License-Identifier: Apache-2.0
"""API keys with names and limits."""

import json
import os
import subprocess

import pytest

from conftest import BIN_DIR

SMALL = {"prompt": "hello", "max_tokens": 4, "temperature": 0, "ignore_eos": True}
KEYS = {"keys": [{"name": "ada", "key": "sk-ada"},
                 {"name": "few", "key": "sk-few", "requests_per_minute": 2},
                 {"name": "short", "key": "sk-short", "tokens_per_minute": 40},
                 {"name": "narrow", "key": "sk-narrow", "max_sequences": 3}]}


@pytest.fixture(scope="module")
def keyed(start, tmp_path_factory):
    file = tmp_path_factory.mktemp("keys") / "keys.json"
    file.write_text(json.dumps(KEYS))
    return start("tiny", "--api-key-file", file, "--api-key", "sk-plain")


def ask(server, key: str, body: dict = SMALL, path: str = "/v1/completions"):
    return server.post(path, body, headers={"Authorization": f"Bearer {key}"} if key else {})


def test_several_keys_may_follow_one_flag_as_in_vllm(start, folder):
    """They were taken for models."""
    one = start("tiny", "--api-key", "k1", "k2", "--served-model-name", "first", "second", "--max-num-seqs", 2)
    for key, status in (("k1", 200), ("k2", 200), ("first", 401), ("tiny", 401)):
        assert ask(one, key).status_code == status, key
    names = one.http.get("/v1/models", headers={"Authorization": "Bearer k2"}).json()["data"]
    assert [model["id"] for model in names] == ["first", "second"]
    one.stop()
    run = subprocess.run([BIN_DIR / "quire", "serve", "tiny", "--api-key", "k1", "tiny"], cwd=folder, capture_output=True,
                         text=True, timeout=60)
    assert run.returncode == 2 and "'tiny' is a model: put it in front of the flags" in run.stderr, run.stderr


@pytest.mark.parametrize("flag", ["--api-key", "--served-model-name"])
def test_a_word_that_is_taken_for_the_model_is_explained(folder, flag):
    """`serve --api-key k1 k2` said only that there is no model k2, and the message had the key."""
    run = subprocess.run([BIN_DIR / "quire", "serve", flag, "k1", "k-two"], cwd=folder, capture_output=True, text=True, timeout=60,
                         env=os.environ | {"QUIRE_HOME": str(folder / "home")})
    assert run.returncode == 2 and f"the second word behind {flag} is the MODEL" in run.stderr, run.stderr
    assert "k-two" not in run.stderr


def test_every_key_is_accepted(keyed):
    for key in ("sk-ada", "sk-few", "sk-narrow", "sk-plain"):
        assert ask(keyed, key).status_code == 200
    assert ask(keyed, "sk-eve").status_code == 401
    assert ask(keyed, "").status_code == 401


def test_requests_per_minute(keyed):
    answers = [ask(keyed, "sk-few") for _ in range(3)]
    assert answers[-1].status_code == 429
    assert 1 <= int(answers[-1].headers["Retry-After"]) <= 60
    error = answers[-1].json()["error"]
    assert "few" in error["message"] and "2 requests a minute" in error["message"]
    assert keyed.metric("quire:key_rejections_total", key="few", limit="requests_per_minute") >= 1
    assert ask(keyed, "sk-ada").status_code == 200, "the limits of one are not those of another"


def test_tokens_per_minute(keyed):
    assert ask(keyed, "sk-short", SMALL | {"max_tokens": 60}).status_code == 200  # charged when it has ended
    answer = ask(keyed, "sk-short")
    assert answer.status_code == 429 and "40 tokens a minute" in answer.text
    answer = ask(keyed, "sk-short", {"max_tokens": 4, "messages": [{"role": "user", "content": "hi"}]}, "/v1/messages")
    assert answer.status_code in (400, 429)
    assert answer.json()["type"] == "error", "in Anthropic's shape"


def test_sequences_at_once(keyed):
    assert ask(keyed, "sk-narrow", SMALL | {"n": 3, "temperature": 1}).status_code == 200
    answer = ask(keyed, "sk-narrow", SMALL | {"n": 4, "temperature": 1})
    assert answer.status_code == 400 and "4 sequences" in answer.text
    assert keyed.metric("quire:key_sequences", key="narrow") == 0


def test_usage_is_counted_by_name(keyed):
    before = {name: keyed.metric(f"quire:key_{name}_total", key="ada") for name in
              ("requests", "prompt_tokens", "generation_tokens")}
    usage = ask(keyed, "sk-ada").json()["usage"]
    assert keyed.metric("quire:key_requests_total", key="ada") == before["requests"] + 1
    assert keyed.metric("quire:key_prompt_tokens_total", key="ada") == before["prompt_tokens"] + usage["prompt_tokens"]
    assert keyed.metric("quire:key_generation_tokens_total", key="ada") == before["generation_tokens"] + 4
    # A prompt that is only shown and scored has no answer to pay for.
    answer = ask(keyed, "sk-ada", {"prompt": "hello", "max_tokens": 0, "echo": True, "logprobs": 0})
    assert answer.json()["usage"]["completion_tokens"] == 0
    assert keyed.metric("quire:key_generation_tokens_total", key="ada") == before["generation_tokens"] + 4


@pytest.mark.parametrize("text, words", [
    ("{", "not valid JSON"), ('{"keys": [{"name": "ada", "key": "sk-secret", "speed": 1}]}', "keys[0].speed"),
])
def test_a_bad_file_is_one_sentence_that_shows_no_key(folder, tmp_path, text, words):
    file = tmp_path / "keys.json"
    file.write_text(text)
    for path, expected in ((file, words), (tmp_path / "none.json", "none.json")):
        run = subprocess.run([BIN_DIR / "quire", "serve", str(folder / "tiny"), "--api-key-file", str(path)],
                             capture_output=True, text=True, timeout=60)
        assert run.returncode in (1, 2) and expected in run.stderr and "sk-secret" not in run.stderr
        assert len(run.stderr.strip().splitlines()) == 1, run.stderr
