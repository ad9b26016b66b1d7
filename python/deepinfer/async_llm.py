"""AsyncLLM: the engine under asyncio.

One mailbox an event loop: its file descriptor wakes the loop when deltas have arrived, and each goes to its stream. No thread waits anywhere.
"""

from __future__ import annotations

import asyncio
import itertools
import weakref
from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from deepinfer import _deepinfer
from deepinfer._base import EngineOwner, Job, Message, Prompt
from deepinfer.outputs import CompletionOutput, Delta, RequestOutput, ToolCall, _delta
from deepinfer.sampling_params import SamplingParams


class _Dispatcher:
    """Hands the letters of one loop's mailbox to their streams."""

    def __init__(self, engine: _deepinfer.Engine, loop: asyncio.AbstractEventLoop) -> None:
        self.box = _deepinfer.Mailbox(engine, notify=True)
        self.streams: weakref.WeakValueDictionary[int, AsyncStream] = weakref.WeakValueDictionary()
        self.keys = itertools.count()
        self._loop = weakref.ref(loop)  # the loop holds us, through its selector
        loop.add_reader(self.box.fileno(), self._deliver)

    def _deliver(self) -> None:
        for key, last, parts, usage, timing, notes in self.box.wait(0.0):
            stream = self.streams.get(key)
            if stream is not None:
                stream._queue.put_nowait(_delta(parts[0], usage, timing, last, notes))

    def close(self) -> None:
        loop = self._loop()
        if loop is None or loop.is_closed():
            return
        self._deliver()  # the last deltas of what was aborted
        loop.remove_reader(self.box.fileno())


class AsyncStream(AsyncIterator[Delta]):
    """`async for delta in stream`. A cancelled task, aclose(), the end of `async with` and garbage collection abort what is not finished."""

    def __init__(self, owner: AsyncLLM, dispatcher: _Dispatcher, job: Job) -> None:
        self._owner, self._dispatcher = owner, dispatcher
        self._queue: asyncio.Queue[Delta] = asyncio.Queue()
        self._ended = False
        self._key = next(dispatcher.keys)
        self.prompt = job.prompt
        self.prompt_token_ids = job.prompt_token_ids
        owner._submit(dispatcher.box, self._key, job, True)
        dispatcher.streams[self._key] = self

    def __aiter__(self) -> AsyncStream:
        return self

    async def __anext__(self) -> Delta:
        if self._ended:
            raise StopAsyncIteration
        try:
            delta = await self._queue.get()
        except asyncio.CancelledError:
            self.abort()
            raise
        self._ended = delta.last
        return delta

    def abort(self) -> None:
        """Ends the request; its last deltas (finish_reason "abort") can still be read."""
        self._dispatcher.box.abort(self._key)

    async def aclose(self) -> None:
        """Ends the request and the iteration."""
        self.abort()
        self._ended = True

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()

    def __del__(self) -> None:
        if hasattr(self, "_key") and not self._ended:
            self.abort()


class AsyncLLM(EngineOwner):
    __doc__ = EngineOwner.__doc__
    _stacklevel = 3

    def __init__(self, model: Any = None, backend: str | None = None, threads: int = 0, **engine_options: Any) -> None:
        super().__init__(model, backend, threads, **engine_options)
        self._dispatchers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Dispatcher] = weakref.WeakKeyDictionary()

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> AsyncStream:
        """Deltas of one prompt's continuation. Call it inside a running loop; the request starts at once."""
        return self._open(self._prompt_job(prompt, sampling_params or SamplingParams()))

    def stream_chat(self, messages: Sequence[Message], sampling_params: SamplingParams | None = None, *, thinking: bool = True, effort: str | int = "high",
                    tools: Sequence[dict[str, Any]] | None = None, tool_choice: Any = None, response_format: Mapping[str, Any] | None = None) -> AsyncStream:
        """Deltas of one answer, as LLM.chat describes it."""
        return self._open(self._chat_job(messages, sampling_params or SamplingParams(), thinking, effort, tools, tool_choice, response_format))

    async def generate(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> RequestOutput:
        """The whole continuation of one prompt; await many at once with asyncio.gather."""
        return await _collect(self.stream(prompt, sampling_params))

    async def chat(self, messages: Sequence[Message], sampling_params: SamplingParams | None = None, *, thinking: bool = True, effort: str | int = "high",
                   tools: Sequence[dict[str, Any]] | None = None, tool_choice: Any = None, response_format: Mapping[str, Any] | None = None) -> RequestOutput:
        """The whole answer to one conversation."""
        return await _collect(self.stream_chat(messages, sampling_params, thinking=thinking, effort=effort, tools=tools, tool_choice=tool_choice, response_format=response_format))

    def close(self) -> None:
        """Aborts what is left and stops the engine. Call it on the loop's thread."""
        super().close()
        for dispatcher in list(self._dispatchers.values()):
            dispatcher.close()
        self._dispatchers.clear()

    def _open(self, job: Job) -> AsyncStream:
        loop = asyncio.get_running_loop()
        dispatcher = self._dispatchers.get(loop)
        if dispatcher is None:
            dispatcher = self._dispatchers[loop] = _Dispatcher(self._engine, loop)
        return AsyncStream(self, dispatcher, job)


async def _collect(stream: AsyncStream) -> RequestOutput:
    outputs: dict[int, CompletionOutput] = {}
    prompt_logprobs = None
    notes: list[str] = []
    async for d in stream:
        notes = d.constraint_notes or notes
        o = outputs.setdefault(d.index, CompletionOutput(d.index, "", [], None, None, None))
        o.text += d.text
        o.reasoning += d.reasoning
        o.token_ids += d.token_ids
        if d.logprobs is not None:
            o.logprobs = (o.logprobs or []) + d.logprobs
        prompt_logprobs = d.prompt_logprobs or prompt_logprobs
        for c in d.tool_calls:
            if c.name is not None:
                o.tool_calls.append(ToolCall(c.name, ""))
            o.tool_calls[c.index].arguments += c.arguments
        o.finish_reason, o.stop_reason, o.error, o.seq_seed = d.finish_reason, d.stop_reason, d.error, d.seq_seed
    return RequestOutput(str(stream._key), stream.prompt, stream.prompt_token_ids, prompt_logprobs, [outputs[i] for i in sorted(outputs)], d.usage, d.timing,
                         constraint_notes=notes)
