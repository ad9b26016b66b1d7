"""A progress bar on stderr: tqdm's where it is installed, else one line that rewrites itself. Silent unless stderr is a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any


class LineBar:
    """The part of tqdm's interface that we use."""

    def __init__(self, total: int, desc: str) -> None:
        self._total, self._desc, self._done, self._postfix = total, desc, 0, ""
        self._start = self._shown = time.monotonic()
        self._visible = sys.stderr is not None and sys.stderr.isatty()

    def update(self, n: int = 1) -> None:
        self._done += n
        self.refresh()

    def set_postfix_str(self, text: str, refresh: bool = True) -> None:
        self._postfix = text
        if refresh:
            self.refresh()

    def refresh(self) -> None:
        now = time.monotonic()
        if not self._visible or (now - self._shown < 0.1 and self._done < self._total):
            return
        self._shown = now
        left = (now - self._start) / self._done * (self._total - self._done) if self._done else 0.0
        bar = ("#" * (20 * self._done // max(self._total, 1))).ljust(20)
        sys.stderr.write(f"\r\033[K{self._desc}: [{bar}] {self._done}/{self._total}, {int(left) // 60}:{int(left) % 60:02d} left, {self._postfix}")
        sys.stderr.flush()

    def close(self) -> None:
        if self._visible and self._done:
            sys.stderr.write("\n")
            sys.stderr.flush()


class _NoBar:
    def update(self, n: int = 1) -> None: ...
    def set_postfix_str(self, text: str, refresh: bool = True) -> None: ...
    def close(self) -> None: ...


class Progress:
    """Requests done, tokens per second."""

    def __init__(self, total: int, use_tqdm: bool | Callable[..., Any]) -> None:
        self._start = time.monotonic()
        self._rate_at = self._start
        self._bar: Any = _NoBar()
        if callable(use_tqdm):
            self._bar = use_tqdm(total=total, desc="requests")
        elif use_tqdm:
            try:
                from tqdm.auto import tqdm  # type: ignore[import-untyped,import-not-found,unused-ignore]
            except ImportError:
                self._bar = LineBar(total, "requests")
            else:
                self._bar = tqdm(total=total, desc="requests", dynamic_ncols=True, disable=None)

    def show(self, newly_done: int, num_tokens: int) -> None:
        now = time.monotonic()
        if now - self._rate_at >= 0.2:
            self._rate_at = now
            self._bar.set_postfix_str(f"{num_tokens / (now - self._start):.0f} tokens/s", refresh=newly_done == 0)
        if newly_done:
            self._bar.update(newly_done)

    def close(self) -> None:
        self._bar.close()
