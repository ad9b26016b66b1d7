"""Headless Chromium through chromedriver: the few commands of the W3C WebDriver protocol that the page tests need, over
plain HTTP (no package beside Debian's `chromium` and `chromium-driver`)."""

import base64
import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
KEYS = {"enter": "\ue007", "escape": "\ue00c", "up": "\ue013", "tab": "\ue004", "shift": "\ue008", "alt": "\ue00a"}


def missing():
    """What is not installed, as a sentence; "" if all is there."""
    lacking = [name for name in ("chromium", "chromedriver") if not shutil.which(name)]
    return f"{' and '.join(lacking)} not found: apt-get install chromium chromium-driver" if lacking else ""


class Browser:
    """One window of a fresh profile. `phone`: a touch screen of 390 × 844 at twice the pixels."""

    def __init__(self, width=1280, height=860, phone=False, dark=False):
        self.driver = subprocess.Popen([shutil.which("chromedriver"), "--port=0"], stdout=subprocess.PIPE,
                                       stderr=subprocess.DEVNULL, text=True)
        self.url = None
        for line in self.driver.stdout:
            if "started successfully on port" in line:
                self.url = "http://127.0.0.1:" + line.rstrip().rstrip(".").split()[-1]
                break
        options = {"binary": shutil.which("chromium"), "args": [
            "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-extensions",
            "--hide-scrollbars", "--disable-background-networking", "--disable-component-update", f"--window-size={width},{height}"]}
        if phone:
            options["mobileEmulation"] = {"deviceMetrics": {"width": 390, "height": 844, "pixelRatio": 2, "touch": True}}
        try:
            self.session = self.call("POST", "/session", {"capabilities": {"alwaysMatch": {
                "browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"},
                "timeouts": {"script": 120_000, "pageLoad": 60_000}}}})["sessionId"]
        except Exception:
            self.driver.terminate()
            raise
        self.at = "/session/" + self.session
        self.cdp("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]})

    def call(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"content-type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=180) as response:
                return json.load(response)["value"]
        except urllib.error.HTTPError as error:
            value = json.load(error)["value"]
            raise RuntimeError(f"{value['error']}: {value['message'].splitlines()[0]}") from None

    def close(self):
        try:
            self.call("DELETE", self.at)
        finally:
            self.driver.terminate()
            self.driver.wait()
            self.driver.stdout.close()

    def cdp(self, command, parameters):
        return self.call("POST", self.at + "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def open(self, url):
        self.call("POST", self.at + "/url", {"url": url})

    def reload(self):
        self.call("POST", self.at + "/refresh", {})

    def js(self, script, *args):
        """Runs a function body; `arguments` are `args`."""
        return self.call("POST", self.at + "/execute/sync", {"script": script, "args": list(args)})

    def find(self, selector):
        return self.call("POST", self.at + "/element", {"using": "css selector", "value": selector})[ELEMENT]

    def click(self, selector):
        self.call("POST", f"{self.at}/element/{self.find(selector)}/click", {})

    def type(self, selector, text):
        self.call("POST", f"{self.at}/element/{self.find(selector)}/value", {"text": text})

    def press(self, *keys):
        """Keys for what has the focus, all held down together."""
        names = [KEYS.get(key, key) for key in keys]
        actions = [{"type": "keyDown", "value": key} for key in names] + [{"type": "keyUp", "value": key} for key in reversed(names)]
        self.call("POST", self.at + "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def text(self, selector):
        return self.js("const e = document.querySelector(arguments[0]); return e && e.innerText;", selector)

    def count(self, selector):
        return self.js("return document.querySelectorAll(arguments[0]).length", selector)

    def wait(self, condition, what="", timeout_s=30):
        """Until the expression `condition` is true on the page."""
        deadline = time.monotonic() + timeout_s
        while True:
            value = self.js(f"return {condition}")
            if value:
                return value
            if time.monotonic() > deadline:
                raise AssertionError(f"did not happen within {timeout_s} s: {what or condition}")
            time.sleep(0.05)

    def console(self):
        """Messages of the console since the last call, violations of the content security policy among them."""
        return [f"{entry['level']}: {entry['message']}" for entry in self.call("POST", self.at + "/se/log", {"type": "browser"})]

    def screenshot(self, path):
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.call("GET", self.at + "/screenshot")))
