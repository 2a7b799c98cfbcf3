"""Signs messages by Standard Webhooks 1.0 (github.com/standard-webhooks/standard-webhooks, "Signature scheme", symmetric).

    webhook-id          stays the same when a message is sent again
    webhook-timestamp   UTC epoch seconds of this try
    webhook-signature   v1,base64(HMAC-SHA256(secret, "{id}.{timestamp}.{body}"))

The secret, `whsec_` and base64 of 24 to 64 bytes, is in <home>/webhook.secret or in MILLRACE_WEBHOOK_SECRET.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import secrets
from pathlib import Path

from contracts.errors import InvalidSettings
from runtime.private_files import make_secret
from runtime.settings_file import refuse_to_make

VARIABLE = "MILLRACE_WEBHOOK_SECRET"
FILE_NAME = "webhook.secret"
_PREFIX = "whsec_"
_NEW_BYTES, _LEAST_BYTES, _MOST_BYTES = 32, 24, 64


def read_secret(home: Path) -> bytes:
    """The secret of this home; made if it does not exist.

    Raises:
        InvalidSettings: the variable or the file has no usable secret, or the file cannot be read or made.
    """
    if given := os.environ.get(VARIABLE, "").strip():
        return _decoded(given, VARIABLE)
    path = home / FILE_NAME
    try:
        if not path.exists():
            refuse_to_make("release signs its messages with it, and their receivers check that", VARIABLE)
            make_secret(path, new_secret())
        return _decoded(path.read_text().strip(), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSettings(f"{path} cannot be used ({error}); make it readable, or set {VARIABLE}") from error


def new_secret() -> str:
    """A new secret, which nothing knows yet."""
    return _PREFIX + base64.b64encode(secrets.token_bytes(_NEW_BYTES)).decode()


def signed_headers(secret: bytes, message_id: str, at: float, body: bytes) -> dict[str, str]:
    """The headers of one try."""
    timestamp = int(at)
    digest = hmac.new(secret, f"{message_id}.{timestamp}.".encode() + body, hashlib.sha256).digest()
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
    }


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
