# SPDX-License-Identifier: Apache-2.0
"""Shell completions and manual pages, in the shells and with the formatter that users have."""

import os
import re
import shutil
import subprocess

import pytest

COMMANDS = [[], ["serve"], ["run"], ["chat"], ["tokenize"], ["inspect"], ["show"], ["list"], ["rm"], ["ps"], ["devices"],
            ["selftest"], ["pull"], ["bench"], ["bench", "serve"], ["bench", "latency"], ["bench", "throughput"],
            ["bench", "lengths"], ["bench", "engine"], ["bench", "kernels"], ["schema"], ["verify"], ["replay"],
            ["completions"], ["man"]]


def needs(program):
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"{program} is not installed")


def flags_of_help(quire, command):
    """Every spelling of every flag that --help lists."""
    text = quire(*command, "--help").text
    return {name for line in re.findall(r"^  (-\S+)", text, re.MULTILINE) for name in line.split(",")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files to complete, among them names with a space and a star."""
    folder = tmp_path_factory.mktemp("completions")
    for name in ("chat one.jinja", "chat*.jinja", "x.gguf"):
        (folder / name).touch()
    (folder / "chats").mkdir()
    return folder


@pytest.fixture(scope="module")
def script(quire, tmp_path_factory):
    folder = tmp_path_factory.mktemp("scripts")
    def write(shell):
        done = quire("completions", shell)
        assert done.returncode == 0 and done.errors == ""
        (folder / shell).write_text(done.text)
        return str(folder / shell)
    return write


def bash(quire, script, folder, *words):
    """What bash offers for the last word. As in bash, a "=" is a word of its own."""
    source = ('. "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _quire "$1"; '
              'printf "%s\\n" ${COMPREPLY[@]+"${COMPREPLY[@]}"}')
    done = subprocess.run(["bash", "-c", source, "bash", script("bash"), quire.path, *words], cwd=folder,
                          capture_output=True, text=True, env=quire.environment, timeout=60)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return [line for line in done.stdout.split("\n") if line]


def test_bash_offers_commands_flags_and_values(quire, script, folder):
    assert "serve" in bash(quire, script, folder, "")
    assert bash(quire, script, folder, "se") == ["serve", "selftest"]
    assert bash(quire, script, folder, "bench", "th") == ["throughput"]
    assert bash(quire, script, folder, "serve", "--ssl-ke") == ["--ssl-keyfile"]
    assert bash(quire, script, folder, "serve", "x.gguf", "--enable-prefix") == ["--enable-prefix-caching"]
    assert bash(quire, script, folder, "run", "--no-enable-prefix") == ["--no-enable-prefix-caching"]
    # A flag of the program is valid behind a command, too.
    assert bash(quire, script, folder, "serve", "--log-level", "de") == ["debug"]
    assert bash(quire, script, folder, "serve", "--dtype", "bf") == ["bfloat16"]
    assert bash(quire, script, folder, "serve", "--dtype", "=", "bf") == ["bfloat16"]
    assert bash(quire, script, folder, "serve", "--scheduling-policy", "=") == ["fcfs", "priority"]
    assert bash(quire, script, folder, "schema", "m") == ["markdown"]
    assert bash(quire, script, folder, "man", "be") == bash(quire, script, folder, "help", "be") == ["bench"]
    # A number has no completions, and neither has a command without arguments.
    assert bash(quire, script, folder, "serve", "--port", "") == bash(quire, script, folder, "devices", "") == []
    # The word behind a command is an argument, whatever it is called.
    assert "--port" not in bash(quire, script, folder, "run", "serve", "--p")


def test_bash_offers_files_folders_and_cached_models(quire, script, folder):
    assert sorted(bash(quire, script, folder, "serve", "--chat-template", "chat")) == \
        ["chat one.jinja", "chat*.jinja", "chats"]
    assert bash(quire, script, folder, "serve", "--tokenizer", "") == ["chats"]
    assert bash(quire, script, folder, "serve", "--generation-config", "") == ["auto", "vllm", "chats"]
    assert bash(quire, script, folder, "man", "--output-dir", "") == ["chats"]
    model = quire.folder / "home" / "models" / "someone" / "small"
    model.mkdir(parents=True)
    try:
        shutil.copy(quire.folder / "tiny.gguf", model)
        assert quire("completions", "models").text == "someone/small\n"
        assert bash(quire, script, folder, "serve", "so") == bash(quire, script, folder, "run", "--model", "so") == \
            ["someone/small"]
        assert bash(quire, script, folder, "serve", "x") == ["x.gguf"]
    finally:
        shutil.rmtree(quire.folder / "home" / "models")


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_flag_of_help_is_completed_and_in_the_manual(quire, script, folder, command):
    wanted = flags_of_help(quire, command)
    assert "--help" in wanted
    offered = set(bash(quire, script, folder, *command, "-"))
    assert wanted - offered == set()
    assert offered - wanted <= {"-v", "--version", "--log-level"}  # the program's
    page = quire("man", *command)
    assert page.returncode == 0 and page.errors == ""
    assert wanted - set(re.findall(r"[ ,](--?[a-z][a-z0-9-]*)", "," + plain(page.text).replace("\n", " "))) == set()


def plain(roff):
    """A page's text without fonts and escapes."""
    return re.sub(r"\\f[BIR]", " ", roff).replace("\\-", "-")


@needs("zsh")
def test_zsh_accepts_the_script_and_completes_with_it(quire, script, folder):
    path = script("zsh")
    assert subprocess.run(["zsh", "-n", path], capture_output=True, text=True).stderr == ""
    # _arguments is zsh's own; what it is given must be valid, which it checks before it looks at the words.
    typed = {"serve --dtype bf": "bfloat16", "bench th": "throughput", "serve --ssl-ke": "--ssl-keyfile"}
    for words, wanted in typed.items():
        driver = f"""
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell "PS1=READY; autoload -Uz compinit; compinit -u -d {folder}/dump; . {path}; quire() {{ print -r -- GOT:\\$*: }}"
zpty -w -n shell $'quire {words}\\t\\n'
zpty -w shell 'exit'
while zpty -r shell line 2>/dev/null; do print -r -- "$line"; done
"""
        done = subprocess.run(["zsh", "-f", "-c", driver], capture_output=True, text=True, cwd=folder, timeout=120,
                              env=quire.environment)
        before = words.rsplit(" ", 1)[0]
        assert re.search(rf"GOT:{re.escape(before)} {re.escape(wanted)}", done.stdout), done.stdout + done.stderr


@needs("fish")
def test_fish_completes_with_the_script(quire, script, folder):
    path = script("fish")
    environment = quire.environment | {"HOME": str(folder),
                                       "PATH": f"{os.path.dirname(quire.path)}:{os.environ['PATH']}"}
    assert subprocess.run(["fish", "-n", path], capture_output=True, text=True).stderr == ""
    def offered(line):
        done = subprocess.run(["fish", "--no-config", "-c", 'source $argv[1]; complete -C $argv[2]', path, line],
                              capture_output=True, text=True, cwd=folder, env=environment, timeout=60)
        assert done.stderr == ""
        return [entry.split("\t")[0] for entry in done.stdout.splitlines()]
    assert offered("quire se") == ["selftest", "serve"]
    assert offered("quire bench th") == ["throughput"]
    assert offered("quire serve --dtype bf") == ["bfloat16"]
    assert offered("quire serve --ssl-ke") == ["--ssl-keyfile"]
    assert offered("quire serve --tokenizer ch") == ["chats/"]
    assert "x.gguf" in offered("quire serve x")
    assert offered("quire devices x") == []


@needs("groff")
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_groff_renders_each_page_without_a_warning(quire, command):
    page = quire("man", *command)
    done = subprocess.run(["groff", "-man", "-ww", "-Tutf8", "-rLL=78n"], input=page.stdout, capture_output=True, timeout=60)
    text = " ".join(re.sub(r"\x1b\[[0-9;]*m|.\x08", "", done.stdout.decode()).split())
    assert done.returncode == 0 and done.stderr == b"", done.stderr
    name = "-".join(["quire", *command])
    assert f"{name.upper()}(1)" in text and f"{name} - " in text


def test_man_writes_all_pages_and_refuses_unknown_commands(quire, tmp_path):
    done = quire("man", "--output-dir", tmp_path / "man1")
    assert done.returncode == 0 and done.text == done.errors == ""
    pages = {path.name for path in (tmp_path / "man1").iterdir()}
    assert {"-".join(["quire", *command]) + ".1" for command in COMMANDS} <= pages
    for command in COMMANDS:
        page = (tmp_path / "man1" / ("-".join(["quire", *command]) + ".1")).read_text()
        assert page == quire("man", *command).text
    # The variables of flags are in the pages.
    assert "QUIRE_MAX_MODEL_LEN" in quire("man", "serve").text
    wrong = quire("man", "frobnicate")
    assert wrong.returncode == 2 and wrong.errors == "quire: quire has no command 'frobnicate': quire --help lists the commands\n"
    (tmp_path / "file").touch()
    failed = quire("man", "--output-dir", tmp_path / "file")
    assert failed.returncode == 1 and "cannot create the folder" in failed.errors
    assert quire("completions", "csh").returncode == quire("completions").returncode == 2
