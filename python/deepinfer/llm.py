"""LLM: many prompts in, answers out; streaming; Ctrl-C aborts."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from deepinfer import _deepinfer
from deepinfer._base import EngineOwner, Job, Message, Prompt
from deepinfer.outputs import Delta, RequestOutput, _delta, _request_output
from deepinfer.progress import Progress
from deepinfer.sampling_params import SamplingParams

# Waiting happens in C++ without the interpreter lock, in slices: between two of them Python looks at signals.
_SLICE_S = 0.05


class Stream(Iterator[Delta]):
    """The deltas of one request, as they come. Leaving a `with` block, close() and garbage collection abort what is not finished."""

    def __init__(self, engine: _deepinfer.Engine, owner: EngineOwner, job: Job) -> None:
        self._owner = owner  # keeps the engine open
        self._box = _deepinfer.Mailbox(engine)
        self._ready: deque[Delta] = deque()
        self._ended = False
        self.prompt_token_ids = job.prompt_token_ids
        owner._submit(self._box, 0, job, True)

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Delta:
        try:
            while not self._ready:
                if self._ended:
                    raise StopIteration
                for _, last, parts, usage, timing, notes in self._box.wait(_SLICE_S):
                    self._ready.append(_delta(parts[0], usage, timing, last, notes))
                    self._ended = last
        except KeyboardInterrupt:
            self.close()
            raise
        return self._ready.popleft()

    def abort(self) -> None:
        """Ends the request; its last deltas (finish_reason "abort") can still be read."""
        self._box.abort_all()

    def close(self) -> None:
        """Ends the request and the iteration."""
        self._box.abort_all()
        self._ready.clear()
        self._ended = True

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class LLM(EngineOwner):
    __doc__ = EngineOwner.__doc__

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def generate(self, prompts: Prompt | Sequence[Prompt], sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
                 use_tqdm: bool | Callable[..., Any] = True) -> list[RequestOutput]:
        """Continues each prompt: a text (BOS is put in front unless it is there), a list of token ids (taken as it is), or a dict with `prompt` or
        `prompt_token_ids`. One SamplingParams for all, or one a prompt. Answers in order of the prompts.

        A wrong prompt or parameter raises and aborts the others; an answer that failed later says so in finish_reason and error.
        use_tqdm: progress on a terminal (tqdm where installed); a callable is used instead of tqdm."""
        single = isinstance(prompts, (str, Mapping)) or (isinstance(prompts, Sequence) and len(prompts) > 0 and isinstance(prompts[0], int))
        many: Sequence[Any] = [prompts] if single else prompts  # type: ignore[list-item,assignment]
        return self._run(len(many), sampling_params, lambda i, p: self._prompt_job(many[i], p), "prompts", use_tqdm)

    def chat(self, messages: Sequence[Message] | Sequence[Sequence[Message]], sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
             use_tqdm: bool | Callable[..., Any] = True, *, thinking: bool = True, effort: str | int = "high",
             tools: Sequence[dict[str, Any]] | None = None, tool_choice: Any = None, response_format: Mapping[str, Any] | None = None) -> list[RequestOutput]:
        """Answers one conversation or a list of them: messages {"role", "content"} and tools as in Chat Completions. `.outputs[i].reasoning` is what
        the model thought, `.text` its answer, `.tool_calls` its calls. effort: minimal, low, medium, high, xhigh, max, or 1..100.
        A picture is a part {"type": "image", "image": X} of a user's content, X a path, the bytes of a file, a PIL image or a numpy array uint8 [height,
        width, 3]; image_url parts with data: URLs work too. Stop strings are searched in the answer, not in the reasoning.
        response_format, strict tools and tool_choice "required" constrain the answer (behind the reasoning); what strict=False leaves out stands in
        RequestOutput.constraint_notes."""
        single = len(messages) == 0 or isinstance(messages[0], Mapping)
        many: Sequence[Any] = [messages] if single else messages
        return self._run(len(many), sampling_params, lambda i, p: self._chat_job(many[i], p, thinking, effort, tools, tool_choice, response_format), "conversations", use_tqdm)

    def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> Stream:
        """Deltas of one prompt's continuation, as they come. With n > 1 they tell their sub-sequence by `index`."""
        return Stream(self._engine, self, self._prompt_job(prompt, sampling_params or SamplingParams()))

    def stream_chat(self, messages: Sequence[Message], sampling_params: SamplingParams | None = None, *, thinking: bool = True, effort: str | int = "high",
                    tools: Sequence[dict[str, Any]] | None = None, tool_choice: Any = None, response_format: Mapping[str, Any] | None = None) -> Stream:
        """Deltas of one answer: `reasoning`, then `text` and `tool_calls`."""
        job = self._chat_job(messages, sampling_params or SamplingParams(), thinking, effort, tools, tool_choice, response_format)
        return Stream(self._engine, self, job)

    def _run(self, count: int, sampling: SamplingParams | Sequence[SamplingParams] | None, make_job: Callable[[int, SamplingParams], Job], what: str,
             use_tqdm: bool | Callable[..., Any]) -> list[RequestOutput]:
        if sampling is None or isinstance(sampling, SamplingParams):
            params: Sequence[SamplingParams] = [sampling or SamplingParams()] * count
        else:
            params = list(sampling)
            if len(params) != count:
                raise ValueError(f"{len(params)} sampling_params for {count} {what}")
        box = _deepinfer.Mailbox(self._engine)
        answers: list[RequestOutput | None] = [None] * count
        running: dict[int, Job] = {}
        done, following, job = 0, 0, None
        progress = Progress(count, use_tqdm)
        try:
            while done < count:
                while following < count and len(running) < self._in_flight:
                    try:
                        job = job or make_job(following, params[following])
                        self._submit(box, following, job, False)
                    except _deepinfer.QueueFullError:
                        if not running:
                            time.sleep(_SLICE_S)  # other threads fill the queue
                        break
                    except (ValueError, NotImplementedError, TypeError) as e:
                        if count == 1:
                            raise
                        raise type(e)(f"{what}[{following}]: {e}") from None
                    running[following] = job
                    following, job = following + 1, None
                letters = box.wait(_SLICE_S)
                for key, _, parts, usage, timing, notes in letters:
                    finished = running.pop(key)
                    answers[key] = _request_output(str(key), finished.prompt, finished.prompt_token_ids, parts, usage, timing,
                                                   notes)
                done += len(letters)
                progress.show(len(letters), box.num_tokens)
        except BaseException:
            box.abort_all()
            while box.num_open > 0:  # aborting takes a step; a second Ctrl-C leaves at once
                box.wait(_SLICE_S)
            raise
        finally:
            progress.close()
        return [a for a in answers if a is not None]
