# SPDX-License-Identifier: Apache-2.0
"""quire chat in a terminal of its own: turns, commands, keys, paste, history, a full context; and with a pipe instead.
"""

import fcntl
import json
import os
import pty
import re
import select
import struct
import termios
import time

import pytest

GREEDY = ("--temperature", "0", "--max-tokens", "8", "--ignore-eos")
CTRL_C, CTRL_D, TAB = b"\x03", b"\x04", b"\t"
UP, DOWN, RIGHT, LEFT, HOME = b"\x1b[A", b"\x1b[B", b"\x1b[C", b"\x1b[D", b"\x1b[H"
PROMPT = b"\r\n>>> "  # at the beginning of a line: libedit draws it again when it redraws a line
CUT = "(cut off after 8 tokens: --max-tokens)\r\n"


class Terminal:
    """A child process whose standard input, output and error are a terminal; its output is read up to a given text."""

    def __init__(self, quire, *arguments, env=None, without=()):
        self.seen = b""
        environment = {name: value for name, value in quire.environment.items() if name not in without}
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            os.chdir(quire.folder)
            os.execve(quire.path, [quire.path, *arguments], environment | {"NO_COLOR": "1"} | (env or {}))
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.status = None

    def until(self, text: bytes, seconds: float = 120) -> bytes:
        """Everything up to and including `text`."""
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
        """Sends also more than the terminal holds at once; what is written meanwhile is kept."""
        end = time.monotonic() + 60
        while keys:
            assert time.monotonic() < end, "it does not read"
            readable, writable, _ = select.select([self.master], [self.master], [], 1)
            if readable:
                self.seen += os.read(self.master, 65536)
            if writable:
                keys = keys[os.write(self.master, keys[:512]):]

    def settle(self, seconds: float = 0.3) -> bytes:
        """Everything that is written until nothing more comes for a while."""
        while select.select([self.master], [], [], seconds)[0]:
            self.seen += os.read(self.master, 65536)
        seen, self.seen = self.seen, b""
        return seen

    def say(self, line: str) -> str:
        """Sends a line and returns what came before the next prompt, without the echo and the mark of a truncated
        answer."""
        self.send(line.encode() + b"\n")
        answer = self.until(PROMPT)
        return answer.partition(b"\r\n")[2].removesuffix(b">>> ").decode("utf-8", "replace").removesuffix(CUT)

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

    def open_chat(*arguments, command="chat", **options):
        terminal = Terminal(quire, command, *arguments, **options)
        opened.append(terminal)
        terminal.until(b"/help lists the commands.\r\n>>> ")
        return terminal
    yield open_chat
    for terminal in opened:
        terminal.close()


def stats(terminal) -> dict:
    found = re.search(r"prompt (\d+) tokens \((\d+) cached\).*answer (\d+) tokens", terminal.say("/stats"))
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
    for command in ("/help", "/clear", "/drop", "/system", "/retry", "/stats", "/exit", "Ctrl-C"):
        assert command in help_text
    assert "/frobnicate" in terminal.say("/frobnicate") and "no message" in terminal.say("/retry")
    assert "did you mean /clear?" in terminal.say("/claer")
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
    terminal.send(CTRL_C)  # at the prompt: a hint, and the program continues
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
    assert b"answer 8 tokens" in terminal.until(b"tok/s")


def test_a_message_that_does_not_fit_is_refused_and_removed(chat):
    terminal = chat("tiny", "--max-model-len", "64", *GREEDY)
    refusal = terminal.say("x" * 200)
    assert "64" in refusal and "shorter" in refusal and "/drop" not in refusal
    assert terminal.say("hello").strip()
    assert stats(terminal)["prompt"] < 30


# Keys

def prompt_tokens(quire, *messages: str) -> int:
    """The number of prompt tokens of a conversation's first turn, as /stats should count it."""
    return quire.json("tokenize", "tiny", "-", stdin=f"user: {messages[0]}\nassistant: ")["count"]


def test_arrows_and_deletion_edit_the_line(chat, quire):
    terminal = chat("tiny", *GREEDY)
    terminal.send(b"heXlo!" + LEFT * 4 + b"\x1b[3~" + b"l" + RIGHT + b"\x1b[F" + b"\x7f" + HOME + b"oh ")
    terminal.say("")
    assert stats(terminal)["prompt"] == prompt_tokens(quire, "oh hello")
    terminal.send(UP * 2)  # before /stats
    terminal.until(b"oh hello")
    terminal.send(CTRL_C)
    terminal.until(PROMPT)


def test_letters_beyond_ascii_are_edited_whole_in_any_locale(chat, quire):
    for locale in ("C", "C.UTF-8"):
        terminal = chat("tiny", *GREEDY, env={"LC_ALL": locale})
        terminal.send("é🙂中x".encode() + LEFT + b"\x7f" + b"\x1b[3~" + "ß".encode())
        terminal.say("")
        assert stats(terminal)["prompt"] == prompt_tokens(quire, "é🙂ß"), locale


def test_the_history_comes_back_with_the_up_arrow_and_in_the_next_conversation(chat, quire, tmp_path):
    home = {"QUIRE_HOME": str(tmp_path)}
    terminal = chat("tiny", *GREEDY, env=home)
    long = "a draft " * 300  # longer than what libedit keeps of a line
    for message in ("first", "second"):
        terminal.say(message)
    terminal.send(long.encode() + UP + UP)
    terminal.until(b"first")
    terminal.send(DOWN + DOWN)  # back to the unfinished line, whole
    terminal.say("")
    kept = (tmp_path / "chat_history.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in kept] == ["first", "second", long]
    assert (tmp_path / "chat_history.jsonl").stat().st_mode & 0o77 == 0
    terminal.send(CTRL_D)
    assert terminal.exit_code() == 0

    again = chat("tiny", *GREEDY, env=home)
    again.send(UP * 3)
    again.until(b"first")
    again.say("")
    assert stats(again)["prompt"] == prompt_tokens(quire, "first")


@pytest.mark.parametrize(("arguments", "env", "without"), [
    (("--no-history",), {}, ()), ((), {"QUIRE_HISTORY": "0"}, ()), ((), {}, ("HOME", "QUIRE_HOME", "XDG_STATE_HOME")),
    ((), {"QUIRE_HOME": "/dev/null/nowhere"}, ()),
])
def test_without_a_history_file_the_conversation_is_the_same(chat, quire, arguments, env, without):
    before = sorted(path.name for path in quire.folder.rglob("chat_history*"))
    terminal = chat("tiny", *GREEDY, *arguments, env=env, without=without)
    terminal.say("not kept in a file")
    terminal.send(UP)
    terminal.until(b"not kept in a file")
    terminal.send(CTRL_C + CTRL_D)
    assert terminal.exit_code() == 0
    assert sorted(path.name for path in quire.folder.rglob("chat_history*")) == before


def test_a_broken_or_long_history_file_is_tolerated(chat, tmp_path):
    lines = ["not json", '{"a": 1}', '"\\ud800"'] + [json.dumps(f"message {i}") for i in range(2500)]
    (tmp_path / "chat_history.jsonl").write_text("\n".join(lines) + "\n\0\xff")
    terminal = chat("tiny", *GREEDY, env={"QUIRE_HOME": str(tmp_path)})
    terminal.send(UP)
    terminal.until(b"message 2499")
    kept = (tmp_path / "chat_history.jsonl").read_text().splitlines()
    assert len(kept) == 1000 and kept[-1] == '"message 2499"'


def test_tab_completes_commands(chat):
    terminal = chat("tiny", *GREEDY)
    terminal.send(b"/cl" + TAB + b"\n")
    terminal.until(b"(forgotten)")
    terminal.until(PROMPT)
    terminal.send(b"/" + TAB)
    terminal.until(b"/help  /clear  /drop  /system  /retry  /stats  /exit")
    terminal.send(b"s" + TAB)  # /stats or /system
    terminal.until(b"/stats")
    terminal.send(b"t" + TAB + b"\n")
    terminal.until(b"(no answer yet)")


def test_a_pasted_text_is_one_message(chat, quire):
    terminal = chat("tiny", *GREEDY)
    terminal.send(b"\x1b[200~one\r\n  two\rthree\n\x1b[201~")
    assert PROMPT not in terminal.settle()  # it waits for Enter
    terminal.say("")
    assert stats(terminal)["prompt"] == prompt_tokens(quire, "one\n  two\nthree")
    # Text around it, a path at its beginning, and control characters inside it.
    terminal.say("/clear")
    terminal.send(b"see \x1b[200~/usr/x: no\n\x01such\x1b[31m file\x1b[201~!")
    terminal.say("")
    assert stats(terminal)["prompt"] == prompt_tokens(quire, "see /usr/x: no\nsuch[31m file!")
    terminal.say("/clear")
    terminal.send(b"\x1b[200~/clear is\nno command here\x1b[201~")
    terminal.say("")
    assert stats(terminal)["prompt"] == prompt_tokens(quire, "/clear is\nno command here")


def test_arrows_move_within_a_message_of_several_lines(chat, quire):
    terminal = chat("tiny", *GREEDY)
    terminal.send(b"\x1b[200~one\ntwo\nthree\x1b[201~" + UP + b"A" + UP + b"B" + DOWN + DOWN + b"C")
    terminal.say("")
    assert stats(terminal)["prompt"] == prompt_tokens(quire, "oneB\ntwoA\nthreCe")
    terminal.say("/clear")
    terminal.send(b"four\x1b\rfive")  # Alt-Enter
    terminal.say("")
    assert stats(terminal)["prompt"] == prompt_tokens(quire, "four\nfive")


@pytest.mark.parametrize("pasted", [False, True])
def test_a_line_of_any_length_is_taken_whole(chat, quire, pasted):
    terminal = chat("endless", *GREEDY)
    message = "abcdefg " * 1500  # 12,000 bytes: a terminal in line mode would truncate it at 4,095
    terminal.send(b"\x1b[200~" + message.encode() + b"\x1b[201~" if pasted else message.encode())
    terminal.say("")
    assert stats(terminal)["prompt"] == prompt_tokens(quire, message)


def test_what_is_typed_during_an_answer_waits_for_the_next_prompt(chat, quire):
    terminal = chat("endless", "--ignore-eos", "--temperature", "0", "--max-tokens", "1000000", env={"QUIRE_MAX_NUM_SEQS": "2"})
    terminal.send(b"hello\n")
    terminal.until(b"unused")
    message = "typed " * 1000
    terminal.send(message.encode() + b"\n")
    terminal.send(CTRL_C)
    terminal.until(b"(stopped)" + PROMPT)
    terminal.until(b"unused")  # the typed line was sent as it was
    terminal.send(CTRL_C)
    terminal.until(b"(stopped)" + PROMPT)
    assert stats(terminal)["prompt"] > prompt_tokens(quire, message)


def test_ctrl_c_discards_the_line_and_ctrl_d_deletes(chat, quire):
    terminal = chat("tiny", *GREEDY)
    terminal.send(b"never sent" + LEFT * 3)
    terminal.settle()
    terminal.send(CTRL_C)
    terminal.until(b"Ctrl-D leaves)" + PROMPT)
    terminal.send(b"xhello" + HOME + CTRL_D)
    terminal.say("")
    assert stats(terminal)["prompt"] == prompt_tokens(quire, "hello")


@pytest.mark.parametrize("end", ["exit", "signal"])
def test_the_terminal_is_restored(chat, end):
    terminal = chat("tiny", *GREEDY)
    terminal.say("hello")
    during = termios.tcgetattr(terminal.master)
    assert not during[3] & termios.ICANON and not during[3] & termios.ECHO
    if end == "exit":
        terminal.send(b"/exit\n")
    else:
        os.kill(terminal.pid, 15)
    terminal.until(b"\x1b[?2004l")
    assert terminal.exit_code() == (0 if end == "exit" else -15)
    after = termios.tcgetattr(terminal.master)
    assert after[3] & termios.ICANON and after[3] & termios.ECHO


def test_a_dumb_terminal_gets_plain_lines(quire):
    terminal = Terminal(quire, "chat", "tiny", *GREEDY, env={"TERM": "dumb"})
    try:
        terminal.until(b"/help lists the commands.\r\n>>> ")
        assert b"\x1b" not in terminal.seen
        terminal.send(b"hello\n/exit\n")
        terminal.until(b">>> ")
        assert terminal.exit_code() == 0
    finally:
        terminal.close()


# A context that fills up

def fill(terminal) -> str:
    """Talks until the context is full, and returns what is said then."""
    for number in range(20):
        said = terminal.say(f"number {number}")
        if "context" in said:
            return said
    raise AssertionError("it never filled up")


def test_a_full_context_offers_drop_and_clear(chat):
    terminal = chat("tiny", "--max-model-len", "128", *GREEDY)
    said = fill(terminal)
    if "(cut" in said:  # the last answer could still begin
        said = terminal.say("number 20")
    assert "128" in said and "/clear" in said and "/drop" in said and "--drop-oldest" in said
    dropped = terminal.say("/drop")
    assert "forgot the oldest" in dropped and '"number 0"' in dropped
    assert stats(terminal)["prompt"] + stats(terminal)["answer"] <= 128
    assert 'forgot 1 turn: "number' in terminal.say("/drop 1")
    assert "the number of turns" in terminal.say("/drop x")
    terminal.say("/clear")
    assert "no turn" in terminal.say("/drop")
    assert terminal.say("hello").strip()


def test_drop_oldest_makes_room_and_reports_what_was_dropped(chat):
    terminal = chat("tiny", "--max-model-len", "128", "--drop-oldest", "--system", "be brief", *GREEDY)
    all_said = [terminal.say(f"number {number}") for number in range(9)]
    dropped = [said for said in all_said if "forgot the oldest" in said]
    assert dropped and '"number 0"' in dropped[0]
    assert all("context is full" not in said for said in all_said)
    assert stats(terminal)["prompt"] <= 120
    assert "128" in terminal.say("y" * 300)  # this one does not fit, whatever is dropped


def test_a_truncated_answer_is_marked(chat):
    terminal = chat("tiny", "--temperature", "0", "--ignore-eos", "--max-model-len", "64")
    assert "(cut off: the context of 64 tokens is full; /drop" in terminal.say("hello")
    short = chat("tiny", *GREEDY)
    short.send(b"hello\n")
    assert CUT.encode() in short.until(PROMPT)


# Colours, and chat through run

def test_notes_are_faint_unless_no_color(chat):
    for env, expected in (({"NO_COLOR": ""}, True), ({"NO_COLOR": "1"}, False)):
        terminal = chat("tiny", *GREEDY, env=env)
        terminal.send(b"/clear\n")
        assert (b"\x1b[2m(forgotten)\x1b[0m" in terminal.until(PROMPT)) == expected


def test_run_without_a_prompt_opens_a_conversation(chat, quire):
    for arguments in (("tiny",), ("--model", "tiny")):
        terminal = chat(*arguments, *GREEDY, command="run")
        terminal.say("hello")
        assert stats(terminal)["prompt"] == prompt_tokens(quire, "hello")
        terminal.send(CTRL_D)
        assert terminal.exit_code() == 0
    one = Terminal(quire, "run", "tiny", "hello", *GREEDY)
    try:
        one.until(b"(cut off after 8 tokens: --max-tokens)")
        assert one.exit_code() == 0
    finally:
        one.close()
    none = Terminal(quire, "run", "--model", "tiny", "--json")
    try:
        none.until(b"no prompt")
        assert none.exit_code() == 2
    finally:
        none.close()


def test_a_long_prompt_shows_progress(quire):
    (quire.folder / "long.txt").write_text("abcdefg " * 100)
    shown = Terminal(quire, "run", "endless", (quire.folder / "long.txt").read_text(), *GREEDY,
                     env={"QUIRE_MAX_NUM_BATCHED_TOKENS": "2048"})
    try:
        seen = shown.until(b"(cut off after")
        assert b"\rProcessing the prompt: 0 of " in seen
        assert b"\r\x1b[K" in seen.partition(b"Processing the prompt")[2]  # and it is wiped
    finally:
        shown.close()
    quiet = quire("run", "endless", "-", *GREEDY, stdin=(quire.folder / "long.txt").read_text())
    assert quiet.returncode == 0 and quiet.errors == ""


def test_a_pipe_gives_one_answer_per_line_and_no_prompts(quire):
    alone = quire("chat", "tiny", *GREEDY, stdin="hello\n")
    assert alone.returncode == 0 and alone.text.rstrip("\n") == quire("run", "tiny", "hello", *GREEDY).text.rstrip("\n")
    both = quire("chat", "tiny", *GREEDY, stdin="hello\n\nand then?\n/stats\nlast without a newline")
    assert both.returncode == 0 and both.text.startswith(alone.text) and "prompt " in both.text
    assert ">>>" not in both.text and both.errors == ""
    assert quire("chat", "tiny", stdin="").returncode == 0


def test_a_model_without_a_template_says_so(quire):
    out = quire("chat", "endless.json", "--load-format", "dummy", stdin="hello\n")
    assert out.returncode == 1 and "--chat-template" in out.errors
