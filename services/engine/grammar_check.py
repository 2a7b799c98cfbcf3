"""Compiles grammars; as a process of its own, finds out whether one can be compiled; and that process as its worker sees it.

A small grammar can take minutes or gigabytes to compile, or overflow the stack and end its process: llguidance bounds steps, but not
all of the compilation. So each new grammar is compiled in that process first, which is killed in time.

In: grammars, one at a time, a line with a JSON string each. Out: one line for the start, and one for each grammar: why it is refused, or
empty, as JSON. Waits for: the process, for a limited time. Any thread may kill what it does.
"""

from __future__ import annotations

import json
import resource
import selectors
import subprocess
import sys
import threading
from contextlib import suppress
from typing import IO

import psutil
import structlog
from llguidance import LLMatcher, LLTokenizer

from contracts.errors import Unavailable, Unsupported

_START_SECONDS = 120.0
_PROGRAM = "services.engine.grammar_check"
_STACK_BYTES = 2**21
"""Smaller than that of the engine's threads: what is deep enough to break a stack does it here."""
_SHOWN_CHARACTERS = 500
_log = structlog.get_logger(__name__)


def open_tokenizer(path: str, num_ids: int, end_ids: list[int]) -> LLTokenizer:
    """The tokenizer that grammars are compiled for: masks have `num_ids` tokens, and complete answers end with one of `end_ids`."""
    return LLTokenizer(path, n_vocab=num_ids, eos_token=end_ids)


def compile_grammar(tokenizer: LLTokenizer, grammar: str) -> tuple[LLMatcher, str]:
    """The compiled grammar, and why it cannot be used; empty if it can. Refused is also what allows no answer at all."""
    matcher = LLMatcher(tokenizer, grammar, log_level=0)
    problem = matcher.get_error()
    if not problem:
        trial = matcher.deep_copy()
        mask = trial.compute_bitmask()  # the first step of some grammars takes longer than their compilation
        problem = trial.get_error()
        if not problem and not any(mask):
            problem = "no answer can meet it"
    return matcher, problem.partition("\n<")[0][:_SHOWN_CHARACTERS]


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


def main(path: str, num_ids: int, end_ids: list[int], num_bytes: int) -> None:
    """Check grammars until standard input ends. `num_bytes`: the most memory that a grammar may take."""
    try:
        tokenizer = open_tokenizer(path, num_ids, end_ids)
    except ValueError as error:
        _say(str(error)[:_SHOWN_CHARACTERS])
        return
    limit = psutil.Process().memory_info().vms + num_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    _say("")
    for line in sys.stdin:
        _say(compile_grammar(tokenizer, json.loads(line))[1])


def _say(text: str) -> None:
    sys.stdout.write(json.dumps(text) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    threading.stack_size(_STACK_BYTES)
    ends = [int(part) for part in sys.argv[3].split(",")]
    checking = threading.Thread(target=main, args=(sys.argv[1], int(sys.argv[2]), ends, int(sys.argv[4])))
    checking.start()
    checking.join()
