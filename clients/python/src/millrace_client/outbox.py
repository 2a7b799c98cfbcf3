"""Signals that wait to be sent.

In: signals as JSON, from any thread of the app. Out: batches to the feedback API, from one daemon thread. Waits for: the first signal,
then a moment for more of them; after a failure for `retry-after`, or longer from try to try.
"""

from __future__ import annotations

import atexit
import logging
import os
import random
import re
import threading
import time
import weakref
from collections import deque
from typing import NamedTuple

import httpx

MAX_ITEMS, MAX_BYTES = 10_000, 32 * 2**20
"""That wait; beyond, the oldest are dropped."""
MAX_BATCH, MAX_BATCH_BYTES = 500, 2**20
"""The server takes 1,000 items and 4 MiB."""
GATHER_SECONDS = 0.25
EXIT_SECONDS = 5.0
MOST_BROKEN = 8
"""Tries of a batch that the server answers with 500: it may be the batch that breaks it, and others wait behind."""
_TIMEOUT_SECONDS = 10.0
_FIRST_PAUSE, _LONGEST_PAUSE, _LONGEST_TOLD = 0.5, 30.0, 600.0
_ACCEPTED, _BROKEN = 207, 500
_BUSY = frozenset({408, 425, 429})
_SHOWN = 300

_log = logging.getLogger("millrace_client")


class Counts(NamedTuple):
    """Signals of one client in this process."""

    waiting: int
    """Not sent yet, or being sent."""
    sent: int
    """Taken by the server."""
    refused: int
    """By the server, or because they cannot be sent at all; the logger named the first of each kind."""
    dropped: int
    """The oldest of too many, those after `close`, and those that it could not send in its time."""


class _Pause(NamedTuple):
    seconds: float
    is_told: bool
    """By the server: nothing shortens it."""


class Outbox:
    """A bounded queue and its thread; see the module."""

    def __init__(self, base_url: str, key: str) -> None:
        self._url = f"{base_url.rstrip('/').removesuffix('/v1')}/v1/feedback/batch"
        # What no header may have, such as the end of a line of a file: httpx would name the key in its error, which is logged.
        self._key, self._closed = re.sub("[^!-~]", "", str(key)), False
        self.begin()
        _OUTBOXES.add(self)

    def begin(self) -> None:
        """Start empty and without a thread. In a forked child the lock may be held, and the parent sends what waits."""
        self._changed = threading.Condition()
        self._items: deque[bytes] = deque()
        self._num_bytes = self._num_sending = 0
        self._sent = self._refused = self._dropped = 0
        self._named: set[str] = set()
        self._hurry = self._stopped = False
        self._thread: threading.Thread | None = None
        self._http: httpx.Client | None = None

    def put(self, item: bytes) -> None:
        """Queue one signal. Raises RuntimeError: no thread can be started now."""
        with self._changed:
            before = self._dropped
            if self._closed:
                self._dropped += 1
            else:
                self._items.append(item)
                self._num_bytes += len(item)
            while len(self._items) > MAX_ITEMS or self._num_bytes > MAX_BYTES:
                self._num_bytes -= len(self._items.popleft())
                self._dropped += 1
            is_full = self._dropped > before
            if self._items and (self._thread is None or not self._thread.is_alive()):
                thread = threading.Thread(target=self._run, name="millrace-feedback", daemon=True)
                thread.start()
                self._thread = thread
            if len(self._items) in {1, MAX_BATCH}:
                self._changed.notify_all()
        if is_full:
            self._name("full", "signals are dropped, because too many wait or the client is closed")

    def refuse(self, kind: str, why: str, num: int = 1) -> None:
        """Count signals that are given up. The first of a kind is logged."""
        with self._changed:
            self._refused += num
        self._name(kind, why)

    def counts(self) -> Counts:
        """What became of the signals so far."""
        with self._changed:
            return Counts(len(self._items) + self._num_sending, self._sent, self._refused, self._dropped)

    def flush(self, seconds: float) -> bool:
        """Send now what waits. False: not all was sent in this time."""
        with self._changed:
            self._hurry = True
            self._changed.notify_all()
            done = self._changed.wait_for(lambda: not self._items and not self._num_sending, seconds)
            self._hurry = False
        return done

    def close(self, seconds: float) -> bool:
        """Flush, then drop the rest and end the thread."""
        with self._changed:
            self._closed = True
        done = self.flush(seconds)
        with self._changed:
            self._stopped = True
            self._dropped += len(self._items)
            self._items.clear()
            self._changed.notify_all()
        if not done:
            self._name("closed", f"not all signals could be sent in {seconds:.1f} s")
        return done

    def _run(self) -> None:
        while items := self._take():
            self._deliver(items)
        if self._http is not None:
            self._http.close()

    def _take(self) -> list[bytes]:
        """The next batch; empty at the end."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._items) or self._stopped)
            self._changed.wait_for(
                lambda: self._hurry or self._closed or len(self._items) >= MAX_BATCH, timeout=GATHER_SECONDS
            )
            items: list[bytes] = []
            room = MAX_BATCH_BYTES
            while self._items and len(items) < MAX_BATCH and (not items or len(self._items[0]) <= room):
                items.append(self._items.popleft())
                room -= len(items[-1])
            self._num_bytes -= MAX_BATCH_BYTES - room
            self._num_sending = len(items)
            return items

    def _deliver(self, items: list[bytes]) -> None:
        """Send a batch until the server has taken or refused it, or the client is closed."""
        num_tries = 1
        while (pause := self._post(items, num_tries)) is not None:
            num_tries += 1
            with self._changed:
                self._changed.wait_for(lambda: self._stopped or (self._hurry and not pause.is_told), pause.seconds)
                self._hurry = False
                if self._stopped:
                    self._dropped += len(items)
                    break
        with self._changed:
            self._num_sending = 0
            self._changed.notify_all()

    def _post(self, items: list[bytes], num_tries: int) -> _Pause | None:
        """Send a batch once. None: it is over; otherwise how long to wait before the next try."""
        try:
            if self._http is None:
                self._http = httpx.Client(timeout=_TIMEOUT_SECONDS)
            headers = {"authorization": f"Bearer {self._key}", "content-type": "application/json"}
            content = b'{"items":[' + b",".join(items) + b"]}"
            answer = self._http.post(self._url, content=content, headers=headers)
            errors = [one["error"] for one in answer.json()["errors"]] if answer.status_code == _ACCEPTED else []
        except Exception as error:  # noqa: BLE001 whatever it is, the thread goes on, and the signals wait
            self._name("unreachable", f"{self._url} cannot be reached, signals wait: {type(error).__name__}: {error}")
            return _Pause(_backoff(num_tries), is_told=False)
        if answer.status_code == _ACCEPTED:
            for refusal in errors:
                self.refuse(str(refusal.get("code")), f"a signal was refused: {refusal.get('message')}")
            with self._changed:
                self._sent += len(items) - len(errors)
            return None
        is_broken = answer.status_code == _BROKEN and num_tries >= MOST_BROKEN
        if (answer.status_code > _BROKEN or answer.status_code in {_BROKEN, *_BUSY}) and not is_broken:
            self._name("busy", f"{self._url} answers {answer.status_code}, signals wait: {answer.text[:_SHOWN]}")
            return _told(answer.headers) or _Pause(_backoff(num_tries), is_told=False)
        why = f"{self._url} answers {answer.status_code}, {len(items)} signals are given up: {answer.text[:_SHOWN]}"
        self.refuse(str(answer.status_code), why, len(items))
        return None

    def _name(self, kind: str, what: str) -> None:
        """Log the first of each kind."""
        with self._changed:
            is_known = kind in self._named
            self._named.add(kind)
        if not is_known:
            _log.warning("%s; see Feedback.counts, this is logged once", what)


def _backoff(num_tries: int) -> float:
    """Seconds, twice as many at each try. Half of them are drawn, so that clients do not come back together."""
    longest = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(num_tries - 1, 10))
    return longest * random.uniform(0.5, 1.0)  # noqa: S311 no secret


def _told(headers: httpx.Headers) -> _Pause | None:
    """The server's `retry-after`, and up to a tenth more."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers[name]) * unit
        except (KeyError, ValueError):
            continue
        if seconds >= 0:
            return _Pause(min(seconds, _LONGEST_TOLD) * random.uniform(1.0, 1.1), is_told=True)  # noqa: S311 no secret
    return None


_OUTBOXES: weakref.WeakSet[Outbox] = weakref.WeakSet()


def _begin_in_child() -> None:
    for outbox in list(_OUTBOXES):
        outbox.begin()


def _close_all() -> None:
    end = time.monotonic() + EXIT_SECONDS
    for outbox in list(_OUTBOXES):
        outbox.close(max(0.0, end - time.monotonic()))


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_begin_in_child)
atexit.register(_close_all)
