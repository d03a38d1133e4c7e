# SPDX-License-Identifier: Apache-2.0
"""What the tests of metrics and examples share: the server's own text of its series, parsed by prometheus_client."""

import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def exposition(tmp_path_factory):
    """The text of /metrics after a little traffic, as the unit test writes it."""
    path = tmp_path_factory.mktemp("metrics") / "exposition.txt"
    program = pathlib.Path(os.environ["QUIRE_BIN_DIR"]) / "quire_metrics_tests"
    subprocess.run([program, "--gtest_filter=ServerMetrics.WritesItsTextWhereAsked"], check=True, capture_output=True,
                   env={**os.environ, "QUIRE_EXPOSITION": str(path), "PROMETHEUS_DISABLE_CREATED_SERIES": ""})
    return path.read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def families(exposition):
    from prometheus_client.parser import text_string_to_metric_families

    return list(text_string_to_metric_families(exposition))


@pytest.fixture(scope="session")
def labels_of(families):
    """The labels of every sample's name, as Prometheus stores them: {"vllm:x_bucket": {"le", "engine", ...}}."""
    found = {}
    for family in families:
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found
