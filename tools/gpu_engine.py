#!/usr/bin/env python3
"""The engine's laws on a device, through `deepinfer batch`: whatever the scheduling, the answers are the same bytes.

usage: gpu_engine.py DEEPINFER WORK_DIR [--backend cuda] [--judge cpu]

Requests are the demonstration checkpoint's evaluation prompts: greedy, sampled and with log-probabilities (compared as
hexadecimal floats). Greedy answers are also compared with another backend's: where they part, the two likeliest tokens
must have been close (the backends' logits differ by noise).
"""
import base64
import json
import pathlib
import subprocess
import sys

# Nats between the two likeliest tokens below which backends may choose differently. On an H200 one answer of 46 was seen to
# part at 0.30 (docs/gpu_runs.md): this check fails there, until it is known why.
TIE = 0.25


def requests():
    out = []
    prompts = []
    for name in ("knowledge", "reasoning", "editing", "memory", "talk", "text"):
        with open(f"eval/demo/{name}.jsonl", encoding="utf-8") as f:
            prompts += [p for p in map(json.loads, f) if "messages" in p][:8]
    with open("eval/demo/text.jsonl", encoding="utf-8") as f:
        story = " ".join(json.loads(line)["text"] for line in f)[:6000]  # beyond what an exact hit has to replay
    for i in range(6):
        asked = [{"role": "system", "content": story}, {"role": "user", "content": f"What is {i} + {i + 3}?"}]
        prompts.append({"messages": asked})
    for picture in sorted(pathlib.Path("tests/data/pictures").glob("*.png"))[:4]:
        url = "data:image/png;base64," + base64.b64encode(picture.read_bytes()).decode()
        parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What do you see?"}]
        prompts.append({"messages": [{"role": "user", "content": parts}]})
    for i, p in enumerate(prompts):
        base = {"messages": p["messages"], "thinking": {"type": "enabled" if p.get("thinking") else "disabled"}}
        greedy = {"temperature": 0, "max_tokens": 48}
        out.append({"id": f"greedy{i}", **base, "sampling": {**greedy, "logprobs": 2}})
        out.append({"id": f"plain{i}", **base, "sampling": greedy})
        if i % 3 == 0:
            out.append({"id": f"hot{i}", **base, "sampling": {"temperature": 0.9, "max_tokens": 40, "seq_seed": i}})
        if i % 5 == 0:
            cut = {"temperature": 0.8, "top_p": 0.9, "top_k": 40, "max_tokens": 40, "seq_seed": 7 * i, "repetition_penalty": 1.1}
            out.append({"id": f"cut{i}", **base, "sampling": cut})
    return out


def main():
    program, work = sys.argv[1], pathlib.Path(sys.argv[2])
    options = dict(zip(sys.argv[3::2], sys.argv[4::2]))
    backend, judge = options.get("--backend", "cuda"), options.get("--judge", "cpu")
    work.mkdir(parents=True, exist_ok=True)
    wanted = requests()
    source, twice = work / "in.jsonl", work / "twice.jsonl"
    source.write_text("".join(json.dumps(r) + "\n" for r in wanted))
    again = [{**r, "id": r["id"] + "#2"} for r in wanted]
    twice.write_text("".join(json.dumps(r) + "\n" for r in wanted + again))
    failed = 0

    def run(name, *arguments, inputs=source, on=backend):
        answers = work / f"{name}.out.jsonl"
        answers.unlink(missing_ok=True)
        r = subprocess.run([program, "batch", str(inputs), str(answers), "--backend", on, *arguments], capture_output=True, text=True)
        if r.returncode != 0:
            print(f"FAIL {name}: exit {r.returncode}: {r.stderr.strip()[-300:]}")
            return None
        lines = [json.loads(line) for line in answers.read_text().splitlines()]
        return {a["id"]: a for a in lines}

    def essence(answer):
        return json.dumps(answer["outputs"], sort_keys=True)

    def check(name, good, detail=""):
        nonlocal failed
        print(f"{'PASS' if good else 'FAIL'} {name}{': ' + detail if detail else ''}", flush=True)
        failed += not good

    base = run("base", "--max-num-seqs", "16")
    if base is None:
        return 1
    check("every request answered", len(base) == len(wanted) and all(a["error"] is None for a in base.values()))
    laws = {
        "synchronous loop": ("--max-num-seqs", "16", "--async-scheduling", "0"),
        "one sequence at a time": ("--max-num-seqs", "1"),
        "seven sequences": ("--max-num-seqs", "7"),
        "sixty-four sequences": ("--max-num-seqs", "64"),
        "steps of 16 rows": ("--max-num-seqs", "16", "--max-num-batched-tokens", "16"),
        "steps of 100 rows": ("--max-num-seqs", "7", "--max-num-batched-tokens", "100"),
        "no prefix cache": ("--max-num-seqs", "16", "--prefix-caching", "0"),
        "drafts verified": ("--max-num-seqs", "16", "--nextn", "3"),
    }
    for law, arguments in laws.items():
        other = run(law.replace(" ", "_"), *arguments)
        if other is None:
            failed += 1
            continue
        wrong = [i for i in base if essence(base[i]) != essence(other.get(i, {"outputs": None}))]
        check(law, not wrong, f"{len(base) - len(wrong)} of {len(base)} answers equal to the byte" + (f", not {wrong[:3]}" if wrong else ""))
    warm = run("warm", "--max-num-seqs", "4", inputs=twice)
    if warm is not None:
        hits = sum(warm[r["id"] + "#2"]["usage"]["cached_tokens"] > 0 for r in wanted)
        wrong = [i for i in base if essence(base[i]) != essence(warm[i]) or essence(base[i]) != essence(warm[i + "#2"])]
        check("prefix hits", not wrong and hits > 0, f"{hits} of {len(wanted)} second runs began in the cache, {len(wrong)} answers differ")

    other = run("judge", "--max-num-seqs", "16", on=judge)
    if other is not None:
        same, tied, torn = 0, 0, []
        for r in wanted:
            if not r["id"].startswith("greedy"):
                continue
            a, b = base[r["id"]]["outputs"][0], other[r["id"]]["outputs"][0]
            at = next((k for k, (x, y) in enumerate(zip(a["token_ids"], b["token_ids"])) if x != y), None)
            if at is None and a["token_ids"] == b["token_ids"]:
                same += 1
                continue
            at = min(len(a["token_ids"]), len(b["token_ids"])) - 1 if at is None else at
            top = sorted((t[1] for t in a["top_logprobs"][at]), reverse=True)
            if len(top) > 1 and top[0] - top[1] < TIE:
                tied += 1
            else:
                torn.append((r["id"], at, top))
        check(f"greedy text as on {judge}", not torn, f"{same} equal, {tied} part where two tokens are within {TIE} nats, {len(torn)} otherwise {torn[:2]}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
