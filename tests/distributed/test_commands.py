# SPDX-License-Identifier: Apache-2.0
"""mpirun -n 2 quire run and quire bench: rank 0 reads and prints, and the others end as it does."""

import json
import shutil
import subprocess
import sys

import pytest

from launch import BIN_DIR, ROOT, Job, needs_mpirun

sys.path.insert(0, str(ROOT))
from tools.goldens import export  # noqa: E402

pytestmark = needs_mpirun
RUN = ("--raw", "--json", "--max-tokens", "16", "--temperature", "0.8", "--seed", "3", "--logprobs", "2")


@pytest.fixture(scope="module", name="tiny")
def fixture_tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "tiny"
    export.main(["--case", "llama", "--out", str(folder)])
    return folder


def finish(job) -> str:
    """What rank 0 printed, once all have ended as they should."""
    assert job.wait() == 0, job.log
    assert [job.exit_code(rank) for rank in range(job.size)] == [0] * job.size, job.log
    assert (job.folder / "log.1").read_text() == ""
    return "".join(job.lines)


@pytest.mark.parametrize("flag", ["--tensor-parallel-size", "--pipeline-parallel-size"])
def test_run_has_the_answer_of_one_process(tiny, tmp_path, flag):
    command = [str(BIN_DIR / "quire"), "run", str(tiny), "one two three", *RUN]
    alone = json.loads(subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True).stdout)
    with Job(tmp_path, 2, *command, flag, 2) as job:
        answer = json.loads(finish(job))
    assert answer["choices"] == alone["choices"] and answer["usage"] == alone["usage"]


def test_pages_outlive_the_processes(tiny, tmp_path):
    """Each process keeps its own part of a page. If one of them has lost it, all compute it."""
    words = " ".join(str(i) for i in range(60))
    answers, cached = [], []
    for number in range(3):
        (folder := tmp_path / str(number)).mkdir()
        with Job(folder, 2, BIN_DIR / "quire", "run", tiny, words, *RUN, "--tensor-parallel-size", "2",
                 "--kv-offload-dir", tmp_path / "pages", "--kv-offload-size", "16MiB") as job:
            answer = json.loads(finish(job))
        answers.append(answer["choices"])
        cached.append(answer["usage"]["cached_tokens"])
        assert {entry.name for entry in (tmp_path / "pages").iterdir()} == {"rank-0-of-2", "rank-1-of-2"}
        if number == 1:
            shutil.rmtree(tmp_path / "pages" / "rank-1-of-2")
    assert answers[0] == answers[1] == answers[2]
    assert cached[0] == cached[2] == 0 < cached[1]


@pytest.mark.parametrize("command", [("latency", "--num-iters", "1", "--num-iters-warmup", "1", "--batch-size", "200"),
                                     ("throughput", "--num-prompts", "3")])
def test_bench(tiny, tmp_path, command):
    with Job(tmp_path, 2, BIN_DIR / "quire", "bench", *command, "--model", tiny, "--input-len", "4", "--output-len", "3",
             "--json", "--tensor-parallel-size", "2", "--max-model-len", "64") as job:
        figures = json.loads(finish(job))
    assert figures["model_id"] == "tiny"


@pytest.mark.parametrize(("arguments", "code", "sentence"), [
    (("nowhere", "x"), 1, "'nowhere' is not a file, a folder or a cached model"),
    (("--regex", "(", "{tiny}", "x"), 2, "the group is not closed"),
    (("{tiny}", "x", "--prompt-token-ids"), 2, "--prompt-token-ids needs a JSON list"),
    (("{tiny}", "x", "--max-tokens", "0"), 2, "max_tokens"),
])
def test_what_rank_0_refuses_ends_all(tiny, tmp_path, arguments, code, sentence):
    """The sentence is said once."""
    words = [argument.format(tiny=tiny) for argument in arguments]
    with Job(tmp_path, 2, BIN_DIR / "quire", "run", *words, "--tensor-parallel-size", "2") as job:
        job.wait()
        assert job.exit_code(0) == code, job.log
        assert job.exit_code(1) in (0, code), job.log  # 0: it had begun to follow
        job.rank_says(0, sentence)
        assert (tmp_path / "log.1").read_text() == ""
