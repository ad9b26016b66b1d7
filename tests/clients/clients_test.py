#!/usr/bin/env python3
"""Real client libraries against a server with the demonstration checkpoint.   usage: clients_test.py PROGRAM

Every feature that a client package knows how to ask for, streamed and whole; both must say the same.
"""
import base64
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request

import anthropic
import openai

PROGRAM = ""
MODEL = "deepseek-flash"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
CIRCLE = (pathlib.Path(__file__).resolve().parents[1] / "data" / "pictures" / "circle.png").read_bytes()
CIRCLE_URL = "data:image/png;base64," + base64.b64encode(CIRCLE).decode()
VERDICT = {"type": "object", "properties": {"verdict": {"enum": ["yes", "no"]}}, "required": ["verdict"], "additionalProperties": False}
# Its format is none that can be enforced: refused when strict, left out and told of otherwise.
LOOSE = {"type": "object", "properties": {"a": {"type": "string", "format": "no-such-format"}}, "required": ["a"], "additionalProperties": False}
OFF = {"thinking": {"type": "disabled"}}
WEATHER = {"name": "get_weather", "description": "Get weather",
           "parameters": {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]}}


class Served:
    """`deepinfer serve` as a process of its own."""

    def __init__(self, *options, port="0"):
        self.log = tempfile.NamedTemporaryFile(prefix="deepinfer-serve-", suffix=".log")
        environment = {k: v for k, v in os.environ.items() if not k.startswith("DEEPINFER_")}
        self.process = subprocess.Popen([PROGRAM, "serve", "--port", port, "--admin-port", "0", "--log-file", self.log.name, *options],
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        self.url = self.admin = ""
        for line in self.process.stdout:
            if line.startswith("listening on "):
                self.url = line.split()[-1]
            if line.startswith("admin on "):
                self.admin = line.split()[-1]
                break
        if not self.admin:
            raise RuntimeError(self.process.stderr.read())

    def get(self, path, base=None):
        with urllib.request.urlopen((base or self.url) + path, timeout=30) as answer:
            return answer.read().decode()

    def status(self):
        return json.loads(self.get("/admin/status", self.admin))

    def stop(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        code = self.process.wait(timeout=60)
        self.process.stdout.close()
        self.process.stderr.close()
        return code


SERVER = None


def setUpModule():
    global SERVER
    SERVER = Served("--drain-settle-ms", "0", "--max-num-seqs", "16")


def tearDownModule():
    assert SERVER.stop() == 0


class OpenAI(unittest.TestCase):
    def setUp(self):
        self.client = openai.OpenAI(base_url=SERVER.url + "/v1", api_key="none", max_retries=0)

    def tearDown(self):
        self.client.close()

    def whole(self, **more):
        return self.client.chat.completions.create(model=MODEL, messages=more.pop("messages", QUESTION), **more)

    def streamed(self, **more):
        """Joins the chunks of every choice; checks what holds for each of them."""
        choices, usage, ids = {}, None, set()
        for chunk in self.client.chat.completions.create(model=MODEL, messages=more.pop("messages", QUESTION), stream=True, **more):
            ids.add(chunk.id)
            usage = chunk.usage or usage
            for choice in chunk.choices:
                whole = choices.setdefault(choice.index, {"content": "", "reasoning": "", "calls": [], "finish": None, "logprobs": [], "roles": 0})
                self.assertIsNone(whole["finish"], "nothing comes after the end")
                delta = choice.delta
                whole["roles"] += delta.role is not None
                whole["content"] += delta.content or ""
                whole["reasoning"] += getattr(delta, "reasoning_content", None) or ""
                for call in delta.tool_calls or []:
                    if call.index == len(whole["calls"]):
                        whole["calls"].append([call.id, call.function.name, ""])
                    whole["calls"][call.index][2] += call.function.arguments or ""
                if choice.logprobs:
                    whole["logprobs"] += [(t.token, t.logprob) for t in choice.logprobs.content]
                whole["finish"] = choice.finish_reason or whole["finish"]
        self.assertEqual(len(ids), 1)
        for whole in choices.values():
            self.assertEqual(whole["roles"], 1)
            self.assertIsNotNone(whole["finish"])
        return choices, usage

    def assert_same(self, **more):
        whole = self.whole(**more)
        choices, usage = self.streamed(**more)
        self.assertEqual(len(whole.choices), len(choices))
        for choice in whole.choices:
            other = choices[choice.index]
            self.assertEqual(choice.message.content, other["content"])
            self.assertEqual(getattr(choice.message, "reasoning_content", None) or "", other["reasoning"])
            self.assertEqual(choice.finish_reason, other["finish"])
            calls = [(c.function.name, c.function.arguments) for c in choice.message.tool_calls or []]
            self.assertEqual(calls, [(name, arguments) for _, name, arguments in other["calls"]])
            if choice.logprobs:
                self.assertEqual([(t.token, t.logprob) for t in choice.logprobs.content], other["logprobs"])
        self.assertEqual(whole.usage.completion_tokens, usage.completion_tokens)
        self.assertEqual(whole.usage.prompt_tokens, usage.prompt_tokens)
        return whole

    def test_answers_with_reasoning(self):
        answer = self.assert_same(temperature=0)
        self.assertIn("Paris", answer.choices[0].message.content)
        self.assertTrue(answer.choices[0].message.reasoning_content)
        self.assertGreater(answer.usage.completion_tokens_details.reasoning_tokens, 0)

    def test_answers_without(self):
        answer = self.assert_same(temperature=0, extra_body={"thinking": {"type": "disabled"}})
        self.assertEqual(answer.choices[0].message.content, "The capital of France is Paris.")
        self.assertEqual(self.whole(temperature=0, reasoning_effort="none").choices[0].message.content, answer.choices[0].message.content)

    def test_several_choices_with_a_seed(self):
        answer = self.assert_same(n=3, seed=5, temperature=1.0, max_tokens=30)
        self.assertEqual([c.index for c in answer.choices], [0, 1, 2])
        self.assertEqual(self.whole(n=3, seed=5, temperature=1.0, max_tokens=30).choices[2].message.content, answer.choices[2].message.content)

    def test_log_probabilities(self):
        answer = self.assert_same(temperature=0, logprobs=True, top_logprobs=3, extra_body={"thinking": {"type": "disabled"}})
        content = answer.choices[0].logprobs.content
        self.assertEqual("".join(t.token for t in content), answer.choices[0].message.content)
        self.assertTrue(all(len(t.top_logprobs) == 3 and t.logprob <= 0 for t in content))

    def test_stop_length_and_bias(self):
        off = {"thinking": {"type": "disabled"}}
        self.assertEqual(self.assert_same(temperature=0, stop=[" of France"], extra_body=off).choices[0].message.content, "The capital")
        short = self.assert_same(temperature=0, max_completion_tokens=3, extra_body=off)
        self.assertEqual(short.choices[0].finish_reason, "length")
        self.assertEqual(short.usage.completion_tokens, 3)
        first = self.whole(temperature=0, max_tokens=1, logprobs=True, extra_body=off).choices[0].logprobs.content[0].token
        tokens = json.loads(self.post("/tokenize", {"prompt": first, "add_special_tokens": False}))["tokens"]
        other = self.whole(temperature=0, max_tokens=1, logit_bias={str(tokens[0]): -100}, logprobs=True, extra_body=off)
        self.assertNotEqual(other.choices[0].logprobs.content[0].token, first)

    def post(self, path, body):
        request = urllib.request.Request(SERVER.url + path, json.dumps(body).encode(), {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.read().decode()

    def test_tools(self):
        messages = [{"role": "user", "content": "What's the weather in Paris?"}]
        tools = [{"type": "function", "function": WEATHER}]
        answer = self.assert_same(messages=messages, tools=tools, tool_choice="required", temperature=0,
                                  extra_body={"thinking": {"type": "disabled"}})
        call = answer.choices[0].message.tool_calls[0]
        self.assertEqual(answer.choices[0].finish_reason, "tool_calls")
        self.assertEqual(call.function.name, "get_weather")
        json.loads(call.function.arguments)
        # The call and its result go back as they came.
        messages += [answer.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "18C"}]
        after = self.assert_same(messages=messages, tools=tools, temperature=0)
        self.assertTrue(after.choices[0].message.content or after.choices[0].message.tool_calls)

    def schema_format(self, schema, strict=True):
        return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": strict}}

    def test_pictures(self):
        def ask(**image):
            return [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": CIRCLE_URL, **image}},
                                                 {"type": "text", "text": "What do you see?"}]}]
        answer = self.assert_same(messages=ask(), temperature=0, extra_body=OFF)
        self.assertIn("circle", answer.choices[0].message.content)
        text = self.whole(messages=[{"role": "user", "content": "What do you see?"}], temperature=0, max_tokens=1, extra_body=OFF)
        self.assertGreater(answer.usage.prompt_tokens, text.usage.prompt_tokens + 10)
        self.whole(messages=ask(detail="low"), temperature=0, max_tokens=1)
        for wrong in ({"detail": "tiny"}, {"url": "http://127.0.0.1/x.png"}, {"url": CIRCLE_URL[:200]}, {"url": "data:image/png;base64,!!"}):
            for call in (self.whole, self.streamed):
                with self.assertRaises(openai.BadRequestError) as refused:
                    call(messages=ask(**wrong))
                self.assertEqual(refused.exception.param, "messages")
        parts = [{"type": "input_image", "image_url": CIRCLE_URL, "detail": "auto"}, {"type": "input_text", "text": "What do you see?"}]
        response = self.client.responses.create(model=MODEL, input=[{"role": "user", "content": parts}], reasoning={"effort": "none"}, temperature=0)
        self.assertEqual(response.output_text, answer.choices[0].message.content)
        self.assertEqual(response.usage.input_tokens, answer.usage.prompt_tokens)

    def test_response_formats(self):
        messages = [{"role": "user", "content": "Is water wet? Answer as json."}]
        for seed in range(3):
            answer = self.assert_same(messages=messages, seed=seed, max_tokens=60, response_format=self.schema_format(VERDICT), extra_body=OFF)
            self.assertIn(json.loads(answer.choices[0].message.content), [{"verdict": "yes"}, {"verdict": "no"}])
        answer = self.assert_same(messages=messages, temperature=0, max_tokens=100, response_format={"type": "json_object"}, extra_body=OFF)
        if answer.choices[0].finish_reason == "stop":
            self.assertIsInstance(json.loads(answer.choices[0].message.content), dict)
        import pydantic
        import typing

        class Verdict(pydantic.BaseModel):
            verdict: typing.Literal["yes", "no"]
        parsed = self.client.chat.completions.parse(model=MODEL, messages=messages, response_format=Verdict, max_tokens=60, extra_body=OFF)
        self.assertIn(parsed.choices[0].message.parsed.verdict, ("yes", "no"))
        response = self.client.responses.create(model=MODEL, input="Is water wet? Answer as json.", reasoning={"effort": "none"},
                                                text={"format": {"type": "json_schema", "name": "v", "schema": VERDICT, "strict": True}})
        self.assertIn(json.loads(response.output_text), [{"verdict": "yes"}, {"verdict": "no"}])

    def test_what_cannot_be_enforced(self):
        messages = [{"role": "user", "content": "Answer as json."}]
        with self.assertRaises(openai.BadRequestError) as refused:
            self.whole(messages=messages, response_format=self.schema_format(LOOSE))
        self.assertEqual(refused.exception.param, "response_format")
        self.assertIn("/properties/a", str(refused.exception))
        answer = self.whole(messages=messages, max_tokens=60, response_format=self.schema_format(LOOSE, False), extra_body=OFF)
        self.assertEqual(len(answer.model_extra["constraint_notes"]), 1)
        self.assertIn("/properties/a", answer.model_extra["constraint_notes"][0])
        first = next(iter(self.client.chat.completions.create(model=MODEL, messages=messages, max_tokens=60, stream=True, extra_body=OFF,
                                                              response_format=self.schema_format(LOOSE, False))))
        self.assertEqual(first.model_extra["constraint_notes"], answer.model_extra["constraint_notes"])
        plain = self.client.completions.create(model=MODEL, prompt="json: ", max_tokens=60, extra_body={"response_format": self.schema_format(VERDICT)})
        self.assertIn(json.loads(plain.choices[0].text), [{"verdict": "yes"}, {"verdict": "no"}])

    def test_vllm_spellings(self):
        for body, wanted in (({"guided_regex": "[0-9]{4}"}, r"[0-9]{4}"), ({"structured_outputs": {"choice": ["left", "right"]}}, "left|right"),
                             ({"guided_grammar": 'root ::= "x" | "yy"'}, "x|yy")):
            answer = self.assert_same(max_tokens=40, seed=1, extra_body={**OFF, **body})
            self.assertRegex(answer.choices[0].message.content, f"^({wanted})$")

    def test_strict_tools_and_named_ones(self):
        strict = {**WEATHER, "strict": True, "parameters": {**WEATHER["parameters"], "additionalProperties": False}}
        other = {"name": "stop", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}, "strict": True}
        tools = [{"type": "function", "function": f} for f in (strict, other)]
        for choice, names in (("required", {"get_weather", "stop"}), ({"type": "function", "function": {"name": "stop"}}, {"stop"})):
            for thinking in ("disabled", "enabled"):
                answer = self.assert_same(messages=[{"role": "user", "content": "What's the weather in Paris?"}], tools=tools, tool_choice=choice,
                                          parallel_tool_calls=False, seed=3, max_tokens=400, extra_body={"thinking": {"type": thinking}})
                if answer.choices[0].finish_reason == "length":
                    continue
                self.assertEqual(answer.choices[0].finish_reason, "tool_calls")
                self.assertEqual(len(answer.choices[0].message.tool_calls), 1)
                call = answer.choices[0].message.tool_calls[0]
                self.assertIn(call.function.name, names)
                arguments = json.loads(call.function.arguments)
                self.assertEqual(set(arguments), {"location"} if call.function.name == "get_weather" else set())

    def test_history_and_cache(self):
        messages = [{"role": "system", "content": "You are a careful assistant. " * 60}, *QUESTION]
        self.whole(messages=messages, temperature=0, max_tokens=2)
        again = self.whole(messages=messages, temperature=0, max_tokens=2)
        self.assertGreater(again.usage.prompt_tokens_details.cached_tokens, 0)

    def test_completions(self):
        kwargs = dict(model=MODEL, prompt="The capital of France is", temperature=0, max_tokens=8)
        whole = self.client.completions.create(**kwargs)
        streamed = "".join(c.choices[0].text for c in self.client.completions.create(stream=True, **kwargs) if c.choices)
        self.assertEqual(whole.choices[0].text, streamed)
        self.assertEqual(whole.usage.completion_tokens, 8)
        scored = self.client.completions.create(model=MODEL, prompt="The capital of France is Paris.", echo=True, logprobs=1, max_tokens=0)
        logprobs = scored.choices[0].logprobs
        self.assertEqual(scored.choices[0].text, "The capital of France is Paris.")
        self.assertEqual(len(logprobs.tokens), len(logprobs.token_logprobs))
        self.assertIsNone(logprobs.token_logprobs[0])
        self.assertEqual("".join(logprobs.tokens), scored.choices[0].text)
        several = self.client.completions.create(model=MODEL, prompt=["One", "Two"], n=2, max_tokens=2, seed=1)
        self.assertEqual([c.index for c in several.choices], [0, 1, 2, 3])

    def test_responses(self):
        first = self.client.responses.create(model=MODEL, input="What is the capital of France?", temperature=0)
        self.assertEqual(first.status, "completed")
        self.assertIn("Paris", first.output_text)
        text, last = "", None
        for event in self.client.responses.create(model=MODEL, input="What is the capital of France?", temperature=0, stream=True):
            if event.type == "response.output_text.delta":
                text += event.delta
            last = event
        self.assertEqual(last.type, "response.completed")
        self.assertEqual(text, first.output_text)
        self.assertEqual(last.response.output_text, first.output_text)
        second = self.client.responses.create(model=MODEL, input="And of Italy?", previous_response_id=first.id, temperature=0)
        self.assertEqual(second.previous_response_id, first.id)
        self.assertGreater(second.usage.input_tokens, first.usage.input_tokens)
        self.assertEqual(self.client.responses.retrieve(second.id).output_text, second.output_text)
        self.client.responses.delete(second.id)
        with self.assertRaises(openai.NotFoundError):
            self.client.responses.retrieve(second.id)
        tools = [{"type": "function", **WEATHER, "strict": False}]
        called = self.client.responses.create(model=MODEL, input="What's the weather in Paris?", tools=tools, tool_choice="required",
                                              reasoning={"effort": "none"}, temperature=0)
        self.assertEqual(called.output[0].type, "function_call")
        self.assertEqual(called.output[0].name, "get_weather")

    def test_models(self):
        self.assertEqual([m.id for m in self.client.models.list()], [MODEL])
        self.assertEqual(self.client.models.retrieve(MODEL).id, MODEL)

    def test_errors_are_typed(self):
        with self.assertRaises(openai.NotFoundError) as missing:
            self.client.chat.completions.create(model="none", messages=QUESTION)
        self.assertEqual(missing.exception.code, "model_not_found")
        with self.assertRaises(openai.BadRequestError) as wrong:
            self.whole(temperature=9)
        self.assertEqual(wrong.exception.param, "temperature")
        with self.assertRaises(openai.BadRequestError) as long:
            self.whole(max_tokens=10_000_000)
        self.assertEqual(long.exception.code, "context_length_exceeded")

    def test_unknown_fields_are_ignored(self):
        self.whole(max_tokens=1, extra_body={"foo": 1, "metadata": {"a": "b"}}, store=True, service_tier="auto", prompt_cache_key="x")

    def test_a_closed_stream_ends_the_work(self):
        stream = self.client.chat.completions.create(model=MODEL, messages=QUESTION, stream=True, max_tokens=4000, temperature=1.5,
                                                     extra_body={"ignore_eos": True, "thinking": {"type": "disabled"}})
        next(iter(stream))
        stream.close()
        deadline = time.time() + 10
        while time.time() < deadline and SERVER.status()["generation"]["open"] > 0:
            time.sleep(0.05)
        self.assertEqual(SERVER.status()["generation"]["open"], 0)

    def test_many_at_once(self):
        alone = self.whole(temperature=0).choices[0].message.content
        answers = [None] * 12

        def ask(i):
            answers[i] = (self.streamed(temperature=0)[0][0]["content"] if i % 2 else self.whole(temperature=0).choices[0].message.content)

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(answers))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(answers, [alone] * len(answers))


class Anthropic(unittest.TestCase):
    def setUp(self):
        self.client = anthropic.Anthropic(base_url=SERVER.url, api_key="none", max_retries=0)

    def tearDown(self):
        self.client.close()

    def both(self, **more):
        # This package has no argument for it (temperature is deprecated there); the protocol has the field.
        if "temperature" in more:
            more["extra_body"] = {"temperature": more.pop("temperature")}
        kwargs = dict(model=MODEL, max_tokens=more.pop("max_tokens", 300), messages=more.pop("messages", QUESTION), **more)
        whole = self.client.messages.create(**kwargs)
        with self.client.messages.stream(**kwargs) as stream:
            streamed = stream.get_final_message()
        self.assertEqual([b.type for b in whole.content], [b.type for b in streamed.content])
        for one, other in zip(whole.content, streamed.content):
            for key in ("text", "thinking", "name", "input"):
                self.assertEqual(getattr(one, key, None), getattr(other, key, None))
        self.assertEqual(whole.stop_reason, streamed.stop_reason)
        self.assertEqual(whole.usage.output_tokens, streamed.usage.output_tokens)
        return whole

    def test_answers_with_thinking(self):
        answer = self.both(temperature=0)
        self.assertEqual([b.type for b in answer.content], ["thinking", "text"])
        self.assertTrue(answer.content[0].signature)
        self.assertIn("Paris", answer.content[1].text)
        self.assertEqual(answer.stop_reason, "end_turn")

    def test_system_stop_and_length(self):
        off = {"type": "disabled"}
        self.assertEqual(self.both(temperature=0, thinking=off, system="Be brief.", max_tokens=2).stop_reason, "max_tokens")
        stopped = self.both(temperature=0, thinking=off, stop_sequences=[" of France"])
        self.assertEqual((stopped.stop_reason, stopped.stop_sequence, stopped.content[0].text), ("stop_sequence", " of France", "The capital"))

    def test_a_thought_goes_back(self):
        first = self.both(temperature=0)
        messages = [*QUESTION, {"role": "assistant", "content": first.content}, {"role": "user", "content": "And of Italy?"}]
        self.assertTrue(self.both(messages=messages, temperature=0).content)

    def test_tools(self):
        tools = [{"name": WEATHER["name"], "description": WEATHER["description"], "input_schema": WEATHER["parameters"]}]
        messages = [{"role": "user", "content": "What's the weather in Paris?"}]
        answer = self.both(messages=messages, tools=tools, tool_choice={"type": "any"}, thinking={"type": "disabled"}, temperature=0)
        call = next(b for b in answer.content if b.type == "tool_use")
        self.assertEqual((call.name, answer.stop_reason), ("get_weather", "tool_use"))
        messages += [{"role": "assistant", "content": answer.content},
                     {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "18C"}]}]
        self.both(messages=messages, tools=tools, temperature=0)

    def test_pictures(self):
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": base64.b64encode(CIRCLE).decode()}}
        messages = [{"role": "user", "content": [image, {"type": "text", "text": "What do you see?"}]}]
        answer = self.both(messages=messages, temperature=0, thinking={"type": "disabled"})
        self.assertIn("circle", answer.content[0].text)
        counted = self.client.messages.count_tokens(model=MODEL, messages=messages, thinking={"type": "disabled"})
        self.assertEqual(counted.input_tokens, answer.usage.input_tokens + answer.usage.cache_read_input_tokens)
        image["source"]["data"] = image["source"]["data"][:160]  # the header is whole
        for stream in (False, True):
            with self.assertRaises(anthropic.BadRequestError):
                self.client.messages.create(model=MODEL, max_tokens=5, messages=messages, stream=stream)

    def test_output_format_and_strict_tools(self):
        messages = [{"role": "user", "content": "Is water wet? Answer as json."}]
        off = {"type": "disabled"}
        answer = self.both(messages=messages, thinking=off, temperature=0, output_config={"format": {"type": "json_schema", "schema": VERDICT}})
        self.assertIn(json.loads(answer.content[0].text), [{"verdict": "yes"}, {"verdict": "no"}])
        with self.assertRaises(anthropic.BadRequestError) as refused:
            self.client.messages.create(model=MODEL, max_tokens=9, messages=messages,
                                        output_config={"format": {"type": "json_schema", "schema": LOOSE}})
        self.assertIn("/properties/a", str(refused.exception))
        tools = [{"name": "judge", "input_schema": VERDICT, "strict": True}, {"name": "other", "input_schema": VERDICT, "strict": True}]
        for choice in ({"type": "any"}, {"type": "tool", "name": "judge"}):
            called = self.client.messages.create(model=MODEL, max_tokens=300, messages=messages, tools=tools, tool_choice=choice, thinking=off)
            block = next(b for b in called.content if b.type == "tool_use")
            self.assertIn(block.input, [{"verdict": "yes"}, {"verdict": "no"}])
            self.assertIn(block.name, ("judge",) if choice["type"] == "tool" else ("judge", "other"))

    def test_counting_tokens(self):
        counted = self.client.messages.count_tokens(model=MODEL, messages=QUESTION)
        answer = self.client.messages.create(model=MODEL, max_tokens=1, messages=QUESTION)
        self.assertEqual(counted.input_tokens, answer.usage.input_tokens + answer.usage.cache_read_input_tokens)

    def test_models_and_errors(self):
        self.assertEqual([m.id for m in self.client.models.list()], [MODEL])
        with self.assertRaises(anthropic.NotFoundError):
            self.client.messages.create(model="none", max_tokens=1, messages=QUESTION)
        with self.assertRaises(anthropic.BadRequestError) as wrong:
            self.client.messages.create(model=MODEL, max_tokens=0, messages=QUESTION)
        self.assertIn("max_tokens", str(wrong.exception))


class Process(unittest.TestCase):
    def test_pages_health_and_metrics(self):
        self.assertIn("<title>deepinfer", SERVER.get("/"))
        self.assertEqual(json.loads(SERVER.get("/health"))["status"], "ok")
        self.assertEqual(json.loads(SERVER.get("/ready"))["status"], "ready")
        self.assertIn("vllm:num_requests_running", SERVER.get("/metrics", SERVER.admin))
        self.assertEqual(json.loads(SERVER.get("/health/generate", SERVER.admin))["status"], "ok")

    def test_options_from_a_file(self):
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write("served-model-name: [one, two]\nmax-body-bytes: 2048\ncompat: true\nmax-num-seqs: 2\ndrain-settle-ms: 0\n")
            file.flush()
            server = Served("--config", file.name, "--max-body-bytes", "4096")
            try:
                config = json.loads(server.get("/admin/config", server.admin))
                self.assertEqual(config["served-model-name"], ["one", "two"])
                self.assertEqual(config["max-body-bytes"], 4096)  # the command line wins
                self.assertEqual((config["compat"], config["engine"]["max_num_seqs"]), (True, 2))
            finally:
                self.assertEqual(server.stop(), 0)
            file.write("no-such-option: 1\n")
            file.flush()
            done = subprocess.run([PROGRAM, "serve", "--config", file.name], capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 2)
            self.assertIn("no-such-option", done.stderr)

    def test_killed_and_started_again(self):
        server = Served("--max-num-seqs", "4")
        port = server.url.rsplit(":", 1)[1]
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
        stream = client.chat.completions.create(model=MODEL, messages=QUESTION, stream=True, max_tokens=4000, extra_body={"ignore_eos": True})
        next(iter(stream))
        self.assertEqual(server.stop(signal.SIGKILL), -9)
        with self.assertRaises(Exception):
            list(stream)
        again = Served("--drain-settle-ms", "0", port=port)  # the same address at once
        try:
            answer = openai.OpenAI(base_url=again.url + "/v1", api_key="none").chat.completions.create(
                model=MODEL, messages=QUESTION, temperature=0, extra_body={"thinking": {"type": "disabled"}})
            self.assertIn("Paris", answer.choices[0].message.content)
        finally:
            self.assertEqual(again.stop(signal.SIGINT), 130)

    def test_chat_talks_to_a_server(self):
        done = subprocess.run([PROGRAM, "chat", "--url", SERVER.url, "--temperature", "0", "--thinking", "0"], capture_output=True, text=True,
                              input="What is the capital of France?\n", timeout=60)
        self.assertEqual((done.returncode, done.stdout), (0, "The capital of France is Paris.\n"), done.stderr)
        with tempfile.NamedTemporaryFile(suffix=".png") as picture:
            picture.write(CIRCLE)
            picture.flush()
            done = subprocess.run([PROGRAM, "chat", "--url", SERVER.url, "--temperature", "0", "--thinking", "0", "--image", picture.name],
                                  capture_output=True, text=True, input="What do you see?\nAnd its colour?\n", timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("circle", done.stdout)
        done = subprocess.run([PROGRAM, "chat", "--url", SERVER.url, "--thinking", "0", "--regex", "[0-9]{4}"], capture_output=True, text=True,
                              input="A number?\n", timeout=60)
        self.assertRegex(done.stdout, r"^[0-9]{4}\n$")
        with tempfile.NamedTemporaryFile("w", suffix=".json") as schema:
            json.dump(LOOSE, schema)
            schema.flush()
            base = [PROGRAM, "chat", "--url", SERVER.url, "--thinking", "0", "--max-tokens", "60", "--json-schema", schema.name]
            done = subprocess.run(base, capture_output=True, text=True, input="Answer as json.\n", timeout=60)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn("/properties/a", done.stderr)
            done = subprocess.run([*base, "--strict", "0"], capture_output=True, text=True, input="Answer as json.\n", timeout=60)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("not enforced: /properties/a", done.stderr)
        done = subprocess.run([PROGRAM, "chat", "--url", "http://127.0.0.1:1"], capture_output=True, text=True, input="x\n", timeout=60)
        self.assertEqual(done.returncode, 1)
        self.assertIn("127.0.0.1:1", done.stderr)

    def test_beyond_loopback_needs_keys(self):
        done = subprocess.run([PROGRAM, "serve", "--host", "0.0.0.0"], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--api-keys", done.stderr)

    def test_tls_and_keys(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                            "-keyout", folder / "key.pem", "-out", folder / "cert.pem", "-subj", "/CN=localhost",
                            "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"], check=True, capture_output=True)
            import hashlib
            digest = hashlib.sha256(b"a-long-secret").hexdigest()
            (folder / "keys.yaml").write_text(f"keys:\n- {{id: me, scopes: [infer, admin], sha256: {digest}}}\n")
            server = Served("--tls-cert", str(folder / "cert.pem"), "--tls-key", str(folder / "key.pem"), "--api-keys", str(folder / "keys.yaml"),
                            "--drain-settle-ms", "0")
            try:
                import httpx2
                import ssl
                context = ssl.create_default_context(cafile=str(folder / "cert.pem"))
                http = httpx2.Client(verify=context)
                client = openai.OpenAI(base_url=server.url + "/v1", api_key="a-long-secret", http_client=http, max_retries=0)
                text = "".join(c.choices[0].delta.content or "" for c in client.chat.completions.create(
                    model=MODEL, messages=QUESTION, temperature=0, stream=True, extra_body={"thinking": {"type": "disabled"}}))
                self.assertIn("Paris", text)
                with self.assertRaises(openai.AuthenticationError):
                    openai.OpenAI(base_url=server.url + "/v1", api_key="wrong", http_client=http, max_retries=0).models.list()
                # A new certificate and a new key list without a restart.
                before = ssl.get_server_certificate(("127.0.0.1", int(server.url.rsplit(":", 1)[1])))
                subprocess.run(["openssl", "req", "-x509", "-key", folder / "key.pem", "-days", "3", "-out", folder / "cert.pem", "-subj", "/CN=again"],
                               check=True, capture_output=True)
                server.process.send_signal(signal.SIGHUP)
                deadline = time.time() + 10
                while time.time() < deadline and ssl.get_server_certificate(("127.0.0.1", int(server.url.rsplit(":", 1)[1]))) == before:
                    time.sleep(0.05)
                self.assertNotEqual(ssl.get_server_certificate(("127.0.0.1", int(server.url.rsplit(":", 1)[1]))), before)
            finally:
                self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()
