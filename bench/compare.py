#!/usr/bin/env python3
"""Compares two files of measurement records and flags changes beyond a limit.

usage: compare.py OLD.jsonl NEW.jsonl [--limit 0.15] [--metric NAME]…      exit 1 if something became worse than the limit
       compare.py --self-test

Records are compared when bench, host, model, backend, isa, threads, batch and settings agree; where one file has several of a kind, their
median counts. Records of one tag that differ in model, layout, context or accounting are refused: such a series must not be drawn as one.
"""
import argparse
import json
import statistics
import sys

# metric → +1: more is better, -1: less is better
METRICS = {
    "output_tokens_per_s": +1, "total_tokens_per_s": +1, "requests_per_s": +1, "prefill_tokens_per_s": +1, "avg_SPS": +1, "tps_measured": +1,
    "ttft_p50_ms": -1, "ttft_p99_ms": -1, "itl_p50_ms": -1, "itl_p99_ms": -1, "e2e_p50_ms": -1, "prefill_latency_p50_ms": -1,
    "med_us": -1,
}
DEFAULT = ["output_tokens_per_s", "prefill_tokens_per_s", "tps_measured", "ttft_p50_ms", "itl_p50_ms", "med_us"]
# What one tag may not mix.
TAG_FIELDS = ["bench", "model", "model_config_sha256", "backend", "ep_size", "dp", "cp", "context", "nextn", "varlen", "yoco_mode", "batch_invariant",
              "extra_experts_asked"]
# Settings that do not change what is measured, only how often.
COUNTING = {"repeat", "warmup", "windows", "warmup_steps", "settle_s", "engine"}


def read(path):
    records = []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except json.JSONDecodeError as e:
                raise SystemExit(f"{path}:{number}: no JSON: {e}") from None
            if "bench" not in record or "host" not in record:
                raise SystemExit(f"{path}:{number}: no measurement record (bench and host are missing)")
            records.append(record)
    return records


def kind(record):
    settings = {k: v for k, v in record.get("settings", {}).items() if k not in COUNTING}
    keys = ("bench", "host", "cpu", "model", "backend", "isa", "threads", "batch", "batch_invariant", "op", "shape", "rows", "dtype")
    return tuple(str(record.get(k)) for k in keys) + (json.dumps(settings, sort_keys=True),)


def check_tags(records):
    seen = {}
    for record in records:
        tag = record.get("tag")
        if not tag:
            continue
        first = seen.setdefault(tag, record)
        for field in TAG_FIELDS:
            if first.get(field) != record.get(field):
                raise SystemExit(f"tag '{tag}' mixes {field} {first.get(field)!r} and {record.get(field)!r}; give the series different tags")


def compare(old, new, metrics, limit):
    """Rows (kind, metric, old, new, change as better > 0, flagged)."""
    rows = []
    groups = {}
    for side, records in enumerate((old, new)):
        for record in records:
            groups.setdefault(kind(record), ([], []))[side].append(record)
    for key, (before, after) in groups.items():
        for metric in metrics:
            a, b = ([r[metric] for r in side if isinstance(r.get(metric), (int, float)) and r[metric] > 0] for side in (before, after))
            if not a or not b:
                continue
            x, y = statistics.median(a), statistics.median(b)
            change = (y / x if METRICS[metric] > 0 else x / y) - 1
            rows.append((key, metric, x, y, change, change < -limit))
    return rows


def self_test():
    def record(**more):
        return {"bench": "decode", "host": "h", "model": "m", "batch": 1, "settings": {"context": 8, "repeat": 3}, **more}

    rows = compare([record(tps_measured=100, itl_p50_ms=10)], [record(tps_measured=80, itl_p50_ms=9)], ["tps_measured", "itl_p50_ms"], 0.15)
    assert [(r[1], r[5]) for r in rows] == [("tps_measured", True), ("itl_p50_ms", False)], rows
    assert not compare([record(host="a", tps_measured=1)], [record(host="b", tps_measured=9)], DEFAULT, 0.15)
    assert not compare([record(tps_measured=1)], [record(tps_measured=9, batch=2)], DEFAULT, 0.15)
    assert compare([record(tps_measured=1)], [record(tps_measured=9, settings={"context": 8, "repeat": 9})], DEFAULT, 0.15)
    check_tags([record(tag="t"), record(tag="t"), record(tag="u", model="x"), record(model="y"), record(model="z")])
    try:
        check_tags([record(tag="t"), record(tag="t", nextn=3)])
    except SystemExit as e:
        assert "nextn" in str(e)
    else:
        raise AssertionError("a mixed tag passed")
    print("the comparison flags what it must")


def main():
    if sys.argv[1:] == ["--self-test"]:
        self_test()
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--limit", type=float, default=0.15)
    parser.add_argument("--metric", action="append", choices=sorted(METRICS))
    args = parser.parse_args()
    old, new = read(args.old), read(args.new)
    check_tags(old)
    check_tags(new)
    rows = compare(old, new, args.metric or DEFAULT, args.limit)
    for key, metric, x, y, change, flagged in rows:
        print(f"{'WORSE ' if flagged else '      '}{key[0]:11} batch {key[7]:4} {metric:22} {x:12.3f} -> {y:12.3f}  {change:+7.1%}")
    if not rows:
        print("nothing to compare: no record of one file has its like in the other")
        return 1
    return 1 if any(r[5] for r in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
