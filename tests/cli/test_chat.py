# SPDX-License-Identifier: Apache-2.0
"""quire chat in a terminal of its own: turns, commands, Ctrl-C and Ctrl-D; and with a pipe instead."""

import os
import pty
import re
import select
import time

import pytest

GREEDY = ("--temperature", "0", "--max-tokens", "8", "--ignore-eos")
CTRL_C, CTRL_D = b"\x03", b"\x04"


class Terminal:
    """A child with a terminal as its standard input, output and error; what it wrote is read up to a text."""

    def __init__(self, quire, *arguments):
        self.seen = b""
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            os.chdir(quire.folder)
            os.execve(quire.path, [quire.path, *arguments], quire.environment)
        self.status = None

    def until(self, text: bytes, seconds: float = 120) -> bytes:
        """Everything up to and with `text`."""
        end = time.monotonic() + seconds
        while text not in self.seen:
            left = end - time.monotonic()
            assert left > 0, f"no {text!r} in {self.seen[-500:]!r}"
            if select.select([self.master], [], [], left)[0]:
                try:
                    piece = os.read(self.master, 65536)
                except OSError:  # the other end was closed
                    piece = b""
                assert piece, f"it ended without {text!r}: {self.seen[-500:]!r}"
                self.seen += piece
        before, _, self.seen = self.seen.partition(text)
        return before + text

    def send(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def say(self, line: str) -> str:
        """Sends a line and gives what came before the next prompt, without the echo."""
        self.send(line.encode() + b"\n")
        answer = self.until(b">>> ")
        return answer.partition(b"\r\n")[2].removesuffix(b">>> ").decode("utf-8", "replace")

    def exit_code(self, seconds: float = 60) -> int:
        end = time.monotonic() + seconds
        while self.status is None:
            assert time.monotonic() < end, "it does not end"
            while select.select([self.master], [], [], 0.01)[0]:
                try:
                    if not os.read(self.master, 65536):
                        break
                except OSError:
                    break
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
        return self.status

    def close(self) -> None:
        if self.status is None:
            os.kill(self.pid, 9)
            os.waitpid(self.pid, 0)
        os.close(self.master)


@pytest.fixture
def chat(quire):
    opened = []

    def open_chat(*arguments):
        terminal = Terminal(quire, "chat", *arguments)
        opened.append(terminal)
        terminal.until(b"/help lists the commands.\r\n>>> ")
        return terminal
    yield open_chat
    for terminal in opened:
        terminal.close()


def stats(terminal) -> dict:
    found = re.search(r"prompt (\d+) tokens \((\d+) reused\).*answer (\d+) tokens", terminal.say("/stats"))
    return dict(zip(("prompt", "reused", "answer"), map(int, found.groups()), strict=True))


def test_turns_share_a_history_that_reuses_its_pages(chat, quire):
    terminal = chat("tiny", *GREEDY)
    first = "tell me a story about the sea and the stars above it"
    answer = terminal.say(first)
    assert answer.strip()
    before = stats(terminal)
    assert before["reused"] == 0 and before["answer"] == 8
    assert before["prompt"] == quire.json("tokenize", "tiny", f"user: {first}\nassistant: ")["count"]
    terminal.say("and then?")
    after = stats(terminal)
    assert after["prompt"] > before["prompt"] + 8 and after["reused"] >= before["prompt"] // 16 * 16 > 0
    terminal.send(CTRL_D)
    assert terminal.exit_code() == 0


def test_the_first_answer_is_what_run_says(chat, quire):
    terminal = chat("tiny", *GREEDY)
    said = quire("run", "tiny", "hello", *GREEDY).text
    assert terminal.say("hello").replace("\r\n", "\n").rstrip("\n") == said.rstrip("\n")


def test_commands(chat):
    terminal = chat("tiny", *GREEDY)
    assert "no answer yet" in terminal.say("/stats")
    help_text = terminal.say("/help")
    for command in ("/help", "/clear", "/system", "/retry", "/stats", "/exit", "Ctrl-C"):
        assert command in help_text
    assert "/frobnicate" in terminal.say("/frobnicate") and "nothing" in terminal.say("/retry")
    first = terminal.say("hello")
    alone = stats(terminal)["prompt"]
    terminal.say("hello")
    assert stats(terminal)["prompt"] > alone
    assert "forgotten" in terminal.say("/clear")
    assert terminal.say("hello") == first and stats(terminal)["prompt"] == alone
    assert "set" in terminal.say("/system be brief")
    terminal.say("hello")
    assert stats(terminal)["prompt"] > alone
    terminal.send(b"/exit\n")
    assert terminal.exit_code() == 0


def test_retry_draws_another_answer_to_the_same_message(chat):
    terminal = chat("tiny", "--temperature", "1", "--max-tokens", "12", "--ignore-eos")
    first = terminal.say("hello")
    prompt = stats(terminal)["prompt"]
    assert terminal.say("/retry") != first
    assert stats(terminal)["prompt"] == prompt


def test_a_message_of_several_lines(chat, quire):
    terminal = chat("tiny", *GREEDY)
    terminal.send(b'"""one\n')
    terminal.until(b"... ")
    terminal.send(b"two\n")
    terminal.until(b"... ")
    terminal.say('three"""')
    assert stats(terminal)["prompt"] == quire.json("tokenize", "tiny", "user: one\ntwo\nthree\nassistant: ")["count"]


def test_ctrl_c_stops_the_answer_and_not_the_program(chat):
    terminal = chat("endless", "--ignore-eos", "--temperature", "0", "--max-tokens", "1000000")
    for _ in range(2):
        terminal.send(b"hello\n")
        terminal.until(b"unused")  # it is answering
        terminal.send(CTRL_C)
        terminal.until(b"(stopped)\r\n>>> ")
    assert stats(terminal)["answer"] > 0
    terminal.send(CTRL_C)  # at the prompt: a hint, and it goes on
    terminal.until(b"Ctrl-D leaves)\r\n>>> ")
    assert "/clear" in terminal.say("/help")
    terminal.send(CTRL_D)
    assert terminal.exit_code() == 0


def test_interrupts_at_the_prompt_do_not_stop_the_next_answer(chat):
    terminal = chat("tiny", *GREEDY)
    for _ in range(3):
        terminal.send(CTRL_C)
    terminal.until(b">>> ")
    time.sleep(0.2)
    terminal.send(b"hello\n/stats\n")
    assert b"answer 8 tokens" in terminal.until(b"tokens/s")


def test_a_message_that_does_not_fit_is_refused_and_taken_back(chat):
    terminal = chat("tiny", "--max-model-len", "64", *GREEDY)
    assert "64" in terminal.say("x" * 200)
    assert terminal.say("hello").strip()
    assert stats(terminal)["prompt"] < 30


def test_a_pipe_gives_one_answer_a_line_and_no_prompts(quire):
    alone = quire("chat", "tiny", *GREEDY, stdin="hello\n")
    assert alone.returncode == 0 and alone.text.rstrip("\n") == quire("run", "tiny", "hello", *GREEDY).text.rstrip("\n")
    both = quire("chat", "tiny", *GREEDY, stdin="hello\n\nand then?\n/stats\nlast without a newline")
    assert both.returncode == 0 and both.text.startswith(alone.text) and "prompt " in both.text
    assert ">>>" not in both.text and both.errors == ""
    assert quire("chat", "tiny", stdin="").returncode == 0


def test_a_model_without_a_template_says_so(quire):
    out = quire("chat", "endless.json", "--load-format", "dummy", stdin="hello\n")
    assert out.returncode == 1 and "--chat-template" in out.errors
