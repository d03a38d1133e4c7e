# SPDX-License-Identifier: Apache-2.0
"""`quire pull` against a local hub that cuts connections, lies, redirects and refuses."""

import fcntl
import hashlib
import json
import os
import pathlib
import pty
import random
import resource
import signal
import socket
import struct
import subprocess
import sys
import termios
import time

import pytest

sys.path.insert(0, os.path.dirname(__file__))
from fake_hub import COMMIT, File, Hub  # noqa: E402

BIN_DIR = pathlib.Path(os.environ.get("QUIRE_BIN_DIR", pathlib.Path(__file__).parents[2] / "build"))
QUIRE = str(BIN_DIR / "quire")
NAME = "acme/tiny"


@pytest.fixture
def hub():
    server = Hub()
    yield server
    server.close()


@pytest.fixture
def other_hub():
    server = Hub()
    yield server
    server.close()


@pytest.fixture
def home(tmp_path):
    return tmp_path / "home"


def random_bytes(size, seed=1):
    return random.Random(seed).randbytes(size)


def model_files(weights=300_000):
    return {
        "README.md": File(b"# tiny\n"),
        "config.json": File(b'{"model_type": "llama"}\n'),
        "tokenizer.json": File(random_bytes(20_000, 2)),
        "model.safetensors": File(random_bytes(weights), large=True),
        "pytorch_model.bin": File(b"never wanted", large=True),
    }


def environment(hub, home, **more):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_") and "proxy" not in name.lower()}
    return kept | {"HF_ENDPOINT": hub if isinstance(hub, str) else hub.url, "QUIRE_HOME": str(home)} | more


def pull(hub, home, *arguments, env=None, **options):
    return subprocess.run([QUIRE, "pull", *arguments], env=environment(hub, home, **(env or {})), capture_output=True,
                          text=True, timeout=120, **options)


def folder(home, name=NAME):
    return home / "models" / name


def leftovers(home):
    return sorted(path.name for path in home.rglob("*") if ".part" in path.name)


def finished(home, name=NAME):
    return {str(path.relative_to(folder(home, name))) for path in folder(home, name).rglob("*")
            if path.is_file() and not path.name.startswith(".quire-pull") and ".part" not in path.name}


def assert_whole(home, files, wanted=("config.json", "tokenizer.json", "model.safetensors")):
    assert finished(home) == set(wanted)
    for path in wanted:
        assert (folder(home) / path).read_bytes() == files[path].data, path
    assert leftovers(home) == []


def test_pulls_what_a_model_needs_and_prints_its_path(hub, home):
    files = hub.repositories[NAME] = model_files()
    done = pull(hub, home, NAME)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().splitlines()[-1] == str(folder(home))
    assert_whole(home, files)
    record = json.loads((folder(home) / ".quire-pull.json").read_text())
    assert record["revision"] == COMMIT and all(entry["done"] for entry in record["files"].values())


def test_a_second_pull_fetches_nothing(hub, home):
    hub.repositories[NAME] = model_files()
    assert pull(hub, home, NAME).returncode == 0
    hub.log.clear()
    assert pull(hub, home, NAME).returncode == 0
    assert hub.requests_for("/resolve/") == []


def test_right_files_without_a_record_are_recognised_and_wrong_ones_replaced(hub, home):
    files = hub.repositories[NAME] = model_files()
    assert pull(hub, home, NAME).returncode == 0
    (folder(home) / ".quire-pull.json").unlink()
    (folder(home) / "config.json").write_bytes(b"X" * len(files["config.json"].data))
    hub.log.clear()
    assert pull(hub, home, NAME).returncode == 0
    assert [path.rsplit("/", 1)[1] for path, _ in hub.requests_for("/resolve/")] == ["config.json"]
    assert_whole(home, files)


def test_a_changed_file_is_fetched_again(hub, home):
    files = hub.repositories[NAME] = model_files()
    assert pull(hub, home, NAME).returncode == 0
    files["config.json"].data = b'{"model_type": "other"}\n'
    assert pull(hub, home, NAME).returncode == 0
    assert_whole(home, files)


def test_a_cut_connection_is_resumed_where_it_stopped(hub, home):
    files = hub.repositories[NAME] = model_files()
    files["model.safetensors"].cut_after = [100_000, 50_000]
    done = pull(hub, home, NAME)
    assert done.returncode == 0, done.stderr
    assert_whole(home, files)
    ranges = [headers.get("range") for _, headers in hub.requests_for("model.safetensors")]
    assert ranges[0] is None and ranges[1] == "bytes=100000-" and ranges[2] == "bytes=150000-"
    etag = '"%s"' % files["model.safetensors"].sha256()
    assert [headers.get("if-range") for _, headers in hub.requests_for("model.safetensors")] == [None, etag, etag]


def test_attempts_are_counted_from_zero_after_progress(hub, home):
    files = hub.repositories[NAME] = model_files()
    files["model.safetensors"].cut_after = [20_000] * 8
    done = pull(hub, home, NAME)
    assert done.returncode == 0, done.stderr
    assert_whole(home, files)


def test_a_server_that_makes_no_progress_is_abandoned(hub, home):
    files = hub.repositories[NAME] = model_files()
    files["model.safetensors"].ignore_range = True
    files["model.safetensors"].cut_after = [2_000, 1_000] * 50
    done = pull(hub, home, NAME)
    assert done.returncode == 1 and "gave up" in done.stderr and "pull again" in done.stderr


def test_another_range_than_asked_for_is_not_mixed_in(hub, home):
    files = hub.repositories[NAME] = model_files()
    files["model.safetensors"].cut_after = [100_000]
    files["model.safetensors"].shift_range = [-1]
    done = pull(hub, home, NAME)
    assert done.returncode == 0, done.stderr
    assert_whole(home, files)


def test_a_killed_pull_is_resumed_by_the_next(hub, home):
    files = hub.repositories[NAME] = model_files(weights=2_000_000)
    files["model.safetensors"].stall_after = [700_000]
    process = subprocess.Popen([QUIRE, "pull", NAME], env=environment(hub, home), stderr=subprocess.DEVNULL)
    part = folder(home) / "model.safetensors.part"
    while not part.exists() or part.stat().st_size < 700_000:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (folder(home) / "model.safetensors").exists()
    done = pull(hub, home, NAME)
    assert done.returncode == 0, done.stderr
    assert_whole(home, files)
    assert hub.requests_for("model.safetensors")[-1][1]["range"] == "bytes=700000-"


def test_a_pull_says_that_it_resumes(hub, home):
    files = hub.repositories[NAME] = model_files()
    first = pull(hub, home, NAME)
    assert first.returncode == 0 and "resuming" not in first.stderr
    (folder(home) / "model.safetensors").unlink()
    (folder(home) / ".quire-pull.json").unlink()
    (folder(home) / "model.safetensors.part").write_bytes(files["model.safetensors"].data[:120_000])
    again = pull(hub, home, NAME)
    assert again.returncode == 0, again.stderr
    assert "resuming model.safetensors at 120 kB of 300 kB" in again.stderr
    assert_whole(home, files)


GGUF = {"tiny-Q4_K_M.gguf": 40_000, "tiny-Q8_0.gguf": 50_000, "BF16/tiny-BF16-00001-of-00002.gguf": 20_000,
        "BF16/tiny-BF16-00002-of-00002.gguf": 10_000}


@pytest.mark.parametrize(("address", "wanted"), [
    ("https://huggingface.co/acme/tiny", "tiny-Q4_K_M.gguf"), ("hf.co/acme/tiny:Q8_0", "tiny-Q8_0.gguf"),
    ("https://huggingface.co/acme/tiny/tree/main", "tiny-Q4_K_M.gguf"),
    ("https://huggingface.co/acme/tiny/blob/main/tiny-Q8_0.gguf", "tiny-Q8_0.gguf"),
    ("https://hf.co/acme/tiny/resolve/main/tiny-Q8_0.gguf?download=true", "tiny-Q8_0.gguf"),
    ("https://huggingface.co/acme/tiny/tree/main/BF16", "BF16/tiny-BF16-00001-of-00002.gguf"),
    ("https://huggingface.co/acme/tiny/blob/main/BF16/tiny-BF16-00002-of-00002.gguf", "BF16/tiny-BF16-00001-of-00002.gguf"),
    ("{hub}/acme/tiny/blob/main/tiny-Q8_0.gguf", "tiny-Q8_0.gguf"),
])
def test_a_pages_address_names_what_to_pull(hub, home, address, wanted):
    hub.repositories[NAME] = {path: File(random_bytes(size, size), large=True) for path, size in GGUF.items()}
    done = pull(hub, home, address.replace("{hub}", hub.url))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(folder(home) / wanted)
    assert finished(home) == ({wanted} if "BF16" not in wanted else {path for path in GGUF if "BF16" in path})


def test_the_page_of_weights_names_the_whole_model(hub, home):
    files = hub.repositories[NAME] = model_files()
    done = pull(hub, home, "https://huggingface.co/acme/tiny/blob/main/model.safetensors")
    assert done.returncode == 0, done.stderr
    assert_whole(home, files)


@pytest.mark.parametrize(("address", "words"), [
    ("https://elsewhere.example/acme/tiny", ["HF_ENDPOINT", "elsewhere.example"]), ("https://huggingface.co/", ["owner/name"]),
    ("https://huggingface.co/datasets/acme/tiny", ["datasets", "models"]),
    ("https://huggingface.co/acme/tiny/blob/main/..%2F..%2Fx.gguf", ["not the page of a model"]),
])
def test_an_address_that_is_no_models_page_is_refused(hub, home, address, words):
    done = pull(hub, home, address)
    assert done.returncode == 2 and all(word in done.stderr for word in words), done.stderr
    assert hub.log == []


def test_a_server_that_ignores_ranges_is_read_from_the_start(hub, home):
    files = hub.repositories[NAME] = model_files()
    files["model.safetensors"].cut_after = [100_000]
    files["model.safetensors"].ignore_range = True
    done = pull(hub, home, NAME)
    assert done.returncode == 0, done.stderr
    assert_whole(home, files)


def test_a_part_of_an_older_file_is_not_mixed_in(hub, home):
    files = hub.repositories[NAME] = model_files()
    folder(home).mkdir(parents=True)
    (folder(home) / "model.safetensors.part").write_bytes(b"old" * 1000)
    (folder(home) / "model.safetensors.part.etag").write_text('"of an older file"')
    done = pull(hub, home, NAME)
    assert done.returncode == 0, done.stderr
    assert_whole(home, files)


def test_a_part_longer_than_the_file_is_dropped(hub, home):
    files = hub.repositories[NAME] = model_files()
    folder(home).mkdir(parents=True)
    (folder(home) / "model.safetensors.part").write_bytes(bytes(400_000))
    done = pull(hub, home, NAME)
    assert done.returncode == 0, done.stderr
    assert_whole(home, files)


def test_a_whole_but_wrong_part_is_deleted_and_the_next_pull_is_right(hub, home):
    files = hub.repositories[NAME] = model_files()
    folder(home).mkdir(parents=True)
    (folder(home) / "model.safetensors.part").write_bytes(bytes(300_000))
    done = pull(hub, home, NAME)
    assert done.returncode != 0 and "checksum" in done.stderr
    assert leftovers(home) == []
    assert pull(hub, home, NAME).returncode == 0
    assert_whole(home, files)


@pytest.mark.parametrize("path", ["config.json", "model.safetensors"])
def test_a_wrong_checksum_deletes_the_file_and_says_so(hub, home, path):
    files = hub.repositories[NAME] = model_files()
    files[path].wrong_bytes = True
    done = pull(hub, home, NAME)
    assert done.returncode == 1
    assert path in done.stderr and "checksum" in done.stderr and "deleted" in done.stderr
    assert path not in finished(home) and leftovers(home) == []
    files[path].wrong_bytes = False
    assert pull(hub, home, NAME).returncode == 0
    assert_whole(home, files)


def test_checksums_that_only_the_headers_state_are_checked_too(hub, home):
    files = hub.repositories[NAME] = model_files()
    for file in files.values():
        file.listed_digest = False
    assert pull(hub, home, NAME).returncode == 0
    assert_whole(home, files)
    (folder(home) / "model.safetensors").unlink()
    files["model.safetensors"].wrong_bytes = True
    done = pull(hub, home, NAME)
    assert done.returncode == 1 and "checksum" in done.stderr


def test_a_transfer_of_more_bytes_than_listed_is_stopped(hub, home):
    files = hub.repositories[NAME] = model_files()
    files["model.safetensors"].endless = True
    done = pull(hub, home, NAME)
    assert done.returncode == 1 and "more of model.safetensors" in done.stderr


def test_passing_failures_of_the_server_are_tried_again(hub, home):
    files = hub.repositories[NAME] = model_files()
    hub.listing_statuses = [503]
    files["model.safetensors"].statuses = [500, 429]
    done = pull(hub, home, NAME)
    assert done.returncode == 0, done.stderr
    assert_whole(home, files)


def test_a_stalled_transfer_is_aborted_and_resumed(hub, home):
    files = hub.repositories[NAME] = model_files()
    files["model.safetensors"].stall_after = [100_000]
    done = pull(hub, home, NAME, env={"HF_HUB_DOWNLOAD_TIMEOUT": "1"})
    assert done.returncode == 0, done.stderr
    assert_whole(home, files)
    assert hub.requests_for("model.safetensors")[-1][1]["range"] == "bytes=100000-"


def test_a_slow_server_is_waited_for(hub, home):
    files = hub.repositories[NAME] = model_files(weights=200_000)
    files["model.safetensors"].delay = 0.05
    done = pull(hub, home, NAME, env={"HF_HUB_DOWNLOAD_TIMEOUT": "2"})
    assert done.returncode == 0, done.stderr
    assert len(hub.requests_for("model.safetensors")) == 1
    assert_whole(home, files)


def test_a_missing_token_is_asked_for_and_a_right_one_is_sent(hub, home):
    files = hub.repositories[NAME] = model_files()
    hub.token = "secret-token"
    done = pull(hub, home, NAME)
    assert done.returncode != 0 and "401" in done.stderr and "HF_TOKEN" in done.stderr
    done = pull(hub, home, NAME, "--token", "quite-another")
    assert done.returncode != 0 and "not accepted" in done.stderr and "quite-another" not in done.stderr
    assert pull(hub, home, NAME, env={"HF_TOKEN": "secret-token"}).returncode == 0
    assert_whole(home, files)
    assert pull(hub, home, NAME, "--token", "secret-token").returncode == 0


def test_a_gated_model_says_to_accept_its_licence(hub, home):
    hub.repositories[NAME] = model_files()
    hub.token, hub.gated = "secret-token", True
    done = pull(hub, home, NAME)
    assert done.returncode != 0 and "gated" in done.stderr and "licence" in done.stderr


def test_an_unknown_model_or_revision_is_not_found(hub, home):
    hub.repositories[NAME] = model_files()
    done = pull(hub, home, "acme/other")
    assert done.returncode == 1 and "404" in done.stderr and "acme/other" in done.stderr
    done = pull(hub, home, NAME, "--revision", "v9/x")
    assert done.returncode == 1 and "v9/x" in done.stderr
    assert not home.exists() or list(home.rglob("*")) == []


def test_a_hub_that_does_not_answer_is_named(home):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = "http://127.0.0.1:%d" % closed.getsockname()[1]
    done = pull(url, home, NAME)
    assert done.returncode == 1 and "no response from " + url in done.stderr


def test_the_token_does_not_follow_to_another_host(hub, other_hub, home):
    files = hub.repositories[NAME] = model_files()
    elsewhere = File(files["model.safetensors"].data, large=True)
    elsewhere.etag, elsewhere.cut_after = '"of the store"', [100_000]
    other_hub.repositories["cdn/store"] = {"blob": elsewhere}
    hub.token = "secret-token"
    files["model.safetensors"].redirect = "%s/cdn/store/resolve/%s/blob?signature=a%%2Fb" % (other_hub.url, COMMIT)
    done = pull(hub, home, NAME, "--token", "secret-token")
    assert done.returncode == 0, done.stderr
    assert_whole(home, files)
    assert len(other_hub.log) == 2
    assert all("authorization" not in headers for _, headers in other_hub.log)
    assert all(headers["authorization"] == "Bearer secret-token" for _, headers in hub.log)
    assert other_hub.log[1][1]["range"] == "bytes=100000-"


def test_a_relative_redirect_keeps_the_token(hub, home):
    files = hub.repositories[NAME] = model_files()
    hub.repositories["acme/moved"] = {"blob": File(files["model.safetensors"].data, large=True)}
    hub.token = "secret-token"
    files["model.safetensors"].redirect = "/acme/moved/resolve/%s/blob" % COMMIT
    done = pull(hub, home, NAME, "--token", "secret-token")
    assert done.returncode == 0, done.stderr
    assert_whole(home, files)


def test_endless_redirects_and_odd_schemes_are_refused(hub, home):
    files = hub.repositories[NAME] = model_files()
    files["model.safetensors"].redirect = "/%s/resolve/%s/model.safetensors" % (NAME, COMMIT)
    done = pull(hub, home, NAME)
    assert done.returncode == 1 and "redirects more than" in done.stderr
    files["model.safetensors"].redirect = "file:///etc/passwd"
    done = pull(hub, home, NAME)
    assert done.returncode == 1 and "not http or https" in done.stderr


@pytest.mark.parametrize("path", ["../escape.json", "/etc/escape.json", "a/../../escape.json", "a\\b.json", "x\n.json",
                                  ".quire-pull.json"])
def test_names_that_would_leave_the_folder_are_refused(hub, home, path):
    hub.repositories[NAME] = model_files() | {path: File(b"{}")}
    done = pull(hub, home, NAME)
    assert done.returncode == 1 and "nothing was downloaded" in done.stderr
    assert hub.requests_for("/resolve/") == []
    assert not list(home.parent.rglob("escape.json"))


@pytest.mark.parametrize("name", ["../x", "a/b/c", "a b/c", ".hidden/x", "", "https://hub.example/a/b"])
def test_odd_names_are_refused_before_anything_is_asked(hub, home, name):
    done = pull(hub, home, name)
    assert done.returncode != 0 and done.stderr
    assert hub.log == []


def gguf_files():
    return {"tiny-%s.gguf" % quant: File(random_bytes(5_000, seed), large=True)
            for seed, quant in enumerate(["Q2_K", "Q4_K_M", "Q8_0"])} | {"config.json": File(b"{}")}


def test_one_quantisation_of_several_gguf_files_is_taken(hub, home):
    files = hub.repositories[NAME] = gguf_files()
    done = pull(hub, home, NAME)
    assert done.returncode == 0, done.stderr
    assert "Q2_K, Q4_K_M, Q8_0" in done.stderr
    assert done.stdout.strip().splitlines()[-1] == str(folder(home) / "tiny-Q4_K_M.gguf")
    assert finished(home) == {"tiny-Q4_K_M.gguf"}
    assert pull(hub, home, NAME, "--quant", "q8_0").returncode == 0
    assert finished(home) == {"tiny-Q4_K_M.gguf", "tiny-Q8_0.gguf"}
    assert pull(hub, home, NAME + ":Q2_K").returncode == 0
    assert finished(home) == {path for path in files if path.endswith(".gguf")}
    done = pull(hub, home, NAME, "--quant", "Q6_K")
    assert done.returncode == 1 and "Q2_K, Q4_K_M, Q8_0" in done.stderr


def test_include_takes_exactly_the_matching_files(hub, home):
    hub.repositories[NAME] = model_files()
    assert pull(hub, home, NAME, "--include", "*.md", "--include", "config.*").returncode == 0
    assert finished(home) == {"README.md", "config.json"}


def test_a_repository_without_readable_weights_says_so(hub, home):
    hub.repositories[NAME] = {"config.json": File(b"{}"), "pytorch_model.bin": File(b"x", large=True)}
    done = pull(hub, home, NAME)
    assert done.returncode == 1 and "neither safetensors" in done.stderr


def test_a_model_larger_than_the_disk_is_not_begun(hub, home):
    files = hub.repositories[NAME] = model_files()
    files["model.safetensors"].listed_size = 1 << 60
    done = pull(hub, home, NAME)
    assert done.returncode == 1 and "free" in done.stderr and "QUIRE_HOME" in done.stderr
    assert hub.requests_for("/resolve/") == []


def test_a_write_that_fails_is_an_error_and_what_came_is_kept(hub, home):
    files = hub.repositories[NAME] = model_files()

    def limit_file_size():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    done = pull(hub, home, NAME, preexec_fn=limit_file_size)
    assert done.returncode == 1 and "cannot write" in done.stderr and "model.safetensors.part" in done.stderr
    assert (folder(home) / "model.safetensors.part").stat().st_size == 100_000
    assert pull(hub, home, NAME).returncode == 0
    assert_whole(home, files)
    assert hub.requests_for("model.safetensors")[-1][1]["range"] == "bytes=100000-"


def test_two_pulls_at_once_wait_for_each_other(hub, home):
    files = hub.repositories[NAME] = model_files()
    files["model.safetensors"].delay = 0.005
    both = [subprocess.Popen([QUIRE, "pull", NAME], env=environment(hub, home), stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for process in both:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    assert_whole(home, files)
    assert len(hub.requests_for("model.safetensors")) == 1


def test_an_empty_file_is_a_file(hub, home):
    files = hub.repositories[NAME] = model_files()
    files["merges.txt"] = File(b"")
    done = pull(hub, home, NAME)
    assert done.returncode == 0, done.stderr
    assert_whole(home, files, ("config.json", "tokenizer.json", "model.safetensors", "merges.txt"))


def test_lines_of_progress_without_a_terminal(hub, home):
    hub.repositories[NAME] = model_files()
    done = pull(hub, home, NAME)
    lines = [line for line in done.stderr.splitlines() if line.startswith("model.safetensors: ")]
    assert "model.safetensors: 100% of 300 kB" in lines and 1 <= len(lines) <= 10
    assert "\r" not in done.stderr and "\x1b" not in done.stderr


def test_a_bar_on_a_terminal_that_fits_its_width(hub, home):
    hub.repositories[NAME] = model_files()
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    process = subprocess.Popen([QUIRE, "pull", NAME], env=environment(hub, home, TERM="xterm"), stdout=subprocess.DEVNULL,
                               stderr=theirs)
    os.close(theirs)
    text = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # how Linux reports that the other end was closed
            break
        if not piece:
            break
        text += piece
    os.close(ours)
    assert process.wait(timeout=60) == 0
    assert b"model.safetensors" in text and b"100%" in text and text.endswith(b"\n")
    for state in text.replace(b"\n", b"\r").split(b"\r"):
        assert len(state.replace(b"\x1b[K", b"")) < 60, state


def test_hashes_of_the_fake_hub_are_real():
    assert File(b"hello\n").digest() == "ce013625030ba8dba906f756967f9e9ca394464a"
    assert File(b"hello\n", large=True).digest() == hashlib.sha256(b"hello\n").hexdigest()
