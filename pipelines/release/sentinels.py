"""Asks a pinned version the sentinels, over HTTP like any user, and collects the scores that the reward worker gave.

In: sentinels of a file; experiences from the log. Out: one value for each sentinel. Waits: until the engine holds the
version, and until every answer is scored.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from contracts.errors import InvalidSettings, Unavailable, VersionNotResident
from contracts.event_log import EventLog
from contracts.records import Experience, decode
from contracts.topics import EXPERIENCES
from pipelines.release.rules import Sentinels, value_of

_RETRY_SECONDS = 0.2
_REFUSED = (400, 401, 403, 422)
_PAGE = 500


class SentinelFile(NamedTuple):
    """The sentinels, and the hash that tells one set from another."""

    items: tuple[dict[str, Any], ...]
    hash: str


def read_sentinels(path: Path | None) -> SentinelFile:
    """Read and check a sentinel file.

    Raises:
        InvalidSettings: the file is missing, or a line is not such an object.
    """
    if path is None:
        return SentinelFile((), "none")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidSettings(f"[release] sentinels: {path}: {error.strerror}") from error
    items = []
    for number, line in enumerate(content.splitlines(), 1):
        try:
            item = json.loads(line)
        except ValueError as error:
            raise InvalidSettings(f"{path}:{number}: not JSON: {error}") from error
        if not isinstance(item, dict) or not {"messages", "reference"} <= item.keys():
            raise InvalidSettings(f'{path}:{number}: a sentinel is {{"messages": [...], "reference": "..."}}')
        items.append(item)
    return SentinelFile(tuple(items), hashlib.blake2b(content, digest_size=8).hexdigest())


class SentinelRunner:
    """Runs the whole set against one version."""

    def __init__(
        self,
        client: httpx.Client,
        event_log: EventLog,
        *,
        policy: str,
        concurrency: int,
        max_tokens: int,
        patience_seconds: float,
    ) -> None:
        self._client = client
        self._log = event_log
        self._policy = policy
        self._concurrency = concurrency
        self._max_tokens = max_tokens
        self._patience = patience_seconds

    def run(self, sentinels: SentinelFile, version: int, stop: threading.Event) -> Sentinels:
        """Ask every sentinel and wait for the scores.

        Raises:
            InvalidSettings: the endpoint refuses a sentinel for what it says; trying again cannot help.
            VersionNotResident: the engine did not take the version within the patience.
            Unavailable: no answers or no scores within the patience.
        """
        deadline = time.monotonic() + self._patience
        if not sentinels.items:
            self._wait_resident(version, deadline, stop)
            return Sentinels(version, ())
        places = self._log.ends(EXPERIENCES)
        with ThreadPoolExecutor(self._concurrency) as pool:
            asked = [pool.submit(self._ask, item, version, deadline, stop) for item in sentinels.items]
            keys = [future.result() for future in asked]
        found = self._collect(keys, places, stop)
        return Sentinels(
            version, tuple(found[key][0] for key in keys), finite=all(finite for _, finite in found.values())
        )

    def _wait_resident(self, version: int, deadline: float, stop: threading.Event) -> None:
        """Without sentinels a version must at least be one that the engine took."""
        reason = "stopped"
        while time.monotonic() < deadline and not stop.is_set():
            try:
                answer = self._client.get(f"/v1/models/{self._policy}@v{version}")
            except httpx.TransportError as error:
                reason = f"{type(error).__name__}: {error}"
            else:
                if answer.is_success:
                    return
                reason = answer.text[:200]
            stop.wait(_RETRY_SECONDS)
        if stop.is_set():
            raise Unavailable("stopped")
        raise VersionNotResident(f"the engine did not take v{version} in {self._patience:.0f} s: {reason}")

    def _ask(self, item: dict[str, Any], version: int, deadline: float, stop: threading.Event) -> str:
        """The sample key of the answer."""
        body = {
            "model": f"{self._policy}@v{version}",
            "messages": item["messages"],
            "temperature": 0,
            "max_tokens": self._max_tokens,
            "metadata": {"reference": item["reference"]},
        }
        reason, absent = "stopped", False
        while time.monotonic() < deadline and not stop.is_set():
            try:
                answer = self._client.post("/v1/chat/completions", json=body)
            except httpx.TransportError as error:
                reason, absent = f"{type(error).__name__}: {error}", False
            else:
                if answer.is_success:
                    return f"{answer.json()['id']}:0"
                if answer.status_code in _REFUSED:
                    raise InvalidSettings(f"the endpoint refuses the sentinel {item['messages']}: {answer.text[:300]}")
                reason, absent = answer.text[:200], VersionNotResident.code in answer.text
            stop.wait(_RETRY_SECONDS)
        # Told to stop while the engine was still loading: that is no verdict.
        if absent and not stop.is_set():
            raise VersionNotResident(f"the engine did not take v{version} in {self._patience:.0f} s; its log says why")
        raise Unavailable(f"v{version} did not answer its sentinels: {reason}")

    def _collect(self, keys: list[str], places: dict[int, int], stop: threading.Event) -> dict[str, tuple[float, bool]]:
        """Read experiences from `places` on until every key is scored."""
        wanted = set(keys)
        found: dict[str, tuple[float, bool]] = {}
        deadline = time.monotonic() + self._patience
        while wanted and time.monotonic() < deadline and not stop.is_set():
            read = [
                r for partition, offset in places.items() for r in self._log.read(EXPERIENCES, partition, offset, _PAGE)
            ]
            for record in read:
                places[record.partition] = record.offset + 1
                if record.key in wanted:
                    wanted.discard(record.key)
                    found[record.key] = value_of(decode(Experience, record.value))
            if not read:
                stop.wait(_RETRY_SECONDS)
        if wanted:
            raise Unavailable(f"{len(wanted)} of {len(keys)} sentinels were not scored in {self._patience:.0f} s")
        return found
