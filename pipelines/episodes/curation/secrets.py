"""Finds keys, tokens and passwords in a text, by patterns only: no network."""

from __future__ import annotations

from functools import cache
from typing import Any

from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class

# High entropy alone matches every id and hash. IP addresses are personal data, which has its own rule.
_TOO_EAGER = frozenset(("Base64 High Entropy String", "Hex High Entropy String", "Public IP (ipv4)"))
_MAX_CHARACTERS = 100_000


def find_secret(text: str) -> str | None:
    """The kind of the first secret found, such as `AWS Access Key`; None if there is none."""
    for line in text[:_MAX_CHARACTERS].splitlines():
        for kind, plugin in _plugins():
            if any(plugin.analyze_string(line)):
                return kind
    return None


@cache
def _plugins() -> tuple[tuple[str, Any], ...]:
    kinds: dict[str, Any] = get_mapping_from_secret_type_to_class()
    return tuple((kind, plugin()) for kind, plugin in sorted(kinds.items()) if kind not in _TOO_EAGER)
