"""What receivers are told, and how it is signed.

A message is JSON: {"type": "arm.moved", "timestamp": "2026-11-23T16:30:00.123Z", "data": {...}}. It is signed by Standard Webhooks 1.0
(github.com/standard-webhooks/standard-webhooks, "Signature scheme", symmetric):

    webhook-id          stays the same when a message is sent again
    webhook-timestamp   UTC epoch seconds of this try
    webhook-signature   v1,base64(HMAC-SHA256(secret, "{id}.{timestamp}.{body}"))

The secret, `whsec_` and base64 of 24 to 64 bytes, is in <home>/webhook.secret or in MILLRACE_WEBHOOK_SECRET.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

from contracts.errors import InvalidSettings
from runtime.secret_values import own_secret

EventKind = Literal["arm.moved", "hold.changed", "train.stopped", "train.went_on", "train.ended", "test"]
_DIGEST_BYTES = 20
VARIABLE = "MILLRACE_WEBHOOK_SECRET"
FILE_NAME = "webhook.secret"
_PREFIX = "whsec_"
_NEW_BYTES, _LEAST_BYTES, _MOST_BYTES = 32, 24, 64


class WebhookEvent(NamedTuple):
    """Something that happened. `id` depends on what happened alone, so whoever finds it a second time gives it the same one."""

    id: str
    content: Mapping[str, Any]

    @property
    def body(self) -> bytes:
        """The bytes that are signed and sent."""
        return json.dumps(self.content, ensure_ascii=False, sort_keys=True, allow_nan=False).encode()


def make_event(kind: EventKind, key: tuple[object, ...], at: float, data: Mapping[str, Any]) -> WebhookEvent:
    """An event at a time in UTC epoch seconds. `key` names it among all events of this kind."""
    told_at = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    content = {"type": kind, "timestamp": told_at, "data": dict(data)}
    return WebhookEvent(message_id(kind, *key), content)


def message_id(*key: object) -> str:
    """The `webhook-id`."""
    text = "\0".join(map(str, key)).encode()
    return f"msg_{hashlib.blake2b(text, digest_size=_DIGEST_BYTES).hexdigest()}"


def make_test_event(policy: str) -> WebhookEvent:
    """An event that means nothing."""
    now = time.time()
    return make_event("test", (policy, time.time_ns()), now, {"policy": policy, "says": "millrace policy webhook-test"})


def read_secret(home: Path) -> bytes:
    """The secret of this home; made if it does not exist.

    Raises InvalidSettings: the variable or the file has no usable secret, or the file cannot be read or made.
    """
    why = "release signs its messages with it, and their receivers check that"
    return own_secret(home / FILE_NAME, VARIABLE, why, new_secret, _decoded)


def new_secret() -> str:
    """A new secret, which nothing knows yet."""
    return _PREFIX + base64.b64encode(secrets.token_bytes(_NEW_BYTES)).decode()


def signed_headers(secret: bytes, message_id: str, at: float, body: bytes) -> dict[str, str]:
    """The headers of one try."""
    timestamp = int(at)
    digest = hmac.new(secret, f"{message_id}.{timestamp}.".encode() + body, hashlib.sha256).digest()
    signature = f"v1,{base64.b64encode(digest).decode()}"
    return {"webhook-id": message_id, "webhook-timestamp": str(timestamp), "webhook-signature": signature}


def _decoded(text: str, where: str) -> bytes:
    try:
        found = base64.b64decode(text.removeprefix(_PREFIX), validate=True)
    except ValueError:  # also for letters that are not ASCII
        found = b""
    if not (text.startswith(_PREFIX) and _LEAST_BYTES <= len(found) <= _MOST_BYTES):
        raise InvalidSettings(
            f"{where} has no secret for webhooks ({_PREFIX} and base64 of {_LEAST_BYTES} to {_MOST_BYTES} bytes). Delete the file, and "
            "a new one is made; its receivers need it too"
        )
    return found
