#!/usr/bin/env python3
"""A stand-in for `deepinfer serve` with answers of our choosing: it serves the pages of web/ as the program does and
streams scripted chat completions, so that tests can show the page what a model hardly ever writes. Also for work on the
pages without a build: tests/web/fake_server.py --port 8080, then open http://127.0.0.1:8080/ (admin page: /admin)."""

import argparse
import json
import math
import pathlib
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIBRARIES = {
    "lib/marked.js": "/usr/share/javascript/marked/marked.umd.min.js",
    "lib/purify.js": "/usr/share/nodejs/dompurify/dist/purify.min.js",
    "lib/highlight.js": "/usr/share/javascript/highlight.js/highlight.min.js",
}
TYPES = {".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8",
         ".svg": "image/svg+xml"}


def content_security_policy():
    """The policy of the program itself, out of its source."""
    text = (ROOT / "src/server/assets.h").read_text()
    found = re.search(r"kContentSecurityPolicy =\s*((?:\"[^\"]*\"\s*)+);", text)
    return "".join(re.findall(r"\"([^\"]*)\"", found.group(1)))


LOREM = ("The lighthouse keeper counted the waves as if they were coins. Some were bright, some were worn, and now and "
         "then one arrived that had a face on it. ")

RICH = """## A short tour

Here is **bold**, *italic*, ~~gone~~ and `inline code`, with a [link](https://example.org/page).

1. First, a list
2. with a nested one:
   - tea
   - coffee
- [x] done
- [ ] to do

| Layer | Rows | Share |
|:------|-----:|------:|
| encoder | 1,024 | 60 % |
| decoder | 683 | 40 % |

```cpp
// Sums a row in fp32, in a fixed order.
float tree_sum(std::span<const float> row) {
    float total = 0.0f;
    for (const float x : row) total += x;
    return total;  // "batch invariant"
}
```

> A row never depends on its batch.

```python
def greet(name: str) -> str:
    return f"hello {name}"  # 42
```
"""

HOSTILE = """<script>window.hacked = 1; document.title = 'hacked'</script>

<img src=x onerror="window.hacked = 2"> and <svg onload="window.hacked = 3"></svg>

[click me](javascript:window.hacked=4) and [data](data:text/html,<script>window.hacked=5</script>) and [odd]( java&#115;cript:window.hacked=6)

![tracker](http://127.0.0.1:PORT/tracker.png?from=markdown) and <img src="http://127.0.0.1:PORT/tracker.png?from=html">

<iframe src="http://127.0.0.1:PORT/tracker.png?from=frame"></iframe><style>body { display: none }</style>
<form action="http://127.0.0.1:PORT/tracker.png"><input name=key><button>Send</button></form>
<a href="https://example.org" onclick="window.hacked=7" style="position:fixed;inset:0" class="round" id="send">over all</a>

```html"><script>window.hacked = 8</script>
<b onmouseover="window.hacked = 9">in code</b>
```

| <img src=x onerror=window.hacked=10> | [x](vbscript:window.hacked=11) |
|---|---|
| `<script>window.hacked=12</script>` | &lt;script&gt;window.hacked=13&lt;/script&gt; |

<https://example.org/"onmouseover="window.hacked=14> [a](https://example.org/" onfocus="window.hacked=15)

<math><mtext><table><mglyph><style><!--</style><img title="--&gt;&lt;img src=1 onerror=window.hacked=16&gt;">
"""

BOMBS = {
    "quotes": ">" * 20_000 + " deep",
    "brackets": "[" * 40_000 + "a" + "](b" * 20_000,
    "stars": "*a **b " * 30_000,
    "lists": "\n".join(" " * (2 * i) + "- x" for i in range(400)),
    "ticks": "".join("`" * i + " " for i in range(1, 600)),
    "table": "|" * 5000 + "\n" + "|-" * 5000 + "|\n" + ("|" * 5000 + "\n") * 20,
    "links": "![" * 20_000 + "](" * 20_000,
    "emphasis": "_" * 50_000 + "a" + "*_" * 20_000,
}


class Script:
    """What one answer does: a list of ("reasoning" | "content", text), ("call", index, name, piece), ("sleep", s),
    ("error", message), ("cut",)."""

    def __init__(self, *steps, step_s=0.0, finish="stop"):
        self.steps, self.step_s, self.finish = steps, step_s, finish


def pieces(kind, text, size=6):
    return [(kind, text[i:i + size]) for i in range(0, len(text), size)]


def script_of(body, port):
    """The answer that the last message asks for by its first word."""
    messages = body["messages"]
    last = messages[-1]["content"]
    text = last if isinstance(last, str) else "".join(part.get("text", "") for part in last)
    word, _, rest = text.partition(" ")
    if messages[-1]["role"] == "tool":
        return Script(*pieces("content", f"The tool said: {text}"))
    if word == "rich":
        return Script(*pieces("reasoning", "The user wants to see what the page can show. A table, a list and some code will do."),
                      *pieces("content", RICH), step_s=float(rest or 0))
    if word == "slow":
        return Script(*pieces("reasoning", LOREM), *pieces("content", LOREM * 40), step_s=0.05)
    if word == "hostile":
        return Script(*pieces("reasoning", HOSTILE.replace("PORT", str(port)), 40), *pieces("content", HOSTILE.replace("PORT", str(port)), 40))
    if word == "bomb":
        return Script(*pieces("content", BOMBS[rest], 4096))
    if word == "huge":
        return Script(*pieces("content", (LOREM * 5 + "\n\n") * int(rest or 3000), 16384))
    if word == "tool":
        return Script(("reasoning", "I need the weather."), ("call", 0, "get_weather", ""), *[("call", 0, "", p) for p in ('{"city": ', '"Lis', 'bon", "days": 3}')],
                      ("call", 1, "<b>evil</b>", '{"x": "<img src=x onerror=window.hacked=20>"}'), finish="tool_calls")
    if word == "cut":
        return Script(*pieces("content", LOREM), ("cut",))
    if word == "broken":
        return Script(*pieces("content", LOREM), ("error", "the engine stopped"))
    if word == "short":
        return Script(*pieces("content", LOREM), finish="length")
    if word == "echo":
        return Script(("content", "```json\n" + json.dumps(body, indent=1) + "\n```"))
    return Script(*pieces("reasoning", "Let me think about that for a moment."), *pieces("content", LOREM * 2), step_s=0.01)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        path = self.path.partition("?")[0]
        self.server.requests.append(self.path)
        if path == "/v1/models":
            if self.refused():
                return
            self.send_json(200, {"object": "list", "data": [{"id": name, "object": "model", "created": 0, "owned_by": "x"}
                                                            for name in ("deepseek-flash", "demo")]})
        elif path in ("/ready", "/health"):
            self.send_json(200 if self.server.ready else 503, {"status": "ready" if self.server.ready else "loading"})
        elif path == "/version":
            self.send_json(200, {"version": "0.0.0-fake"})
        elif path == "/metrics":
            self.send_bytes(200, "text/plain; version=0.0.4", self.server.metrics().encode())
        elif path == "/admin/status":
            self.send_json(200, self.server.status())
        elif path == "/admin/config":
            self.send_json(200, {"server": {"host": "127.0.0.1", "port": 8000}, "engine": {"max_num_seqs": 64, "block_tokens": 128}})
        else:
            self.send_asset({"/": "index.html", "/admin": "admin.html", "/favicon.ico": "icon.svg"}.get(path, path.removeprefix("/web/")))

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.bodies.append(body)
        if self.path.startswith("/admin/"):
            return self.send_json(200, {"status": "ok"})
        if self.refused():
            return
        error = self.server.errors.pop(0) if self.server.errors else None
        if error:
            status, detail, headers = error
            return self.send_json(status, {"error": detail}, headers)
        self.stream(body, script_of(body, self.server.server_port))

    def refused(self):
        if not self.server.key or self.headers.get("authorization") == "Bearer " + self.server.key:
            return False
        self.send_json(401, {"error": {"message": "No API key was given.", "type": "authentication_error", "code": None}})
        return True

    def stream(self, body, script):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        frame = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": body["model"]}
        count = 0

        def send(delta, finish=None, usage=None):
            choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
            self.wfile.write(b"data: " + json.dumps({**frame, "choices": [choice], "usage": usage}).encode() + b"\n\n")

        try:
            send({"role": "assistant", "content": ""})
            for step in script.steps:
                count += 1
                if step[0] == "reasoning":
                    send({"content": None, "reasoning_content": step[1]})
                elif step[0] == "content":
                    send({"content": step[1]})
                elif step[0] == "call":
                    function = {"arguments": step[3], **({"name": step[2]} if step[2] else {})}
                    send({"tool_calls": [{"index": step[1], **({"id": f"call_{step[1]}", "type": "function"} if step[2] else {}), "function": function}]})
                elif step[0] == "error":
                    self.wfile.write(b"data: " + json.dumps({"error": {"message": step[1], "type": "server_error"}}).encode() + b"\n\n")
                    return
                elif step[0] == "cut":
                    return
                if script.step_s:
                    time.sleep(script.step_s)
            thoughts = sum(step[0] == "reasoning" for step in script.steps)
            send({"content": ""}, script.finish, {
                "prompt_tokens": 1234, "completion_tokens": count, "total_tokens": 1234 + count, "prompt_cache_hit_tokens": 1024,
                "prompt_cache_miss_tokens": 210, "completion_tokens_details": {"reasoning_tokens": thoughts}})
            self.wfile.write(b"data: [DONE]\n\n")
        except (BrokenPipeError, ConnectionResetError):
            self.server.disconnects += 1

    def send_asset(self, name):
        path = pathlib.Path(LIBRARIES[name]) if name in LIBRARIES else ROOT / "web" / name
        if ".." in name or not path.is_file():
            return self.send_json(404, {"error": {"message": "no such page"}})
        self.send_bytes(200, TYPES.get(path.suffix, "application/octet-stream"), path.read_bytes(), {
            "content-security-policy": self.server.policy, "x-content-type-options": "nosniff"})

    def send_json(self, status, document, headers=None):
        self.send_bytes(status, "application/json", json.dumps(document).encode(), headers)

    def send_bytes(self, status, content_type, data, headers=None):
        self.send_response(status)
        self.send_header("content-type", content_type)
        self.send_header("content-length", str(len(data)))
        self.send_header("cache-control", "no-store")
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)


class FakeServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port=0):
        super().__init__(("127.0.0.1", port), Handler)
        self.policy = content_security_policy()
        self.requests, self.bodies = [], []
        self.errors = []  # (status, error object, headers) for the next completions
        self.key, self.ready, self.disconnects = "", True, 0
        self.start = time.monotonic()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request, client_address):
        pass  # a browser that closes a connection is no news

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def status(self):
        """A made-up load that moves, in the form of src/server/admin_api.cpp."""
        t = time.monotonic() - self.start
        wave = 0.5 + 0.5 * math.sin(t / 9)
        return {
            "version": "0.0.0-fake", "phase": "ready", "started": round(time.time() - t), "now": round(time.time()), "models": ["deepseek-flash", "demo"],
            "http": {"connections": 12, "requests": 9},
            "generation": {"generation_tokens": round(320 * t + 900 * math.sin(t / 9)), "prompt_tokens": round(2100 * t + 2000 * math.sin(t / 5)),
                           "outcomes": {"stop": 120, "length": 14, "tool_calls": 31, "abort": 3, "error": 0}},
            "engine": {"running": round(3 + 5 * wave), "waiting": round(4 * wave * wave), "total_blocks": 4096, "free_blocks": round(3900 - 2400 * wave),
                       "steps": 40 * t, "step_us": 700_000 * t, "prefix_query_tokens": 2100 * t, "prefix_hit_tokens": 1500 * t, "preemptions": 3},
            "requests": [{"id": f"chatcmpl-{i}8f3a", "route": "chat_completions", "key": "team-a", "tenant": "a", "seconds": 0.9 * i + 0.4,
                          "prompt_tokens": 812 * i, "completion_tokens": 31 * i} for i in range(1, 6)],
        }

    def metrics(self):
        """The same server under the names of src/server/metrics.cpp."""
        t = time.monotonic() - self.start
        values = {
            "process_resident_memory_bytes": 3.1e9, "vllm:spec_decode_num_drafts_total": 80 * t, "vllm:spec_decode_num_draft_tokens_total": 400 * t,
            "vllm:spec_decode_num_accepted_tokens_total": 240 * t + 200 * math.sin(t / 7),
        }
        lines = [f'{name}{{model_name="demo",engine="0"}} {value}' for name, value in values.items()]
        for route, status, n in (("/v1/chat/completions", 200, 170), ("/v1/models", 200, 44), ("/v1/chat/completions", 429, 2)):
            lines.append(f'deepinfer_http_requests_total{{model_name="demo",engine="0",route="{route}",status="{status}"}} {n}')
        for name, bounds, scale in (("vllm:time_to_first_token_seconds", (.01, .04, .1, .25, .5, 1, 2.5), 30),
                                    ("vllm:inter_token_latency_seconds", (.01, .025, .05, .1, .2), 300)):
            for i, bound in enumerate(bounds + ("+Inf",)):
                share = min(1, (i + 1) / (len(bounds) - 1))
                lines.append(f'{name}_bucket{{model_name="demo",engine="0",le="{bound}"}} {round(scale * t * share)}')
            lines.append(f'{name}_count{{model_name="demo",engine="0"}} {round(scale * t)}')
        return "\n".join(lines) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8080)
    arguments = parser.parse_args()
    server = FakeServer(arguments.port)
    print(f"listening on {server.url}", flush=True)
    threading.Event().wait()
