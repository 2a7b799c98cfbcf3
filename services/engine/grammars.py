"""Grammars of requests: compiled once each, bounded in time and memory, and kept.

In: what a request's `structured_outputs` says. Out: a matcher for its answer, or an error that names the problem. Waits for: the
process that tries to compile a new grammar first (see grammar_check.py), for at most some seconds; so it is used on threads of
its own, never on the event loop or the generation thread.
"""

from __future__ import annotations

import json
import selectors
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import structlog
from llguidance import LLMatcher, LLTokenizer

from contracts.errors import InvalidSchema, Unavailable, Unsupported
from services.engine.grammar_check import compile_grammar, open_tokenizer

MAX_GRAMMAR_BYTES = 2**20
_NUM_KEPT = 256
_MOST_MEMORY_BYTES = 2**30
_START_SECONDS = 120.0
_PROGRAM = "services.engine.grammar_check"
_WHERE = "structured_outputs"
_log = structlog.get_logger(__name__)


def json_grammar(schema: str) -> str:
    """The grammar of a JSON schema, given as JSON text."""
    try:
        return str(LLMatcher.grammar_from_json_schema(schema))
    except ValueError as error:
        raise InvalidSchema(f"{_WHERE}.json is not a JSON schema: {error}", param=_WHERE) from error


def lark_grammar(text: str) -> str:
    """The grammar of Lark text in llguidance's dialect."""
    return str(LLMatcher.grammar_from_lark(text))


class Grammars:
    """See the module.

    Args:
        tokenizer: the tokenizer.json of the policy; None: it has none, and no grammars.
        num_ids: the size of the model's vocabulary.
        end_ids: the tokens that end an answer of the model.
        seconds: the longest time that a grammar may take to compile.
    """

    def __init__(self, tokenizer: Path | None, num_ids: int, end_ids: frozenset[int], seconds: float) -> None:
        self._path = tokenizer
        self._num_ids, self._end_ids = num_ids, sorted(end_ids)
        self._seconds = seconds
        self._tokenizer: LLTokenizer | None = None
        self._kept: OrderedDict[str, LLMatcher | str] = OrderedDict()
        self._checker: GrammarChecker | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="grammars")

    @property
    def workers(self) -> ThreadPoolExecutor:
        """The thread to call `matcher` on: one, so that compiling takes at most one core from the generation."""
        return self._thread

    def matcher(self, grammar: str, made_ids: Sequence[int] = ()) -> Any:
        """A matcher of a grammar (see `json_grammar`), advanced by the tokens of the answer so far.

        Raises:
            InvalidSchema: it cannot be compiled, takes too long or too much memory, or no answer can meet it; or the tokens so
                far do not follow it.
            Unsupported: the policy has no tokenizer.json or no end token, or its tokenizer cannot be read for grammars.
            Unavailable: the checking process does not start.
        """
        if self._path is None or not self._end_ids:
            raise Unsupported(
                "this policy has no tokenizer.json or no end token, so grammars do not work", param=_WHERE
            )
        if len(grammar) > MAX_GRAMMAR_BYTES:
            raise InvalidSchema(f"a grammar takes up to {MAX_GRAMMAR_BYTES // 2**20} MiB", param=_WHERE)
        found = self._kept.get(grammar)
        if found is None:
            found = self._compile(self._path, grammar)
            self._kept[grammar] = found
            if len(self._kept) > _NUM_KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(grammar)
        if isinstance(found, str):
            raise InvalidSchema(f"the grammar of this answer is refused: {found}", param=_WHERE)
        matcher = found.deep_copy()
        if made_ids and not matcher.consume_tokens(list(made_ids)):
            raise InvalidSchema("the tokens of the answer so far do not follow its grammar", param=_WHERE)
        return matcher

    def close(self) -> None:
        """End the thread and the process."""
        self._thread.shutdown()
        if self._checker is not None:
            self._checker.close()

    def _compile(self, path: Path, grammar: str) -> LLMatcher | str:
        if self._checker is None:
            ends = ",".join(map(str, self._end_ids))
            self._checker = GrammarChecker(
                [str(path), str(self._num_ids), ends, str(_MOST_MEMORY_BYTES)], self._seconds
            )
        if problem := self._checker.check(grammar):
            return problem
        if self._tokenizer is None:
            self._tokenizer = open_tokenizer(str(path), self._num_ids, self._end_ids)
        matcher, problem = compile_grammar(self._tokenizer, grammar)
        return problem or matcher


class GrammarChecker:
    """The process that tries to compile grammars; it is started when it is needed, and killed when it takes too long."""

    def __init__(self, arguments: list[str], seconds: float) -> None:
        self._command = [sys.executable, "-m", _PROGRAM, *arguments]
        self._seconds = seconds
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()

    def check(self, grammar: str) -> str:
        """Why a grammar is refused; empty if it is not."""
        with self._lock:
            if self._process is not None and self._process.poll() is not None:
                self._end()
            process = self._process or self._start()
            try:
                self._write(process, grammar)
                answer = self._read(process, self._seconds)
            except TimeoutError:
                self._end()
                return f"it takes longer than {self._seconds:g} s to compile"
            if answer is None:
                self._end()
                return "it takes too much memory or is nested too deep to compile"
            return answer

    def close(self) -> None:
        """Kill the process."""
        with self._lock:
            self._end()

    def _start(self) -> subprocess.Popen[str]:
        self._process = process = subprocess.Popen(  # noqa: S603 our own program and numbers
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        try:
            answer = self._read(process, _START_SECONDS)
        except TimeoutError:
            answer = None
        if answer is None:
            self._end()
            raise Unavailable("the process that checks grammars does not start; try again")
        if answer:
            self._end()
            raise Unsupported(f"grammars do not work with the tokenizer of this policy: {answer}", param=_WHERE)
        _log.info("engine_grammar_checker_started", pid=process.pid)
        return process

    def _write(self, process: subprocess.Popen[str], grammar: str) -> None:
        try:
            _stream(process.stdin).write(json.dumps(grammar) + "\n")
            _stream(process.stdin).flush()
        except BrokenPipeError:
            return  # it ended before this grammar; reading tells

    def _read(self, process: subprocess.Popen[str], seconds: float) -> str | None:
        """The next answer; None if the process ended."""
        stream = _stream(process.stdout)
        with selectors.DefaultSelector() as waiting:
            waiting.register(stream, selectors.EVENT_READ)
            if not waiting.select(seconds):
                raise TimeoutError
        line = stream.readline()
        return str(json.loads(line)) if line.endswith("\n") else None

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                with suppress(OSError):  # what it did not read is flushed here
                    _stream(stream).close()
            self._process = None


def _stream(stream: IO[str] | None) -> IO[str]:
    assert stream is not None  # noqa: S101 every process here has pipes
    return stream
