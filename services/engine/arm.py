"""One arm: a model, its version, and a runner that is kept running over it.

In: requests from the event loop (`submit`, `cancel`), staged changes of weights (`swap`). Out: chunks for each active request.
Waits for: nothing. A supervisor thread waits for the generation thread to die, fails its requests and starts a new runner.
Weights change only while the runner is paused between two steps, and the tokens of a step get their version on the generation
thread. So a token never has the wrong version.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from time import monotonic, perf_counter
from typing import Any

import msgspec
import structlog
from llguidance import LLMatcher

from contracts.cache_salts import scope_of
from contracts.errors import GrammarStuck, Unavailable
from services.engine.active_requests import ActiveRequest, Bounds, TokenChunk, admit, hand_over
from services.engine.grammars import Grammars
from services.engine.manager import PagedRunner, end_ids, limits_of
from services.engine.prefixes import PrefixStore, PrefixUse
from services.engine.runners import ForwardObserver, StepOutput, runner_for
from services.engine.sampler import SequenceSampling
from services.engine.sampling import GenerateRequest, check_request, grammar_of, stop_ids
from services.engine.settings import EngineSettings
from services.engine.stepper import SteppedRunner

_MAX_QUICK_DEATHS = 5
_QUICK_SECONDS = 10.0
_STEP_TIMEOUT = 2.0
_NUM_RECENT_GAPS = 1000
_NUM_RECENT_ENDS = 64
_TURNS_OF_CACHE = 4  # the default bound of open tokens, in sizes of the cache
_log = structlog.get_logger(__name__)


class EngineArm:
    """See the module. `on_gave_up` is called when restarts do not help."""

    def __init__(
        self,
        name: str,
        model: Any,
        version: int,
        *,
        settings: EngineSettings,
        grammars: Grammars,
        on_gave_up: Callable[[], None],
        observer: ForwardObserver | None = None,
    ) -> None:
        self.name = name
        self.model = model
        self.version = version
        self.restarts = 0
        self.gave_up = False
        self.limits = limits_of(model, settings)
        self.runner_kind = runner_for(model)
        self._settings = settings
        self._on_gave_up = on_gave_up
        self._grammars = grammars
        self._observer = observer or ForwardObserver()
        self.records_experts = observer is not None
        # An answer's experts are of all its tokens, so all of them must be computed.
        keeps = settings.prefix_cache_bytes > 0 and self.runner_kind == "paged" and not self.records_experts
        self._prefixes = PrefixStore(settings.prefix_cache_bytes) if keeps else None
        self._end_ids = end_ids(model)
        self.recent_gaps: deque[float] = deque(maxlen=_NUM_RECENT_GAPS)
        """Seconds between two tokens, of the answers that ended last."""
        most_tokens = settings.max_open_tokens or _TURNS_OF_CACHE * settings.cache_tokens
        self._bounds = Bounds(settings.max_open_requests, most_tokens)
        self._recent_ends: deque[float] = deque(maxlen=_NUM_RECENT_ENDS)
        self._active: dict[str, ActiveRequest] = {}
        self._num_submitted = 0
        self._stepped = threading.Event()
        self._stopping = threading.Event()
        self._lock = threading.Lock()  # a request must not be submitted to a runner that is being replaced
        self.start()

    def start(self) -> None:
        """Start a runner, and the thread that restarts it."""
        self.gave_up = False
        self._launch()
        self._supervisor = threading.Thread(target=self._supervise, name=f"supervise-{self.name}", daemon=True)
        self._supervisor.start()

    def stop(self) -> None:
        """Stop the runner; requests in flight fail."""
        with self._lock:
            self._stopping.set()
        self._runner.stop()
        self._supervisor.join()

    @property
    def serving(self) -> bool:
        """True while the generation thread runs and accepts requests."""
        return self._runner.serving

    @property
    def num_in_flight(self) -> int:
        """Requests that were submitted and have not ended."""
        return len(self._active)

    async def open(self, request: GenerateRequest) -> ActiveRequest:
        """Start a request, with a grammar or without; a new grammar is compiled first. Raises as `submit`, and as `Grammars.matcher`."""
        outputs = request.sampling_params.structured_outputs
        if outputs is None:
            return self.submit(request)
        check_request(request, self.limits)  # nothing is compiled for a request that is refused
        made_ids = request.token_ids[len(request.token_ids) - request.num_made :]
        tenant = scope_of(request.cache_salt or "")
        return self.submit(request, await self._grammars.matcher(grammar_of(outputs), made_ids, tenant))

    def submit(self, request: GenerateRequest, matcher: LLMatcher | None = None) -> ActiveRequest:
        """Start a request; `matcher`: its grammar, advanced by the tokens so far. Call it on an event loop.

        Raises InvalidRequest, ContextLengthExceeded: see `check_request`; Overloaded: too many requests or tokens are open; Unavailable:
        the runner is restarting or stopping.
        """
        check_request(request, self.limits)
        params, token_ids = request.sampling_params, request.token_ids
        sampling = SequenceSampling(params, token_ids, num_made=request.num_made, matcher=matcher)
        stops = stop_ids(params, self._end_ids)
        prefix = PrefixUse(request.cache_salt) if self._prefixes is not None and request.cache_salt else None
        with self._lock:
            admit(
                self._bounds,
                [active.num_reserved for active in list(self._active.values())],
                len(token_ids) + params.max_tokens,
                tuple(self._recent_ends),
                monotonic(),
                background=request.priority > 0,
            )
            self._num_submitted += 1
            active = ActiveRequest(f"{self.name}-{self._num_submitted}", request, sampling, stops, prefix)
            self._active[active.request_id] = active  # before its first step can end
            if not self._runner.add(active):
                del self._active[active.request_id]
                raise Unavailable("the engine is restarting; send the request again")
        return active

    def cancel(self, active: ActiveRequest) -> None:
        """Cancel a request and free its cache; nothing happens if it has ended."""
        with self._lock:
            if self._active.pop(active.request_id, None) is not None:
                self._runner.cancel(active.request_id)
                self._observer.forget(active.request_id)

    @contextmanager
    def pause(self) -> Iterator[None]:
        """A block in which no step runs; requests are kept. Enter and leave it on one thread. Raises Unavailable if the runner is dead."""
        with ExitStack() as stack:
            try:
                stack.enter_context(self._runner.pause())
            except RuntimeError as error:
                raise Unavailable("the engine is restarting; pause it again") from error
            yield

    def swap(self, change: Callable[[], object], version: int, *, held: bool) -> tuple[float, float, list[list[float]]]:
        """Change the weights between two steps, by `change`. `held`: an outer pause continues, so no token can follow.

        Returns:
            The time of the swap (perf_counter), the length of the pause in seconds, and for each request in flight the times
            of its tokens, up to at least one after the swap (or the request's end, or two seconds).
        """
        with self.pause():
            parked_at = perf_counter()
            self._drop_prefixes()
            change()
            self.version = version
            answering = [active for active in list(self._active.values()) if active.token_times]
            in_flight = [(active, len(active.token_times)) for active in answering]
            swapped_at = perf_counter()
        if not held:
            self._wait_for_tokens(in_flight)
        return swapped_at, swapped_at - parked_at, [active.token_times[:] for active, _ in in_flight]

    def replace(self, change: Callable[[], object], version: int) -> None:
        """Change the weights of an arm that gave up, and start it again."""
        change()
        self.version = version
        self.start()

    def receive(self, outputs: list[StepOutput]) -> None:
        """Take the tokens of one step, or failures. Called on the generation thread."""
        chunks: list[tuple[ActiveRequest, TokenChunk]] = []
        for output in outputs:
            active = self._active.get(output.request_id)
            if active is None:
                continue  # cancelled between two steps
            chunk = self._advance(active, output)
            if active.finished:
                self._active.pop(active.request_id, None)
                self._recent_ends.append(monotonic())
                self.recent_gaps.extend(after - before for before, after in pairwise(active.token_times))
            if chunk is not None:
                chunks.append((active, chunk))
        self._stepped.set()
        hand_over(chunks)

    def _advance(self, active: ActiveRequest, output: StepOutput) -> TokenChunk | None:
        if output.error is not None:
            self._observer.forget(active.request_id)
            return active.restarted(output.error)
        if active.sampling.error:
            self._observer.forget(active.request_id)
            self._runner.cancel(active.request_id)
            return active.fail(GrammarStuck(active.sampling.error))
        chunk = active.advance(output.token_ids, output.logprobs, finished=output.finished, version=self.version)
        if chunk is None or not output.finished:
            return chunk
        experts = self._observer.finish(active.request_id, active.num_prompt + len(output.token_ids))
        return msgspec.structs.replace(chunk, routed_experts=experts)

    def _wait_for_tokens(self, in_flight: list[tuple[ActiveRequest, int]]) -> None:
        deadline = monotonic() + _STEP_TIMEOUT
        while any(
            len(active.token_times) == num_before and active.request_id in self._active
            for active, num_before in in_flight
        ):
            self._stepped.clear()
            if not self._stepped.wait(timeout=max(0.0, deadline - monotonic())):
                return

    def _launch(self) -> None:
        self._drop_prefixes()  # a runner that died may have kept anything
        self._runner: PagedRunner | SteppedRunner = (
            PagedRunner(self.model, self._settings, self.receive, self._observer, self._prefixes)
            if self.runner_kind == "paged"
            else SteppedRunner(self.model, self._settings, self.receive, self._observer)
        )
        self._runner.start()
        self._started_at = monotonic()

    def _drop_prefixes(self) -> None:
        if self._prefixes is not None:
            self._prefixes.drop()

    def _supervise(self) -> None:
        quick_deaths = 0
        while True:
            error = self._runner.wait()
            quick_deaths = quick_deaths + 1 if monotonic() - self._started_at < _QUICK_SECONDS else 1
            with self._lock:
                if self._stopping.is_set():
                    self._fail_all("the engine stopped")
                    return
                _log.error("engine_manager_died", arm=self.name, version=self.version, error=repr(error))
                self._fail_all(f"{type(error).__name__}: {error}")
                self.restarts += 1
                if quick_deaths >= _MAX_QUICK_DEATHS:
                    self.gave_up = True
                    break
                self._launch()
        self._on_gave_up()

    def _fail_all(self, reason: str) -> None:
        active, self._active = list(self._active.values()), {}
        for request in active:
            self._observer.forget(request.request_id)
        hand_over([(request, request.restarted(reason)) for request in active])
