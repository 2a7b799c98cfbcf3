"""Runs models that cannot be paged: a stepping loop over sequences, each with transformers' own cache.

In: requests and cancellations from any thread. Out: the outputs of each step, to `receive`, on the generation thread. Waits for: a
request, while there is none; the end of a pause. A prompt is one forward of its own, whatever its length: the caches of some models
(Mamba's) cannot go on with several tokens. Decoding is one forward for all sequences where their caches can be joined, else one for each.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers import DynamicCache

from services.engine.active_requests import ActiveRequest
from services.engine.batch_cache import BatchCache, has_keys, is_joinable
from services.engine.runners import ForwardObserver, ForwardPart, Receive, StepOutput, cache_argument
from services.engine.sampler import sample
from services.engine.settings import EngineSettings


class SteppedSequence:
    """A request in the loop. `num_computed` of its tokens are in its cache, which joins that of the batch, where there is one."""

    def __init__(self, active: ActiveRequest) -> None:
        self.active = active
        self.request_id = active.request_id
        self.token_ids = list(active.request.token_ids)
        self.logprobs: list[float] = []
        self.num_computed = 0
        self.cache: Any = None

    def extend(self, token_id: int, logprob: float) -> StepOutput:
        """Add a token."""
        self.token_ids.append(token_id)
        self.logprobs.append(logprob)
        finished = token_id in self.active.stops or len(self.token_ids) == self.active.num_reserved
        return StepOutput(self.request_id, self.token_ids[self.active.num_prompt :], self.logprobs[:], finished)


class SteppedRunner:
    """See the module, and `PagedRunner` for the methods."""

    def __init__(self, model: Any, settings: EngineSettings, receive: Receive, observer: ForwardObserver) -> None:
        self.model = model
        self._receive = receive
        self._observer = observer
        self._max_in_flight = settings.max_in_flight
        self._max_batch_tokens, self._cache_tokens = settings.max_batch_tokens, settings.cache_tokens
        self._cache_name = cache_argument(model) or ""
        self._known = inspect.signature(model.forward).parameters
        self._waiting: list[SteppedSequence] = []
        self._cancelled: set[str] = set()
        self._admitted: list[SteppedSequence] = []
        self._decoding: list[SteppedSequence] = []
        empty = DynamicCache(config=model.config)
        self._batch: BatchCache | None = BatchCache() if is_joinable(empty) else None
        self._is_masked = has_keys(empty) and "attention_mask" in self._known
        self._condition = threading.Condition()  # guards all fields from here on, and `_waiting` and `_cancelled`
        self._num_pauses = 0
        self._is_parked = False
        self._is_stopping = False
        self._is_alive = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="generation", daemon=True)

    def start(self) -> None:
        """See `PagedRunner`."""
        self._is_alive = True
        self._thread.start()

    def add(self, active: ActiveRequest) -> bool:
        """See `PagedRunner`; without prefixes: a recurrent state cannot be cut where two prompts part."""
        with self._condition:
            if not self.serving:
                return False
            self._waiting.append(SteppedSequence(active))
            self._condition.notify_all()
        return True

    def cancel(self, request_id: str) -> None:
        """See `PagedRunner`."""
        with self._condition:
            self._cancelled.add(request_id)
            self._condition.notify_all()

    @contextmanager
    def pause(self) -> Iterator[None]:
        """See `PagedRunner`."""
        with self._condition:
            self._num_pauses += 1
            self._condition.notify_all()
            self._condition.wait_for(lambda: self._is_parked or not self._is_alive)
            is_parked = self._is_parked
        try:
            if not is_parked:
                raise RuntimeError("the generation thread is dead")
            yield
        finally:
            with self._condition:
                self._num_pauses -= 1
                self._condition.notify_all()

    def stop(self) -> None:
        """See `PagedRunner`."""
        with self._condition:
            self._is_stopping = True
            self._condition.notify_all()
        self._thread.join()

    def wait(self) -> BaseException | None:
        """See `PagedRunner`."""
        self._thread.join()
        return self._error

    @property
    def serving(self) -> bool:
        """See `PagedRunner`."""
        return self._is_alive and not self._is_stopping

    @property
    def num_sequences(self) -> int:
        """Sequences that have a cache."""
        return len(self._admitted) + len(self._decoding)

    def _run(self) -> None:
        try:
            if self.model.device.type == "cuda":
                torch.cuda.set_device(self.model.device)
            with torch.no_grad():
                while self._take_in():
                    self._step()
        except BaseException as error:  # noqa: BLE001 whatever it is, the arm reports it and starts a new runner
            self._error = error
        finally:
            with self._condition:
                self._is_alive = self._is_parked = False
                self._condition.notify_all()

    def _take_in(self) -> bool:
        """Wait for work, and for the end of a pause; then apply cancellations and admit requests. False to stop."""
        with self._condition:
            while not self._is_stopping and (self._num_pauses or not self._has_work):
                self._is_parked = self._num_pauses > 0
                self._condition.notify_all()
                self._condition.wait()
            self._is_parked = False
            if self._is_stopping:
                return False
            self._drop({one.request_id for one in self._decoding if one.request_id in self._cancelled})
            self._waiting = [one for one in self._waiting if one.request_id not in self._cancelled]
            self._cancelled.clear()
            self._admit()
            return True

    @property
    def _has_work(self) -> bool:
        return bool(self._waiting or self._decoding or self._cancelled)

    def _admit(self) -> None:
        """Choose the prompts of the next step, oldest first: within its tokens (or one alone) and within the cache."""
        num_reserved, num_tokens = sum(one.active.num_reserved for one in self._decoding), 0
        while self._waiting and self.num_sequences < self._max_in_flight:
            num_reserved += self._waiting[0].active.num_reserved
            num_tokens += self._waiting[0].active.num_prompt
            is_cache_full = self.num_sequences and num_reserved > self._cache_tokens
            if is_cache_full or (self._admitted and num_tokens > self._max_batch_tokens):
                return
            self._admitted.append(self._waiting.pop(0))

    def _step(self) -> None:
        rows = self._decode() if self._decoding else []
        for sequence in self._admitted:
            sequence.cache = DynamicCache(config=self.model.config)
            sequence.num_computed = sequence.active.num_prompt
            part = ForwardPart(sequence.request_id, 0, sequence.num_computed)
            rows.append(self._forward([sequence.token_ids], sequence.cache, [part]))
        ready, self._admitted = [*self._decoding, *self._admitted], []
        if not ready:
            return  # there were cancellations alone
        token_ids, logprobs = sample(torch.cat(rows).float(), [sequence.active.sampling for sequence in ready])
        found = zip(ready, token_ids.tolist(), logprobs.tolist(), strict=True)
        outputs = [sequence.extend(token_id, logprob) for sequence, token_id, logprob in found]
        for sequence in ready[len(self._decoding) :]:
            self._decoding.append(sequence)
            if self._batch is not None:
                self._batch.join(sequence.cache, sequence.num_computed)
                sequence.cache = None
        self._drop({output.request_id for output in outputs if output.finished})
        self._receive(outputs)

    def _decode(self) -> list[torch.Tensor]:
        """Logits, together [B, V], of the sequences whose prompts are computed."""
        parts = [ForwardPart(one.request_id, one.num_computed, 1) for one in self._decoding]
        tokens = [one.token_ids[-1:] for one in self._decoding]
        for sequence in self._decoding:
            sequence.num_computed += 1
        if self._batch is None:
            alone = zip(self._decoding, tokens, parts, strict=True)
            return [self._forward([token], one.cache, [part]) for one, token, part in alone]
        mask = self._batch.attention_mask(self.model.device) if self._is_masked and len(tokens) > 1 else None
        logits = self._forward(tokens, self._batch.cache, parts, mask)
        self._batch.advance()
        return [logits]

    def _forward(
        self,
        token_ids: list[list[int]],
        cache: Any,
        parts: Sequence[ForwardPart],
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Logits [B, V] after the last of the tokens [B, T], which are added to the cache."""
        device = self.model.device
        given: dict[str, Any] = {self._cache_name: cache, "use_cache": True}
        if "position_ids" in self._known:
            starts = torch.tensor([part.start for part in parts], device=device)
            given["position_ids"] = starts[:, None] + torch.arange(len(token_ids[0]), device=device)
        if mask is not None:
            given["attention_mask"] = mask
        if "logits_to_keep" in self._known:
            given["logits_to_keep"] = 1
        self._observer.before(parts)
        logits: torch.Tensor = self.model(torch.tensor(token_ids, device=device), **given).logits[:, -1]
        self._observer.after()
        return logits

    def _drop(self, request_ids: Collection[str]) -> None:
        """Forget sequences, and free their rows."""
        if request_ids:
            rows = [row for row, one in enumerate(self._decoding) if one.request_id not in request_ids]
            self._decoding = [self._decoding[row] for row in rows]
            if self._batch is not None:
                self._batch.keep(rows)
