"""Keys, tokens and passwords in a text. Patterns only: nothing is verified over the network."""

from __future__ import annotations

from functools import cache
from typing import Any

from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class

# Entropy alone takes every id and hash for a secret, and an address is personal data, which has a rule of its own.
_TOO_EAGER = frozenset(("Base64 High Entropy String", "Hex High Entropy String", "Public IP (ipv4)"))
_LONGEST = 100_000


def find_secret(text: str) -> str | None:
    """The kind of the first secret, such as `AWS Access Key`."""
    for line in text[:_LONGEST].splitlines():
        for kind, plugin in _plugins():
            if any(plugin.analyze_string(line)):
                return kind
    return None


@cache
def _plugins() -> tuple[tuple[str, Any], ...]:
    kinds: dict[str, Any] = get_mapping_from_secret_type_to_class()
    return tuple((kind, plugin()) for kind, plugin in sorted(kinds.items()) if kind not in _TOO_EAGER)
