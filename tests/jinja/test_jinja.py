# SPDX-License-Identifier: Apache-2.0
"""Holds the Jinja engine to Jinja2, byte for byte: real templates, hand-written snippets, random templates."""

import json
import pathlib

import pytest

import generate
import reference
import snippets

pytestmark = [
    pytest.mark.skipif(not reference.binary().exists(), reason="quire_jinja_check is not built (set QUIRE_BIN_DIR)"),
    # Jinja2 compiles to Python, which warns of the nonsense that random templates hold.
    pytest.mark.filterwarnings("ignore::SyntaxWarning", "ignore::DeprecationWarning"),
]
HERE = pathlib.Path(__file__).parent


def explain(found):
    lines = [f"{len(found)} differences"]
    for item in found[:10]:
        lines.append(f"  template {item['request']['template']!r}")
        lines.append(f"    Jinja2: {item['expected']!r}")
        lines.append(f"    quire:  {item['actual']!r}")
    return "\n".join(lines)


def comparable(found):
    """Leaves out what cannot be the same: addresses, complex numbers, and integers of more than 64 bits."""
    kept = []
    for item in found:
        wanted, got = item["expected"], item["actual"]
        if wanted[0] and (" at 0x" in wanted[1] or "j)" in wanted[1]):
            continue
        if not got[0] and ("64 bits" in got[1] or "no real fractional power" in got[1]):
            continue
        kept.append(item)
    return kept


def test_every_expression_prints_the_same():
    requests = [{"template": "{{ " + text + " }}", "context": snippets.CONTEXT} for text in snippets.expressions()]
    assert len(requests) > 1000
    found = reference.differences(requests)
    assert not found, explain(found)


def test_every_statement_renders_the_same():
    found = reference.differences([{"template": text, "context": snippets.CONTEXT} for text in snippets.STATEMENTS])
    assert not found, explain(found)


def test_methods_that_change_values_work_outside_of_the_immutable_sandbox():
    requests = [{"template": text, "context": snippets.CONTEXT, "mutable": True} for text in snippets.MUTABLE]
    found = reference.differences(requests)
    assert not found, explain(found)


@pytest.mark.parametrize("seed", range(8))
def test_random_expressions_print_the_same(seed):
    generator = generate.Generator(seed)
    requests = [{"template": "{{ " + generator.expression() + " }}", "context": snippets.CONTEXT} for _ in range(500)]
    found = comparable(reference.differences(requests))
    assert not found, explain(found)


@pytest.mark.parametrize("seed", range(8))
def test_random_templates_render_the_same(seed):
    generator = generate.Generator(1000 + seed)
    requests = [{"template": generator.template(), "context": snippets.CONTEXT} for _ in range(120)]
    found = comparable(reference.differences(requests))
    assert not found, explain(found)


def conversations():
    cases = json.loads((HERE / "conversations.json").read_text())
    for case in cases.values():
        for flag in (True, False):
            yield {"tools": None, "documents": None, "bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": flag, **case}


@pytest.mark.parametrize("path", sorted((HERE / "templates").glob("*.jinja")), ids=lambda path: path.stem)
def test_own_chat_templates_render_the_same(path):
    source = path.read_text()
    found = reference.differences([{"template": source, "context": context} for context in conversations()])
    assert not found, explain(found)


def golden_cases(data):
    cases = json.loads(reference.read_shared(data / "chat-templates" / "golden-cases.json"))
    for line in reference.read_shared(data / "chat-templates" / "golden-jinja2.jsonl").splitlines():
        record = json.loads(line)
        file, _, field = record["template"].partition("#")
        source = reference.read_shared(data / file)
        if source is None:
            continue
        case = cases[record["case"]]
        context = {"messages": case["messages"], "tools": case.get("tools"), "documents": None}
        context.update({name: record[name] for name in ("add_generation_prompt", "bos_token", "eos_token")})
        yield record, {"template": json.loads(source)[field] if field else source, "context": context}


def test_real_chat_templates_render_as_recorded():
    data = reference.shared_data()
    if data is None:
        pytest.skip("no shared test data (set QUIRE_SHARED)")
    pairs = list(golden_cases(data))
    assert len(pairs) >= 480
    wrong = []
    for (record, request), (ok, text) in zip(pairs, reference.actual([request for _, request in pairs])):
        if ok == ("error" in record) or (ok and text != record["output"]):
            wrong.append((record["template"], record["case"], text[:300]))
    assert not wrong, f"{len(wrong)} of {len(pairs)} differ, first: {wrong[:3]}"


def test_real_chat_templates_render_other_conversations_the_same():
    data = reference.shared_data()
    if data is None:
        pytest.skip("no shared test data (set QUIRE_SHARED)")
    sources = {request["template"] for _, request in golden_cases(data)}
    requests = [{"template": source, "context": context} for source in sorted(sources) for context in conversations()]
    found = comparable(reference.differences(requests))
    assert not found, explain(found)
