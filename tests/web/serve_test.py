#!/usr/bin/env python3
"""The pages as the program itself serves them: `deepinfer serve` with the demonstration checkpoint, headless Chromium in
front. Usage: serve_test.py path/of/deepinfer [--pictures DIR] [unittest arguments]"""

import argparse
import json
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from page_test import CONTRAST, DONE  # noqa: E402
from webdriver import Browser, missing  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
OPTIONS = None


class Program:
    """A running server; ends with SIGTERM, and its exit code is looked at."""

    def __init__(self, *arguments):
        self.process = subprocess.Popen(
            [OPTIONS.binary, "serve", "--model", str(ROOT / "models/demo"), "--port", "0", "--admin-port", "0", "--drain-settle-ms", "0", *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.log = []
        threading.Thread(target=lambda: self.log.extend(self.process.stderr), daemon=True).start()
        self.url = self.admin_url = None
        for line in self.process.stdout:
            if line.startswith("listening on "):
                self.url = line.split()[2]
            if line.startswith("admin on "):
                self.admin_url = line.split()[2]
                break
        if not self.admin_url:
            raise RuntimeError("serve did not start: " + "".join(self.log))

    def get(self, path, admin=False):
        with urllib.request.urlopen((self.admin_url if admin else self.url) + path, timeout=60) as response:
            return response.status, response.headers, response.read()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(60)
        self.process.stdout.close()
        return code


class ServeTest(unittest.TestCase):
    arguments = ()
    expected = ()

    @classmethod
    def setUpClass(cls):
        cls.program = Program(*cls.arguments)
        cls.browser = Browser()

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()
        code = cls.program.stop()
        assert code == 0, f"serve ended with {code}: {''.join(cls.program.log)[-2000:]}"

    def tearDown(self):
        faults = [line for line in self.browser.console() if not line.startswith("INFO") and not any(part in line for part in self.expected)]
        self.assertEqual(faults, [])

    def open(self, admin=False):
        self.browser.open(self.program.admin_url + "/admin" if admin else self.program.url + "/")
        self.browser.wait("document.documentElement.dataset.state === 'ready'", "the page is ready")

    def send(self, text):
        self.browser.type("#input", text)
        self.browser.click("#send")

    def ask(self, text):
        self.send(text)
        self.browser.wait(DONE, f"the answer to {text!r}", 120)

    def picture(self, name):
        if OPTIONS.pictures:
            time.sleep(0.3)
            self.browser.screenshot(OPTIONS.pictures / f"serve-{name}.png")

    def status(self):
        return json.loads(self.program.get("/admin/status", admin=True)[2])


class Pages(ServeTest):
    def test_every_file_is_there_and_under_the_policy(self):
        names = [str(path.relative_to(ROOT / "web")) for path in (ROOT / "web").rglob("*") if path.is_file() and path.suffix != ".md"]
        for path in ["/"] + ["/web/" + name for name in names + ["lib/marked.js", "lib/purify.js", "lib/highlight.js"]]:
            status, headers, data = self.program.get(path)
            self.assertEqual((status, len(data) > 50), (200, True), path)
            policy = headers["content-security-policy"]
            self.assertIn("default-src 'none'", policy)
            self.assertNotIn("unsafe", policy)
            self.assertEqual(headers["x-content-type-options"], "nosniff", path)
            if path.endswith(".js"):
                self.assertTrue(headers["content-type"].startswith("text/javascript"), path)
        text = "".join((ROOT / "web" / name).read_text() for name in names if not name.endswith(".js"))
        self.assertEqual(re.findall(r"<style|<script(?![^>]* src=)| style=| on\w+=\"", text), [], "nothing inline")
        self.assertEqual([url for url in re.findall(r"(?:src|href)=\"([^\"]*)\"", text) if not url.startswith(("/", "#"))], [], "nothing external")
        for path in ("/web/../CMakeLists.txt", "/web/README.md", "/web/nothing.js", "/web/", "/admin"):
            with self.assertRaises(urllib.error.HTTPError) as raised:
                self.program.get(path)
            self.assertIn(raised.exception.code, (400, 404), path)

    def test_conversation(self):
        browser = self.browser
        self.open()
        self.ask("What is the capital of France?")
        self.assertIn("Paris", browser.text(".markdown"))
        stats = browser.text(".stats")
        self.assertRegex(stats, r"\d+ tokens")
        self.assertRegex(stats, r"prompt of \d+")
        self.picture("answer")
        # The second turn finds the first in the conversation.
        self.ask("And of Italy?")
        self.assertEqual(browser.count(".message"), 4)
        browser.reload()
        browser.wait("document.documentElement.dataset.state === 'ready'")
        browser.wait("document.querySelectorAll('.message').length === 4", "both turns are kept")
        self.assertIn("Paris", browser.text(".markdown"))

    def test_streaming_and_stop(self):
        browser = self.browser
        self.open()
        browser.click("#new-chat")
        browser.click("#open-settings")
        browser.click("#settings summary")
        browser.type("#set-extra", '{"ignore_eos": true, "max_tokens": 3000}')
        browser.press("escape")
        length = "document.querySelector('.message:last-child .reasoning-text').textContent.length + document.querySelector('.message:last-child .markdown').textContent.length"
        self.send("Tell me a story.")
        browser.wait(f"document.querySelector('.message.assistant') && {length} > 5", timeout_s=60)
        seen = {browser.js(f"return {length}")}
        deadline = time.monotonic() + 30
        while len(seen) < 5 and time.monotonic() < deadline:
            time.sleep(0.1)
            seen.add(browser.js(f"return {length}"))
        self.assertGreaterEqual(len(seen), 5, "the answer grows while it is made")
        self.assertGreater(self.status()["engine"]["running"], 0)
        browser.click("#stop")
        browser.wait(DONE)
        deadline = time.monotonic() + 10
        while self.status()["engine"]["running"] and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertEqual(self.status()["engine"]["running"], 0, "the engine let go of the request")
        self.assertIn("stopped", browser.js("return document.querySelector('.message:last-child .stats').innerText"))
        browser.click("#open-settings")
        browser.click("#reset-settings")
        browser.press("escape")

    def test_picture_is_seen(self):
        browser = self.browser
        self.open()
        browser.click("#new-chat")
        browser.click("#open-settings")
        browser.click("#settings summary")
        browser.type("#set-extra", '{"thinking": {"type": "disabled"}, "temperature": 0}')
        browser.press("escape")
        browser.js("document.querySelector('#file').hidden = false")
        browser.type("#file", str(ROOT / "tests/data/pictures/circle.png"))
        browser.wait("document.querySelector('.attachment img')?.naturalWidth > 0", "the picture is shown before it is sent")
        self.ask("What do you see?")
        self.assertIn("circle", browser.text(".message:last-child .markdown"))
        self.assertGreater(browser.js("return document.querySelector('.bubble img').naturalWidth"), 0)
        self.picture("picture")
        browser.click("#open-settings")
        browser.click("#reset-settings")
        browser.press("escape")

    def test_wrong_request_is_explained(self):
        self.expected = ("400",)
        browser = self.browser
        self.open()
        browser.click("#new-chat")
        browser.click("#open-settings")
        browser.type("#set-max_tokens", "999999999")
        browser.press("escape")
        self.ask("hello")
        text = browser.text(".trouble")
        self.assertIn("999999999", text)
        self.assertIn("Try again", text)
        self.picture("error")
        browser.click("#open-settings")
        browser.click("#reset-settings")
        browser.press("escape")

    def test_operation_page(self):
        browser = self.browser
        self.open()
        self.ask("hello")
        self.open(admin=True)
        browser.wait("document.querySelector('#phase').textContent === 'ready'")
        self.assertIn("deepseek-flash", browser.text("#facts"))
        browser.wait("document.querySelectorAll('#http tbody tr').length > 1")
        browser.wait("document.querySelector('.tile .line').getAttribute('d').includes('L')", "a line grows", 20)
        figures = dict(browser.js("return [...document.querySelectorAll('.tile:not([hidden])')].map((t) => [t.querySelector('h2').textContent, t.innerText])"))
        self.assertIn("0", figures["Running"])
        self.assertRegex(figures["Cache in use"], r"\d+ of [\d,]+ blocks")
        self.assertRegex(figures["Memory"], r"[\d.]+ [MG]iB")
        browser.js("document.querySelector('#config-box').open = true")
        browser.wait("document.querySelectorAll('#config tbody tr').length > 30")
        self.assertEqual(browser.js(CONTRAST), [])
        self.picture("admin")
        browser.click("[data-action=drain]")
        browser.click(".dialog .danger")
        browser.wait("document.querySelector('#phase').textContent === 'draining'")
        browser.click("[data-action=undrain]")
        browser.wait("document.querySelector('#phase').textContent === 'ready'")


class Drafts(ServeTest):
    arguments = ("--nextn", "3")

    def test_acceptance_is_shown_live(self):
        browser = self.browser
        self.open(admin=True)
        tile = "[...document.querySelectorAll('.tile')].find((t) => t.querySelector('h2').textContent === 'Drafts accepted')"
        browser.wait(f"!{tile}.hidden", "a server that drafts has the tile")
        body = json.dumps({"model": "deepseek-flash", "max_tokens": 200, "temperature": 0, "ignore_eos": True,
                           "messages": [{"role": "user", "content": "Tell me a story."}]}).encode()
        deadline = time.monotonic() + 60
        text = ""
        while time.monotonic() < deadline and not re.search(r"[\d.]+ tokens a step", text):
            request = urllib.request.Request(self.program.url + "/v1/chat/completions", body, {"content-type": "application/json"})
            urllib.request.urlopen(request, timeout=60).read()
            text = browser.js(f"return {tile}.innerText")
        self.assertRegex(text, r"[\d.]+ tokens a step")
        browser.wait(f"/[\\d.]+ ?%/.test({tile}.innerText)", "the share of the last seconds", 20)
        metrics = self.program.get("/metrics", admin=True)[2].decode()
        self.assertGreater(float(re.search(r"^vllm:spec_decode_num_accepted_tokens_total\S* ([0-9.e+]+)$", metrics, re.M)[1]), 0)
        shown = float(re.search(r"([\d.]+) tokens a step", browser.js(f"return {tile}.innerText"))[1])
        self.assertGreaterEqual(shown, 1.0)
        self.picture("acceptance")


class Keys(ServeTest):
    expected = ("401", "403")

    @classmethod
    def setUpClass(cls):
        import hashlib
        cls.folder = tempfile.TemporaryDirectory()
        path = pathlib.Path(cls.folder.name) / "keys.yaml"
        cls.keys = {"user": "u" * 40, "operator": "o" * 40}
        rows = "".join(f"  - id: {name}\n    sha256: {hashlib.sha256(key.encode()).hexdigest()}\n    tenant: t\n    scopes: [{scopes}]\n"
                       for (name, key), scopes in zip(cls.keys.items(), ("infer", "metrics, admin")))
        path.write_text("keys:\n" + rows)
        cls.arguments = ("--api-keys", str(path))
        super().setUpClass()

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        cls.folder.cleanup()

    def test_chat_asks_for_a_key(self):
        browser = self.browser
        self.open()
        browser.wait("document.querySelector('#banner').innerText.includes('API key is needed')")
        browser.click("#banner button")
        browser.type("#set-key", self.keys["user"])
        browser.press("escape")
        browser.wait("document.querySelectorAll('#model option').length > 0")
        self.ask("hello")
        self.assertFalse(browser.count(".trouble:not([hidden])"))

    def test_operation_asks_for_another(self):
        browser = self.browser
        self.open(admin=True)
        browser.wait("!document.querySelector('#banner').hidden")
        for key, opens in ((self.keys["user"], False), (self.keys["operator"], True)):
            browser.click("#open-key")
            browser.js("document.querySelector('#key').value = ''")
            browser.type("#key", key)
            browser.click("#key-dialog .primary")
            browser.wait(f"document.querySelector('#banner').hidden === {str(opens).lower()}")
        browser.wait("document.querySelector('#phase').textContent === 'ready'")


def main():
    global OPTIONS
    parser = argparse.ArgumentParser(description=__doc__, add_help=False)
    parser.add_argument("binary")
    parser.add_argument("--pictures", type=pathlib.Path)
    OPTIONS, rest = parser.parse_known_args()
    if OPTIONS.pictures:
        OPTIONS.pictures.mkdir(parents=True, exist_ok=True)
    if missing():
        print(f"SKIPPED: the pages were not tested. {missing()}", flush=True)
        return 77
    return 0 if unittest.main(argv=[sys.argv[0], *rest], exit=False, verbosity=2).result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
