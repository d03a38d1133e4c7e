# SPDX-License-Identifier: Apache-2.0
"""Compares the Jinja engine with Jinja2, byte for byte: real templates, hand-written snippets, random templates."""

import json
import pathlib

import pytest

import generate
import reference
import snippets

pytestmark = [
    pytest.mark.skipif(not reference.binary().exists(), reason="quire_jinja_check is not built (set QUIRE_BIN_DIR)"),
    # Jinja2 compiles to Python, which warns about the nonsense in random templates.
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
    """Leaves out what cannot be equal: addresses, complex numbers, and integers of more than 64 bits."""
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


# --- Where the bytes of a prompt came from ---

WIDE = {code: code + 0xFEE0 for code in range(0x21, 0x7F)}  # ASCII as full-width characters, which no template here has


def wide(value, keys=False):
    """The value with all its strings in full-width characters."""
    if isinstance(value, str):
        return value.translate(WIDE)
    if isinstance(value, list):
        return [wide(item, keys) for item in value]
    if isinstance(value, dict):
        return {(name.translate(WIDE) if keys else name): wide(item, True) for name, item in value.items()}
    return value


def unmarked(text, origins):
    """The text without the parts that came from the request."""
    data, out, done = text.encode(), b"", 0
    for begin, end, _ in origins:
        assert done <= begin < end <= len(data)
        out += data[done:begin]
        done = end
    return (out + data[done:]).decode()


def check_marks(templates):
    context = wide(snippets.CONTEXT)
    answers = reference.answers([{"template": text, "context": context, "marked": True} for text in templates])
    rendered = marked = 0
    for template, answer in zip(templates, answers):
        if not answer["ok"]:
            continue
        rendered += 1
        marked += bool(answer["origins"])
        left = [c for c in unmarked(answer["text"], answer["origins"]) if 0xFF01 <= ord(c) <= 0xFF5E]
        assert not left, f"{template!r} gives {answer['text']!r}, marked {answer['origins']}"
    return rendered, marked


def test_text_of_a_request_stays_marked_through_every_expression_and_statement():
    templates = ["{{ " + text + " }}" for text in snippets.expressions()] + list(snippets.STATEMENTS)
    rendered, marked = check_marks(templates)
    assert rendered > 500 and marked > 100


@pytest.mark.parametrize("seed", range(4))
def test_text_of_a_request_stays_marked_in_random_templates(seed):
    generator = generate.Generator(2000 + seed)
    templates = [generator.template() for _ in range(200)] + ["{{ " + generator.expression() + " }}" for _ in range(800)]
    rendered, marked = check_marks(templates)
    assert rendered > 200 and marked > 50


def test_template_text_around_a_request_is_not_marked():
    """Each operation keeps the template's own text apart from the request's."""
    cases = {
        "<|a|>{{ x }}<|b|>": "<|a|><|b|>",
        "{{ '<|a|>' ~ x ~ '<|b|>' }}": "<|a|><|b|>",
        "{{ '<|a|>' + x + '<|b|>' }}": "<|a|><|b|>",
        "{{ ('<|a|> ' + x + ' <|b|> ')|trim }}": "<|a|>  <|b|>",
        "{{ ('<|a|>' + x)|replace('secret', 'new') }}": "<|a|>new",
        "{{ '<|a|>-'|replace('-', x) }}": "<|a|>",
        "{{ ['<|a|>', x, '<|b|>']|join('<|c|>') }}": "<|a|><|c|><|c|><|b|>",
        "{{ '<|c|>'.join(['<|a|>', x]) }}": "<|a|><|c|>",
        "{{ ('<|a|>\\n' + x)|indent(2) }}": "<|a|>\n  ",
        "{{ ('<|a|>' + x)[:7] }}": "<|a|>",
        "{{ ('<|a|>' + x).split('|>')[0] }}": "<|a",
        "{{ ('<|a|>' + x).strip() }}": "<|a|>",
        "{{ '<|a|>%s<|b|>' % x }}": "<|a|><|b|>",
        "{{ '<|a|>{}<|b|>'.format(x) }}": "<|a|><|b|>",
        "{{ '<|a|>%s'|format(x) }}": "<|a|>",
        "{% macro m(y) %}<|a|>{{ y }}{% endmacro %}{{ m(x) }}<|b|>": "<|a|><|b|>",
        "{% set y %}<|a|>{{ x }}{% endset %}{{ y }}": "<|a|>",
        "{% set ns = namespace(t='<|a|>') %}{% for i in [x, x] %}{% set ns.t = ns.t + i + '<|b|>' %}{% endfor %}{{ ns.t }}": "<|a|><|b|><|b|>",
        "<|a|>{{ {'k': x}|tojson }}": '<|a|>{"k": }',
    }
    requests = [{"template": text, "context": {"x": "secret"}, "marked": True} for text in cases]
    for answer, (template, own) in zip(reference.answers(requests), cases.items()):
        assert answer["ok"], (template, answer)
        assert unmarked(answer["text"], answer["origins"]) == own, template


def test_the_role_of_a_message_decides_whether_its_text_is_trusted():
    messages = [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}, {"role": "system", "content": "s"},
                {"role": "tool", "content": "t"}, {"role": "us<|er", "content": "x"}]
    request = {"template": "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}", "context": {"messages": messages}, "marked": True}
    (answer,) = reference.answers([request])
    parts = [(answer["text"].encode()[begin:end].decode(), origin) for begin, end, origin in answer["origins"]]
    assert parts == [("u", 2), ("a", 1), ("s", 1), ("t", 2), ("us<|er", 2), ("x", 2)]
