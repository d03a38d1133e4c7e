# SPDX-License-Identifier: Apache-2.0
"""quire list, show and rm: the models on this machine."""

import os
import pty
import shutil
import subprocess

import pytest


@pytest.fixture()
def cache(quire, tmp_path):
    """A cache with owner/tiny (safetensors) and owner/quants (two GGUF files), and the environment for it."""
    models = tmp_path / "models"
    shutil.copytree(quire.folder / "tiny", models / "owner" / "tiny")
    (models / "owner" / "quants").mkdir()
    for quant in ("F32", "Q8_0"):
        shutil.copy(quire.folder / "tiny.gguf", models / "owner" / "quants" / f"x-{quant}.gguf")
    return models, {"QUIRE_HOME": str(tmp_path)}


def test_list(quire, cache, tmp_path):
    models, env = cache
    (models / "damaged").mkdir()
    (models / "damaged" / "x.gguf").write_bytes(b"GGUF and nothing else")
    rows = {row["name"]: row for row in quire.json("list", env=env)["models"]}
    assert list(rows) == ["damaged", "owner/quants:F32", "owner/quants:Q8_0", "owner/tiny"]
    assert rows["owner/tiny"]["family"] == "llama" and rows["owner/tiny"]["type"] == "F32"
    assert rows["owner/quants:Q8_0"]["type"] == "Q8_0"
    assert rows["owner/quants:F32"]["bytes"] == (quire.folder / "tiny.gguf").stat().st_size
    assert rows["damaged"]["family"] == "?" and "error" in rows["damaged"]
    folder = tmp_path / "more"
    folder.mkdir()
    shutil.copy(quire.folder / "tiny.gguf", folder / "mine.gguf")
    lines = quire("list", "--models-dir", folder, env=env).text.splitlines()
    assert lines[0].split() == ["NAME", "SIZE", "TYPE", "FAMILY", "WHERE"] and len(lines) == 6
    assert lines[-1].split()[0] == "mine" and lines[-1].split()[-1] == "models-dir"
    wrong = quire("list", "--models-dir", "nowhere", env=env)
    assert wrong.returncode == 1 and "nowhere" in wrong.errors
    assert "quire pull" in quire("list", env={"QUIRE_HOME": str(tmp_path / "empty")}).text


def test_show(quire, cache):
    _, env = cache
    shown = quire.json("show", "owner/tiny", env=env)
    assert shown["family"] == "llama" and shown["quantisation"] == "F32 100%" and "chat_template" in shown
    assert shown["least_memory_bytes"] > shown["weights_bytes"] > 0 and shown["context"] > 0
    text = quire("show", "tiny.gguf").text
    assert "quantisation   F32 100%" in text and "Chat template" in text
    assert quire("show", "nowhere").returncode == 1


def test_rm(quire, cache):
    models, env = cache
    asked = quire("rm", "owner/tiny", env=env)
    assert asked.returncode == 2 and "--yes" in asked.errors and (models / "owner" / "tiny").exists()
    done = quire("rm", "quants:Q8_0", "--yes", env=env)
    assert done.returncode == 0 and "owner/quants:Q8_0" in done.text
    assert [path.name for path in (models / "owner" / "quants").iterdir()] == ["x-F32.gguf"]
    assert quire("rm", "owner/tiny", "--yes", env=env).returncode == 0
    assert quire("rm", "owner/quants", "--yes", env=env).returncode == 0
    assert not list(models.iterdir())
    for argument in ("tiny.gguf", "tiny", "owner/tiny", str(quire.folder / "tiny")):
        refused = quire("rm", argument, "--yes", env=env)
        assert refused.returncode == 1 and "is not a model of the cache" in refused.errors, refused.errors
    assert (quire.folder / "tiny.gguf").exists() and (quire.folder / "tiny").exists()


@pytest.mark.parametrize("typed, deleted", [("n\n", False), ("\n", False), ("y\n", True)])
def test_rm_asks_on_a_terminal(quire, cache, typed, deleted):
    models, env = cache
    master, slave = pty.openpty()
    os.write(master, typed.encode())
    done = subprocess.run([quire.path, "rm", "owner/tiny"], stdin=slave, capture_output=True, text=True, timeout=60,
                          env=quire.environment | env)
    os.close(slave)
    os.close(master)
    assert "Delete owner/tiny (" in done.stdout and done.returncode == (0 if deleted else 1)
    assert (models / "owner" / "tiny").exists() != deleted
