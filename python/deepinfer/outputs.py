"""What comes out of an engine: whole answers and deltas, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple


class TokenLogprobs(NamedTuple):
    """Natural logarithms at one position; `top` is sorted by value, ties by smaller id. token_id -1: no value (first prompt token)."""

    token_id: int
    logprob: float
    top: list[tuple[int, float]]


class Usage(NamedTuple):
    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens whose cache blocks were found."""
    completion_tokens: int
    """Over all n sub-sequences so far."""


class Timing(NamedTuple):
    """Milliseconds since submission."""

    queue_ms: float
    first_token_ms: float
    total_ms: float


@dataclass(slots=True)
class ToolCall:
    name: str
    arguments: str
    """JSON text as the model wrote it."""


@dataclass(slots=True)
class ToolCallDelta:
    """A new call (name is set) or a piece of a call's arguments."""

    index: int
    name: str | None
    arguments: str


@dataclass(slots=True)
class CompletionOutput:
    """One whole sub-sequence."""

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str | None
    """"stop", "length", "abort", "empty_mask", "error"; after chat() also "tool_calls"."""
    stop_reason: str | int | None
    """The stop string or the token id that ended it."""
    logprobs: list[TokenLogprobs] | None
    reasoning: str = ""
    """chat(): what stood before the answer."""
    tool_calls: list[ToolCall] = field(default_factory=list)
    seq_seed: int = 0
    """The seed in use, given or drawn: repeats the run."""
    error: str | None = None


@dataclass(slots=True)
class RequestOutput:
    """One prompt's answers."""

    request_id: str
    prompt: str | None
    """The text that was given; None for token ids and conversations."""
    prompt_token_ids: list[int]
    prompt_logprobs: list[TokenLogprobs] | None
    outputs: list[CompletionOutput]
    usage: Usage
    timing: Timing
    finished: bool = True
    constraint_notes: list[str] = field(default_factory=list)
    """What a constraint with strict=False left out, as sentences."""


@dataclass(slots=True)
class Delta:
    """One piece of one sub-sequence. Joined deltas are the whole; text waits while it may still become a stop string or a character."""

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str | None
    """None while the sub-sequence goes on."""
    stop_reason: str | int | None
    logprobs: list[TokenLogprobs] | None
    prompt_logprobs: list[TokenLogprobs] | None
    reasoning: str
    tool_calls: list[ToolCallDelta]
    usage: Usage
    timing: Timing
    seq_seed: int
    error: str | None
    last: bool
    """The request's last delta: all sub-sequences have finished."""
    constraint_notes: list[str] = field(default_factory=list)
    """With the request's first delta: what a constraint with strict=False left out."""


def _logprobs(rows: list[tuple[int, float, list[tuple[int, float]]]] | None) -> list[TokenLogprobs] | None:
    return None if rows is None else [TokenLogprobs(*row) for row in rows]


def _delta(part: dict[str, Any], usage: tuple, timing: tuple, last: bool, notes: list[str]) -> Delta:
    calls = [ToolCallDelta(c[1], c[2], "") if c[0] == "call" else ToolCallDelta(c[1], None, c[2]) for c in part["calls"]]
    return Delta(part["index"], part["text"], part["token_ids"], part["finish_reason"], part["stop_reason"], _logprobs(part["logprobs"]),
                 _logprobs(part["prompt_logprobs"]), part["reasoning"], calls, Usage(*usage), Timing(*timing), part["seq_seed"], part["error"], last, notes)


def _completion(part: dict[str, Any]) -> CompletionOutput:
    calls: list[ToolCall] = []
    for c in part["calls"]:
        if c[0] == "call":
            calls.append(ToolCall(c[2], ""))
        else:
            calls[c[1]].arguments += c[2]
    return CompletionOutput(part["index"], part["text"], part["token_ids"], part["finish_reason"], part["stop_reason"], _logprobs(part["logprobs"]),
                            part["reasoning"], calls, part["seq_seed"], part["error"])


def _request_output(request_id: str, prompt: str | None, prompt_token_ids: list[int], parts: list[dict[str, Any]], usage: tuple,
                    timing: tuple, notes: list[str]) -> RequestOutput:
    return RequestOutput(request_id, prompt, prompt_token_ids, _logprobs(parts[0]["prompt_logprobs"]), [_completion(p) for p in parts], Usage(*usage),
                         Timing(*timing), constraint_notes=notes)
