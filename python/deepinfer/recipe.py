"""Conversations to prompts, model output to reasoning, content and tool calls; no engine needed.

    tokenizer = deepinfer.Tokenizer("models/demo")
    prompt = recipe.encode(tokenizer, {"messages": [{"role": "user", "content": "Hello"}]})
    prompt["text"], prompt["ids"]
    answer = recipe.parse("Paris.<｜DSML｜tool_calls>…", start="content")
    answer["content"], answer["tool_calls"]

encode_line and parse_line are the JSON Lines doors of `deepinfer encode` and `deepinfer parse`: one request in, one answer out, refusals
as {"error": …}. The other functions take and give Python values and raise RecipeError.
"""

from __future__ import annotations

import json as _json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from deepinfer._deepinfer import StreamParser, Tokenizer
from deepinfer._deepinfer import encode_json_line as encode_line
from deepinfer._deepinfer import parse_json_line as parse_line

__all__ = ["RecipeError", "StreamParser", "encode", "encode_line", "parse", "parse_line", "respond"]

Protocol = Literal["conversation", "chat_completions", "messages", "responses"]


class RecipeError(ValueError):
    """A refused body: `status` (an HTTP status), `type` and `param` (the field, or None)."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(error.get("message", "refused"))
        self.status: int = error.get("status", 400)
        self.type: str = error.get("type", "invalid_request_error")
        self.param: str | None = error.get("param")


def _answer(line: str) -> dict[str, Any]:
    answer: dict[str, Any] = _json.loads(line)
    if "error" in answer:
        raise RecipeError(answer["error"])
    answer.pop("id", None)
    return answer


def encode(tokenizer: Tokenizer, body: Mapping[str, Any] | str, *, protocol: Protocol = "conversation", profile: Literal["api", "model"] = "api",
           special_in_content: Literal["plain", "parse"] = "plain", compat: bool = False) -> dict[str, Any]:
    """Renders a conversation or a request body (a dict, or its JSON text): `text`, `ids`, `images`; for the three protocols also
    `conversation`, `sampling`, `parsing` (keyword arguments of StreamParser) and `stream`."""
    request: dict[str, Any] = {"op": "encode", "protocol": protocol, "profile": profile, "special_in_content": special_in_content, "compat": compat}
    request["body_text" if isinstance(body, str) else "body"] = body
    return _answer(encode_line(tokenizer, _json.dumps(request)))


def parse(output: str | bytes | Sequence[str] | Sequence[Sequence[int]], *, tokenizer: Tokenizer | None = None,
          start: Literal["content", "reasoning", "reasoning_continued", "content_continued", "calls"] = "content", tools: bool = True, json: bool = False,
          stop: Sequence[str] = (), finish: Literal["stop", "length", "content_filter"] | None = "stop", compat: bool = False) -> dict[str, Any]:
    """Reads what a model wrote: a text, bytes, a list of pieces, or lists of token ids (these need a tokenizer). Gives `reasoning`, `content`,
    `tool_calls`, `finish_reason`, `events` and `deltas` (what each piece released)."""
    request: dict[str, Any] = {"op": "parse", "start": start, "tools": tools, "json": json, "stop": list(stop), "finish": finish, "compat": compat}
    if isinstance(output, bytes):
        request["bytes"] = [output.hex()]
    elif isinstance(output, str):
        request["chunks"] = [output]
    elif output and not isinstance(output[0], str):
        request["tokens"] = [list(ids) for ids in output]
    else:
        request["chunks"] = list(output)
    return _answer(parse_line(tokenizer, _json.dumps(request)))


def respond(tokenizer: Tokenizer, body: Mapping[str, Any], tokens: Sequence[int] | Sequence[Sequence[int]], *,
            protocol: Literal["chat_completions", "messages", "responses"] = "chat_completions",
            finish: Literal["stop", "length", "content_filter"] | None = "stop", response_id: str = "", system_fingerprint: str = "",
            usage: Mapping[str, int] | None = None) -> dict[str, Any]:
    """What a server answers to `body` when the model generates `tokens`: `events` of the stream, and the whole `response`."""
    request: dict[str, Any] = {"op": "respond", "protocol": protocol, "body": body, "finish": finish, "response_id": response_id,
                               "system_fingerprint": system_fingerprint}
    request["tokens"] = [[t] if isinstance(t, int) else list(t) for t in tokens]
    if usage is not None:
        request["usage"] = dict(usage)
    return _answer(parse_line(tokenizer, _json.dumps(request)))
