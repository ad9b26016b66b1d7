"""deepinfer.Tokenizer and deepinfer.recipe: the same answers as the library's JSON Lines doors, in Python values."""
import json
import unittest
from pathlib import Path

import deepinfer
from deepinfer import StreamDecoder, Tokenizer, recipe

MODEL = str(Path(deepinfer.__file__).parent / "models" / "demo")
MESSAGES = [{"role": "user", "content": "Hello"}]


class WithTokenizer(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.tokenizer = Tokenizer(MODEL)


class TokenizerTest(WithTokenizer):
    def test_round_trip(self):
        for text in ("", "Hello, world!", "Grüße, 世界 🎉", "a\n\n  b\t", "é" * 300):
            ids = self.tokenizer.encode(text)
            self.assertEqual(self.tokenizer.decode(ids), text)
            self.assertEqual(b"".join(self.tokenizer.token_bytes(i) for i in ids), text.encode())

    def test_special_tokens_parse_or_stay_text(self):
        bos = self.tokenizer.token_text(self.tokenizer.bos_id)
        self.assertEqual(self.tokenizer.encode(bos), [self.tokenizer.bos_id])
        self.assertEqual(self.tokenizer.id_of(bos), self.tokenizer.bos_id)
        self.assertGreater(len(self.tokenizer.encode(bos, special="plain")), 1)
        self.assertTrue(self.tokenizer.is_special(self.tokenizer.eos_id))

    def test_stream_decoder_holds_back_half_characters(self):
        ids = self.tokenizer.encode("x 🎉 y")
        decoder = StreamDecoder(self.tokenizer)
        pieces = [decoder.push(i) for i in ids] + [decoder.finish()]
        self.assertEqual("".join(pieces), "x 🎉 y")
        self.assertNotIn("\ufffd", "".join(pieces))
        self.assertEqual(decoder.push(ids), "x 🎉 y")

    def test_refusals(self):
        self.assertEqual(len(self.tokenizer), self.tokenizer.vocab_size)
        with self.assertRaisesRegex(ValueError, "vocab"):
            self.tokenizer.decode([10**7])
        with self.assertRaisesRegex(ValueError, "special"):
            self.tokenizer.encode("x", special="maybe")
        with self.assertRaises(ValueError):
            self.tokenizer.token_bytes(-1)
        with self.assertRaises(FileNotFoundError):
            Tokenizer("/no/such/tokenizer")


class RecipeTest(WithTokenizer):
    def test_encode_is_the_line_function(self):
        line = {"id": 3, "op": "encode", "protocol": "conversation", "body": {"messages": MESSAGES}}
        door = json.loads(recipe.encode_line(self.tokenizer, json.dumps(line)))
        self.assertEqual(door.pop("id"), 3)
        answer = recipe.encode(self.tokenizer, {"messages": MESSAGES})
        self.assertEqual(answer, door)
        self.assertIn("Hello", answer["text"])
        self.assertEqual(self.tokenizer.decode(answer["ids"]), answer["text"])

    def test_encode_of_a_protocol_gives_what_the_parser_needs(self):
        body = {"model": "deepseek-flash", "messages": MESSAGES, "temperature": 0.5, "stop": ["END"]}
        answer = recipe.encode(self.tokenizer, body, protocol="chat_completions")
        self.assertEqual(answer["sampling"]["temperature"], 0.5)
        parser = recipe.StreamParser(**answer["parsing"])
        self.assertEqual(parser.push("thoughts</think>The answer END more"), [("reasoning", "thoughts"), ("content", "The answer ")])
        self.assertTrue(parser.finished)
        self.assertEqual((parser.finish_reason, parser.stop_sequence), ("stop", "END"))
        self.assertEqual(recipe.encode(self.tokenizer, json.dumps(body), protocol="chat_completions"), answer)

    def test_refused_bodies_raise(self):
        with self.assertRaises(recipe.RecipeError) as caught:
            recipe.encode(self.tokenizer, {"model": "deepseek-flash", "messages": []}, protocol="chat_completions")
        self.assertEqual(caught.exception.status, 400)
        self.assertTrue(str(caught.exception))
        with self.assertRaisesRegex(recipe.RecipeError, "protocol"):
            recipe.encode(self.tokenizer, {}, protocol="smoke_signals")

    def test_parse_in_any_grouping(self):
        text = "I think 🎉.</think>Paris."
        whole = recipe.parse(text, start="reasoning")
        self.assertEqual((whole["reasoning"], whole["content"], whole["finish_reason"]), ("I think 🎉.", "Paris.", "stop"))
        forms = ([*text], text.encode(), [self.tokenizer.encode(text)])
        for form in forms:
            other = recipe.parse(form, start="reasoning", tokenizer=self.tokenizer)
            self.assertEqual((other["reasoning"], other["content"]), (whole["reasoning"], whole["content"]))
        parser = recipe.StreamParser("reasoning")
        events = [e for b in text.encode() for e in parser.push(bytes([b]))] + parser.finish()
        self.assertEqual("".join(e[1] for e in events if e[0] == "reasoning"), whole["reasoning"])
        self.assertEqual("".join(e[1] for e in events if e[0] == "content"), whole["content"])

    def test_parse_refusals(self):
        with self.assertRaisesRegex(ValueError, "start"):
            recipe.parse("x", start="middle")
        with self.assertRaisesRegex(ValueError, "start"):
            recipe.StreamParser("middle")
        with self.assertRaisesRegex(ValueError, "tokenizer"):
            recipe.parse([[1, 2]])
        with self.assertRaises(ValueError):
            recipe.StreamParser().finish("whenever")

    def test_respond(self):
        body = {"model": "deepseek-flash", "messages": MESSAGES, "thinking": {"type": "disabled"}}
        ids = self.tokenizer.encode("Good morning.")
        answer = recipe.respond(self.tokenizer, body, ids, response_id="r1", usage={"prompt_tokens": 5, "cached_tokens": 0})
        self.assertEqual(answer["response"]["choices"][0]["message"]["content"], "Good morning.")
        self.assertEqual(answer["response"]["usage"]["completion_tokens"], len(ids))
        self.assertTrue(answer["events"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
