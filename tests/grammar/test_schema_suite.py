# SPDX-License-Identifier: Apache-2.0
"""JSON Schema against the official test suite and real schemas: no invalid instance is ever accepted."""
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("QUIRE_SHARED") or REPO.parent / "shared") / "data"
TOKENIZER = SHARED / "tokenizers" / "hf" / "gpt2"
DRAFTS = {
    "draft4": "http://json-schema.org/draft-04/schema#",
    "draft6": "http://json-schema.org/draft-06/schema#",
    "draft7": "http://json-schema.org/draft-07/schema#",
    "draft2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
}
# Tests for which several readings are right: formats as annotations, vocabularies, integers beyond all doubles.
OTHER_READINGS = ("format.json", "vocabulary.json", "float-overflow.json")


def binary():
    for folder in (os.environ.get("QUIRE_BIN_DIR"), REPO / "build", REPO / "build-debug"):
        if folder and (Path(folder) / "quire_grammar_check").exists():
            return Path(folder) / "quire_grammar_check"
    return None


def unpack(name, target):
    archive = SHARED / "json" / name
    if not archive.exists() or shutil.which("zstd") is None:
        pytest.skip(f"{name} is not there")
    data = subprocess.run(["zstd", "-dcq", "--long=27", str(archive)], capture_output=True, check=True).stdout
    subprocess.run(["tar", "x", "-C", str(target)], input=data, check=True)
    return target


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    if binary() is None:
        pytest.skip("quire_grammar_check is not built")
    if not TOKENIZER.is_dir():
        pytest.skip("the shared data is not there")
    target = tmp_path_factory.mktemp("tokenizer")
    for file in TOKENIZER.iterdir():
        if file.suffix == ".zst":
            subprocess.run(["zstd", "-dqf", str(file), "-o", str(target / file.stem)], check=True)
        else:
            shutil.copyfile(file, target / file.name)
    return target


def ask(tokenizer, requests):
    lines = "".join(json.dumps(request) + "\n" for request in requests)
    run = subprocess.run([str(binary()), str(tokenizer)], input=lines, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    answers = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(answers) == len(requests)
    return answers


def as_written(data):
    """A value as answers have it: integers are digits alone, although JSON Schema takes 1.0 for one, too."""
    if isinstance(data, dict):
        return {name: as_written(value) for name, value in data.items()}
    if isinstance(data, list):
        return [as_written(value) for value in data]
    return int(data) if isinstance(data, float) and data.is_integer() and abs(data) < 1e16 else data


def groups_of(folder, draft):
    for file in sorted(folder.rglob("*.json")):
        if file.name in OTHER_READINGS:
            continue
        for group in json.loads(file.read_text()):
            schema = group["schema"]
            if isinstance(schema, dict):
                schema = {"$schema": DRAFTS[draft], **schema}
            yield f"{file.name}: {group['description']}", schema, group["tests"]


@pytest.mark.parametrize(
    "draft, least_right, most_refused_valid",
    [("draft4", 500, 0), ("draft6", 700, 0), ("draft7", 1200, 0), ("draft2019-09", 1500, 0), ("draft2020-12", 1600, 0)],
)
def test_official_suite(tokenizer, tmp_path, draft, least_right, most_refused_valid):
    unpack("JSON-Schema-Test-Suite.tar.zst", tmp_path)
    groups = list(groups_of(tmp_path / "JSON-Schema-Test-Suite" / "tests" / draft, draft))
    answers = ask(tokenizer, [
        {"spec": {"json": schema},
         "instances": [json.dumps(as_written(t["data"]) if t["valid"] else t["data"], ensure_ascii=False) for t in tests]}
        for _, schema, tests in groups
    ])
    right, refused_valid, accepted_invalid = 0, [], []
    for (name, _, tests), answer in zip(groups, answers):
        if not answer["ok"]:
            assert answer["error"], name
            continue
        for test, accepted in zip(tests, answer["accepted"]):
            if accepted == test["valid"]:
                right += 1
            elif test["valid"]:
                refused_valid.append(f"{name}: {test['description']}")
            else:
                accepted_invalid.append(f"{name}: {test['description']}")
    assert accepted_invalid == []
    assert len(refused_valid) <= most_refused_valid, refused_valid
    assert right >= least_right


def test_share_of_real_schemas(tokenizer, tmp_path):
    unpack("jsonschemabench_schemas.tar.zst", tmp_path)
    files = sorted((tmp_path / "jsonschemabench").glob("*/*.json"))[3::40]
    answers = ask(tokenizer, [{"spec": {"json": json.loads(f.read_text())}, "instances": []} for f in files])
    refused = [f"{f.name}: {a['error']}" for f, a in zip(files, answers) if not a["ok"]]
    assert len(refused) <= 0.06 * len(files), refused
