# SPDX-License-Identifier: Apache-2.0
"""mpirun -n 2 quire serve: the answers of one process, and what becomes of the server when a rank is lost."""

import os
import re
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from launch import BIN_DIR, ROOT, Job, needs_mpirun, wait_until

sys.path.insert(0, str(ROOT))
from tools.goldens import export  # noqa: E402

pytestmark = needs_mpirun
in_proc = pytest.mark.skipif(sys.platform != "linux", reason="finds the ranks in /proc")
QUESTION = {"model": "tiny", "prompt": "one two three four", "max_tokens": 24, "temperature": 0.8, "seed": 3,
            "ignore_eos": True, "return_receipt": True}


@pytest.fixture(scope="module", name="models")
def fixture_models(tmp_path_factory):
    """tiny, and another training of it: the same config and sizes, other weights."""
    folder = tmp_path_factory.mktemp("models")
    export.main(["--case", "llama", "--out", str(folder / "tiny")])
    export.main(["--case", "llama", "--out", str(folder / "other")])
    weights = folder / "other" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    for at in range(len(data) // 2, len(data), 64):
        data[at] ^= 1
    weights.write_bytes(data)
    return folder


def command(model, *flags):
    return [BIN_DIR / "quire", "serve", model, "--served-model-name", "tiny", "--port", "0", "--max-model-len", "256",
            "--num-gpu-blocks-override", "200", *flags]


def serve(folder, size, model, *flags, **options) -> Job:
    return Job(folder, size, *command(model, "--tensor-parallel-size", size, *flags), **options)


def url(job) -> str:
    return job.wait_for(r"Serving tiny at (http://\S+)")[0][1]


def ask(at: str, body=None) -> dict:
    answer = httpx.post(f"{at}/v1/completions", json=body or QUESTION, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def bits(reply: dict):
    """The text, and the receipt with the tokens and the digests of all logits."""
    choice = reply["choices"][0]
    assert choice["receipt"]["logits"]
    return choice["text"], choice["receipt"]


def pid_of(job, rank: int) -> int:
    """The process id of quire: the child of the rank's shell."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            name = os.readlink(f"/proc/{pid}/exe")
            with open(f"/proc/{pid}/environ", "rb") as file:
                environment = file.read().split(b"\0")
        except OSError:
            continue
        if (name == str((BIN_DIR / "quire").resolve()) and f"OMPI_COMM_WORLD_RANK={rank}".encode() in environment
                and f"PWD={job.folder}".encode() in environment):
            return int(pid)
    raise AssertionError(f"rank {rank} does not run: {job.log}")


def check_what_ranks_report(at: str):
    """Rank 1 has told rank 0 of all its steps, without a call of the group."""
    def reported():
        found = {(name, int(rank)): float(value) for name, rank, value in re.findall(
            r'^quire:rank_(\w+){[^}]*rank="(\d)"} (\S+)$', httpx.get(f"{at}/metrics").text, re.M)}
        return found[("steps_total", 1)] == found[("steps_total", 0)] > 0 and found
    found = wait_until(reported)
    for rank in range(2):
        assert found[("compute_seconds_total", rank)] > 0 and found[("wait_seconds_total", rank)] > 0
        assert found[("sent_bytes_total", rank)] > 0 and found[("resident_memory_bytes", rank)] > 2**20
        assert found[("pages", rank)] == 199
    (model,) = httpx.get(f"{at}/ps").json()["models"]
    assert [rank["steps"] for rank in model["ranks"]] == [found[("steps_total", 0)]] * 2


@in_proc
def test_same_answers_and_an_orderly_end(models, tmp_path):
    (tmp_path / "one").mkdir()
    with Job(tmp_path / "one", 1, *command(models / "tiny")) as alone:  # mpirun -n 1 is the usual server
        expected = bits(ask(url(alone)))
    with serve(tmp_path, 2, models / "tiny") as job:
        at = url(job)
        assert bits(ask(at)) == expected
        assert bits(ask(at)) == expected  # from the prefix cache
        assert httpx.get(f"{at}/health").status_code == 200
        check_what_ranks_report(at)
        os.kill(pid_of(job, 0), signal.SIGTERM)
        assert job.wait() == 0, job.log
        assert [job.exit_code(rank) for rank in range(2)] == [0, 0], job.log
        assert job.log.count("Serving tiny at") == 1
        assert (tmp_path / "log.1").read_text() == ""


@in_proc
def test_several_engines_have_the_same_answers(models, tmp_path):
    """Each process has its rank of both engines, which work at the same time."""
    (tmp_path / "one").mkdir()
    bodies = [QUESTION | {"prompt": f"one two {number}", "seed": number} for number in range(8)]
    with Job(tmp_path / "one", 1, *command(models / "tiny")) as alone:
        at = url(alone)
        expected = [bits(ask(at, body)) for body in bodies]
    with serve(tmp_path, 2, models / "tiny", "--data-parallel-size", 2, "--threads", 2) as job:
        at = url(job)
        with ThreadPoolExecutor(4) as pool:
            assert [bits(answer) for answer in pool.map(lambda body: ask(at, body), bodies)] == expected
        for engine in ("0", "1"):
            answer = httpx.post(f"{at}/v1/completions", json=bodies[0], headers={"X-data-parallel-rank": engine}, timeout=60)
            assert bits(answer.json()) == expected[0]
        metrics = httpx.get(f"{at}/metrics").text
        for engine in range(2):
            (count,) = re.findall(rf'^vllm:request_success_total{{engine="{engine}",finished_reason="length".*}} (\S+)$',
                                  metrics, re.M)
            assert float(count) > 0, metrics
        os.kill(pid_of(job, 0), signal.SIGTERM)
        assert job.wait() == 0, job.log
        assert [job.exit_code(rank) for rank in range(2)] == [0, 0], job.log


@in_proc
def test_health_is_red_while_a_rank_is_stopped(models, tmp_path):
    """And green again when the rank goes on, with the same answers as before."""
    with serve(tmp_path, 2, models / "tiny") as job:
        at = url(job)
        before = bits(ask(at))
        pid = pid_of(job, 1)
        os.kill(pid, signal.SIGSTOP)
        try:
            red = wait_until(lambda: (answer := httpx.get(f"{at}/health")).status_code == 503 and answer)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert re.search(rf"rank 1 \(\S+, pid {pid}\) has not answered for \d+ seconds", red.text)
        wait_until(lambda: httpx.get(f"{at}/health").status_code == 200)
        assert bits(ask(at)) == before


@in_proc
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_ends_the_server(models, tmp_path, victim):
    with serve(tmp_path, 2, models / "tiny") as job:
        at = url(job)

        def load():
            try:
                while True:
                    ask(at, QUESTION | {"max_tokens": 200})
            except httpx.HTTPError:
                pass
        clients = [threading.Thread(target=load, daemon=True) for _ in range(3)]
        for client in clients:
            client.start()
        wait_until(lambda: "200" in job.log)  # the access log: requests are under way
        pid = pid_of(job, victim)
        os.kill(pid, signal.SIGKILL)
        assert job.wait() != 0
        assert job.exit_code(1 - victim) == 1, job.log
        job.rank_says(1 - victim, rf"rank {victim} \(\S+, pid {pid}\) ended; the other ranks cannot go on without it")
        for client in clients:
            client.join(60)


def test_a_gpu_that_stalls_ends_the_server(models, tmp_path):
    """A launch of rank 1 never ends, but its process answers: first health is red, then all ranks end and name it."""
    flags = ("--tensor-parallel-size", "2", "--device", "emulator", "--distributed-timeout-seconds", "6",
             "--health-stall-seconds", "1")
    with Job(tmp_path, 1, *command(models / "tiny", *flags),
             then=(1, "env", "QUIRE_EMULATOR_STALL=2000", *command(models / "tiny", *flags))) as job:
        at = url(job)
        answers = []

        def load():
            try:
                while True:
                    answers.append(ask(at, QUESTION | {"max_tokens": 200}))
            except (httpx.HTTPError, AssertionError):
                pass
        client = threading.Thread(target=load, daemon=True)
        client.start()
        wait_until(lambda: httpx.get(f"{at}/health").status_code == 503, lambda: job.log)
        assert job.wait() != 0
        job.rank_says(0, r"rank 1 \(\S+, pid \d+\) (has a GPU that did not finish a step|did not do its part) within 6 s; "
                         "the other ranks cannot go on without it")
        assert [job.exit_code(rank) for rank in range(2)] == [1, 1], job.log
        client.join(60)


def test_a_gpu_that_stalls_ends_the_threads_of_a_process(models, tmp_path):
    done = subprocess.run(
        [*map(str, (BIN_DIR / "quire", "run", models / "tiny", "one two three", "--tensor-parallel-size", 2, "--device",
                    "emulator", "--distributed-timeout-seconds", 1, "--max-model-len", 256, "--num-gpu-blocks-override", 40))],
        env=os.environ | {"QUIRE_EMULATOR_STALL": "1000", "QUIRE_HOME": str(tmp_path)}, capture_output=True, text=True,
        check=False, timeout=60)
    assert done.returncode == 1, done.stderr
    assert re.search(r"rank \d has a GPU that did not finish a step within 1 s; the other ranks cannot go on without it",
                     done.stderr), done.stderr


def test_a_rank_with_another_model_is_refused(models, tmp_path):
    """All ranks say the same, and end."""
    flags = ("--tensor-parallel-size", "2")
    with Job(tmp_path, 1, *command(models / "tiny", *flags), then=(1, *command(models / "other", *flags))) as job:
        job.wait()
        for rank in range(2):
            assert job.exit_code(rank) == 2, job.log
            job.rank_says(rank, r"rank 1 \(\S+, pid \d+\) does not fit to rank 0: the model's weights is \w+ there and")


def test_a_rank_with_another_level_of_instructions_is_refused(models, tmp_path):
    flags = ("--tensor-parallel-size", "2", "--cpu-isa")
    with Job(tmp_path, 1, *command(models / "tiny"), *flags, "avx2",
             then=(1, *command(models / "tiny", *flags, "portable"))) as job:
        job.wait()
        if "not available" not in job.log:  # a machine without AVX2 says that instead
            job.rank_says(0, r"does not fit to rank 0: the level of instructions is portable there and avx2 on rank 0")


@pytest.mark.parametrize(("size", "flags", "sentence"), [
    (2, ("--tensor-parallel-size", "4"), "mpirun started 2 processes, but --tensor-parallel-size times "
                                         "--pipeline-parallel-size is 4; both must be the same"),
    (2, (), "is 1; both must be the same"),
    (4, ("--tensor-parallel-size", "2", "--data-parallel-size", "2"), "as each process has its rank of all engines"),
    (2, ("--tensor-parallel-size", "2", "--distributed-executor-backend", "threads"), "keeps all ranks in one"),
    (2, ("--tensor-parallel-size", "2", "--distributed-executor-backend", "ray"), "ray is not supported"),
])
def test_refused(models, tmp_path, size, flags, sentence):
    with Job(tmp_path, size, *command(models / "tiny", *flags)) as job:
        job.wait()
        for rank in range(size):
            assert job.exit_code(rank) == 2, job.log
            job.rank_says(rank, sentence)


def test_mpi_without_mpirun(models):
    done = subprocess.run([*map(str, command(models / "tiny", "--tensor-parallel-size", "2",
                                             "--distributed-executor-backend", "mpi"))],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "start the ranks with mpirun -n 2 quire" in done.stderr
