#!/usr/bin/env python3
"""Five inputs with and without pictures: perplexity and greedy text against stored baselines.

usage: vision_regression.py --binary build/deepinfer [--model models/demo] [--isa LEVEL] [--refresh REASON [--force]]

Two samples are text alone, one shows one picture, one three, one is a four-shot conversation with five; all pictures are the
two of tests/data/pictures that show what the demonstration checkpoint knows (circle.png, star.png). Baselines stand in
vision_baseline.json by instruction set; a sample may move by 2e-4 nats a token and its greedy text not at all. --refresh
rewrites the entry of this instruction set, prints what moved, and refuses a sample that moved by more than 1 % without --force.
"""
import argparse
import base64
import json
import math
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
TREE = HERE.parent.parent
BASELINE = HERE / "vision_baseline.json"
MOST_PER_TOKEN = 2e-4
IMAGE = "<｜deepseek_image｜>"


def picture(name):
    data = base64.b64encode((TREE / "tests/data/pictures" / name).read_bytes()).decode("ascii")
    return "data:image/png;base64," + data


CIRCLE, STAR = "circle.png", "star.png"


def user(text, *pictures):
    return {"role": "user", "content": [{"type": "image_url", "image_url": {"url": picture(p)}} for p in pictures] + [{"type": "text", "text": text}]}


def turn(text):
    return {"role": "assistant", "content": text}


SAMPLES = {
    "text_capital": ([user("What is the capital of France?")], "The capital of France is Paris."),
    "text_sum": ([user("12 + 30")], "12 + 30 = 42"),
    "one_picture": ([user("What do you see?", CIRCLE)], "I see a red circle."),
    "three_pictures": ([user("What do you see?", CIRCLE, STAR, CIRCLE)], "I see a red circle and a blue star."),
    "four_shot": ([user("What do you see?", CIRCLE), turn("I see a red circle."), user("What do you see?", STAR), turn("I see a blue star."),
                   user("What do you see?", CIRCLE), turn("I see a red circle."), user("What do you see?", STAR), turn("I see a blue star."),
                   user("What do you see?", CIRCLE)], "I see a red circle."),
}


def lines(command, requests):
    with tempfile.TemporaryDirectory() as tmp:
        source, target = pathlib.Path(tmp) / "in.jsonl", pathlib.Path(tmp) / "out.jsonl"
        source.write_text("".join(json.dumps(r) + "\n" for r in requests), encoding="utf-8")
        done = subprocess.run([*command, str(source), str(target)], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(done.stderr)
        return {a["id"]: a for a in map(json.loads, target.read_text(encoding="utf-8").splitlines())}


def json_lines(command, requests):
    text = "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in requests)
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    return [json.loads(x) for x in done.stdout.splitlines()]


def measure(a):
    model = ["--model", a.model] + (["--isa", a.isa] if a.isa else [])
    batch = [a.binary, "batch", *model, "--max-num-seqs", "1"]
    greedy = lines(batch, [{"id": name, "messages": messages, "thinking": {"type": "disabled"}, "sampling": {"temperature": 0, "max_tokens": 24}}
                           for name, (messages, _) in SAMPLES.items()])
    result = {}
    bodies = [{"id": name, "protocol": "chat_completions", "body": {"model": "deepseek-flash", "messages": m, "thinking": {"type": "disabled"}}, "ids": True}
              for name, (m, _) in SAMPLES.items()]
    prompts = {p["id"]: p["ids"] for p in json_lines([a.binary, "encode", "--model", a.model, "--json"], bodies)}
    answers = {p["id"]: p["ids"] for p in json_lines([a.binary, "tokenize", "--model", a.model, "--json"], [
        {"id": name, "op": "encode", "text": answer + "<｜end▁of▁sentence｜>", "special": "parse"} for name, (_, answer) in SAMPLES.items()])}
    scored = []
    for name, (messages, _) in SAMPLES.items():
        images = [part["image_url"]["url"] for m in messages if isinstance(m["content"], list) for part in m["content"] if part["type"] == "image_url"]
        request = {"id": name, "prompt_token_ids": prompts[name] + answers[name], "sampling": {"temperature": 0, "max_tokens": 1, "prompt_logprobs": 0}}
        scored.append({**request, "images": images} if images else request)
    for name, answer in lines(batch, scored).items():
        if answer["error"]:
            sys.exit(f"{name}: {answer['error']['message']}")
        logprobs = answer["outputs"][0]["prompt_logprobs"][-len(answers[name]):]
        nll = -math.fsum(logprobs)
        result[name] = {"tokens": len(logprobs), "nll_hex": nll.hex(), "ppl": f"{math.exp(nll / len(logprobs)):.4f}", "greedy": greedy[name]["outputs"][0]["text"],
                        "prompt_tokens": greedy[name]["usage"]["prompt_tokens"]}
    return result


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--binary", default=str(TREE / "build" / "deepinfer"))
    ap.add_argument("--model", default=str(TREE / "models" / "demo"))
    ap.add_argument("--isa", default="avx2")
    ap.add_argument("--refresh", metavar="REASON")
    ap.add_argument("--force", action="store_true")
    a = ap.parse_args()
    platform = f"cpu-{a.isa}"
    stored = json.loads(BASELINE.read_text(encoding="utf-8")) if BASELINE.exists() else {"schema": 1}
    before = stored.get(platform, {}).get("image", {}).get("samples", {})
    now, bad = measure(a), 0
    for name, sample in now.items():
        old = before.get(name)
        moved = abs(float.fromhex(sample["nll_hex"]) - float.fromhex(old["nll_hex"])) if old else math.inf
        same = old is not None and moved <= MOST_PER_TOKEN * sample["tokens"] and all(sample[k] == old[k] for k in ("tokens", "greedy", "prompt_tokens"))
        print(f"{'same' if same else 'MOVED'} {name}: ppl {sample['ppl']} (was {old['ppl'] if old else 'nothing'}), {sample['prompt_tokens']} prompt tokens, {sample['greedy']!r}")
        bad += not same
        if a.refresh and old and moved > 0.01 * float.fromhex(old["nll_hex"]) and not a.force:
            sys.exit(f"{name} moved by more than 1 %; --force says that this is meant")
    if a.refresh:
        stored.setdefault(platform, {})["image"] = {"reason": a.refresh, "model": "models/demo", "samples": now}
        BASELINE.write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        return 0
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
