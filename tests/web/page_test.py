#!/usr/bin/env python3
"""The chat and operation pages in headless Chromium, against tests/web/fake_server.py, whose answers are ours to choose:
streaming, stopping, keeping, hostile output, settings, errors, phone, themes. tests/web/serve_test.py asks the real
program. Pictures of what was seen go to --pictures DIR."""

import argparse
import json
import os
import pathlib
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from fake_server import BOMBS, FakeServer  # noqa: E402
from webdriver import Browser, missing  # noqa: E402

PICTURES = None
DONE = "document.querySelector('.message:last-child.assistant[aria-busy=false]') && !document.body.classList.contains('busy')"
PNG = ("iVBORw0KGgoAAAANSUhEUgAAAAoAAAAKCAIAAAACUFjqAAAAEklEQVR4nGP4z8CAB+GTG8HSALfKY52fTcuYAAAAAElFTkSuQmCC")


class PageTest(unittest.TestCase):
    """One browser and one server a class; each test begins with an empty profile of the page."""
    window = {}
    path = "/"

    @classmethod
    def setUpClass(cls):
        cls.server = FakeServer()
        cls.browser = Browser(**cls.window)

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()
        cls.server.shutdown()
        cls.server.server_close()

    def setUp(self):
        server = self.server
        server.key, server.ready, server.errors = "", True, []
        self.browser.open(server.url + "/web/icon.svg")
        self.browser.js("localStorage.clear(); sessionStorage.clear(); indexedDB.deleteDatabase('deepinfer')")
        self.browser.console()
        server.requests.clear()
        server.bodies.clear()
        self.load()

    def tearDown(self):
        # Whatever a test does, the policy holds and no script fails. The library's note about its age is no fault.
        faults = [line for line in self.browser.console() if not line.startswith("INFO")
                  and not any(part in line for part in getattr(self, "expected", []))]
        self.assertEqual(faults, [])

    def load(self):
        self.browser.open(self.server.url + self.path)
        self.ready()

    def ready(self):
        self.browser.wait("document.documentElement.dataset.state === 'ready'", "the page is ready")

    def send(self, text):
        self.browser.type("#input", text)
        self.browser.click("#send")

    def ask(self, text, timeout_s=30):
        self.send(text)
        self.browser.wait(DONE, f"the answer to {text!r} is complete", timeout_s)

    def picture(self, name):
        if PICTURES:
            time.sleep(0.3)  # transitions
            self.browser.screenshot(PICTURES / f"{name}.png")

    def no_side_scroll(self):
        width, inner = self.browser.js("return [document.documentElement.scrollWidth, innerWidth]")
        self.assertLessEqual(width, inner)
        wide = self.browser.js("""return [...document.querySelectorAll('body *')].filter((e) => {
            if (e.closest('.off-screen, .skip, .sprite, .table-frame, pre, .scroll, .sidebar, [hidden], dialog:not([open])')) return false;
            const box = e.getBoundingClientRect(); return box.width > 0 && (box.right > innerWidth + 1 || box.left < -1);
        }).map((e) => e.outerHTML.slice(0, 120))""")
        self.assertEqual(wide, [])


class Chat(PageTest):
    def test_answer_grows_while_it_streams(self):
        self.send("slow")
        browser = self.browser
        self.assertTrue(browser.js("return document.querySelector('#send').hidden && !document.querySelector('#stop').hidden"))
        browser.wait("document.querySelector('.reasoning.busy')", "thinking is shown")
        browser.wait("document.querySelector('.markdown').innerText.length > 20")
        seen = []
        for _ in range(6):
            seen.append(browser.js("return document.querySelector('.markdown').innerText.length"))
            time.sleep(0.4)
        self.assertEqual(seen, sorted(seen))
        self.assertGreaterEqual(len(set(seen)), 5, seen)
        self.assertFalse(browser.js("return document.querySelector('.reasoning').open"), "thoughts are folded")
        self.picture("streaming")
        browser.click("#stop")
        browser.wait(DONE)

    def test_stop_keeps_what_came_and_frees_the_server(self):
        before = self.server.disconnects
        self.send("slow")
        self.browser.wait("document.querySelector('.markdown').innerText.length > 40")
        self.browser.press("escape")
        self.browser.wait(DONE, "the answer stopped", 5)
        text = self.browser.text(".markdown")
        time.sleep(0.5)
        self.assertEqual(self.browser.text(".markdown"), text, "nothing comes after the stop")
        self.assertIn("stopped", self.browser.text(".stats"))
        self.browser.wait("true")
        deadline = time.monotonic() + 10
        while self.server.disconnects == before and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertGreater(self.server.disconnects, before, "the server saw the connection close")
        # What was stopped is part of the conversation.
        self.ask("next")
        self.assertIn("lighthouse", self.server.bodies[-1]["messages"][1]["content"])

    def test_figures_are_those_of_the_usage(self):
        self.ask("rich 0.01")
        stats = self.browser.text(".stats")
        self.assertRegex(stats, r"\d+ tokens\n?·?")
        self.assertRegex(stats, r"[\d.]+ tokens/s")
        self.assertRegex(stats, r"first after [\d.]+ s")
        self.assertIn("prompt of 1,234, 1,024 cached", stats)
        self.assertIn("deepseek-flash", stats)

    def test_markdown_is_laid_out(self):
        self.ask("rich")
        for selector in ("h2", "strong", "em", "del", "ol > li", "ul ul > li, ol ul > li", "table td", "blockquote p",
                         "pre code.language-cpp .hljs-keyword", "pre code.language-python .hljs-string", "a[href='https://example.org/page']"):
            self.assertGreater(self.browser.count(".markdown " + selector), 0, selector)
        link = self.browser.js("const a = document.querySelector('.markdown a'); return [a.target, a.rel]")
        self.assertEqual(link, ["_blank", "noopener noreferrer nofollow"])
        self.assertEqual(self.browser.js("return getComputedStyle(document.querySelector('td[align=right]')).textAlign"), "right")
        self.picture("rich-light")
        self.browser.js("document.querySelector('#scroller').scrollTop = 0; document.querySelector('.reasoning').open = true")
        self.picture("rich-top-light")

    def test_reload_keeps_conversations(self):
        self.ask("first question")
        self.browser.click("#new-chat")
        self.ask("rich")
        self.browser.reload()
        self.ready()
        self.assertEqual(self.browser.count(".item"), 2)
        self.browser.wait("document.querySelector('.markdown h2')", "the open conversation is open again")
        self.browser.js("[...document.querySelectorAll('.item .title')].find((e) => e.textContent === 'first question').click()")
        self.browser.wait("document.querySelector('.bubble')?.innerText === 'first question'")
        self.browser.wait("document.querySelector('.markdown').innerText.includes('lighthouse')")

    def test_reload_in_the_middle_of_an_answer(self):
        self.send("slow")
        self.browser.wait("document.querySelector('.markdown').innerText.length > 300", timeout_s=60)
        self.browser.reload()
        self.ready()
        self.browser.wait("document.querySelector('.markdown')?.innerText.length > 20", "what had come is kept")
        self.assertIn("interrupted", self.browser.text(".stats"))
        self.assertFalse(self.browser.js("return document.body.classList.contains('busy')"))

    def test_answer_again_and_edit(self):
        self.ask("hello")
        self.ask("second")
        self.browser.js("document.querySelectorAll('.assistant')[1].querySelector('[aria-label=\"Answer again\"]').click()")
        self.browser.wait(DONE)
        self.assertEqual([m["content"] for m in self.server.bodies[-1]["messages"] if m["role"] == "user"], ["hello", "second"])
        self.assertEqual(self.browser.count(".message"), 4)
        self.browser.js("document.querySelector('.user [aria-label^=\"Edit\"]').click()")
        self.browser.js("document.querySelector('.bubble textarea').value = ''")
        self.browser.type(".bubble textarea", "changed")
        self.browser.press("enter")
        self.browser.wait("document.querySelectorAll('.message').length === 2 && " + DONE)
        self.assertEqual(self.server.bodies[-1]["messages"], [{"role": "user", "content": "changed"}])

    def test_history_goes_back_as_it_came(self):
        self.ask("hello")
        self.ask("again")
        messages = self.server.bodies[-1]["messages"]
        self.assertEqual([m["role"] for m in messages], ["user", "assistant", "user"])
        self.assertEqual(messages[1]["reasoning_content"], "Let me think about that for a moment.")
        self.assertTrue(messages[1]["content"].startswith("The lighthouse keeper"))

    def test_settings_reach_the_request(self):
        browser = self.browser
        browser.click("#open-settings")
        for name, value in {"system": "Be brief.", "temperature": "0.7", "top_p": "0.9", "max_tokens": "99", "seed": "7"}.items():
            browser.type("#set-" + name, value)
        browser.click("#settings summary")
        browser.type("#set-extra", '{"stop": ["END"]}')
        self.picture("settings-light")
        browser.press("escape")
        browser.js("const s = document.querySelector('#thinking'); s.value = 'max'; s.dispatchEvent(new Event('change'))")
        browser.js("const s = document.querySelector('#model'); s.value = 'demo'; s.dispatchEvent(new Event('change'))")
        self.ask("hello")
        body = self.server.bodies[-1]
        self.assertEqual({k: body[k] for k in ("model", "temperature", "top_p", "max_tokens", "seed", "stop", "thinking", "reasoning_effort", "stream")},
                         {"model": "demo", "temperature": 0.7, "top_p": 0.9, "max_tokens": 99, "seed": 7, "stop": ["END"],
                          "thinking": {"type": "enabled"}, "reasoning_effort": "max", "stream": True})
        self.assertEqual(body["messages"][0], {"role": "system", "content": "Be brief."})
        browser.reload()
        self.ready()
        browser.js("const s = document.querySelector('#thinking'); s.value = 'off'; s.dispatchEvent(new Event('change'))")
        self.ask("hello")
        body = self.server.bodies[-1]
        self.assertEqual(body["thinking"], {"type": "disabled"})
        self.assertNotIn("reasoning_effort", body)
        self.assertEqual(body["temperature"], 0.7, "settings outlast a reload")

    def test_defaults_are_the_servers(self):
        self.ask("hello")
        self.assertEqual(set(self.server.bodies[-1]), {"model", "messages", "stream", "stream_options"})

    def test_wrong_settings_are_marked_and_not_sent(self):
        browser = self.browser
        browser.click("#open-settings")
        for name, value in {"temperature": "3", "top_p": "0", "max_tokens": "1.5", "seed": "x"}.items():
            browser.type("#set-" + name, value)
            self.assertTrue(browser.text("#err-" + name), name)
        browser.click("#settings summary")
        browser.type("#set-tools", "{}")
        browser.type("#set-extra", '{"messages": []}')
        self.assertTrue(browser.text("#err-tools") and browser.text("#err-extra"))
        browser.press("escape")
        self.send("hello")
        self.assertTrue(browser.js("return document.querySelector('#settings').open"), "the settings come up instead")
        self.assertEqual(self.server.bodies, [])
        browser.click("#reset-settings")
        browser.press("escape")
        browser.click("#send")
        browser.wait(DONE)
        self.assertEqual(set(self.server.bodies[-1]), {"model", "messages", "stream", "stream_options"})

    def test_key_is_kept_only_where_asked(self):
        self.expected = ["401"]
        browser = self.browser
        self.server.key = "secret-1"
        self.load()
        browser.wait("document.querySelector('#banner').innerText.includes('API key is needed')")
        self.picture("key-needed")
        browser.click("#banner button")
        browser.type("#set-key", "secret-1")
        browser.press("escape")
        browser.wait("document.querySelectorAll('#model option').length === 2", "models are there once the key is")
        self.ask("hello")
        stores = "return JSON.stringify({...localStorage}) + JSON.stringify({...sessionStorage})"
        self.assertNotIn("secret-1", browser.js(stores))
        browser.click("#open-settings")
        browser.click("#remember-key")
        browser.press("escape")
        self.assertEqual(browser.js("return sessionStorage.getItem('deepinfer.key')"), "secret-1")
        self.assertNotIn("secret-1", browser.js("return JSON.stringify({...localStorage})"))
        browser.reload()
        self.ready()
        self.ask("hello again")
        self.assertNotIn("secret-1", browser.js("return document.documentElement.outerHTML"))

    def test_errors_say_what_to_do(self):
        self.expected = ["the server responded with a status of", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_CONNECTION"]
        cases = [
            ((400, {"message": "This model's maximum context length is 4096 tokens.", "code": "context_length_exceeded"}, {}), "too long", "new conversation"),
            ((400, {"message": "temperature must be at most 2", "param": "temperature"}, {}), "refused", "temperature"),
            ((403, {"message": "The key has no scope infer."}, {}), "may not", "scope"),
            ((404, {"message": "The model `x` does not exist.", "code": "model_not_found"}, {}), "model", "Choose another"),
            ((413, {"message": "The body is too large."}, {}), "too large", "smaller images"),
            ((429, {"message": "Too many requests."}, {"retry-after": "7"}), "busy", "7 s"),
            ((503, {"message": "draining"}, {}), "not ready", "Try again"),
            ((500, {"message": "boom <b>bold</b>"}, {}), "failed", "log"),
        ]
        for error, title, hint in cases:
            self.server.errors = [error]
            self.browser.click("#new-chat")
            self.ask("hello")
            text = self.browser.text(".trouble")
            for part in (title, hint, error[1]["message"], "Try again"):
                self.assertIn(part, text)
        self.picture("error")
        self.assertEqual(self.browser.count(".trouble b"), 0, "the server's words are text")
        self.browser.js("document.querySelector('.trouble .primary').click()")
        self.browser.wait(DONE + " && !document.querySelector('.trouble:not([hidden])')")
        for word, part in (("cut", "ended before"), ("broken", "the engine stopped")):
            self.ask(word)
            shown = self.browser.js("return [...document.querySelectorAll('.message:last-child .trouble, .message:last-child .markdown')].map((e) => e.innerText).join()")
            self.assertIn(part, shown)
            self.assertIn("lighthouse", shown, "what had arrived stays")
        self.ask("short")
        self.assertIn("token limit", self.browser.js("return document.querySelector('.message:last-child .stats').innerText"))

    def test_loading_server_is_waited_for(self):
        self.expected = ["503"]
        self.server.ready = False
        self.load()
        self.browser.wait("document.querySelector('#banner').innerText.includes('loading')")
        self.server.ready = True
        self.browser.wait("document.querySelector('#banner').hidden", "the banner goes away by itself", 10)

    def test_images_go_as_data_urls(self):
        browser = self.browser
        with tempfile.TemporaryDirectory() as folder:
            import base64
            path = os.path.join(folder, "dot.png")
            pathlib.Path(path).write_bytes(base64.b64decode(PNG))
            text = os.path.join(folder, "note.txt")
            pathlib.Path(text).write_text("no image")
            browser.js("document.querySelector('#file').hidden = false")
            browser.type("#file", path + "\n" + text)
            browser.wait("document.querySelector('.attachment img')")
            self.assertIn("only PNG", browser.text("#composer-note"))
        # Pasted and dropped ones, too.
        browser.js("""
            const bytes = Uint8Array.from(atob(arguments[0]), (c) => c.charCodeAt(0));
            const made = (name) => { const t = new DataTransfer(); t.items.add(new File([bytes], name, {type: 'image/png'})); return t; };
            document.querySelector('#input').dispatchEvent(new ClipboardEvent('paste', {clipboardData: made('pasted.png'), bubbles: true, cancelable: true}));
            document.body.dispatchEvent(new DragEvent('drop', {dataTransfer: made('dropped.png'), bubbles: true, cancelable: true}));""", PNG)
        browser.wait("document.querySelectorAll('.attachment').length === 3")
        browser.js("document.querySelector('.attachment button').click()")
        self.picture("attachments")
        self.ask("what is it")
        content = self.server.bodies[-1]["messages"][0]["content"]
        self.assertEqual([part["type"] for part in content], ["image_url", "image_url", "text"])
        self.assertEqual(content[0]["image_url"]["url"], "data:image/png;base64," + PNG)
        self.assertEqual(browser.js("return document.querySelector('.bubble img').naturalWidth"), 10)
        browser.reload()
        self.ready()
        browser.wait("document.querySelector('.bubble img')?.naturalWidth === 10", "images are kept")

    def test_tool_calls_are_shown_and_answered(self):
        browser = self.browser
        browser.click("#open-settings")
        browser.click("#settings summary")
        browser.type("#set-tools", '[{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]')
        browser.press("escape")
        self.ask("tool")
        self.assertEqual(browser.js("return [...document.querySelectorAll('.call-head code')].map((e) => e.textContent)"), ["get_weather", "<b>evil</b>"])
        self.assertEqual(json.loads(browser.js("return document.querySelector('.call pre').textContent")), {"city": "Lisbon", "days": 3})
        self.send("something else")
        self.assertIn("results", browser.text("#composer-note"), "the calls come first")
        self.picture("tools")
        browser.type(".call textarea", "sunny")
        browser.click(".results button")
        browser.wait("document.querySelectorAll('.assistant').length === 2 && " + DONE)
        messages = self.server.bodies[-1]["messages"]
        self.assertEqual(messages[1]["tool_calls"][0]["function"], {"name": "get_weather", "arguments": '{"city": "Lisbon", "days": 3}'})
        self.assertEqual(messages[2:], [{"role": "tool", "tool_call_id": "call_0", "content": "sunny"}, {"role": "tool", "tool_call_id": "call_1", "content": ""}])
        self.assertEqual(self.server.bodies[-1]["tools"][0]["function"]["name"], "get_weather")

    def test_rename_export_import_delete(self):
        browser = self.browser
        self.ask("hello")
        browser.js("document.querySelector('.item [aria-label^=Rename]').click()")
        browser.js("document.querySelector('.item input').value = ''")
        browser.type(".item input", "My title")
        browser.press("enter")
        browser.wait("document.querySelector('.item .title')?.textContent === 'My title'")
        exported = browser.js("""
            const saved = URL.createObjectURL; let blob; URL.createObjectURL = (b) => { blob = b; return saved(b); };
            document.querySelector('#export-all').click();
            return new Promise((resolve) => setTimeout(() => { URL.createObjectURL = saved; blob.text().then(resolve); }, 500))""")
        document = json.loads(exported)
        self.assertEqual([c["title"] for c in document["conversations"]], ["My title"])
        with tempfile.TemporaryDirectory() as folder:
            evil = json.loads(exported)
            evil["conversations"][0]["title"] = "<img src=x onerror=window.hacked=1>"
            evil["conversations"][0]["messages"][0]["images"] = [{"name": "x", "url": self.server.url + "/tracker.png"}, {"name": "y", "url": "javascript:1"}]
            evil["conversations"][0]["messages"][1]["trouble"] = {"title": "no", "hint": "no", "detail": "no"}
            for name, content, said in (("a.json", json.dumps(evil), "1 conversation added"), ("b.json", "{", "not JSON"),
                                        ("c.json", "[]", "no conversations"), ("d.json", '{"format": "deepinfer-conversations", "version": 9}', "version 9")):
                path = os.path.join(folder, name)
                pathlib.Path(path).write_text(content)
                browser.click("#open-settings")
                browser.js("document.querySelector('#import-file').hidden = false")
                browser.type("#import-file", path)
                browser.wait(f"document.querySelector('#data-note').textContent.includes({json.dumps(said)})")
                browser.press("escape")
        browser.wait("document.querySelectorAll('.item').length === 2")
        browser.js("[...document.querySelectorAll('.item .title')].find((e) => e.textContent.includes('onerror')).click()")
        browser.wait("document.querySelector('.bubble')")
        self.assertEqual(browser.count(".bubble img, .item img, .trouble:not([hidden])"), 0)
        self.assertIsNone(browser.js("return window.hacked"))
        browser.js("document.querySelector('.item.current [aria-label^=Delete]').click()")
        browser.click(".dialog .danger")
        browser.wait("document.querySelectorAll('.item').length === 1 && document.querySelectorAll('.message').length === 0")
        browser.click("#open-settings")
        browser.click("#delete-all")
        browser.click(".dialog.small .danger")
        browser.wait("document.querySelectorAll('.item').length === 0")
        browser.press("escape")

    def test_keyboard_alone(self):
        browser = self.browser
        self.assertEqual(browser.js("return document.activeElement.id"), "input")
        browser.type("#input", "line one")
        browser.press("shift", "enter")
        browser.type("#input", "line two")
        browser.press("enter")
        browser.wait(DONE)
        self.assertEqual(self.server.bodies[-1]["messages"][-1]["content"], "line one\nline two")
        browser.press("up")
        browser.wait("document.activeElement.matches('.bubble textarea')", "up edits the last message")
        browser.press("escape")
        browser.press("alt", "n")
        browser.wait("document.querySelectorAll('.message').length === 0")
        nameless = browser.js("""return [...document.querySelectorAll('button, select, input, textarea, a')].filter((e) =>
            !(e.getAttribute('aria-label') || e.innerText?.trim() || e.labels?.length || e.title || e.type === 'file')).map((e) => e.outerHTML)""")
        self.assertEqual(nameless, [], "every control has a name")


class Modules(PageTest):
    def test_event_stream_is_read_at_every_split(self):
        stream = (": keep-alive\n\ndata: one\n\nevent: x\ndata: é€😀\ndata:second\n\r\ndata: cr\r\rid: 3\nretry: 5\nnonsense\n\n"
                  "data: a\r\ndata: b\r\n\r\ndata\n\ndata: [DONE]\r\n\r\ndata: cut off")
        wanted = [["message", "one"], ["x", "é€😀\nsecond"], ["message", "cr"], ["message", "a\nb"], ["message", ""], ["message", "[DONE]"]]
        wrong = self.browser.js("""
            return (async (text, wanted) => {
              const { readEvents } = await import('/web/chat/sse.js');
              const bytes = new TextEncoder().encode(text);
              const read = async (...pieces) => {
                const events = [];
                const stream = new ReadableStream({ start(c) { pieces.forEach((p) => c.enqueue(p)); c.close(); } });
                for await (const { event, data } of readEvents(stream)) events.push([event, data]);
                return JSON.stringify(events);
              };
              const wrong = [];
              for (let i = 0; i <= bytes.length; ++i) {
                const got = await read(bytes.slice(0, i), bytes.slice(i));
                if (got !== JSON.stringify(wanted)) wrong.push([i, got]);
              }
              const single = await read(...[...bytes].map((b) => Uint8Array.of(b)));
              if (single !== JSON.stringify(wanted)) wrong.push(['single bytes', single]);
              return wrong;
            })(...arguments)""", stream, wanted)
        self.assertEqual(wrong, [])

    def test_metrics_are_read(self):
        before = "# HELP x y\nh_bucket{le=\"1\"} 0\nh_bucket{le=\"2\"} 0\nh_bucket{le=\"+Inf\"} 0\nc{a=\"1\"} 5\n"
        after = ("h_bucket{le=\"1\"} 10\nh_bucket{le=\"2\"} 30\nh_bucket{le=\"+Inf\"} 40\nc{a=\"1\"} 8\nc{a=\"q\\\"\\n\"} 2\nd 4\n")
        got = self.browser.js("""
            return (async (...texts) => {
              const m = await import('/web/admin/metrics.js');
              const [a, b] = texts.map((text) => m.parseMetrics(text));
              return [m.total(b, 'c'), m.growth(a, b, 'c'), m.growth(b, a, 'c'), m.total(b, 'none'), b.get('c')[1].labels.a,
                      m.ratio(a, b, 'c', 'c'), m.quantile(a, b, 'h', 0.25), m.quantile(a, b, 'h', 0.5), m.quantile(a, b, 'h', 0.9), m.quantile(b, b, 'h', 0.5)];
            })(...arguments)""", before, after)
        self.assertEqual(got, [10, 5, None, None, 'q"\n', 1, 1, 1.5, 2, None])


class Hostile(PageTest):
    def test_output_is_text(self):
        browser = self.browser
        self.ask("hostile")
        browser.js("document.querySelector('.reasoning').open = true")
        # Give what should not run the time to run, and touch what could wait for it.
        browser.js("for (const e of document.querySelectorAll('.message *')) for (const t of ['mouseover', 'focus', 'error', 'load']) e.dispatchEvent(new Event(t))")
        time.sleep(1)
        self.assertIsNone(browser.js("return window.hacked"))
        self.assertNotEqual(browser.js("return document.title"), "hacked")
        self.assertEqual([path for path in self.server.requests if "tracker" in path], [], "nothing is loaded on the answer's behalf")
        self.assertEqual(browser.count(".message :is(script, img, iframe, style, form, input, object, embed, svg:not(.icon), math)"), 0)
        attributes = browser.js("return [...document.querySelectorAll('.markdown *')].flatMap((e) => e.getAttributeNames()).filter((n) => n.startsWith('on') || n === 'style' || n === 'id' || n === 'src')")
        self.assertEqual(attributes, [])
        links = browser.js("return [...document.querySelectorAll('.message a')].map((a) => a.protocol)")
        self.assertLessEqual(set(links), {"http:", "https:", "mailto:"})
        shown = browser.text(".markdown")
        for part in ("<script>window.hacked = 1", "<img src=x onerror", "<svg onload", "click me", "javascript:window.hacked=4", "<iframe", "<style>body", "vbscript:window.hacked=11"):
            self.assertIn(part, shown, "it is shown as text")
        self.assertIn("<script>window.hacked = 1", browser.text(".reasoning-text"))
        self.picture("hostile")
        browser.reload()  # and once more out of the store
        self.ready()
        browser.wait("document.querySelector('.markdown')?.innerText.includes('<script>')")
        time.sleep(0.5)
        self.assertIsNone(browser.js("return window.hacked"))

    def test_hostile_title_is_text(self):
        self.ask("<img src=x onerror=window.hacked=1>")
        self.assertEqual(self.browser.text(".item .title"), "<img src=x onerror=window.hacked=1>")
        self.assertIsNone(self.browser.js("return window.hacked"))

    def test_bombs_leave_the_page_alive(self):
        for name, text in BOMBS.items():
            with self.subTest(name):
                self.browser.click("#new-chat")
                self.browser.js("""window.longest = 0; let last = performance.now();
                    clearInterval(window.pulse); window.pulse = setInterval(() => { const now = performance.now(); window.longest = Math.max(window.longest, now - last); last = now; }, 20);""")
                self.ask("bomb " + name, 60)
                shown = self.browser.js("return document.querySelector('.markdown').textContent.length")
                self.assertGreater(shown, 100)
                self.assertLess(self.browser.js("return window.longest"), 3000, "the page answered all the time (ms)")

    def test_huge_answer(self):
        browser = self.browser
        self.ask("huge 2500", 120)  # about two million characters
        self.assertIn("plain text", browser.text(".markdown .note"))
        self.assertGreater(browser.js("return document.querySelector('.markdown').textContent.length"), 1_500_000)
        self.no_side_scroll()
        self.assertLess(browser.js("const t = performance.now(); document.querySelector('#scroller').scrollTop = 1e5; document.body.offsetHeight; return performance.now() - t"), 2000)


class Phone(PageTest):
    window = {"phone": True}

    def test_fits_without_side_scroll(self):
        browser = self.browser
        self.assertEqual(browser.js("return innerWidth"), 390)
        self.no_side_scroll()
        self.picture("phone-empty")
        self.ask("rich")
        self.no_side_scroll()
        self.picture("phone-rich")
        self.ask("hostile")
        self.no_side_scroll()
        small = browser.js("""return [...document.querySelectorAll('button, select')].filter((e) => {
            const box = e.getBoundingClientRect(); return box.width && box.height && getComputedStyle(e).visibility !== 'hidden' && Math.min(box.width, box.height) < 32;
        }).map((e) => e.outerHTML.slice(0, 100))""")
        self.assertEqual(small, [], "fingers need room")
        browser.click("#open-sidebar")
        browser.wait("document.querySelector('.item .title')")
        self.no_side_scroll()
        self.picture("phone-list")
        browser.click("#close-sidebar")
        browser.click("#open-settings")
        self.no_side_scroll()
        self.picture("phone-settings")


class Dark(PageTest):
    window = {"dark": True}

    def test_both_themes(self):
        browser = self.browser
        brightness = "return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).reduce((a, b) => a + +b, 0)"
        self.assertLess(browser.js(brightness), 150, "dark as the system has it")
        self.ask("rich")
        self.picture("rich-dark")
        # Text stands out from what is behind it.
        weak = browser.js(CONTRAST)
        self.assertEqual(weak, [])
        browser.click("#toggle-theme")
        self.assertGreater(browser.js(brightness), 700)
        self.assertEqual(browser.js(CONTRAST), [])
        browser.reload()
        self.ready()
        self.assertGreater(browser.js(brightness), 700, "the choice outlasts a reload")
        browser.click("#open-settings")
        browser.js("document.querySelector('[name=theme][value=dark]').click()")
        self.assertLess(browser.js(brightness), 150)
        self.picture("settings-dark")


# Texts whose colour is less than 4.5 : 1 from their background (3 : 1 where it is large), as WCAG 2 counts it.
CONTRAST = r"""
const parse = (c) => (c.match(/[\d.]+/g) || [0, 0, 0, 0]).map(Number);
const light = (c) => { const [r, g, b] = c.map((v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const behind = (e) => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); if (c.length < 4 || c[3] > 0.99) return c; } return [255, 255, 255]; };
const weak = [];
for (const e of document.querySelectorAll('body *')) {
  const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
  if (!own || e.closest('.off-screen, .skip, .sprite, option, noscript, :disabled') || !e.getClientRects().length) continue;
  const style = getComputedStyle(e);
  if (style.visibility === 'hidden' || style.color.endsWith(', 0)')) continue;
  const a = light(parse(style.color).slice(0, 3)), b = light(behind(e).slice(0, 3));
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (ratio < (parseFloat(style.fontSize) >= 24 ? 3 : 4.5)) weak.push(`${ratio.toFixed(2)} ${e.className || e.tagName}: ${e.textContent.slice(0, 30)}`);
}
return weak;
"""


class Admin(PageTest):
    path = "/admin"

    def test_figures_move(self):
        browser = self.browser
        browser.wait("[...document.querySelectorAll('.tile')].every((t) => t.hidden || t.querySelector('.figure').textContent !== '–')",
                     "every tile has a figure", 15)
        tiles = dict(browser.js("return [...document.querySelectorAll('.tile')].map((t) => [t.querySelector('h2').textContent, t.querySelector('.figure').textContent])"))
        self.assertRegex(tiles["Prefix cache hits"], r"7[01] %")
        self.assertRegex(tiles["Time of a step"], r"17\.\d ms")
        self.assertRegex(tiles["Drafts accepted"], r"\d+ %")
        browser.wait("document.querySelector('.tile .line').getAttribute('d').split('L').length > 3", "the lines grow", 20)
        self.assertEqual(browser.count("#live tbody tr"), 5)
        self.assertGreater(browser.count("#http tbody tr"), 2)
        self.assertEqual(browser.text("#phase"), "ready")
        browser.js("document.querySelector('#config-box').open = true")
        browser.wait("document.querySelectorAll('#config tbody tr').length >= 4")
        self.assertEqual(browser.js(CONTRAST), [])
        self.no_side_scroll()
        self.picture("admin-light")
        browser.click("#toggle-theme")
        self.assertEqual(browser.js(CONTRAST), [])
        self.picture("admin-dark")

    def test_actions_ask_first(self):
        browser = self.browser
        browser.click("[data-action=drain]")
        browser.press("escape")
        time.sleep(0.2)
        self.assertEqual(len(self.server.bodies), 0)
        browser.click("[data-action=drain]")
        browser.click(".dialog .danger")
        browser.wait("document.querySelector('#action-note').textContent.includes('Done')")
        self.assertEqual(len(self.server.bodies), 1)


class AdminPhone(PageTest):
    window = {"phone": True}
    path = "/admin"

    def test_fits_without_side_scroll(self):
        self.browser.wait("document.querySelectorAll('#live tbody tr').length === 5")
        self.no_side_scroll()
        self.picture("phone-admin")


def main():
    global PICTURES
    parser = argparse.ArgumentParser(description=__doc__, add_help=False)
    parser.add_argument("--pictures", type=pathlib.Path, help="folder for screenshots")
    options, rest = parser.parse_known_args()
    if options.pictures:
        PICTURES = options.pictures
        PICTURES.mkdir(parents=True, exist_ok=True)
    if missing():
        print(f"SKIPPED: the pages were not tested. {missing()}", flush=True)
        return 77
    return 0 if unittest.main(argv=[sys.argv[0], *rest], exit=False, verbosity=2).result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
