#!/usr/bin/env python3
"""Answers a few questions with the Python package.

    pip install .
    python examples/offline_inference.py
    python examples/offline_inference.py --prompt_mode image --image tests/data/pictures/circle.png "What do you see?"
    python examples/offline_inference.py --model DIR --temperature 0.7 --seed 7 "What is the capital of France?"
"""
import argparse
import sys

from deepinfer import LLM, SamplingParams

QUESTIONS = ["What is the capital of France?", "12 + 30", "Name three fruits."]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("questions", nargs="*", default=QUESTIONS)
    parser.add_argument("--prompt_mode", default="text", choices=["text", "image"], help="text, or image: every question is asked about the pictures")
    parser.add_argument("--image", action="append", default=[], help="picture for --prompt_mode image (repeatable)")
    parser.add_argument("--model", help="checkpoint directory (default: the demonstration checkpoint)")
    parser.add_argument("--backend")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--ep", type=int, default=1, help="expert-parallel ranks (this version: 1)")
    parser.add_argument("--dp", type=int, default=1, help="attention data-parallel ranks (this version: 1)")
    parser.add_argument("--cp", type=int, default=1, help="context-parallel ranks (this version: 1)")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--thinking", type=int, choices=[0, 1], default=1)
    args = parser.parse_args()
    if (args.prompt_mode == "image") != bool(args.image):
        print("offline_inference: --prompt_mode image and --image FILE go together", file=sys.stderr)
        return 2
    pictures = [{"type": "image", "image": path} for path in args.image]
    questions = args.questions
    if pictures and questions is QUESTIONS:  # those are not about pictures
        questions = ["What do you see?"]
    conversations = [[{"role": "user", "content": [*pictures, {"type": "text", "text": q}] if pictures else q}] for q in questions]
    try:
        params = SamplingParams(temperature=args.temperature, seq_seed=args.seed, max_tokens=args.max_tokens)
        llm = LLM(args.model, backend=args.backend, threads=args.threads, ep=args.ep, dp=args.dp, cp=args.cp)
        answers = llm.chat(conversations, params, thinking=bool(args.thinking))
    except (ValueError, NotImplementedError, FileNotFoundError) as e:
        print(f"offline_inference: {e}", file=sys.stderr)
        return 3 if isinstance(e, FileNotFoundError) else 2

    for question, answer in zip(questions, answers):
        output = answer.outputs[0]
        print(f"Question:  {question}")
        if output.reasoning:
            print(f"Reasoning: {output.reasoning.strip()}")
        print(f"Answer:    {output.text.strip()}   [{output.finish_reason}, {answer.usage.completion_tokens} tokens]\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
