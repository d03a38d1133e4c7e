# SPDX-License-Identifier: Apache-2.0
"""Headless Chromium for the tests of the page, driven over the DevTools protocol through a pipe."""

import base64
import itertools
import json
import os
import pathlib
import queue
import shutil
import subprocess
import threading
import time

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
WAIT = 60  # seconds until a test gives up
KEYS = {"Enter": ("\r", 13), "Tab": ("", 9), "Escape": ("", 27), "End": ("", 35), "ArrowUp": ("", 38),
        "ArrowRight": ("", 39), "ArrowDown": ("", 40)}


class Browser:
    """One page in one browser. `problems` has every console error, exception and violation of the policy so far."""

    def __init__(self, folder: pathlib.Path, width: int = 1400, height: int = 900):
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        flags = ["--headless=new", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu", "--disable-extensions",
                 "--disable-dev-shm-usage", "--force-color-profile=srgb", f"--user-data-dir={folder}",
                 f"--window-size={width},{height}", *(["--no-sandbox"] if os.geteuid() == 0 else []), "about:blank"]
        # The browser reads commands from descriptor 3 and writes answers to 4.
        shell = f'exec "$0" "$@" 3<&{commands} 4>&{answers}'
        self.process = subprocess.Popen(["bash", "-c", shell, PROGRAM, *flags], pass_fds=(commands, answers),
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(commands)
        os.close(answers)
        self.problems: list[str] = []
        self._ids = itertools.count(1)
        self._results: dict[int, queue.Queue] = {}
        threading.Thread(target=self._read, daemon=True).start()
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")
        self.size(width, height)

    def _read(self):
        buffer = b""
        while chunk := os.read(self._answers, 1 << 16):
            *messages, buffer = (buffer + chunk).split(b"\0")
            for message in map(json.loads, messages):
                if "id" in message:
                    self._results[message["id"]].put(message)
                else:
                    self._note(message["method"], message.get("params", {}))

    def _note(self, method: str, params: dict):
        if method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.problems.append(json.dumps(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.problems.append(json.dumps(params["entry"]))

    def _call(self, method: str, session: str | None = None, **params) -> dict:
        number = next(self._ids)
        self._results[number] = queue.Queue()
        message = {"id": number, "method": method, "params": params} | ({"sessionId": session} if session else {})
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        answer = self._results[number].get(timeout=WAIT)
        del self._results[number]
        assert "error" not in answer, answer
        return answer["result"]

    def call(self, method: str, **params) -> dict:
        return self._call(method, self._session, **params)

    def open(self, url: str):
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def value(self, expression: str):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def until(self, expression: str):
        """Waits until a JavaScript expression is true."""
        end = time.monotonic() + WAIT
        while time.monotonic() < end:
            if self.value(f"!!({expression})"):
                return
            time.sleep(0.02)
        raise AssertionError(f"never true: {expression}; the page has: {self.value('document.body.innerText')[:2000]}")

    def type(self, text: str):
        self.call("Input.insertText", text=text)

    def press(self, key: str, modifiers: int = 0):
        text, code = KEYS[key]
        common = {"key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": modifiers}
        self.call("Input.dispatchKeyEvent", type="keyDown", **common, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def tab_to(self, element: str, most: int = 80):
        """Presses Tab until the element with this id has the focus."""
        for _ in range(most):
            if self.value("document.activeElement.id") == element:
                return
            self.press("Tab")
        raise AssertionError(f"Tab never reaches #{element}")

    def attach(self, element: str, files: list[pathlib.Path]):
        """Chooses files in a file input."""
        found = self.call("Runtime.evaluate", expression=f"document.getElementById('{element}')")
        self.call("DOM.setFileInputFiles", files=list(map(str, files)), objectId=found["result"]["objectId"])

    def size(self, width: int, height: int):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def dark(self, on: bool):
        self.call("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": "dark" if on else "light"}])

    def screenshot(self, path: pathlib.Path):
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def close(self):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self._commands)
