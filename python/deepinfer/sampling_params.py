"""SamplingParams: how the tokens of one request are chosen and when it ends."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal


@dataclass(kw_only=True)
class SamplingParams:
    """Plain data; the engine checks it at submission and names the field that is wrong (ValueError).

    Order in which the fields act on a row of logits: raw log-probabilities, so_args, allowed_token_ids, bad_words,
    min_tokens, logit_bias, penalties, temperature, min_p, top_k, top_p, seeded choice.
    """

    temperature: float = 1.0
    """Divides the logits, 0..2; below 1e-5 the choice is greedy."""
    top_k: int = 0
    """Keeps the k most likely tokens; 0 or -1: off."""
    top_p: float = 1.0
    """Keeps the smallest set of most likely tokens whose probability reaches this."""
    min_p: float = 0.0
    """Drops tokens less likely than this share of the most likely one."""
    repetition_penalty: float = 1.0
    """For every token of prompt or output: a positive logit is divided by it, a negative one multiplied."""
    frequency_penalty: float = 0.0
    """Subtracted once per earlier occurrence in the output, -2..2."""
    presence_penalty: float = 0.0
    """Subtracted once if the token occurs in the output, -2..2."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to the logits of these ids, -100..100 each."""
    allowed_token_ids: Sequence[int] | None = None
    """If set, only these ids can be chosen."""
    bad_words: Sequence[Sequence[int]] = ()
    """Token sequences that must not appear in the output."""
    min_tokens: int = 0
    """End-of-sequence and stop_token_ids are banned until this many tokens were generated."""
    max_tokens: int | None = None
    """Ends the request after this many tokens; None: as many as the context length allows."""
    stop: str | Sequence[str] = ()
    """Ends the request where one of these texts appears in the output."""
    stop_token_ids: Sequence[int] = ()
    """Ends the request when one of these is generated."""
    ignore_eos: bool = False
    """Goes on after the end-of-sequence token."""
    include_stop_str: bool = False
    """Keeps the matched stop string at the end of the text."""
    n: int = 1
    """Number of sequences for one prompt, 1..16."""
    seq_seed: int | None = None
    """Same seed, prompt and parameters: same tokens. None: drawn, and reported as CompletionOutput.seq_seed."""
    logprobs: int | None = None
    """Log-probabilities per generated token: the chosen one and this many most likely ones, 0..20."""
    prompt_logprobs: int | None = None
    """The same for every prompt token but the first."""
    logprob_mode: Literal["raw", "processed"] = "raw"
    """Which distribution `logprobs` describes: the model's, or the one sampled from."""
    so_args: Mapping[str, Any] | None = None
    """Constraint on the output's form, enforced or refused (ValueError): {"regex": R}, {"json": schema}, {"ebnf": G}, {"choice": [A, B]}, {"structural_tag": T}, {"json_object": True}, with strict, any_whitespace, in_reasoning beside them (docs/structured_outputs.md)."""
    priority: int = 0
    """Scheduling class: smaller is served sooner."""

    def to_json(self) -> str:
        """The fields as the engine reads them. ValueError for a number that is not finite, TypeError for a value of a strange type."""
        body: dict[str, Any] = {}
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{f.name} is {value}, expected a finite number")
            if isinstance(value, Mapping):
                value = {str(k): v for k, v in value.items()}
            elif isinstance(value, Sequence) and not isinstance(value, str):
                value = [list(v) if isinstance(v, Sequence) and not isinstance(v, str) else v for v in value]
            body[f.name] = value
        try:
            return json.dumps(body, allow_nan=False)
        except TypeError as e:
            raise TypeError(f"SamplingParams: {e}") from None
