"""Grammars of requests: compiled once each, bounded in time and memory, and kept.

    event loop: matcher() ── kept? ─▶ a copy, at once
                   └─▶ GrammarQueue ─▶ worker thread: its GrammarChecker tries it, then it is compiled here ─▶ kept, all who wait are told

In: what a request's `structured_outputs` says. Out: a matcher for its answer, or an error that names the problem. Waits for: a new
grammar's turn, and the process that tries to compile it, for at most some seconds. What nobody waits for any more is dropped, and
killed if it runs. llguidance gives up Python's lock while it compiles, so neither the event loop nor the generation thread waits.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

import structlog
from llguidance import LLMatcher, LLTokenizer

from contracts.errors import InvalidSchema, MillraceError, Overloaded, Unavailable, Unsupported
from services.engine.grammar_check import GrammarChecker, compile_grammar, open_tokenizer
from services.engine.grammar_queue import Compilation, GrammarQueue, GrammarWaiter, QueueBounds

MAX_GRAMMAR_BYTES = 2**20
_NUM_KEPT = 256
_MOST_MEMORY_BYTES = 2**30
_TURN_SECONDS = 15.0
"""How long a request may wait in addition to the compilation itself."""
_MADE_AT_ONCE = 256
_BOUNDS = QueueBounds()
_WHERE = "structured_outputs"
_log = structlog.get_logger(__name__)


def json_grammar(schema: str) -> str:
    """The grammar of a JSON schema, given as JSON text."""
    _check_size(schema)
    try:
        return str(LLMatcher.grammar_from_json_schema(schema))
    except ValueError as error:
        raise InvalidSchema(f"{_WHERE}.json is not a JSON schema: {error}", param=_WHERE) from error


def lark_grammar(text: str) -> str:
    """The grammar of Lark text in llguidance's dialect."""
    _check_size(text)
    return str(LLMatcher.grammar_from_lark(text))


class Grammars:
    """See the module. `tokenizer`: the tokenizer.json of the policy; None: it has none, and no grammars. `num_ids`: the model's vocabulary.

    `end_ids`: the tokens that end an answer. `seconds`: the longest time that a grammar may take to compile.
    """

    def __init__(
        self,
        tokenizer: Path | None,
        num_ids: int,
        end_ids: frozenset[int],
        seconds: float,
        *,
        num_workers: int = 2,
        bounds: QueueBounds = _BOUNDS,
    ) -> None:
        self._path = tokenizer
        self._num_ids, self._end_ids = num_ids, sorted(end_ids)
        self._seconds = seconds
        self._num_workers = num_workers
        self._queue = GrammarQueue(bounds)
        self._kept: OrderedDict[str, tuple[LLMatcher | str, str]] = OrderedDict()
        """Grammar to what it is compiled to, or why it is refused; and who had it compiled."""
        self._running: dict[Compilation, GrammarChecker] = {}
        self._workers: list[threading.Thread] = []
        self._is_closing = False
        self._changed = threading.Condition()  # guards everything above
        self._tokenizer: LLTokenizer | None = None
        self._opening = threading.Lock()

    async def matcher(self, grammar: str, made_ids: Sequence[int] = (), tenant: str = "") -> Any:
        """A matcher of a grammar (see `json_grammar`), advanced by the tokens of the answer so far.

        Raises InvalidSchema: it cannot be compiled within bounds, no answer can meet it, or the tokens so far do not follow it;
        Unsupported: the policy has no tokenizer.json or no end token, or its tokenizer cannot be read for grammars; Overloaded: the tenant
        had too much compiled within a minute, or too many wait; Unavailable: the checking process does not start.
        """
        if self._path is None or not self._end_ids:
            said = "this policy has no tokenizer.json or no end token, so grammars do not work"
            raise Unsupported(said, param=_WHERE)
        found = await self._found(grammar, tenant)
        if isinstance(found, str):
            raise InvalidSchema(f"the grammar of this answer is refused: {found}", param=_WHERE)
        matcher = found.deep_copy()
        for start in range(0, len(made_ids), _MADE_AT_ONCE):
            if not matcher.consume_tokens(list(made_ids[start : start + _MADE_AT_ONCE])):
                raise InvalidSchema("the tokens of the answer so far do not follow its grammar", param=_WHERE)
            await asyncio.sleep(0)
        return matcher

    def close(self) -> None:
        """End the workers and their processes."""
        with self._changed:
            self._is_closing = True
            waiters = self._queue.empty()
            for checker in self._running.values():
                checker.kill()
            self._changed.notify_all()
        _tell(waiters, Unavailable("the engine is stopping; send the request again"))
        for worker in self._workers:
            worker.join()

    async def _found(self, grammar: str, tenant: str) -> LLMatcher | str:
        """The compiled grammar, or why it is refused: kept, or once its turn has come."""
        with self._changed:
            if grammar in self._kept:
                self._kept.move_to_end(grammar)
                return self._kept[grammar][0]
            if self._is_closing:
                raise Unavailable("the engine is stopping; send the request again")
            waiter = self._queue.join(grammar, tenant, monotonic())
            self._start_workers()
            self._changed.notify_all()
        try:
            async with asyncio.timeout(self._seconds + _TURN_SECONDS):
                return await asyncio.wrap_future(waiter.told)
        except TimeoutError as error:
            raise Overloaded("too many new schemas and grammars wait to be compiled; try again in 5 s", 5) from error
        finally:
            with self._changed:
                given_up = self._queue.leave(waiter)
                if given_up is not None and given_up in self._running:
                    self._running[given_up].kill()

    def _start_workers(self) -> None:
        """Start all together: a second one that starts only when the first is held would let others wait for its start."""
        if not self._workers:
            names = [f"grammars-{number}" for number in range(self._num_workers)]
            self._workers = [threading.Thread(target=self._work, name=name, daemon=True) for name in names]
            for worker in self._workers:
                worker.start()

    def _work(self) -> None:
        """Compile one grammar after the other. Runs on each worker's thread."""
        checker = GrammarChecker(
            str(self._path), self._num_ids, self._end_ids, num_bytes=_MOST_MEMORY_BYTES, seconds=self._seconds
        )
        self._prepare(checker)
        while (compilation := self._take(checker)) is not None:
            started = monotonic()
            found = self._compile(checker, compilation)
            told = self._answer(compilation, found)
            _tell(told, found)
            self._prepare(checker)  # whoever had it killed pays for its start, not the next one
            is_our_fault = bool(told) and isinstance(found, MillraceError)
            self._end(compilation, 0.0 if is_our_fault else monotonic() - started)
        checker.close()

    def _prepare(self, checker: GrammarChecker) -> None:
        """Start its process; where that fails, the next grammar is told why."""
        try:
            if not self._is_closing:
                checker.start()
        except MillraceError as error:
            _log.warning("engine_grammar_checker_does_not_start", error=error.message)

    def _take(self, checker: GrammarChecker) -> Compilation | None:
        """The next compilation; None at the end."""
        with self._changed:
            while not self._is_closing:
                if (compilation := self._queue.take()) is not None:
                    self._running[compilation] = checker
                    return compilation
                self._changed.wait()
        return None

    def _answer(self, compilation: Compilation, found: LLMatcher | str | MillraceError) -> list[GrammarWaiter]:
        """Keep what was found. Returns who is to be told: nobody if it was given up, and may have been killed."""
        with self._changed:
            del self._running[compilation]
            waiters = self._queue.answered(compilation)
            if waiters and not isinstance(found, MillraceError):
                self._kept[compilation.grammar] = found, compilation.turn_of or ""
                if len(self._kept) > _NUM_KEPT:  # new grammars of one tenant may not drive out those that others use
                    [(most, _)] = Counter(tenant for _, tenant in self._kept.values()).most_common(1)
                    del self._kept[next(grammar for grammar, (_, tenant) in self._kept.items() if tenant == most)]
        return waiters

    def _end(self, compilation: Compilation, seconds: float) -> None:
        """Its worker is free. Refuse what else its tenant waits for, if that has spent its seconds."""
        with self._changed:
            now = monotonic()
            refused = self._queue.end(compilation, seconds, now)
            refusal = self._queue.refusal(compilation.turn_of or "", now)
            self._changed.notify_all()
        _tell(refused, refusal)

    def _compile(self, checker: GrammarChecker, compilation: Compilation) -> LLMatcher | str | MillraceError:
        """The compiled grammar, why it is refused, or why that could not be found out."""
        try:
            checker.start()
            problem = checker.check(compilation.grammar) if compilation.waiters else "given up"
            if problem or not compilation.waiters:
                return problem
            with self._opening:
                if self._tokenizer is None:
                    self._tokenizer = open_tokenizer(str(self._path), self._num_ids, self._end_ids)
            matcher, problem = compile_grammar(self._tokenizer, compilation.grammar)
        except MillraceError as error:
            return error
        except Exception as error:  # noqa: BLE001 a worker that ends would let everybody wait
            _log.exception("engine_grammar_failed")
            return Unavailable(f"the grammar could not be compiled: {type(error).__name__}: {error}")
        return problem or matcher


def _tell(waiters: Iterable[GrammarWaiter], found: LLMatcher | str | MillraceError) -> None:
    for waiter in waiters:
        if not waiter.told.set_running_or_notify_cancel():
            continue  # it left
        if isinstance(found, MillraceError):
            waiter.told.set_exception(found)
        else:
            waiter.told.set_result(found)


def _check_size(text: str) -> None:
    if len(text) > MAX_GRAMMAR_BYTES:
        raise InvalidSchema(f"a grammar takes up to {MAX_GRAMMAR_BYTES // 2**20} MiB", param=_WHERE)
