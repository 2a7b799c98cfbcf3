"""Asks a pinned version the sentinels over HTTP, like any user, with the sampling of their tasks.

In: sentinels. Out: one answer to each, in order. Waits: until the engine has loaded the version; if the endpoint is busy, all threads
wait as long as it asks. A failure says nothing about the version, unless the engine reports that the version itself is damaged. A
sentinel that was accepted and not answered in time is not sent again in the same look.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import httpx

from contracts.assignments import CANDIDATE
from contracts.engines import EngineReplica
from contracts.errors import InvalidSettings, MillraceError, Unavailable, VersionNotResident
from contracts.gating import Sentinel, SentinelFile
from contracts.records import GenerationBody
from runtime.metrics import GATE_ANSWERS

_RETRY_SECONDS, _LONGEST_RETRY_SECONDS = 0.2, 30.0
_TOO_MANY = 429
_NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_REFUSED = (400, 401, 403, 422)
_OF_ITS_CONTENT = (400, 422)
REFUSED, LATE = "refused", "late"
"""Finish reasons of questions that were skipped."""
BAD_VERSION = frozenset(
    (
        "broken_chain", "corrupt_history", "corrupt_manifest", "corrupt_payload", "missing_tensor", "not_finite",
        "not_safetensors", "payload_hash", "target_root", "truncated", "unknown_codec", "unknown_tensor", "wrong_base",
        "wrong_dtype", "wrong_run", "wrong_shape",
    )
)  # fmt: skip
"""Error codes of the engine for a version whose bytes or manifest are wrong. Other errors may pass, or come from our own keys and
stores."""
_TRIES = 2
"""How often the engine must have found a version bad: the first time it may have read bytes that were still being written."""


class BadVersion(MillraceError):
    """The engine refuses the version because of its bytes: asking again cannot help."""

    code = "bad_version"


class NoLongerAssigned(VersionNotResident):
    """No arm points at the version any more, so no engine will load it."""


class SentinelAnswer(NamedTuple):
    """The answer of a version to one sentinel."""

    text: str
    """With its tool calls, as graders read them."""
    finish_reason: str
    finite: bool
    """True if every log-prob is a finite number."""


@dataclass
class SentinelClient:
    """Sends all sentinels to one version.

    If the version does not become resident, `engines`, the rows of the replicas, say why.
    """

    client: httpx.Client
    policy: str
    concurrency: int
    patience_seconds: float
    engines: Callable[[], Sequence[EngineReplica]]
    slot: str = CANDIDATE
    """The slot that holds the versions, for what engines say of their bytes."""
    skips: bool = False
    """Whether a question is skipped that the endpoint refuses because of its content, or answers too late: its finish reason is then
    `REFUSED` or `LATE`."""
    answer_seconds: float | None = None
    """How long one answer may take. None: as long as `client` waits."""
    is_assigned: Callable[[int], bool] = lambda _: True
    """Whether an arm points at the version: asked while no engine has it."""
    _free_at: float = 0.0
    """Shared by all threads: if one is told to wait, all wait."""

    def patient(self, seconds: float) -> SentinelClient:
        """The same client, with so much time for all its questions, and for each answer."""
        return replace(self, patience_seconds=seconds, answer_seconds=seconds)

    def ask(
        self, sentinels: SentinelFile, version: int, stop: threading.Event, draws: Mapping[str, int]
    ) -> tuple[SentinelAnswer, ...]:
        """The answers, in the order of the sentinels. Without sentinels it only waits until the engine has the version.

        `draws`: by task, the draw of seeds that its sentinels are sampled with.

        Raises BadVersion: the engine refuses the bytes of the version; InvalidSettings: the endpoint refuses a sentinel because of its
        content; asking again cannot help; VersionNotResident: the engine did not load the version within the patience; `NoLongerAssigned`
        if it never will; Unavailable: no answers within the patience, or `stop` was set.
        """
        deadline = time.monotonic() + self.patience_seconds
        if not sentinels.items:
            self._wait_resident(version, deadline, stop)
            return ()
        with ThreadPoolExecutor(self.concurrency, thread_name_prefix="sentinel") as pool:
            asked = [
                pool.submit(self._ask, item, version, deadline, stop, item.seed_of(draws[item.task]))
                for item in sentinels.items
            ]
            try:
                return tuple(future.result() for future in asked)
            except MillraceError:
                for future in asked:
                    future.cancel()
                raise

    def _wait_resident(self, version: int, deadline: float, stop: threading.Event) -> None:
        """Without sentinels, the least that a version must pass is that the engine loads it."""
        reason = ""
        while time.monotonic() < deadline and not stop.is_set():
            try:
                answer = self.client.get(f"/v1/models/{self.policy}@v{version}")
            except httpx.TransportError as error:
                reason = f"{type(error).__name__}: {error}"
            else:
                if answer.is_success:
                    return
                reason = answer.text[:200]
                self._check_coming(version)
            stop.wait(_RETRY_SECONDS)
        if stop.is_set():
            raise Unavailable("stopped")
        raise VersionNotResident(f"the engine did not take v{version} in {self.patience_seconds:.0f} s: {reason}")

    def _ask(self, item: Sentinel, version: int, deadline: float, stop: threading.Event, seed: int) -> SentinelAnswer:
        # No temperature and no length: the task sets them, as for its users.
        body: dict[str, Any] = {"model": f"{self.policy}@v{version}", "messages": item.messages, "seed": seed}
        body |= {"metadata": {"task": item.task}, "logprobs": True, **item.options}
        failure: MillraceError = Unavailable("no time was left")
        pause = _RETRY_SECONDS
        while time.monotonic() < deadline and not stop.is_set():
            if (wait := min(self._free_at, deadline) - time.monotonic()) > 0:
                stop.wait(wait)
                continue
            answer = self._post(item, body, version, pause)
            if isinstance(answer, SentinelAnswer):
                return answer
            failure = answer
            stop.wait(pause)
            # To ask whether a version is resident is cheap, so it is asked often.
            pause = _RETRY_SECONDS if isinstance(answer, VersionNotResident) else min(_LONGEST_RETRY_SECONDS, 2 * pause)
        if stop.is_set():
            raise Unavailable("stopped")
        waited = f"in {self.patience_seconds:.0f} s"
        if isinstance(failure, VersionNotResident):
            raise VersionNotResident(f"the engine did not take v{version} {waited}; its log says why")
        raise Unavailable(f"v{version} did not answer its sentinels {waited}: {failure.message}")

    def _post(self, item: Sentinel, body: dict[str, Any], version: int, pause: float) -> SentinelAnswer | MillraceError:
        """The answer, or the error after which the sentinel may be sent again; other errors are raised, see `ask`."""
        try:
            answer = self.client.post(
                "/v1/chat/completions",
                json=body,
                timeout=self.client.timeout if self.answer_seconds is None else self.answer_seconds,
            )
        except _NEVER_SENT as error:
            return Unavailable(f"{type(error).__name__}: {error}")
        except httpx.TransportError as error:  # the engine may still be answering
            if self.skips and isinstance(error, httpx.ReadTimeout):
                return SentinelAnswer("", LATE, finite=True)
            raise Unavailable(f"v{version} did not answer a sentinel: {type(error).__name__}: {error}") from error
        if answer.is_success:
            GATE_ANSWERS.inc()
            return _read(answer)
        said = answer.text[:300]
        if self.skips and answer.status_code in _OF_ITS_CONTENT:
            return SentinelAnswer("", REFUSED, finite=True)
        if answer.status_code in _REFUSED:
            raise InvalidSettings(f"{item.where}: the endpoint refuses this sentinel: {said}")
        if answer.headers.get("x-should-retry") == "false":
            raise Unavailable(f"v{version} did not answer a sentinel: {said}")
        if VersionNotResident.code in said:
            self._check_coming(version)
            return VersionNotResident(said)
        if answer.status_code == _TOO_MANY:
            self._free_at = max(self._free_at, time.monotonic() + _wait_seconds(answer, pause))
        return Unavailable(said)

    def _check_coming(self, version: int) -> None:
        """Raise NoLongerAssigned or BadVersion if no engine will load the version any more."""
        try:
            is_assigned = self.is_assigned(version)
            rows = [row for row in self.engines() if row.is_fresh(time.time())]
        except Unavailable:
            return  # without rows nothing is known about the version
        if not is_assigned:
            raise NoLongerAssigned(f"v{version} was taken from its arm while it was asked: no engine loads it any more")
        if any(row.slots.get(self.slot) == version for row in rows):
            return
        for row in rows:
            problem = row.problems.get(self.slot)
            if problem is None or problem["version"] != version:
                continue
            if problem["code"] in BAD_VERSION and problem["attempts"] >= _TRIES:
                raise BadVersion(f"the engine {row.name} refuses v{version}: {problem['code']}: {problem['message']}")


def _wait_seconds(response: httpx.Response, least: float) -> float:
    told = response.headers.get("retry-after", "")
    return min(_LONGEST_RETRY_SECONDS, max(least, float(told))) if told.isdecimal() else least


def _read(response: httpx.Response) -> SentinelAnswer:
    """Raises Unavailable if the response is not a completion."""
    try:
        choice: Any = response.json()["choices"][0]
        message, reason = choice["message"], str(choice["finish_reason"])
        said, calls = message["content"] or "", message.get("tool_calls") or []
        body = GenerationBody(
            messages=[], text=said, prompt_ids=b"", completion_ids=b"", logprobs=b"", tool_calls=calls
        )
        text = body.text_with_calls
        tokens = (choice.get("logprobs") or {}).get("content") or []
        # A log-prob that is not finite is null on the wire.
        finite = all(isinstance(token["logprob"], int | float) and math.isfinite(token["logprob"]) for token in tokens)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise Unavailable(f"the endpoint answered no completion ({error!r}): {response.text[:200]}") from error
    return SentinelAnswer(text, reason, finite)
