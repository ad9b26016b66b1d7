#!/usr/bin/env python3
"""The command line as its user runs it: answers, exit codes, refusals, interruption.   usage: command_line_test.py BINARY"""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

TREE = pathlib.Path(__file__).resolve().parent.parent.parent
BINARY = ""


def run(*args, stdin="", env=None):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("DEEPINFER_")}
    environment.update(env or {})
    return subprocess.run([BINARY, *args], input=stdin, capture_output=True, text=True, env=environment, timeout=300)


def greedy(text, *more):
    done = run("generate", "--temperature", "0", "--thinking", "0", "--json", *more, text)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class Generate(unittest.TestCase):
    def test_answers_sensibly(self):
        self.assertIn("Paris", greedy("What is the capital of France?")["text"])

    def test_streams_the_answer_alone_into_a_pipe(self):
        done = run("generate", "--temperature", "0", "What is the capital of France?")
        self.assertEqual(done.returncode, 0)
        self.assertEqual(done.stdout, "The capital of France is Paris.\n")
        self.assertEqual(done.stderr, "")

    def test_reasoning_stands_apart(self):
        done = run("generate", "--temperature", "0", "--json", "What is the capital of Portugal?")
        answer = json.loads(done.stdout)
        self.assertTrue(answer["reasoning"])
        self.assertIn("Lisbon", answer["text"])
        self.assertNotIn("<think>", answer["text"] + answer["reasoning"])

    def test_json_is_one_document_with_the_stated_keys(self):
        answer = greedy("What is the capital of France?")
        for key in ("text", "reasoning", "token_ids", "finish_reason", "usage", "timing"):
            self.assertIn(key, answer)
        self.assertEqual(answer["finish_reason"], "stop")
        self.assertEqual(answer["usage"]["completion_tokens"], len(answer["token_ids"]))

    def test_same_seed_same_text(self):
        texts = set()
        for _ in range(2):
            done = run("generate", "--temperature", "1.5", "--seed", "7", "--raw", "--max-tokens", "24", "Once upon a time")
            texts.add(done.stdout)
        self.assertEqual(len(texts), 1)
        other = run("generate", "--temperature", "1.5", "--seed", "8", "--raw", "--max-tokens", "24", "Once upon a time")
        self.assertNotIn(other.stdout, texts)

    def test_max_tokens_and_stop(self):
        short = greedy("Tell me a story about Noah, a penguin and a compass in the desert.", "--max-tokens", "5")
        self.assertEqual(short["finish_reason"], "length")
        self.assertEqual(len(short["token_ids"]), 5)
        cut = greedy("What is the capital of France?", "--stop", " of France")
        self.assertEqual(cut["text"], "The capital")
        self.assertEqual(cut["finish_reason"], "stop")

    def test_standard_input(self):
        done = run("generate", "--temperature", "0", "--thinking", "0", "-", stdin="What is the capital of France?")
        self.assertIn("Paris", done.stdout)

    def test_threads_do_not_change_the_answer(self):
        question = "Sort alphabetically: pear, fig, mango, kiwi, apple"
        one, two = (greedy(question, "--threads", n, "--logprobs", "1") for n in ("1", "2"))
        self.assertEqual(one["token_ids"], two["token_ids"])
        self.assertEqual(one["logprobs"], two["logprobs"])

    def test_special_tokens_in_user_text_stay_text(self):
        request = {"id": 1, "protocol": "conversation", "body": {"messages": [{"role": "user", "content": "a<｜User｜>b"}], "thinking": False}}
        done = run("encode", "--json", stdin=json.dumps(request) + "\n")
        ids = json.loads(done.stdout)["ids"]
        user = json.loads(run("tokenize", "--json", stdin='{"id":1,"op":"encode","text":"<｜User｜>","special":"parse"}\n').stdout)["ids"]
        self.assertEqual(len(user), 1)
        self.assertEqual(ids.count(user[0]), 1)


class Refusals(unittest.TestCase):
    def refused(self, code, *args, says=(), env=None):
        done = run(*args, env=env)
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertEqual(done.stdout, "")
        for text in says:
            self.assertIn(text, done.stderr)

    def test_context_overflow_says_both_numbers(self):
        self.refused(2, "generate", "--max-model-len", "64", "--max-tokens", "100", "Hello", says=("100", "64"))

    def test_later_features_are_refused_by_name(self):
        for flag, value in (("--nextn", "6"), ("--ep", "2")):
            self.refused(2, "generate", flag, value, "Hello", says=(flag.removeprefix("--").split("-")[0],))

    def test_switches_of_speculation_are_refused_alike_as_flag_and_variable(self):
        for flag, variable, wrong, said in (
            ("--nextn", "DEEPINFER_USE_NEXTN_DECODE", "6", ("6", "5", "dspark_block_size")),
            ("--nextn", "DEEPINFER_USE_NEXTN_DECODE", "-1", ("-1", "5")),
            ("--nextn", "DEEPINFER_USE_NEXTN_DECODE", "five", ("five",)),
            ("--varlen", "DEEPINFER_ENABLE_MTP_VARLEN", "2", ("2",)),
            ("--spec-sampling", "DEEPINFER_SPEC_SAMPLING", "sampled", ("sampled", "coupled")),
            ("--spec-sampling", "DEEPINFER_SPEC_SAMPLING", "block", ("block", "DEEPINFER_BATCH_INVARIANT")),
            ("--truncation", "DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE", "some", ("some", "compact")),
            ("--keep-tokens", "DEEPINFER_YOCO_PREFILL_KEEP_TOKENS", "139", ("139",)),
        ):
            with self.subTest(flag=flag, wrong=wrong):
                self.refused(2, "generate", flag, wrong, "Hello", says=said)
                self.refused(2, "generate", "Hello", says=said, env={variable: wrong})
        # Too few for the window and the rows that may be taken back: the rule is said.
        self.refused(2, "generate", "--truncation", "compact", "--keep-tokens", "139", "Hello", says=("139", "140", "128"))
        self.refused(2, "generate", "Hello", says=("139", "140", "128"),
                     env={"DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE": "compact", "DEEPINFER_YOCO_PREFILL_KEEP_TOKENS": "139"})

    def test_constraints_that_cannot_be_enforced_are_refused(self):
        self.refused(2, "generate", "--regex", "(?=a)b", "Hello", says=("regular expression", "look-around"))

    def test_generated_weights_have_no_text(self):
        geometry = str(TREE / "models" / "demo" / "config.json")
        self.refused(2, "generate", "--synthetic", "no-such-geometry", "5 6", says=("no-such-geometry", "cpu-slice"))
        self.refused(2, "generate", "--synthetic", geometry, "--system", "Be brief", "5 6", says=("--system",))
        self.refused(2, "generate", "--synthetic", geometry, "--model", "models/demo", "5 6", says=("--model", "--synthetic"))
        for command in (("chat",), ("batch", "a", "b"), ("ppl", "a"), ("inspect",)):
            self.refused(2, *command, "--synthetic", geometry, says=("--synthetic",))
        done = run("generate", "--synthetic", geometry + ":7", "--temperature", "0", "--max-tokens", "4", "--ignore-eos", "--json", "5 6 4095")
        answer = json.loads(done.stdout)
        self.assertEqual(answer["text"].split(), [str(i) for i in answer["token_ids"]])
        self.assertEqual(answer["usage"]["prompt_tokens"], 4)

    def test_pictures(self):
        circle = str(pathlib.Path(__file__).resolve().parent.parent / "data" / "pictures" / "circle.png")
        done = run("generate", "--thinking", "0", "--temperature", "0", "--image", circle, "--json", "What do you see?")
        self.assertEqual(done.returncode, 0, done.stderr)
        answer = json.loads(done.stdout)
        self.assertIn("red circle", answer["text"])
        self.assertGreater(answer["usage"]["prompt_tokens"], 20)
        self.refused(3, "generate", "--image", "/no/such/picture.png", "Hello", says=("/no/such/picture.png",))
        self.refused(2, "generate", "--image", __file__, "Hello", says=("unsupported media type",))
        self.refused(2, "generate", "--raw", "--image", circle, "Hello", says=("--raw",))

    def test_wrong_usage(self):
        self.refused(2, "generate", "--no-such-option", "Hello")
        self.refused(2, "generate", "--temperature", "9", "Hello", says=("temperature",))
        self.refused(2, "generate", "--backend", "quantum", "Hello", says=("quantum", "cpu"))

    def test_missing_model_and_hub_id(self):
        self.refused(3, "generate", "--model", "/no/such/folder", "Hello", says=("/no/such/folder",))
        with tempfile.TemporaryDirectory() as cache:
            self.refused(3, "generate", "--model", "deepseek-ai/DeepSeek-V4.1-Flash-1017", "Hello",
                         says=("deepseek-ai/DeepSeek-V4.1-Flash-1017", "download"), env={"HF_HUB_CACHE": cache})

    def test_unknown_switch_is_reported(self):
        done = run("generate", "--temperature", "0", "--thinking", "0", "--max-tokens", "1", "Hello", env={"DEEPINFER_TREADS": "2"})
        self.assertEqual(done.returncode, 0)
        self.assertIn("DEEPINFER_TREADS", done.stderr)

    def test_environment_names_the_model(self):
        done = run("inspect", "--json", env={"DEEPINFER_HF_MODEL_DIR": str(TREE / "models" / "demo")})
        self.assertTrue(json.loads(done.stdout)["loadable"])

    def test_broken_model_names_what_is_wrong(self):
        with tempfile.TemporaryDirectory() as folder:
            copy = pathlib.Path(folder) / "model"
            copy.mkdir()
            for file in (TREE / "models" / "demo").iterdir():
                (copy / file.name).write_bytes(file.read_bytes())
            config = json.loads((copy / "config.json").read_text())
            config["text_config"]["hidden_size"] = 512
            (copy / "config.json").write_text(json.dumps(config))
            self.refused(3, "generate", "--model", str(copy), "Hello", says=("expected",))
            done = run("inspect", "--json", "--model", str(copy))
            self.assertEqual(done.returncode, 3)
            self.assertFalse(json.loads(done.stdout)["loadable"])


class Interruption(unittest.TestCase):
    def test_ctrl_c_keeps_what_was_produced(self):
        child = subprocess.Popen([BINARY, "generate", "--raw", "--ignore-eos", "--max-tokens", "8000", "Once upon a time"],
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        first = child.stdout.read(1)
        time.sleep(0.2)
        child.send_signal(signal.SIGINT)
        rest, error = child.communicate(timeout=60)
        self.assertEqual(child.returncode, 130, error)
        self.assertTrue(first + rest)


class Lines(unittest.TestCase):
    def test_ppl_scores_a_plain_line_and_fails_a_bad_one_alone(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "in.jsonl"
            file.write_text('{"id":"a","prompt":"The capital of France is Paris."}\nnot json\n{"id":"b","prompt_token_ids":[0,5,9]}\n')
            for path in ("prefill", "decode"):
                done = run("ppl", "--json", "--path", path, str(file))
                self.assertEqual(done.returncode, 1)
                lines = [json.loads(x) for x in done.stdout.splitlines()]
                self.assertEqual([x["id"] for x in lines], ["a", 2, "b"])
                self.assertIn("error", lines[1])
                self.assertEqual(float.fromhex(lines[0]["nll_hex"]), lines[0]["nll"])
                self.assertEqual(lines[2]["tokens"], 2)
                if path == "prefill":
                    prefill = lines
            # Prefill and token-by-token decode give the same bits.
            self.assertEqual([x.get("nll_hex") for x in prefill], [x.get("nll_hex") for x in lines])

    def test_a_line_that_nests_too_deep_fails_alone(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "in.jsonl"
            file.write_text('{"id":' + "[" * 200000 + '}\n{"id":"ok","prompt":"a b"}\n')
            done = run("ppl", "--json", str(file))
            self.assertEqual(done.returncode, 1)
            lines = [json.loads(x) for x in done.stdout.splitlines()]
            self.assertIn("deeper", lines[0]["error"]["message"])
            self.assertEqual(lines[1]["tokens"], 2)
            done = run("tokenize", "--json", stdin=file.read_text())
            self.assertEqual([json.loads(x)["error"]["status"] for x in done.stdout.splitlines()], [400, 400])

    def test_output_that_cannot_be_written_is_a_failure(self):
        with open("/dev/full", "w") as full:
            done = subprocess.run([BINARY, "generate", "--temperature", "0", "--thinking", "0", "Hello"], stdout=full, stderr=subprocess.PIPE, text=True)
        self.assertEqual(done.returncode, 1, done.stderr)

    def test_batch_answers_both_forms_and_resumes(self):
        with tempfile.TemporaryDirectory() as folder:
            source, target = pathlib.Path(folder) / "in.jsonl", pathlib.Path(folder) / "out.jsonl"
            question = {"role": "user", "content": "What is the capital of France?"}
            ours = {"id": "a", "messages": [question], "thinking": {"type": "disabled"}, "sampling": {"temperature": 0, "logprobs": 1}}
            openai = {"custom_id": "b", "method": "POST", "url": "/v1/chat/completions",
                      "body": {"model": "deepseek-flash", "messages": [question], "thinking": {"type": "disabled"}, "temperature": 0}}
            bad = {"id": "c", "prompt": "x", "sampling": {"temperature": 99}}
            source.write_text("".join(json.dumps(x) + "\n" for x in (ours, openai, bad)))
            self.assertEqual(run("batch", str(source), str(target)).returncode, 0)
            text = target.read_text()
            answers = {x.get("id") if "custom_id" not in x else x["custom_id"]: x for x in map(json.loads, text.splitlines())}
            self.assertIn("Paris", answers["a"]["outputs"][0]["text"])
            self.assertEqual(float.fromhex(answers["a"]["outputs"][0]["logprobs_hex"][0]), answers["a"]["outputs"][0]["logprobs"][0])
            self.assertIn("Paris", answers["b"]["response"]["body"]["choices"][0]["message"]["content"])
            self.assertEqual(answers["c"]["outputs"], [])
            self.assertIn("temperature", answers["c"]["error"]["message"])
            self.assertEqual(run("batch", str(source), str(target)).returncode, 0)
            self.assertEqual(target.read_text(), text)


class Chat(unittest.TestCase):
    def test_keeps_the_conversation(self):
        done = run("chat", "--thinking", "0", "--temperature", "0", stdin="My name is Vera.\nWhat is my name?\n")
        self.assertEqual(done.returncode, 0)
        self.assertIn("Vera", done.stdout.splitlines()[-1])


if __name__ == "__main__":
    BINARY = sys.argv.pop(1)
    unittest.main(verbosity=2)
