# SPDX-License-Identifier: Apache-2.0
"""The page at /: its headers, the live view that feeds it, and the page itself in a headless browser."""

import json
import re
import threading

import httpx
import pytest

import browser
from conftest import ROOT

FILES = {"/": "text/html", "/page.js": "text/javascript", "/page.css": "text/css"}
BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
STATES = ("free", "cached", "used", "shared")
needs_chromium = pytest.mark.skipif(browser.PROGRAM is None, reason="needs Chromium (Debian: apt-get install chromium)")


def live_events(server, query: str = "", headers: dict | None = None):
    """The events of /live, without end."""
    with httpx.stream("GET", server.url + "/live" + query, headers=headers, timeout=60) as answer:
        assert answer.status_code == 200 and answer.headers["Content-Type"].startswith("text/event-stream")
        for line in answer.iter_lines():
            if line.startswith("data: "):
                yield json.loads(line[6:])


def cells_of(event: dict) -> list[tuple[str, int, int]]:
    """(state, group, owner) for each cell of the map."""
    runs = event["pages"]["cells"]
    return [(STATES[code & 3], code >> 2 & 255, code >> 10)
            for code, count in zip(runs[::2], runs[1::2], strict=True) for _ in range(count)]


def check_consistent(event: dict):
    pages, cells = event["pages"], cells_of(event)
    assert pages["per_cell"] == 1 and len(cells) == pages["total"]
    assert sum(state == "free" for state, _, _ in cells) == pages["free"]
    for index, group in enumerate(pages["groups"]):
        for state in STATES[1:]:
            assert sum(cell[:2] == (state, index) for cell in cells) == group[state], (state, index)
    owned = [0] * (len(event["requests"]) + 1)
    for state, _, owner in cells:
        assert (owner > 0) == (state in ("used", "shared"))
        owned[owner] += state == "used"
    shared = sum(state == "shared" for state, _, _ in cells)
    for one, used in zip(event["requests"], owned[1:], strict=True):
        assert used <= one["pages"] <= used + shared
        assert one["state"] in ("waiting", "prefill", "decode", "preempted")
        assert one["computed"] <= one["tokens"] and (one["pages"] == 0 or one["state"] in ("prefill", "decode"))
    runs = sum(one["state"] in ("prefill", "decode") for one in event["requests"])
    assert runs == event["running"] and len(event["requests"]) - runs + event["unlisted"] == event["waiting"]


class Traffic:
    """Threads that ask for completions until stopped."""

    def __init__(self, server, bodies: list[dict]):
        self.stop, self.failed = threading.Event(), []
        self.threads = [threading.Thread(target=self._run, args=(server, body)) for body in bodies]

    def _run(self, server, body: dict):
        with httpx.Client(base_url=server.url, timeout=120) as client:
            while not self.stop.is_set():
                answer = client.post("/v1/completions", json=body)
                if answer.status_code != 200:
                    self.failed.append(answer.text)

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        for thread in self.threads:
            thread.join()
        assert not self.failed


def test_the_page_has_a_strict_policy_and_needs_nothing_from_elsewhere(server):
    size = 0
    for path, kind in FILES.items():
        answer = server.http.get(path, headers=BROWSER)
        assert answer.status_code == 200 and answer.headers["Content-Type"].startswith(kind)
        policy = dict(part.strip().split(" ", 1) for part in answer.headers["Content-Security-Policy"].split(";"))
        assert policy["default-src"] == "'none'" and policy["script-src"] == policy["style-src"] == "'self'"
        assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
        assert "unsafe" not in str(policy) and answer.headers["X-Content-Type-Options"] == "nosniff"
        text = answer.text.replace("http://www.w3.org/2000/svg", "")
        assert "http:" not in text and "https:" not in text and "innerHTML" not in text
        assert not re.search(r"<[^>]+\s(on\w+|style)=", text) or kind != "text/html"
        size += len(answer.content)
    assert size < 80_000
    assert server.http.head("/", headers=BROWSER).status_code == 200
    script = "".join((ROOT / "src/api/page" / name).read_text() for name in ("base.js", "markdown.js", "chat.js", "compare.js", "live.js"))
    assert server.http.get("/page.js").text == script


def test_other_programs_get_a_text(server):
    answer = server.http.get("/")
    assert answer.headers["Content-Type"].startswith("text/plain") and answer.headers["Vary"] == "Accept"
    assert "tiny" in answer.text and "POST /v1/chat/completions" in answer.text


def test_the_page_can_be_turned_off(start):
    one = start("tiny", "--no-page")
    assert "<h1>" in one.http.get("/", headers=BROWSER).text  # that of /docs
    assert one.http.get("/", headers=BROWSER).text == one.http.get("/docs").text
    for path in ("/page.js", "/page.css", "/live", "/live/page?id=1"):
        assert one.http.get(path).status_code == 404


def test_the_live_view_is_consistent_under_traffic_and_shows_preemption(start):
    one = start("tiny", "--num-gpu-blocks-override", "20", "--max-model-len", "128", "--block-size", "16")
    same = list(range(5, 45))
    bodies = [{"prompt": [*same, 50 + i], "max_tokens": 60, "ignore_eos": True, "seed": i} for i in range(6)]
    seen, last = set(), None
    with Traffic(one, bodies):
        for event in live_events(one):
            check_consistent(event)
            if last is not None:
                assert event["t"] - last["t"] >= 0.099, "more than ten events a second"
                assert event["generated"] >= last["generated"] and event["steps"] >= last["steps"]
            last = event
            seen |= {state for state, _, _ in cells_of(event)} | {one["state"] for one in event["requests"]}
            if event["preemptions"] > 0 and seen >= {"used", "shared", "decode", "preempted"}:
                break
    assert last["ttft_p50_s"] > 0 and last["itl_p50_s"] > 0


def test_requests_have_the_ids_that_their_clients_see(start):
    one = start("long", "--max-model-len", "100000", "--num-gpu-blocks-override", "8000")
    body = {"prompt": [5, 6, 7], "stream": True, "max_tokens": 50000, "ignore_eos": True}
    with httpx.stream("POST", one.url + "/v1/completions", json=body, timeout=60) as answer:
        lines = answer.iter_lines()
        first = json.loads(next(line for line in lines if line.startswith("data: "))[6:])
        event = next(event for event in live_events(one) if event["requests"])
        assert event["requests"][0]["id"] == first["id"] and event["requests"][0]["prompt"] == 3
        assert event["pages"]["per_cell"] == 2 and len(cells_of(event)) <= 4096
        page = one.http.get("/live/page?id=1").json()
        assert page["requests"][0]["id"] == first["id"] and page["begin"] == 0
        assert [token["id"] for token in page["tokens"]][:3] == [5, 6, 7]
    assert next(event for event in live_events(one) if not event["requests"])["running"] == 0


@pytest.mark.parametrize("flags, shown", [((), True), (("--host", "0.0.0.0"), False), (("--host", "0.0.0.0", "--api-key", "sk"), True)])
def test_an_open_server_shows_no_tokens(start, flags, shown):
    one = start("tiny", *flags)
    headers = {"Authorization": "Bearer sk"}
    port = one.url.rsplit(":", 1)[1]
    url = f"http://127.0.0.1:{port}"
    body = {"prompt": [5] * 40, "max_tokens": 2}
    assert httpx.post(url + "/v1/completions", json=body, headers=headers, timeout=60).status_code == 200
    page = httpx.get(url + "/live/page?id=1", headers=headers).json()
    assert page["state"] == "cached" and page["readable"] == shown and bool(page["tokens"]) == shown


def test_the_live_view_needs_the_key_and_keeps_the_tokens_of_other_keys(start, tmp_path):
    file = tmp_path / "keys.json"
    file.write_text(json.dumps({"keys": [{"name": "ada", "key": "sk-ada"}, {"name": "eve", "key": "sk-eve"}]}))
    one = start("long", "--api-key-file", file, "--max-model-len", "100000", "--num-gpu-blocks-override", "8000")
    ada, eve = ({"Authorization": f"Bearer sk-{name}"} for name in ("ada", "eve"))
    for path in ("/live", "/live/page?id=1"):
        assert one.http.get(path).status_code == 401
    for path in FILES:
        assert one.http.get(path, headers=BROWSER).status_code == 200
    body = {"prompt": [5] * 40, "stream": True, "max_tokens": 50000, "ignore_eos": True}
    with httpx.stream("POST", one.url + "/v1/completions", json=body, headers=ada, timeout=60) as answer:
        lines = answer.iter_lines()
        next(lines)
        mine = one.http.get("/live/page?id=1", headers=ada).json()
        theirs = one.http.get("/live/page?id=1", headers=eve).json()
        assert mine["readable"]
        assert [token["id"] for token in mine["tokens"]] == [5] * 16
        assert not theirs["readable"] and theirs["tokens"] == []
    next(event for event in live_events(one, headers=eve) if not event["requests"])
    cached = one.http.get("/live/page?id=1", headers=eve).json()
    assert cached["state"] == "cached" and cached["tokens"] == []


def tiers_of(event) -> dict:
    """The pages of the tiers that are known: where each is and its group, by id."""
    runs = event["pages"]["tiers"]
    return {first + k: (code & 1, code >> 1 & 1, code >> 2)
            for code, first, count in zip(runs[::3], runs[1::3], runs[2::3]) for k in range(count)}


def test_pages_on_disk_are_part_of_the_live_view(start, tmp_path):
    flags = ("--kv-offload-dir", str(tmp_path / "tier"), "--kv-offload-size", "50M", "--block-size", "16")
    prompts = [[5 + i] * 100 for i in range(3)]
    one = start("tiny", *flags)
    for prompt in prompts:
        assert one.http.post("/v1/completions", json={"prompt": prompt, "max_tokens": 1}).status_code == 200
    event = next(event for event in live_events(one) if event["pages"]["on_disk"] == 18)
    assert list(tiers_of(event).values()) == [(1, 0, 0)] * 18
    assert len(event["pages"]["tiers"]) == 3, "neighbours are one run"
    page = one.http.get(f"/live/page?tier={min(tiers_of(event)) + 7}").json()
    assert (page["on_disk"], page["on_host"], page["kind"]) == (True, False, "full")
    assert (page["begin"], page["end"], [token["id"] for token in page["tokens"]]) == (16, 32, [6] * 16)
    for bad, status in (("0", 404), ("99999", 404), ("x", 400)):
        assert one.http.get("/live/page", params={"tier": bad}).status_code == status
    assert one.stop() == 0
    one = start("tiny", *flags, "--host", "0.0.0.0")
    url = f"http://127.0.0.1:{one.url.rsplit(':', 1)[1]}"
    one.url = url
    event = next(event for event in live_events(one) if event["pages"]["on_disk"] == 18)
    assert tiers_of(event) == {}, "what earlier runs have stored is not known"
    body = {"prompt": prompts[1], "max_tokens": 1}
    assert httpx.post(url + "/v1/completions", json=body, timeout=60).status_code == 200
    event = next(event for event in live_events(one) if event["pages"]["tiers"])
    assert len(tiers_of(event)) == 6, "until a prompt asks for it"
    page = httpx.get(url + f"/live/page?tier={min(tiers_of(event))}").json()
    assert page["end"] == 16 and page["tokens"] == [] and not page["readable"], "this server is open to others"


def test_a_watcher_does_not_hold_up_the_end_of_the_server(start):
    one = start("tiny", "--shutdown-timeout", "600")
    events = live_events(one)
    next(events)
    assert one.stop() == 0
    assert list(events) == []


@pytest.fixture
def page(tmp_path):
    one = browser.Browser(tmp_path / "profile")
    yield one
    one.close()


def open_greedy(page, url: str):
    """Opens the page with temperature 0, at which the test's model never ends its answer."""
    page.open(url)
    page.value("""localStorage.setItem('quire.settings', '{"temperature": "0"}')""")
    page.open(url + "/?greedy")
    page.until("document.getElementById('model').value")


@needs_chromium
def test_a_conversation_with_the_keyboard_alone(start, page):
    one = start("long", "--max-model-len", "3000", "--num-gpu-blocks-override", "600")
    open_greedy(page, one.url)
    page.until("document.getElementById('map-title').textContent.includes('0 of')")
    before = page.value("document.getElementById('map').toDataURL()")
    page.value("""window.lengths = new Set(); new MutationObserver(() => {
        const body = document.querySelector('.answer .body.writing');
        if (body) lengths.add(body.textContent.length); }).observe(document.body, {childList: true, subtree: true}); 1""")
    page.tab_to("ask")
    page.type("Tell me about pages.")
    page.press("Enter")
    page.until("document.querySelector('.answer .bar')")
    assert page.value("lengths.size") > 2, "the answer did not stream"
    assert page.value("document.querySelector('.user .text').textContent") == "Tell me about pages."
    assert "token" in page.value("document.querySelector('.answer .bar').textContent")
    assert page.value("document.querySelectorAll('.answer .t').length") > 2
    page.until("document.getElementById('events').textContent.includes('you ended')")
    page.until(f"document.getElementById('map').toDataURL() !== {json.dumps(before)}")
    assert re.search(r"cached [1-9]", page.value("document.getElementById('key').textContent"))
    page.tab_to("map")
    page.press("ArrowRight")
    assert page.value("document.getElementById('status').textContent").startswith("Page 2,")
    page.press("Enter")
    page.until("document.querySelectorAll('#page .held span').length > 0")
    assert page.value("document.getElementById('page').textContent").startswith("Page 2 · cached: positions 16 to 31")
    page.open(one.url + "/?again")  # conversations stay in the browser
    page.until("document.querySelector('.user .text')?.textContent === 'Tell me about pages.'")
    assert page.value("document.querySelectorAll('#list li').length") == 1
    assert page.problems == []


CONTROLS = {"application", "button", "checkbox", "combobox", "DisclosureTriangle", "img", "image", "link", "log", "textbox"}


def audit(page, where: str) -> list[dict]:
    """The accessibility tree, as screen readers get it. Whatever can be used or has the focus must have a name."""
    nodes = [node for node in page.call("Accessibility.getFullAXTree")["nodes"] if not node["ignored"]]
    for node in nodes:
        role, name = node["role"]["value"], node.get("name", {}).get("value", "").strip()
        properties = {one["name"]: one["value"].get("value") for one in node.get("properties", [])}
        if role in CONTROLS or (properties.get("focusable") and role != "RootWebArea"):
            assert name, f"{where}: a {role} has no name: {node}"
            assert role != "generic", f"{where}: what has the focus says nothing of its kind: {node}"
    roles = [node["role"]["value"] for node in nodes]
    if "dialog" not in roles:  # a dialog hides the rest
        assert roles.count("main") == 1 and roles.count("banner") == 1, where
    return nodes


def live_texts(page) -> list[str]:
    """What each polite live region has said."""
    nodes = {node["nodeId"]: node for node in page.call("Accessibility.getFullAXTree")["nodes"]}

    def text(node) -> str:
        if node["role"]["value"] == "StaticText":
            return node["name"]["value"]
        return " ".join(filter(None, (text(nodes[child]) for child in node["childIds"] if child in nodes)))

    polite = [node for node in nodes.values()
              if any(one["name"] == "live" and one["value"]["value"] == "polite" for one in node.get("properties", []))]
    return [text(node) for node in polite]


@needs_chromium
def test_screen_readers_get_a_name_for_every_control_and_hear_the_answer(start, page):
    one = start("long", "--max-model-len", "3000", "--num-gpu-blocks-override", "600")
    page.open(one.url)
    settings = {"temperature": "0", "probabilities": True, "max_tokens": "40"}
    past = [{"role": "user", "content": "JSON", "files": [{"name": "a.txt", "text": "a"}]},
            {"role": "assistant", "content": '{"a": 1}', "reasoning": "Hm.", "calls": [{"name": "f", "arguments": "{}"}],
             "error": "It failed."},
            {"role": "user", "content": "Code"}, {"role": "assistant", "content": "```\nx = 1\n```"}]
    for name, value in (("settings", settings), ("conversations", [{"title": "Before", "updated": 1, "messages": past}])):
        page.value(f"localStorage.setItem('quire.{name}', {json.dumps(json.dumps(value))})")
    page.open(one.url + "/?again")
    page.until("document.getElementById('model').value && document.querySelector('.answer')")
    audit(page, "an old conversation")
    page.tab_to("new")
    page.press("Enter")
    page.tab_to("ask")
    page.type("Tell me about pages.")
    page.press("Enter")
    page.until("document.querySelector('.answer .bar')")
    audit(page, "an answer")
    answer = json.loads(page.value("localStorage.getItem('quire.conversations')"))
    answer = next(c for c in answer if c["title"] != "Before")["messages"][1]["content"]
    heard = live_texts(page)
    assert "The answer is complete." in heard
    assert any("".join(answer.split()) == "".join(text.split()) for text in heard), (answer, heard)
    page.tab_to("map")
    page.press("Enter")
    page.until("document.querySelectorAll('#page .held span').length > 0")
    audit(page, "a page of the map")
    for view in ("compare", "server"):
        page.value(f"document.getElementById('show-{view}').click()")
        audit(page, view)
    page.value("document.getElementById('show-compare').click(); document.getElementById('run').click()")
    page.until("document.getElementById('verdict').className")
    audit(page, "a comparison")
    assert any(text.startswith("Same bits: ") for text in live_texts(page))
    page.value("document.getElementById('show-talk').click()")
    page.size(400, 900)
    page.value("document.getElementById('menu').click()")
    audit(page, "a phone")
    page.value("document.getElementById('tune').click()")
    page.until("document.getElementById('settings').open")
    assert any(node["role"]["value"] == "dialog" for node in audit(page, "settings"))
    assert page.problems == []


@needs_chromium
def test_pages_on_disk_with_the_keyboard_alone(start, page, tmp_path):
    flags = ("--num-gpu-blocks-override", "30", "--max-model-len", "256", "--block-size", "16",
             "--kv-offload-dir", str(tmp_path / "tier"), "--kv-offload-size", "50M")
    one = start("tiny", *flags)
    page.open(one.url)
    page.until("document.getElementById('map-title').textContent.includes('0 of')")
    assert page.value("document.querySelector('#key .disk').parentElement.hidden")
    before = page.value("document.getElementById('map').toDataURL()")
    for i in range(8):
        one.http.post("/v1/completions", json={"prompt": [5 + i] * 100, "max_tokens": 1})
    page.until("document.getElementById('key').textContent.includes('on disk 48')")
    page.until(f"document.getElementById('map').toDataURL() !== {json.dumps(before)}")
    page.tab_to("map")
    page.press("End")
    assert page.value("document.getElementById('status').textContent") == "Stored page 48, on disk: attention"
    page.press("Enter")
    page.until("document.querySelectorAll('#page .held span').length === 16")
    assert page.value("document.getElementById('page').textContent").startswith("Stored page 48 · on disk: positions 80 to 95")
    for _ in range(8):
        page.press("ArrowUp")
    assert page.value("document.getElementById('status').textContent").startswith("Page "), "the pool is above the tiers"
    assert page.problems == []
    page.call("Page.navigate", url="about:blank")  # else it may look for the server that has stopped
    one.stop()
    again = start("tiny", *flags)
    page.open(again.url)
    page.until("document.getElementById('key').textContent.includes('on disk 48')")
    page.tab_to("map")
    page.press("End")
    assert page.value("document.getElementById('status').textContent") == "1 page on disk, from earlier"
    page.press("Enter")
    page.until("document.getElementById('page').textContent.startsWith('1 stored page · on disk; what')")
    assert page.problems == []


@needs_chromium
def test_stop_again_and_edit(start, page):
    one = start("long", "--max-model-len", "100000", "--num-gpu-blocks-override", "8000")
    open_greedy(page, one.url)
    page.type("First question")
    page.press("Enter")
    page.until("document.querySelector('.answer .writing')?.textContent.length > 20")
    page.until("document.getElementById('queue').textContent === '1 / 0'")
    page.until("document.querySelector('#requests td')?.textContent === 'you'")
    page.press("Escape")
    page.until("document.querySelector('.answer .bar')?.textContent.includes('stopped')")
    page.until("document.getElementById('queue').textContent === '0 / 0'")
    click = "[...document.querySelectorAll('.bar button')].find((b) => b.textContent === '%s').click()"
    page.value(click % "Again")
    page.until("document.querySelector('.answer .writing')?.textContent.length > 20")
    page.press("Escape")
    page.until("document.querySelectorAll('.answer .bar').length === 1")
    page.value(click % "Edit")
    page.value("document.querySelector('.edit').select()")
    page.type("Second question")
    page.press("Enter")
    page.until("document.querySelector('.answer .writing')?.textContent.length > 20")
    page.press("Escape")
    assert page.value("[...document.querySelectorAll('.user .text')].map((e) => e.textContent).join()") == "Second question"
    assert page.problems == []


@needs_chromium
def test_files_and_settings(start, page, tmp_path):
    one = start("tiny", "--max-model-len", "512")
    (tmp_path / "notes.txt").write_text("A quire has 24 sheets.")
    (tmp_path / "image.bin").write_bytes(b"\0\1\2")
    schema = {"type": "object", "properties": {"even": {"type": "boolean"}}, "required": ["even"],
              "additionalProperties": False}
    page.open(one.url)
    page.until("document.getElementById('model').value")
    page.value("document.getElementById('tune').click()")
    page.until("document.getElementById('settings').open")
    page.value("document.querySelector('[name=schema]').focus()")
    page.type("{not JSON")
    page.value("document.getElementById('save').click()")
    page.until("document.getElementById('settings-error').textContent === 'The schema is not JSON.'")
    page.value("document.querySelector('[name=schema]').select()")
    page.type(json.dumps(schema))
    page.value("document.getElementById('save').click()")
    page.until("!document.getElementById('settings').open")
    page.attach("file", [tmp_path / "notes.txt", tmp_path / "image.bin"])
    page.until("document.getElementById('status').textContent === 'image.bin is not a text file.'")
    assert page.value("document.querySelectorAll('#files li').length") == 1
    page.value("document.getElementById('ask').focus()")
    page.type("Even?")
    page.press("Enter")
    page.until("document.querySelector('.answer .bar')")
    assert page.value("document.querySelector('.user .chip').textContent") == "notes.txt · 22 characters"
    assert page.value("document.querySelector('.answer pre.json b').textContent") == '"even"'
    sent = json.loads(page.value("localStorage.getItem('quire.conversations')"))[0]["messages"][0]
    assert sent["files"] == [{"name": "notes.txt", "text": "A quire has 24 sheets."}]
    assert page.problems == []


@needs_chromium
def test_the_page_asks_for_the_key(start, page):
    one = start("tiny", "--api-key", "sk-right")
    page.open(one.url)
    for key in ("sk-wrong", "sk-right"):
        page.until("document.getElementById('key-dialog').open")
        page.value("document.getElementById('key-input').select()")
        page.type(key)
        page.press("Enter")
    page.until("document.getElementById('model').value === 'tiny'")
    page.until("document.getElementById('map-title').textContent.includes(' of ')")


@needs_chromium
def test_text_of_a_model_is_never_more_than_text(start, page):
    one = start("tiny")
    hostile = "<img src=x onerror=alert(1)> **bold <script>alert(2)</script>** [x](javascript:alert(3))\n\n" \
              "- one\n- `<b>two</b>`\n\n```html\n<iframe src=//evil></iframe>\n```"
    answers = [{"role": "user", "content": hostile}, {"role": "assistant", "content": hostile, "reasoning": hostile,
                "calls": [{"name": hostile, "arguments": '{"a": "<img src=x>"}'}], "error": hostile},
               {"role": "user", "content": "JSON"}, {"role": "assistant", "content": '{"name": ["<u>", 1, true]}'}]
    page.open(one.url)
    stored = json.dumps(json.dumps([{"title": hostile, "updated": 1, "messages": answers}]))
    page.value(f"localStorage.setItem('quire.conversations', {stored})")
    page.open(one.url + "/?again")
    page.until("document.querySelectorAll('.answer').length === 2")
    assert page.value("document.querySelectorAll('main img, main script, main iframe, main a, main u').length") == 0
    assert page.value("document.querySelector('.answer strong').textContent") == "bold <script>alert(2)</script>"
    assert page.value("document.querySelector('.answer li code').textContent") == "<b>two</b>"
    assert page.value("document.querySelector('.answer pre').textContent") == "<iframe src=//evil></iframe>"
    assert page.value("document.querySelector('.answer .call pre').textContent") == '{\n  "a": "<img src=x>"\n}'
    assert page.value("document.querySelector('.answer details').open") is False
    assert page.value("document.querySelectorAll('.answer')[1].querySelector('pre.json b').textContent") == '"name"'
    assert page.problems == []


@needs_chromium
def test_one_prompt_alone_and_in_a_crowd_with_the_keyboard_alone(start, page):
    one = start("long", "--max-model-len", "3000", "--num-gpu-blocks-override", "2000")
    page.open(one.url)
    page.until("document.getElementById('model').value")
    page.tab_to("show-compare")
    page.press("Enter")
    page.tab_to("prompt")
    page.value("document.getElementById('prompt').select()")
    page.type("Tell me about pages.")
    page.value("window.most = 0; setInterval(() => (most = Math.max(most, parseInt(document.getElementById('queue').textContent))), 5); 1")
    for _ in range(4):  # how often the page hears from the server depends on how busy that is
        page.value("document.getElementById('verdict').className = ''")
        page.press("Enter")
        page.until("document.getElementById('verdict').className")
        assert page.value("document.getElementById('verdict').textContent").startswith("Same bits: "), page.value("document.body.innerText")
        if page.value("most") > 1:
            break
        page.tab_to("prompt")
    alone, beside = page.value("[...document.querySelectorAll('#runs article')].map((run) => ({title: run.querySelector('h3').textContent, "
                               "text: run.querySelector('.body').textContent, receipt: run.querySelector('.receipt').textContent, "
                               "squares: [...run.querySelectorAll('.strip i')].map((square) => square.title)}))")
    assert (alone["title"], beside["title"]) == ("Alone", "Beside 8 others")
    assert page.value("most") > 1, "there was no crowd"
    for part in ("text", "receipt", "squares"):
        assert alone[part] == beside[part] and alone[part], part
    page.until("document.getElementById('queue').textContent === '0 / 0'")  # the crowd is gone
    for width in (400, 2000):
        page.size(width, 900)
        assert page.value("document.documentElement.scrollWidth") == width
        assert page.value("document.getElementById('compare').scrollWidth <= document.getElementById('compare').clientWidth")
        assert page.value("document.querySelector('header').scrollWidth <= innerWidth")
    assert page.problems == []


@needs_chromium
def test_a_comparison_that_is_stopped_or_refused_says_so(start, page):
    one = start("long", "--max-model-len", "100000", "--num-gpu-blocks-override", "8000")
    page.open(one.url)
    page.until("document.getElementById('model').value")
    page.value("document.getElementById('show-compare').click(); document.getElementById('limit').value = 50000; document.getElementById('run').click()")
    page.until("document.querySelector('#runs .body')?.textContent.length > 20")
    page.press("Escape")
    page.until("document.getElementById('verdict').textContent === 'Stopped.'")
    page.until("document.getElementById('queue').textContent === '0 / 0'")
    page.value("document.getElementById('limit').value = 1e7; document.getElementById('run').click()")
    page.until("document.querySelector('#runs .error')?.textContent.includes('max_tokens')")
    assert page.value("document.getElementById('run').textContent") == "Compare"
