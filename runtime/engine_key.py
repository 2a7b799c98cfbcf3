"""The secret between a home's processes and its engine: a caller that has it may query, pause and change the engine.

<home>/engine.key          one line, mode 0600, made by the first process that needs it
MILLRACE_ENGINE_KEY        used instead of the file, for an engine that cannot read the home
"""

from __future__ import annotations

import hmac
import re
import secrets
from pathlib import Path

from contracts.errors import InvalidSettings
from runtime.secret_values import own_secret

ENGINE_KEY = "MILLRACE_ENGINE_KEY"
FILE_NAME = "engine.key"
_SCHEME = b"bearer "
_USABLE = re.compile(r"[!-~]{16,256}")


def engine_key(home: Path) -> str:
    """The secret of this home, made if it does not exist; all processes get the same one. Raises InvalidSettings: it is unusable."""
    why = "the engine and its clients (inference, and init) need the same"
    return own_secret(home / FILE_NAME, ENGINE_KEY, why, new_engine_key, _usable)


def new_engine_key() -> str:
    """A new secret, which nothing knows yet."""
    return f"mre-{secrets.token_hex(32)}"


def authorization(key: str) -> dict[str, str]:
    """The header that the engine requires."""
    return {"authorization": f"Bearer {key}"}


def is_authorized(header: bytes, key: str) -> bool:
    """True if an `Authorization` header has the key. Takes the same time for wrong keys."""
    given = header[len(_SCHEME) :].strip()
    return hmac.compare_digest(given, key.encode()) and header[: len(_SCHEME)].lower() == _SCHEME


def _usable(key: str, where: str) -> str:
    if not _USABLE.fullmatch(key):
        raise InvalidSettings(
            f"{where} has no valid engine key (16 to 256 printable characters without spaces). Make one with `openssl rand -hex 32`; "
            "all processes of a home and its engine need the same key"
        )
    return key
