"""What LLM and AsyncLLM share: opening an engine, and turning prompts and conversations into jobs."""

from __future__ import annotations

import atexit
import json
import re
import warnings
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepinfer import _deepinfer
from deepinfer.pictures import with_data_urls
from deepinfer.sampling_params import SamplingParams

Prompt = str | Sequence[int] | Mapping[str, Any]
Message = Mapping[str, Any]

_DEMO = Path(__file__).parent / "models" / "demo"
_UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}

# Engine threads must not outlive the interpreter.
_open_engines: weakref.WeakSet[EngineOwner] = weakref.WeakSet()


@atexit.register
def _close_engines() -> None:
    for owner in list(_open_engines):
        owner.close()


@dataclass(slots=True)
class Job:
    """One request, ready to be submitted."""

    prompt: str | None
    prompt_token_ids: list[int]
    sampling: str
    chat: _deepinfer.ChatPrompt | None = None


def _size(value: Any) -> Any:
    """A size as the command line writes it: 1048576, "2MiB", "1.5GiB"."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]*)?)([KMGT]iB|B|)", value)
    if match is None:
        raise ValueError(f"kv_cache_bytes is {value!r}, expected bytes or a number with KiB, MiB, GiB")
    return int(float(match[1]) * _UNITS[match[2]])


class EngineOwner:
    """Owns one engine. `model`: a directory or hub id; None: DEEPINFER_HF_MODEL_DIR, then the demonstration checkpoint that the package carries.
    `backend` and `threads`: None and 0 mean DEEPINFER_ACCELERATOR (else "cpu") and DEEPINFER_THREADS (else what the container allows).
    `engine_options`: the fields of EngineConfig, for example max_num_seqs, max_model_len, kv_cache_bytes ("64MiB"), prefix_caching; given ones win
    over DEEPINFER_* variables. Refusals: ValueError (a wrong value or file), FileNotFoundError, NotImplementedError (not in this version),
    TypeError (no such option), RuntimeError (memory, device)."""

    _stacklevel = 2  # how far away the caller of __init__ is, for warnings

    def __init__(self, model: str | Path | None = None, backend: str | None = None, threads: int = 0, **engine_options: Any) -> None:
        for name in _deepinfer.unknown_env_flags():
            warnings.warn(f"{name} is set but no such switch exists", stacklevel=self._stacklevel)
        options = dict(engine_options)
        if backend is not None:
            options["backend"] = backend
        if threads != 0:
            options["threads"] = threads
        if "kv_cache_bytes" in options:
            options["kv_cache_bytes"] = _size(options["kv_cache_bytes"])
        demo = str(_DEMO) if _DEMO.is_dir() else ""
        self._engine = _deepinfer.Engine("" if model is None else str(model), demo, options)
        self._in_flight = 4 * int(self.config["max_num_seqs"])
        _open_engines.add(self)

    @property
    def config(self) -> dict[str, Any]:
        """The configuration with every default resolved."""
        return json.loads(self._engine.config_json)

    @property
    def model_info(self) -> dict[str, int]:
        """vocab_size, num_hidden_layers, max_position_embeddings, sliding_window, bos_token_id, eos_token_id."""
        return self._engine.model_info

    @property
    def tokenizer(self) -> _deepinfer.Tokenizer:
        return self._engine.tokenizer

    def get_tokenizer(self) -> _deepinfer.Tokenizer:
        return self._engine.tokenizer

    @property
    def description(self) -> str:
        """Some lines for people: model, backend and its kernels, limits, pools."""
        return self._engine.description

    def stats(self) -> dict[str, Any]:
        """Counters since start and the state now (running, waiting, free_blocks, prefix_hit_tokens …); `spec`: how drafts fared (rounds, proposed,
        verified, accepted, acceptance_length …; zeros without speculation)."""
        return self._engine.stats()

    def close(self) -> None:
        """Aborts what is left and stops the engine. Later calls raise RuntimeError."""
        self._engine.close()

    # ---- jobs ------------------------------------------------------------------------------------

    def _prompt_job(self, prompt: Prompt, sampling: SamplingParams) -> Job:
        if isinstance(prompt, Mapping):
            unknown = set(prompt) - {"prompt", "prompt_token_ids"}
            if unknown or len(prompt) != 1:
                raise ValueError(f"a prompt dict has either 'prompt' or 'prompt_token_ids', found {sorted(prompt)}")
            prompt = next(iter(prompt.values()))
        if isinstance(prompt, str):
            return Job(prompt, self._engine.prompt_ids(prompt), sampling.to_json())
        ids: list[Any] = list(prompt)
        for id in ids:
            if isinstance(id, bool) or not isinstance(id, int):
                raise TypeError(f"prompt_token_ids holds {id!r}, expected ints")
            if not 0 <= id < 2**31:
                raise ValueError(f"prompt_token_ids holds {id}, expected ids below {self.model_info['vocab_size']}")
        return Job(None, ids, sampling.to_json())

    def _chat_job(self, messages: Sequence[Message], sampling: SamplingParams, thinking: bool, effort: str | int, tools: Sequence[Mapping[str, Any]] | None,
                  tool_choice: Any, response_format: Mapping[str, Any] | None) -> Job:
        body: dict[str, Any] = {"model": "deepseek-flash", "messages": [with_data_urls(m) for m in messages], "thinking": {"type": "enabled" if thinking else "disabled"}}
        number = effort if isinstance(effort, int) and not isinstance(effort, bool) else None
        if number is None and thinking:
            body["reasoning_effort"] = effort
        if tools:
            body["tools"] = list(tools)
        if tool_choice is not None:
            body["tool_choice"] = tool_choice
        if response_format is not None:
            body["response_format"] = response_format
        parameters = sampling.to_json()
        chat = self._engine.render_chat(json.dumps(body), parameters, number)
        return Job(None, chat.prompt_token_ids, parameters, chat)

    def _submit(self, box: _deepinfer.Mailbox, key: int, job: Job, stream: bool) -> None:
        box.submit(key, job.prompt_token_ids, job.sampling, chat=job.chat, stream=stream)
