# SPDX-License-Identifier: Apache-2.0
"""The files in examples/ are well formed, and use only series and labels that the server exports."""

import json
import os
import pathlib
import re
import subprocess

import pytest
from conftest import ROOT

EXAMPLES = ROOT / "examples"
# The labels that Prometheus adds to each series that it scrapes, and the one series that it creates itself.
TARGET_LABELS = {"job", "instance"}
SCRAPE_SERIES = {"up": set()}
KEYWORDS = {"and", "or", "unless", "bool", "offset", "group_left", "group_right"}
GROUPING = re.compile(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)")


def dashboard():
    return json.loads((EXAMPLES / "grafana/quire-dashboard.json").read_text(encoding="utf-8"))


def panels():
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def dashboard_expressions():
    board = dashboard()
    found = [target["expr"] for panel in panels() for target in panel["targets"]]
    found += [annotation["expr"] for annotation in board["annotations"]["list"]]
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            series, label = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["definition"]).groups()
            found.append("count by (%s) (%s)" % (label, series))
    return found


def alert_expressions():
    text = (EXAMPLES / "prometheus/quire.rules.yml").read_text(encoding="utf-8")
    found = re.findall(r"^ +expr: (.+)$", text, re.MULTILINE)
    assert len(found) == len(re.findall(r"^ +- alert: \w+$", text, re.MULTILINE)) > 0
    return found


def selectors(expression):
    """The series that an expression names, each with the labels that it is selected or grouped by."""
    grouped = {label.strip() for labels in GROUPING.findall(expression) for label in labels.split(",")}
    rest = GROUPING.sub(" ", expression)
    rest = re.sub(r"\[[^]]*\]", " ", rest)
    found = []
    for name, opening, matchers in re.findall(r"(?<![\w.])([a-zA-Z_:][\w:]*)\s*(\(|\{([^}]*)\})?", rest):
        if opening == "(" or name in KEYWORDS:
            continue
        found.append((name, grouped | set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))))
    return found


def test_selectors_are_found():
    expression = 'histogram_quantile(0.9, sum by (le, x) (rate(vllm:a_bucket{b=~"c d",e="f"}[5m]))) > 1e3 and on (g) up'
    assert selectors(expression) == [("vllm:a_bucket", {"le", "x", "b", "e", "g"}), ("up", {"le", "x", "g"})]


@pytest.mark.parametrize("expression", dashboard_expressions() + alert_expressions())
def test_expressions_ask_for_what_is_exported(expression, labels_of):
    chosen = selectors(expression)
    assert chosen, "no series in it"
    known = {**labels_of, **SCRAPE_SERIES}
    for name, labels in chosen:
        assert name in known, name
        assert labels <= known[name] | TARGET_LABELS, name


def test_each_panel_has_a_place_of_its_own():
    taken = set()
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert place["x"] + place["w"] <= 24, panel["title"]
        assert not taken & cells, panel["title"]
        taken |= cells
    ids = [panel["id"] for panel in dashboard()["panels"]]
    assert len(set(ids)) == len(ids)


def test_the_dashboard_reads_the_chosen_data_source():
    board = dashboard()
    assert [variable["name"] for variable in board["templating"]["list"]] == ["datasource", "model_name", "instance"]
    for panel in panels():
        for place in [panel, *panel["targets"]]:
            assert place["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, panel["title"]


def test_the_dashboard_shows_what_an_operator_asks_for():
    text = " ".join(dashboard_expressions())
    for series in ("num_requests_running", "num_requests_waiting", "time_to_first_token_seconds_bucket",
                   "inter_token_latency_seconds_bucket", "e2e_request_latency_seconds_bucket", "generation_tokens_total",
                   "kv_cache_usage_perc", "prefix_cache_hits_total", "num_preemptions_total", "request_success_total"):
        assert "vllm:" + series in text
    assert "http_requests_total" in text and "process_resident_memory_bytes" in text


@pytest.fixture(scope="session")
def serve_flags():
    done = subprocess.run([pathlib.Path(os.environ["QUIRE_BIN_DIR"]) / "quire", "serve", "--help"], check=True,
                          capture_output=True, text=True)
    return set(re.findall(r"--[a-z][a-z0-9-]*[a-z0-9]", done.stdout))


# Files that mention quire's flags, and the flags in them that belong to other programs.
FLAG_PAGES = ["docs/serving.md", "examples/kubernetes/deployment.yaml", "examples/nginx/quire.conf",
              "examples/prometheus/quire.rules.yml", "examples/systemd/quire.env", "examples/systemd/quire.service"]
# Those of vLLM are taken with a warning, and --help does not list them.
OTHERS_FLAGS = {"--now", "--enforce-eager", "--swap-space", "--trust-remote-code"}


@pytest.mark.parametrize("page", FLAG_PAGES)
def test_flags_exist(page, serve_flags):
    text = (ROOT / page).read_text(encoding="utf-8").replace("`--no-`", "")
    flags = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*[a-z0-9]", text)) - OTHERS_FLAGS
    flags |= {"--" + name.lower().replace("_", "-") for name in re.findall(r"\bQUIRE_([A-Z_]+)=", text)} - {"--home"}
    assert flags <= serve_flags
