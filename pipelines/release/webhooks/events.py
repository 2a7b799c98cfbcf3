"""What receivers are told. Pure.

A message is JSON: {"type": "arm.moved", "timestamp": "2026-11-23T16:30:00.123Z", "data": {...}}.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

EventKind = Literal["arm.moved", "hold.changed", "train.stopped", "train.went_on", "train.ended", "test"]
_DIGEST_BYTES = 20


class WebhookEvent(NamedTuple):
    """Something that happened. `id` depends on what happened alone, so whoever finds it a second time gives it the same one."""

    id: str
    content: Mapping[str, Any]

    @property
    def body(self) -> bytes:
        """The bytes that are signed and sent."""
        return body_of(self.content)


def make_event(kind: EventKind, key: tuple[object, ...], at: float, data: Mapping[str, Any]) -> WebhookEvent:
    """An event at a time in UTC epoch seconds. `key` names it among all events of this kind."""
    content = {"type": kind, "timestamp": _iso(at), "data": dict(data)}
    return WebhookEvent(message_id(kind, *key), content)


def message_id(*key: object) -> str:
    """The `webhook-id`."""
    text = "\0".join(map(str, key)).encode()
    return f"msg_{hashlib.blake2b(text, digest_size=_DIGEST_BYTES).hexdigest()}"


def body_of(content: Mapping[str, Any]) -> bytes:
    """The same bytes for every try."""
    return json.dumps(content, ensure_ascii=False, sort_keys=True, allow_nan=False).encode()


def make_test_event(policy: str) -> WebhookEvent:
    """An event that means nothing."""
    now = time.time()
    return make_event("test", (policy, time.time_ns()), now, {"policy": policy, "says": "millrace policy webhook-test"})


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
