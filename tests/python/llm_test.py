"""The installed package as its user meets it: generate, chat, stream, asyncio, interruption, refusals."""
import asyncio
import io
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path
from unittest import mock

import deepinfer
from deepinfer.pictures import picture_bytes
from deepinfer import LLM, AsyncLLM, SamplingParams, _deepinfer

PROGRAM = os.environ.get("TEST_PROGRAM", "")
STORY = "Once upon a time"
FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
PROMPTS = [STORY, "The capital of France is", "A short list:", "In the morning the fox", "7 + 5 ="]


class Pixels:
    """As much of a numpy array as a picture needs: a red square on white."""

    dtype = "uint8"

    def __init__(self, height, width):
        self.shape = (height, width, 3)

    def __getitem__(self, y):
        inside = self.shape[0] // 3 <= y < 2 * self.shape[0] // 3
        row = [(220, 30, 30) if inside and 50 <= x < 90 else (250, 250, 250) for x in range(self.shape[1])]
        return memoryview(bytes(c for pixel in row for c in pixel))


def program(*args):
    if not os.access(PROGRAM, os.X_OK):
        raise unittest.SkipTest(f"no program at '{PROGRAM}' to compare with")
    done = subprocess.run([PROGRAM, *args], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class WithEngine(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.llm = LLM(threads=2, max_model_len=2048)

    @classmethod
    def tearDownClass(cls):
        cls.llm.close()

    def tearDown(self):
        deadline = time.monotonic() + 30
        while self.llm.stats()["running"] + self.llm.stats()["waiting"] > 0 and time.monotonic() < deadline:
            time.sleep(0.02)
        stats = self.llm.stats()
        self.assertEqual(stats["free_blocks"], stats["total_blocks"], "a finished request kept its blocks")


class Generate(WithEngine):
    def test_one_text(self):
        [answer] = self.llm.generate(STORY, SamplingParams(temperature=0, max_tokens=8))
        self.assertEqual(answer.prompt, STORY)
        self.assertEqual(answer.prompt_token_ids[0], self.llm.model_info["bos_token_id"])
        output = answer.outputs[0]
        self.assertEqual(len(output.token_ids), 8)
        self.assertEqual(output.finish_reason, "length")
        self.assertIsNone(output.stop_reason)
        self.assertEqual(output.text, self.llm.tokenizer.decode(output.token_ids))
        self.assertEqual(answer.usage.prompt_tokens, len(answer.prompt_token_ids))
        self.assertEqual(answer.usage.completion_tokens, 8)
        self.assertGreaterEqual(answer.timing.total_ms, answer.timing.first_token_ms)

    def test_texts_ids_and_dicts_mean_the_same(self):
        params = SamplingParams(temperature=0, max_tokens=6)
        [text] = self.llm.generate([STORY], params)
        ids = text.prompt_token_ids
        for form in (ids, [ids], {"prompt_token_ids": ids}, [{"prompt": STORY}]):
            [same] = self.llm.generate(form, params)
            self.assertEqual(same.outputs[0].token_ids, text.outputs[0].token_ids)
        self.assertEqual(self.llm.generate([], params), [])

    def test_same_seed_same_text(self):
        params = SamplingParams(temperature=1.4, max_tokens=24, seq_seed=7)
        first, second = (self.llm.generate(STORY, params)[0].outputs[0] for _ in range(2))
        self.assertEqual(first, second)
        other = self.llm.generate(STORY, SamplingParams(temperature=1.4, max_tokens=24, seq_seed=8))[0].outputs[0]
        self.assertNotEqual(first.token_ids, other.token_ids)
        # A drawn seed is reported and repeats the run.
        drawn = self.llm.generate(STORY, SamplingParams(temperature=1.4, max_tokens=24))[0].outputs[0]
        again = self.llm.generate(STORY, SamplingParams(temperature=1.4, max_tokens=24, seq_seed=drawn.seq_seed))[0].outputs[0]
        self.assertEqual(drawn.token_ids, again.token_ids)

    def test_a_batch_answers_as_each_prompt_alone(self):
        params = [SamplingParams(temperature=t, max_tokens=12 + i, seq_seed=i, logprobs=2) for i, t in enumerate((0, 1.0, 0.7, 1.3, 0))]
        together = self.llm.generate(PROMPTS * 4, params * 4)
        self.assertEqual([a.prompt for a in together], PROMPTS * 4)
        for i, prompt in enumerate(PROMPTS):
            [alone] = self.llm.generate(prompt, params[i])
            for k in range(i, len(together), len(PROMPTS)):
                self.assertEqual(together[k].outputs, alone.outputs)

    def test_more_prompts_than_may_run(self):
        with LLM(threads=2, max_model_len=256, max_num_seqs=2, max_queue=1) as small:
            answers = small.generate([STORY] * 25, [SamplingParams(temperature=1, max_tokens=3, seq_seed=i) for i in range(25)])
            self.assertEqual(len(answers), 25)
            self.assertEqual([a.request_id for a in answers], [str(i) for i in range(25)])
        alone = self.llm.generate(STORY, SamplingParams(temperature=1, max_tokens=3, seq_seed=24))[0]
        self.assertEqual(answers[24].outputs, alone.outputs)

    def test_n_sub_sequences_differ_and_repeat(self):
        params = SamplingParams(temperature=1.3, max_tokens=16, seq_seed=5, n=4)
        [first] = self.llm.generate(STORY, params)
        [second] = self.llm.generate(STORY, params)
        self.assertEqual([o.index for o in first.outputs], [0, 1, 2, 3])
        self.assertEqual(first.outputs, second.outputs)
        self.assertGreater(len({tuple(o.token_ids) for o in first.outputs}), 1)
        self.assertEqual(first.usage.completion_tokens, sum(len(o.token_ids) for o in first.outputs))
        # Sub-sequence 0 is what n = 1 gives.
        single = self.llm.generate(STORY, SamplingParams(temperature=1.3, max_tokens=16, seq_seed=5))[0]
        self.assertEqual(single.outputs[0].token_ids, first.outputs[0].token_ids)

    def test_logprobs(self):
        [answer] = self.llm.generate(STORY, SamplingParams(temperature=0, max_tokens=4, logprobs=3, prompt_logprobs=1))
        rows = answer.outputs[0].logprobs
        self.assertEqual([r.token_id for r in rows], answer.outputs[0].token_ids)
        for row in rows:
            self.assertEqual(len(row.top), 3)
            self.assertEqual(row.top[0], (row.token_id, row.logprob))  # greedy took the likeliest
        self.assertEqual(len(answer.prompt_logprobs), len(answer.prompt_token_ids))
        self.assertEqual(answer.prompt_logprobs[0].token_id, -1)
        self.assertEqual(answer.prompt_logprobs[1].token_id, answer.prompt_token_ids[1])
        [without] = self.llm.generate(STORY, SamplingParams(temperature=0, max_tokens=4))
        self.assertIsNone(without.outputs[0].logprobs)
        self.assertIsNone(without.prompt_logprobs)

    def test_stops_say_what_ended_them(self):
        [whole] = self.llm.generate(STORY, SamplingParams(temperature=0, max_tokens=16))
        word = whole.outputs[0].text.split()[2]
        [text] = self.llm.generate(STORY, SamplingParams(temperature=0, max_tokens=16, stop=word))
        self.assertEqual((text.outputs[0].finish_reason, text.outputs[0].stop_reason), ("stop", word))
        self.assertNotIn(word, text.outputs[0].text)
        token = whole.outputs[0].token_ids[3]
        [id] = self.llm.generate(STORY, SamplingParams(temperature=0, max_tokens=16, stop_token_ids=[token]))
        self.assertEqual((id.outputs[0].finish_reason, id.outputs[0].stop_reason), ("stop", token))

    def test_every_field_of_sampling_params_acts(self):
        [plain] = self.llm.generate(STORY, SamplingParams(temperature=0, max_tokens=12))
        ids = plain.outputs[0].token_ids
        bias = self.llm.generate(STORY, SamplingParams(temperature=0, max_tokens=1, logit_bias={ids[0]: -100}))[0]
        self.assertNotEqual(bias.outputs[0].token_ids[0], ids[0])
        only = self.llm.generate(STORY, SamplingParams(max_tokens=5, allowed_token_ids=[300, 301]))[0]
        self.assertLessEqual(set(only.outputs[0].token_ids), {300, 301})
        banned = self.llm.generate(STORY, SamplingParams(temperature=0, max_tokens=2, bad_words=[ids[:2]]))[0]
        self.assertEqual(banned.outputs[0].token_ids[0], ids[0])
        self.assertNotEqual(banned.outputs[0].token_ids[1], ids[1])
        for same in ({"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1.0}):
            [answer] = self.llm.generate(STORY, SamplingParams(temperature=1, max_tokens=12, **same))
            self.assertEqual(answer.outputs[0].token_ids, ids)

    def test_answers_pickle(self):
        [answer] = self.llm.generate(STORY, SamplingParams(temperature=0, max_tokens=3, logprobs=1))
        self.assertEqual(pickle.loads(pickle.dumps(answer)), answer)

    def test_threads_share_an_engine(self):
        expected = [a.outputs for a in self.llm.generate(PROMPTS, SamplingParams(temperature=1, max_tokens=10, seq_seed=3))]
        got = {}

        def work(i):
            got[i] = self.llm.generate(PROMPTS[i], SamplingParams(temperature=1, max_tokens=10, seq_seed=3))[0].outputs

        threads = [threading.Thread(target=work, args=(i,)) for i in range(len(PROMPTS))]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual([got[i] for i in range(len(PROMPTS))], expected)

    def test_the_interpreter_lock_is_free_while_it_runs(self):
        ticks = []
        done = threading.Event()

        def tick():
            while not done.is_set():
                ticks.append(time.monotonic())
                time.sleep(0.001)

        ticker = threading.Thread(target=tick)
        ticker.start()
        start = time.monotonic()
        self.llm.generate([STORY] * 4, SamplingParams(max_tokens=60, ignore_eos=True))
        end = time.monotonic()
        done.set()
        ticker.join()
        self.assertGreater(len([t for t in ticks if start < t < end]), 3)


class Progress(WithEngine):
    def test_silent_where_there_is_no_terminal(self):
        with mock.patch("sys.stderr", new_callable=io.StringIO) as err:
            self.llm.generate(PROMPTS, SamplingParams(max_tokens=2))
        self.assertEqual(err.getvalue(), "")

    def test_a_line_of_its_own_on_a_terminal(self):
        class Terminal(io.StringIO):
            def isatty(self):
                return True

        with mock.patch("sys.stderr", new_callable=Terminal) as err, mock.patch.dict(sys.modules, {"tqdm": None, "tqdm.auto": None}):
            self.llm.generate(PROMPTS, SamplingParams(max_tokens=2))
        self.assertIn(f"{len(PROMPTS)}/{len(PROMPTS)}", err.getvalue())

    def test_a_bar_class_of_the_caller(self):
        bar = mock.Mock()
        self.llm.generate(PROMPTS, SamplingParams(max_tokens=2), use_tqdm=bar)
        bar.assert_called_once_with(total=len(PROMPTS), desc="requests")
        self.assertEqual(sum(c.args[0] for c in bar.return_value.update.call_args_list), len(PROMPTS))
        bar.return_value.close.assert_called_once()


class Chat(WithEngine):
    def test_answers_sensibly_and_apart_from_reasoning(self):
        [answer] = self.llm.chat(FRANCE, SamplingParams(temperature=0, max_tokens=200))
        self.assertIn("Paris", answer.outputs[0].text)
        self.assertEqual(answer.outputs[0].finish_reason, "stop")
        for text in (answer.outputs[0].text, answer.outputs[0].reasoning):
            self.assertNotIn("think>", text)
        [quick] = self.llm.chat(FRANCE, SamplingParams(temperature=0, max_tokens=200), thinking=False)
        self.assertEqual(quick.outputs[0].reasoning, "")
        self.assertIn("Paris", quick.outputs[0].text)

    def test_many_conversations(self):
        other = [{"role": "user", "content": "What is the capital of Portugal?"}]
        answers = self.llm.chat([FRANCE, other], SamplingParams(temperature=0, max_tokens=200), thinking=False)
        self.assertEqual(["Paris" in answers[0].outputs[0].text, "Lisbon" in answers[1].outputs[0].text], [True, True])

    def test_effort_and_tools_reach_the_prompt(self):
        params = SamplingParams(temperature=0, max_tokens=1)
        tools = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}}]
        prompts = [self.llm.chat(FRANCE, params, **more)[0].prompt_token_ids
                   for more in ({}, {"effort": 10}, {"effort": "max"}, {"thinking": False}, {"tools": tools})]
        self.assertEqual(len({tuple(p) for p in prompts}), 5)
        self.assertIn("get_weather", self.llm.tokenizer.decode(prompts[4]))

    def test_stop_strings_end_the_answer(self):
        [answer] = self.llm.chat(FRANCE, SamplingParams(temperature=0, max_tokens=200, stop=" of France"), thinking=False)
        self.assertEqual(answer.outputs[0].text, "The capital")
        self.assertEqual((answer.outputs[0].finish_reason, answer.outputs[0].stop_reason), ("stop", " of France"))

    def test_pictures_from_every_source_are_the_same_picture(self):
        pixels = Pixels(120, 140)
        data = picture_bytes(pixels)
        with tempfile.NamedTemporaryFile(suffix=".png") as file:
            file.write(data)
            file.flush()
            answers = []
            for source in (pixels, data, file.name, Path(file.name)):
                messages = [{"role": "user", "content": [{"type": "image", "image": source}, {"type": "text", "text": "What do you see?"}]}]
                answers += self.llm.chat(messages, SamplingParams(temperature=0, max_tokens=16), thinking=False)
        self.assertEqual(len({a.outputs[0].text for a in answers}), 1)
        self.assertIn("red square", answers[0].outputs[0].text)
        self.assertGreater(len(answers[0].prompt_token_ids), 4)
        for name, value in (("dtype", "float32"), ("shape", (120, 140))):
            wrong = Pixels(120, 140)
            setattr(wrong, name, value)
            with self.assertRaisesRegex(ValueError, "expected uint8"):
                picture_bytes(wrong)

    def test_a_pil_image_is_saved_as_png(self):
        class Image:  # the part of PIL's interface that is used
            mode, info = "P", {"transparency": 0}

            def convert(self, mode):
                Image.converted = mode
                return self

            def save(self, file, format):
                assert format == "PNG"
                file.write(b"the file")
        self.assertEqual(picture_bytes(Image()), b"the file")
        self.assertEqual(Image.converted, "RGBA")
        Image.info = {}
        picture_bytes(Image())
        self.assertEqual(Image.converted, "RGB")
        self.assertEqual(picture_bytes(bytearray(b"ab")), b"ab")
        with self.assertRaises(FileNotFoundError):
            picture_bytes("/no/such/file.png")

    def test_response_formats_and_strict_tools(self):
        verdict = {"type": "object", "properties": {"verdict": {"enum": ["yes", "no"]}}, "required": ["verdict"], "additionalProperties": False}
        question = [{"role": "user", "content": "Is water wet? Answer as json."}]

        def format_of(schema, strict=True):
            return {"type": "json_schema", "json_schema": {"name": "v", "schema": schema, "strict": strict}}
        [answer] = self.llm.chat(question, SamplingParams(seq_seed=1, max_tokens=60), thinking=False, response_format=format_of(verdict))
        self.assertIn(json.loads(answer.outputs[0].text), [{"verdict": "yes"}, {"verdict": "no"}])
        self.assertEqual(answer.constraint_notes, [])
        streamed = "".join(d.text for d in self.llm.stream_chat(question, SamplingParams(seq_seed=1, max_tokens=60), thinking=False,
                                                                response_format=format_of(verdict)))
        self.assertEqual(streamed, answer.outputs[0].text)
        loose = {"type": "object", "properties": {"a": {"type": "string", "format": "no-such-format"}}}
        with self.assertRaisesRegex(ValueError, "/properties/a"):
            self.llm.chat(question, response_format=format_of(loose))
        [answer] = self.llm.chat(question, SamplingParams(max_tokens=40), thinking=False, response_format=format_of(loose, False))
        self.assertIn("/properties/a", answer.constraint_notes[0])
        deltas = list(self.llm.stream_chat(question, SamplingParams(max_tokens=40), thinking=False, response_format=format_of(loose, False)))
        self.assertEqual(deltas[0].constraint_notes, answer.constraint_notes)
        self.assertFalse(any(d.constraint_notes for d in deltas[1:]))
        [answer] = self.llm.chat(question, SamplingParams(max_tokens=9, so_args={"regex": "[0-9]{4}"}), thinking=False)
        self.assertRegex(answer.outputs[0].text, "^[0-9]{4}$")
        with self.assertRaisesRegex(ValueError, "one constraint"):
            self.llm.chat(question, SamplingParams(so_args={"regex": "a"}), response_format=format_of(verdict))
        tool = {"type": "function", "function": {"name": "judge", "strict": True, "parameters": verdict}}
        for thinking in (False, True):
            [answer] = self.llm.chat(question, SamplingParams(seq_seed=2, max_tokens=400), thinking=thinking, tools=[tool], tool_choice="required")
            if answer.outputs[0].finish_reason != "length":
                self.assertIn(json.loads(answer.outputs[0].tool_calls[0].arguments), [{"verdict": "yes"}, {"verdict": "no"}])

    def test_wrong_conversations(self):
        for messages, error in (([], ValueError), ([{"role": "nobody", "content": "x"}], ValueError), ([{"content": "x"}], ValueError)):
            with self.assertRaises(error):
                self.llm.chat(messages)
        picture = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}]
        with self.assertRaisesRegex(ValueError, "unsupported media type"):
            self.llm.chat(picture)
        picture[0]["content"][0]["image_url"]["url"] = "https://example.com/cat.png"
        with self.assertRaisesRegex(NotImplementedError, "data: URL"):
            self.llm.chat(picture)
        with self.assertRaisesRegex(TypeError, "a picture is int"):
            self.llm.chat([{"role": "user", "content": [{"type": "image", "image": 7}]}])
        with self.assertRaisesRegex(ValueError, "effort"):
            self.llm.chat(FRANCE, effort=101)
        with self.assertRaises(ValueError):
            self.llm.chat(FRANCE, effort="enormous")


class CommandLine(WithEngine):
    def test_generate_equals_the_program(self):
        for extra, params in ((["--temperature", "0"], {"temperature": 0}), (["--temperature", "1.2", "--seed", "11"], {"temperature": 1.2, "seq_seed": 11})):
            theirs = program("generate", "--json", "--raw", "--max-tokens", "20", "--logprobs", "1", *extra, STORY)
            [ours] = self.llm.generate(STORY, SamplingParams(max_tokens=20, logprobs=1, **params))
            self.assertEqual(ours.outputs[0].token_ids, theirs["token_ids"])
            self.assertEqual(ours.outputs[0].text, theirs["text"])
            self.assertEqual([r.logprob for r in ours.outputs[0].logprobs], [r["logprob"] for r in theirs["logprobs"]])

    def test_chat_equals_the_program(self):
        for thinking in (0, 1):
            theirs = program("generate", "--json", "--temperature", "0", "--thinking", str(thinking), FRANCE[0]["content"])
            [ours] = self.llm.chat(FRANCE, SamplingParams(temperature=0), thinking=bool(thinking))
            output = ours.outputs[0]
            self.assertEqual((output.text, output.reasoning, output.token_ids, output.finish_reason),
                             (theirs["text"], theirs["reasoning"], theirs["token_ids"], theirs["finish_reason"]))


class Stream(WithEngine):
    def test_joined_deltas_are_the_whole(self):
        params = SamplingParams(temperature=1, max_tokens=30, seq_seed=2, n=2)
        [whole] = self.llm.generate(STORY, params)
        deltas = list(self.llm.stream(STORY, params))
        for output in whole.outputs:
            mine = [d for d in deltas if d.index == output.index]
            self.assertEqual("".join(d.text for d in mine), output.text)
            self.assertEqual([i for d in mine for i in d.token_ids], output.token_ids)
            self.assertEqual([d.finish_reason for d in mine[:-1]], [None] * (len(mine) - 1))
            self.assertEqual(mine[-1].finish_reason, output.finish_reason)
        self.assertEqual([d.last for d in deltas], [False] * (len(deltas) - 1) + [True])
        self.assertEqual(deltas[-1].usage, whole.usage)

    def test_chat_deltas_are_the_whole_answer(self):
        params = SamplingParams(temperature=0, max_tokens=200)
        [whole] = self.llm.chat(FRANCE, params)
        deltas = list(self.llm.stream_chat(FRANCE, params))
        self.assertEqual("".join(d.text for d in deltas), whole.outputs[0].text)
        self.assertEqual("".join(d.reasoning for d in deltas), whole.outputs[0].reasoning)

    def test_abort_and_close(self):
        stream = self.llm.stream(STORY, SamplingParams(max_tokens=1500, ignore_eos=True))
        next(stream)
        stream.abort()
        rest = list(stream)
        self.assertEqual(rest[-1].finish_reason, "abort")
        self.assertLess(rest[-1].usage.completion_tokens, 1500)
        with self.llm.stream(STORY, SamplingParams(max_tokens=1500, ignore_eos=True)) as stream:
            next(stream)
        self.assertEqual(list(stream), [])
        stream = self.llm.stream(STORY, SamplingParams(max_tokens=1500, ignore_eos=True))
        next(stream)
        del stream  # tearDown sees the blocks come back

    def test_wrong_parameters_are_refused_at_once(self):
        with self.assertRaisesRegex(ValueError, "temperature"):
            self.llm.stream(STORY, SamplingParams(temperature=9))


class Async(WithEngine):
    def test_many_streams_at_once_equal_generate(self):
        params = [SamplingParams(temperature=1, max_tokens=20, seq_seed=i, n=1 + i % 2) for i in range(len(PROMPTS))]
        whole = self.llm.generate(PROMPTS, params)

        async def read(llm, i):
            texts = {}
            async for delta in llm.stream(PROMPTS[i], params[i]):
                texts[delta.index] = texts.get(delta.index, "") + delta.text
            return [texts[k] for k in sorted(texts)]

        async def main():
            async with AsyncLLM(threads=2, max_model_len=2048) as llm:
                streamed = await asyncio.gather(*(read(llm, i) for i in range(len(PROMPTS))))
                awaited = await asyncio.gather(*(llm.generate(PROMPTS[i], params[i]) for i in range(len(PROMPTS))))
                chat = await llm.chat(FRANCE, SamplingParams(temperature=0, max_tokens=200, seq_seed=1))
                return streamed, awaited, chat

        streamed, awaited, chat = asyncio.run(main())
        self.assertEqual(streamed, [[o.text for o in a.outputs] for a in whole])
        self.assertEqual([a.outputs for a in awaited], [a.outputs for a in whole])
        [same] = self.llm.chat(FRANCE, SamplingParams(temperature=0, max_tokens=200, seq_seed=1))
        self.assertEqual(chat.outputs, same.outputs)

    def test_cancelling_aborts_and_a_second_loop_works(self):
        llm = AsyncLLM(threads=2, max_model_len=2048)
        endless = SamplingParams(max_tokens=1500, ignore_eos=True)

        async def cancelled():
            task = asyncio.create_task(llm.generate(STORY, endless))
            await asyncio.sleep(0.3)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task

        async def short():
            return await llm.generate(STORY, SamplingParams(temperature=0, max_tokens=3))

        async def left():
            async with llm.stream(STORY, endless) as stream:
                async for _ in stream:
                    break
            stream = llm.stream(STORY, endless)
            stream.abort()
            return [d.finish_reason async for d in stream][-1]

        asyncio.run(cancelled())
        self.assertEqual(len(asyncio.run(short()).outputs[0].token_ids), 3)
        self.assertEqual(asyncio.run(left()), "abort")
        llm._engine.wait_idle()
        stats = llm.stats()
        self.assertEqual(stats["free_blocks"], stats["total_blocks"])
        llm.close()


class Interrupt(unittest.TestCase):
    CODE = """
import signal, sys, time
from deepinfer import LLM, SamplingParams
llm = LLM(threads=2, max_model_len=4096)
endless = SamplingParams(max_tokens=4000, ignore_eos=True)
try:
    {call}
except KeyboardInterrupt:
    llm._engine.wait_idle()
    s = llm.stats()
    assert s["free_blocks"] == s["total_blocks"], s
    [a] = llm.generate("Hello", SamplingParams(temperature=0, max_tokens=2))  # still usable
    print("interrupted", len(a.outputs[0].token_ids), flush=True)
"""

    def interrupted(self, call):
        child = subprocess.Popen([sys.executable, "-c", self.CODE.format(call=call)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.assertEqual(child.stdout.readline(), "go\n")
        time.sleep(0.5)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=60)
        self.assertEqual((out, child.returncode, err), ("interrupted 2\n", 0, ""))

    def test_ctrl_c_during_generate(self):
        self.interrupted("print('go', flush=True); llm.generate(['Once upon a time'] * 3, endless)")

    def test_ctrl_c_during_a_stream(self):
        self.interrupted("print('go', flush=True); [None for _ in llm.stream('Once upon a time', endless)]")

    def test_leaving_with_work_in_flight_ends_the_process(self):
        code = self.CODE.format(call="s = llm.stream('Once upon a time', endless); next(s); sys.exit(5)")
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stderr), (5, ""))


class Refusals(WithEngine):
    def test_bad_parameters_name_the_field(self):
        cases = {"temperature": 3, "top_p": 0, "top_k": -5, "min_p": 2, "n": 0, "max_tokens": 0, "logprobs": 99, "seq_seed": -1, "logprob_mode": "cooked",
                 "stop": 7, "logit_bias": {1: 1000}, "allowed_token_ids": [], "stop_token_ids": ["x"], "frequency_penalty": 9, "repetition_penalty": 0}
        for name, value in cases.items():
            with self.subTest(name), self.assertRaisesRegex(ValueError, name):
                self.llm.generate(STORY, SamplingParams(**{name: value}))
        for value in (float("nan"), float("inf")):
            with self.assertRaisesRegex(ValueError, "temperature"):
                self.llm.generate(STORY, SamplingParams(temperature=value))
        with self.assertRaises(TypeError):
            SamplingParams(temprature=1)
        for bad in ({"regex": "("}, {"json": {"type": "objekt"}}, {"xml": "a"}, {"regex": "a", "ebnf": "root ::= \"a\""}):
            with self.assertRaisesRegex(ValueError, "so_args"):
                self.llm.generate(STORY, SamplingParams(so_args=bad))

    def test_constraints(self):
        schema = {"type": "object", "properties": {"z": {"type": "integer", "minimum": 0, "maximum": 9}, "a": {"enum": ["x", "y"]}}, "required": ["z", "a"], "additionalProperties": False}
        cases = (({"regex": "[0-9]{3}"}, r"^[0-9]{3}$"), ({"choice": ["yes", "no"]}, r"^(yes|no)$"), ({"json": schema, "any_whitespace": False}, r'^\{"z": [0-9], "a": "[xy]"\}$'))
        for so_args, pattern in cases:
            with self.subTest(pattern):
                out = self.llm.generate(STORY, SamplingParams(so_args=so_args, max_tokens=40))[0]
                self.assertRegex(out.outputs[0].text, pattern)
                self.assertEqual(out.outputs[0].finish_reason, "stop")

    def test_bad_prompts(self):
        with self.assertRaisesRegex(ValueError, r"prompts\[1\]"):
            self.llm.generate([STORY, [0, 10**6], STORY], SamplingParams(max_tokens=2))
        for prompt in ([-1], [2**40], {"prompt": "a", "prompt_token_ids": [1]}, {"text": "a"}):
            with self.assertRaises(ValueError):
                self.llm.generate(prompt if isinstance(prompt, dict) else [prompt])
        for prompt in ([["a"]], [[1.5]], [[True]]):
            with self.assertRaises(TypeError):
                self.llm.generate(prompt)
        with self.assertRaisesRegex(ValueError, "3000.*2048|2048.*3000"):
            self.llm.generate(STORY, SamplingParams(max_tokens=3000))
        with self.assertRaisesRegex(ValueError, "sampling_params"):
            self.llm.generate(PROMPTS, [SamplingParams()] * 2)

    def test_engine_options(self):
        with self.assertRaisesRegex(NotImplementedError, "ep is 2"):
            LLM(ep=2)
        with self.assertRaisesRegex(ValueError, "quantum"):
            LLM(backend="quantum")
        with self.assertRaisesRegex(FileNotFoundError, "/no/such/model"):
            LLM("/no/such/model")
        with self.assertRaisesRegex(TypeError, "max_num_seq.*max_num_seqs"):
            LLM(max_num_seq=3)
        with self.assertRaisesRegex(ValueError, "max_num_seqs is 'many', expected an int"):
            LLM(max_num_seqs="many")
        with self.assertRaisesRegex(ValueError, "prefix_caching is 1, expected True or False"):
            LLM(prefix_caching=1)
        with self.assertRaisesRegex(ValueError, "kv_cache_bytes"):
            LLM(kv_cache_bytes="2 bytes")
        with LLM(kv_cache_bytes="4MiB", max_model_len=256) as llm:
            self.assertLessEqual(llm.config["kv_cache_bytes"], 4 << 20)

    def test_the_environment_counts_and_typos_are_reported(self):
        with mock.patch.dict(os.environ, {"DEEPINFER_HF_MODEL_DIR": "/no/such/folder"}), self.assertRaisesRegex(FileNotFoundError, "/no/such/folder"):
            LLM()
        with mock.patch.dict(os.environ, {"DEEPINFER_TREADS": "2"}), self.assertWarnsRegex(UserWarning, "DEEPINFER_TREADS"):
            LLM(max_model_len=256).close()

    def test_switches_of_speculation_are_fields_and_variables(self):
        for field, variable, value, text in (
            ("nextn", "DEEPINFER_USE_NEXTN_DECODE", 2, "2"),
            ("varlen", "DEEPINFER_ENABLE_MTP_VARLEN", True, "1"),
            ("spec_sampling", "DEEPINFER_SPEC_SAMPLING", "coupled", "coupled"),
            ("truncation", "DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE", "compact", "compact"),
        ):
            with self.subTest(field=field), LLM(max_model_len=256, **{field: value}) as by_field, \
                    mock.patch.dict(os.environ, {variable: text}), LLM(max_model_len=256) as by_variable:
                self.assertEqual(by_field.config[field], value)
                self.assertEqual(by_variable.config[field], value)
        for field, variable, wrong, said in (
            ("nextn", "DEEPINFER_USE_NEXTN_DECODE", 6, "6.*5"),
            ("spec_sampling", "DEEPINFER_SPEC_SAMPLING", "sampled", "sampled.*coupled"),
            ("truncation", "DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE", "some", "some.*compact"),
            ("keep_tokens", "DEEPINFER_YOCO_PREFILL_KEEP_TOKENS", 139, "139"),
        ):
            with self.subTest(field=field, wrong=wrong):
                with self.assertRaisesRegex(ValueError, said):
                    LLM(**{field: wrong})
                with mock.patch.dict(os.environ, {variable: str(wrong)}), self.assertRaisesRegex(ValueError, said):
                    LLM()

    def test_a_closed_engine_says_so(self):
        llm = LLM(max_model_len=256)
        stream = llm.stream(STORY, SamplingParams(max_tokens=200, ignore_eos=True))
        next(stream)
        llm.close()
        self.assertEqual([d.finish_reason for d in stream][-1:], ["abort"])
        llm.close()
        with self.assertRaisesRegex(RuntimeError, "closed"):
            llm.generate(STORY)


class Package(unittest.TestCase):
    def test_the_demonstration_checkpoint_is_inside(self):
        root = Path(deepinfer.__file__).parent
        self.assertTrue((root / "models" / "demo" / "config.json").is_file())
        with LLM(max_model_len=256) as llm:
            self.assertEqual(Path(llm.config["model_dir"]), root / "models" / "demo")

    def test_stubs_name_what_the_module_has(self):
        root = Path(deepinfer.__file__).parent
        self.assertTrue((root / "py.typed").is_file())
        stub = (root / "_deepinfer.pyi").read_text()
        named = set(re.findall(r"^(?:class |def )?(\w+)(?=[:(])", stub, re.M)) - {"_Letter"}
        real = {n for n in dir(_deepinfer) if not n.startswith("__")} | {"__version__"}
        self.assertEqual(named & real, real)
        for name in ("Engine", "Mailbox", "Tokenizer", "StreamDecoder", "StreamParser", "ChatPrompt"):
            block = re.search(rf"^class {name}:.*?(?=^\S|\Z)", stub, re.M | re.S).group()
            members = set(re.findall(r"def (\w+)", block))
            missing = {m for m in vars(getattr(_deepinfer, name)) if not m.startswith("_")} ^ {m for m in members if not m.startswith("_")}
            self.assertEqual(missing, set(), name)

    def test_options_are_those_of_the_engine(self):
        with LLM(max_model_len=256) as llm:
            self.assertEqual(set(_deepinfer.ENGINE_OPTIONS), set(llm.config) - {"model_dir"})

    def test_example_runs_and_refuses_by_name(self):
        folder = os.environ.get("TEST_EXAMPLES", "")
        script = Path(folder) / "offline_inference.py"
        if not script.is_file():
            self.skipTest("no examples folder")

        def run(*args):
            return subprocess.run([sys.executable, str(script), *args], capture_output=True, text=True, timeout=300)

        done = run("--thinking", "0", "What is the capital of France?")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("Paris", done.stdout)
        for args in (["--ep", "2"], ["--dp", "2"], ["--cp", "2"], ["--prompt_mode", "image"]):
            done = run(*args)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn(args[0].strip("-"), done.stderr)
        done = run("--prompt_mode", "image", "--image", str(Path(folder).parent / "tests/data/pictures/circle.png"), "--thinking", "0")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("circle", done.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
