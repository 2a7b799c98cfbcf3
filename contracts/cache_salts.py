"""Salts of prefix caches: who has the same one may share computed beginnings of prompts. Two hashes; the first is of no version. Pure."""

from __future__ import annotations

from hashlib import blake2b

_HALF_BYTES = 24


def cache_salt(scope: str, policy: str, version: int | None) -> str:
    """The salt of a request. `scope`: who may share with it; `version`: None if it is not known which one answers."""
    return _hashed(f"{policy}\0{scope}") + _hashed(str(version))


def scope_of(salt: str) -> str:
    """The half of a salt that names its scope."""
    return salt[: 2 * _HALF_BYTES]


def _hashed(text: str) -> str:
    return blake2b(text.encode(), digest_size=_HALF_BYTES).hexdigest()
