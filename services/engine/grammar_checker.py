"""The process that tries to compile grammars (grammar_check.py), as its worker sees it.

In: grammars, one at a time. Out: why each is refused. Waits for: the process, for a limited time. Any thread may kill what it does.
"""

from __future__ import annotations

import json
import selectors
import subprocess
import sys
import threading
from contextlib import suppress
from typing import IO

import structlog

from contracts.errors import Unavailable, Unsupported

_START_SECONDS = 120.0
_PROGRAM = "services.engine.grammar_check"
_log = structlog.get_logger(__name__)


class GrammarChecker:
    """See the module. It is started when it is needed, and killed when it takes too long. One thread uses it."""

    def __init__(self, arguments: list[str], seconds: float) -> None:
        self._command = [sys.executable, "-m", _PROGRAM, *arguments]
        self._seconds = seconds
        self._process: subprocess.Popen[str] | None = None
        self._is_killed = False
        self._lock = threading.Lock()

    def check(self, grammar: str) -> str:
        """Why a grammar is refused; empty if it is not. `start` comes before; a process that was killed since then refuses."""
        process = self._process
        assert process is not None  # noqa: S101 only this thread ends it
        with suppress(BrokenPipeError):  # it ended before this grammar; reading tells
            _stream(process.stdin).write(json.dumps(grammar) + "\n")
            _stream(process.stdin).flush()
        try:
            answer = self._read(process, self._seconds)
        except TimeoutError:
            self.close()
            return f"it takes longer than {self._seconds:g} s to compile"
        if answer is None:
            self.close()
            return "it takes too much memory or is nested too deep to compile"
        return answer

    def start(self) -> None:
        """Start the process, unless it runs. Raises Unavailable if it does not start, Unsupported if it cannot use the tokenizer."""
        if self._process is not None:
            if not self._is_killed and self._process.poll() is None:
                return
            self.close()
        process = subprocess.Popen(  # noqa: S603 our own program and numbers
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        with self._lock:
            self._process, self._is_killed = process, False
        answer = None
        with suppress(TimeoutError):
            answer = self._read(process, _START_SECONDS)
        if answer is None:
            self.close()
            raise Unavailable("the process that checks grammars does not start; try again")
        if answer:
            self.close()
            said = f"grammars do not work with the tokenizer of this policy: {answer}"
            raise Unsupported(said, param="structured_outputs")
        _log.info("engine_grammar_checker_started", pid=process.pid)

    def kill(self) -> None:
        """Break off what it does now; another thread may call it."""
        with self._lock:
            self._is_killed = True
            if self._process is not None:
                self._process.kill()

    def close(self) -> None:
        """End the process."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                with suppress(OSError):  # what it did not read is flushed here
                    _stream(stream).close()

    def _read(self, process: subprocess.Popen[str], seconds: float) -> str | None:
        """The next answer; None if the process ended."""
        stream = _stream(process.stdout)
        with selectors.DefaultSelector() as waiting:
            waiting.register(stream, selectors.EVENT_READ)
            if not waiting.select(seconds):
                raise TimeoutError
        line = stream.readline()
        return str(json.loads(line)) if line.endswith("\n") else None


def _stream(stream: IO[str] | None) -> IO[str]:
    assert stream is not None  # noqa: S101 every process here has pipes
    return stream
