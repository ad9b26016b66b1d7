"""`deepinfer bench`: records have the stated fields and agree with themselves; other names are refused. Times are never judged."""
import json
import os
import subprocess
import tempfile
import unittest
from pathlib import Path

PROGRAM = os.environ.get("TEST_PROGRAM", "")
DEMO = Path(__file__).resolve().parent.parent.parent / "models" / "demo"
ALWAYS = ("bench", "time", "commit", "host", "cpu", "isa", "threads", "backend", "device", "model", "settings", "note", "batch", "preemptions", "peak_rss_bytes")


class Bench(unittest.TestCase):
    def setUp(self):
        if not os.access(PROGRAM, os.X_OK):
            self.skipTest(f"no program at '{PROGRAM}'")

    def bench(self, *args, code=0):
        done = subprocess.run([PROGRAM, "bench", *args], capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, code, done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines()] if code == 0 else done.stderr

    def test_closed_loops(self):
        for name in ("throughput", "latency"):
            records = self.bench(name, "--batch-sizes", "1,3", "--input-len", "20", "--output-len", "5", "--repeat", "2", "--warmup", "0", "--note", "smoke")
            self.assertEqual([r["batch"] for r in records], [1, 3])
            for r in records:
                self.assertEqual([k for k in ALWAYS if k not in r], [])
                self.assertEqual((r["bench"], r["note"], r["settings"]["input_len"]), (name, "smoke", 20))
                count = r["num_prompts"]
                self.assertEqual(count, r["batch"] * (4 if name == "throughput" else 1))
                self.assertEqual((r["prompt_tokens"], r["cached_tokens"], r["output_tokens"]), (count * 20, 0, count * 5))
                for figure in ("output_tokens_per_s", "elapsed"):
                    unit = "_s" if figure == "elapsed" else ""
                    self.assertLessEqual(r[f"{figure}_min{unit}"], r[f"{figure}{unit}"])
                    self.assertLessEqual(r[f"{figure}{unit}"], r[f"{figure}_max{unit}"])
                for figure in ("ttft", "itl", "e2e"):
                    self.assertLessEqual(r[f"{figure}_p50_ms"], r[f"{figure}_p99_ms"])

    def test_prefill_counts_what_the_cache_did_not_give(self):
        [whole] = self.bench("prefill", "--batch-sizes", "1", "--context", "300", "--repeat", "1", "--warmup", "0")
        self.assertEqual((whole["prompt_tokens"], whole["cached_tokens"], whole["non_cached"]), (300, 0, 300))
        # Long enough that a hit is worth its replay of the windows (8 layers of 128 tokens).
        [rest] = self.bench("prefill", "--batch-sizes", "1", "--context", "1600", "--non-cached", "40", "--repeat", "1", "--warmup", "0")
        self.assertEqual((rest["prompt_tokens"], rest["non_cached"]), (1600, 40))
        self.assertGreater(rest["cached_tokens"], 0)
        self.assertLessEqual(rest["cached_tokens"], 1560)

    def test_decode_windows(self):
        with tempfile.TemporaryDirectory() as folder:
            kept = Path(folder) / "kept.jsonl"
            [r] = self.bench("decode", "--batch-sizes", "2", "--context", "30", "--warmup-steps", "2", "--settle-s", "0", "--window-steps", "10", "--window-s", "0",
                             "--windows", "3", "--nextn", "0", "--tag", "t", "--append", str(kept))
            self.assertEqual([json.loads(line) for line in kept.read_text().splitlines()], [r])
            self.assertEqual((r["decode_num_requests"], r["windows_measured"], r["context"], r["nextn"], r["yoco_mode"]), (2, 3, 30, 0, "exact"))
            self.assertGreaterEqual(r["window_steps"], 30)
            self.assertGreater(r["context_end"], r["context_start"])
            self.assertAlmostEqual(r["tps_full"], r["avg_SPS"] * 2, delta=0.01 * r["tps_full"])
            # A window's edge may cut a step; over a window the tokens are those of its steps.
            self.assertAlmostEqual(r["window_tokens"], 2 * r["window_steps"], delta=2 * 2 * 3)
            done = self.compare(kept, kept)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("tps_measured", done.stdout)

    def test_refusals(self):
        self.assertIn("nextn is 0", self.bench("spec", "--nextn", "0", code=2))
        self.assertIn("nowhere", self.bench("serve", "--url", "nowhere", code=2))
        self.assertIn("--sizes", self.bench("ve", "--sizes", "9000", code=2))
        self.assertIn("warmth", self.bench("warmth", code=2))
        self.assertIn("--batch-sizes", self.bench("decode", "--batch-sizes", "0", code=2))
        self.assertIn("--context", self.bench("decode", "--batch-sizes", "1", "--context", "64", "--max-model-len", "64", code=2))

        self.assertIn("conv2d", self.bench("ops", "--ops", "conv2d", code=2))
        self.assertIn("surplus", self.bench("decode", "surplus", code=2))
        self.assertIn("OLD", self.bench("compare", "one.jsonl", code=2))

    def test_ops_have_records(self):
        with tempfile.TemporaryDirectory() as folder:
            kept = Path(folder) / "ops.jsonl"
            records = self.bench("ops", "--model", str(DEMO), "--ops", "linear,rms_norm", "--rows", "1,3", "--windows", "2", "--window-ms", "0.05", "--append", str(kept))
            self.assertEqual([json.loads(line) for line in kept.read_text().splitlines()], records)
            fields = ("bench", "time", "commit", "host", "cpu", "isa", "threads", "backend", "device", "model", "settings", "note", "op", "shape", "rows", "dtype",
                      "min_us", "med_us", "p90_us", "bytes", "flops", "roof", "roof_value", "share")
            for r in records:
                self.assertEqual([k for k in fields if k not in r], [])
                self.assertIn(r["roof"], ("read", "dot"))
            self.assertEqual({r["op"] for r in records}, {"linear", "rms_norm"})
            self.assertEqual({r["rows"] for r in records}, {1, 3})
            self.assertEqual({r["dtype"] for r in records if r["op"] == "linear"}, {"fp4", "fp8", "bf16"})

    def compare(self, old, new, *args):
        return subprocess.run([PROGRAM, "bench", "compare", str(old), str(new), *args], capture_output=True, text=True)

    def test_compare_flags_what_it_must(self):
        def record(**more):
            return {"bench": "decode", "host": "h", "model": "m", "batch": 1, "settings": {"context": 8, "repeat": 3}, **more}

        with tempfile.TemporaryDirectory() as folder:
            def judge(old, new, *args):
                paths = [Path(folder) / name for name in ("old.jsonl", "new.jsonl")]
                for path, records in zip(paths, (old, new)):
                    path.write_text("".join(json.dumps(r) + "\n" for r in records))
                return self.compare(*paths, *args)

            slower = judge([record(tps_measured=100, itl_p50_ms=10)], [record(tps_measured=80, itl_p50_ms=9)])
            self.assertEqual(slower.returncode, 1)
            [flagged] = [line for line in slower.stdout.splitlines() if line.startswith("WORSE")]
            self.assertIn("tps_measured", flagged)
            self.assertEqual(judge([record(tps_measured=100)], [record(tps_measured=80)], "--limit", "0.25").returncode, 0)
            self.assertEqual(judge([record(med_us=10, op="linear")], [record(med_us=12, op="linear")]).returncode, 1)  # time: more is worse
            # Several of a kind: their median counts; how often was measured does not matter.
            self.assertEqual(judge([record(tps_measured=v) for v in (90, 100, 110)], [record(tps_measured=99, settings={"context": 8, "repeat": 9})]).returncode, 0)
            for other in ({"host": "b"}, {"batch": 2}, {"isa": "avx2"}, {"settings": {"context": 9}}):
                apart = judge([record(tps_measured=1)], [record(tps_measured=9, **other)])
                self.assertEqual(apart.returncode, 3, other)
                self.assertIn("nothing to compare", apart.stderr)
            mixed = judge([record(tag="t", tps_measured=1), record(tag="t", nextn=3, tps_measured=1)], [record(tps_measured=1)])
            self.assertEqual(mixed.returncode, 3)
            self.assertIn("nextn", mixed.stderr)
            (Path(folder) / "old.jsonl").write_text("no record\n")
            self.assertIn("old.jsonl:1", self.compare(Path(folder) / "old.jsonl", Path(folder) / "new.jsonl").stderr)
            self.assertEqual(self.compare("no/such/file", "no/such/file").returncode, 3)
            self.assertEqual(judge([record(tps_measured=1)], [record(tps_measured=1)], "--metric", "beauty").returncode, 2)


if __name__ == "__main__":
    unittest.main(verbosity=2)
