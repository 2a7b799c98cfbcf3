"""Compiles grammars; in a process of its own, finds out whether one can be compiled; and that process as its worker sees it.

A small grammar can take minutes or gigabytes to compile, or overflow the stack and end its process: llguidance bounds steps, but not
all of the compilation. So each new grammar is compiled in that process first, which is killed in time.

In: grammars, one at a time. Out: why each is refused, or an empty text. Waits for: the process, for a limited time. Any thread may kill
what it does.
"""

from __future__ import annotations

import json
import os
import resource
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import structlog
from llguidance import LLMatcher, LLTokenizer

from contracts.errors import Unavailable, Unsupported
from runtime.killable.process import NotStarted, Setup, WorkerProcess

_START_SECONDS = 120.0
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
    """See the module. It is started when it is needed, and killed when it takes too long. One thread uses it.

    `num_bytes`: the most memory that a grammar may take; `seconds`: the longest time. The others as of `open_tokenizer`.
    """

    def __init__(self, path: str, num_ids: int, end_ids: list[int], *, num_bytes: int, seconds: float) -> None:
        config = {"tokenizer": (path, num_ids, end_ids), "num_bytes": num_bytes}
        self._setup = Setup(f"{__name__}:checking", json.dumps(config), start_seconds=_START_SECONDS)
        self._seconds = seconds
        self._process: WorkerProcess | None = None
        self._is_killed = False

    def check(self, grammar: str) -> str:
        """Why a grammar is refused; empty if it is not. `start` comes before; a process that was killed since then refuses."""
        process = self._process
        assert process is not None  # noqa: S101 only this thread ends it
        outcome = process.run(grammar, self._seconds)
        if outcome.how == "answered":
            return str(outcome.value)
        self.close()
        if outcome.how == "late":
            return f"it takes longer than {self._seconds:g} s to compile"
        return "it takes too much memory or is nested too deep to compile"

    def start(self) -> None:
        """Start the process, unless it runs. Raises Unavailable if it does not start, Unsupported if it cannot use the tokenizer."""
        if self._process is not None:
            if not self._is_killed and self._process.is_alive():
                return
            self.close()
        self._is_killed = False
        try:
            process = WorkerProcess(self._setup)
        except NotStarted as error:
            raise Unavailable("the process that checks grammars does not start; try again") from error
        self._process = process
        if problem := process.run(None, _START_SECONDS).value:
            self.close()
            said = f"grammars do not work with the tokenizer of this policy: {problem}"
            raise Unsupported(said, param="structured_outputs")
        _log.info("engine_grammar_checker_started")

    def kill(self) -> None:
        """Break off what it does now; another thread may call it."""
        self._is_killed = True
        if (process := self._process) is not None:  # its end takes a while, and an event loop calls this
            threading.Thread(target=process.stop, daemon=True).start()

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()


def checking(config: Mapping[str, Any]) -> Callable[[str | None], str]:
    """The work of the process: why a grammar is refused; of None, why no grammar can be checked. Empty: it is not."""
    with open(os.devnull, "wb") as nothing:  # noqa: PTH123 llguidance says there what it makes of grammars
        os.dup2(nothing.fileno(), 2)
    threading.stack_size(_STACK_BYTES)
    thread = ThreadPoolExecutor(1)
    try:
        tokenizer = thread.submit(open_tokenizer, *config["tokenizer"]).result()
    except ValueError as error:
        problem = str(error)[:_SHOWN_CHARACTERS]
        return lambda _grammar: problem
    limit = psutil.Process().memory_info().vms + config["num_bytes"]
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    def check(grammar: str | None) -> str:
        return "" if grammar is None else thread.submit(compile_grammar, tokenizer, grammar).result()[1]

    return check
