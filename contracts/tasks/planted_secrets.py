"""Secrets in text, found by patterns: whatever is learned word by word, or logged, may be said again. Pure."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class

_MAX_CHARACTERS = 100_000
# High entropy alone matches every id and hash. IP addresses are personal data, which has its own rule.
_TOO_EAGER = frozenset(("Base64 High Entropy String", "Hex High Entropy String", "Public IP (ipv4)"))
_MARKS = ("key", "pass", "pwd", "secret", "contrase", "authtoken", "xox", "eyj", "://")
_ARTIFACTORY = re.compile(r"A(?:KC|P[\dA-F])")
_KEYS = {
    "Anthropic API Key": re.compile(r"\bsk-ant-[\w-]{20,}"),
    "Google API Key": re.compile(r"\bAIza[\w-]{35}"),
    "Hugging Face Token": re.compile(r"\bhf_[A-Za-z]{30,}"),
}
"""Of services that detect-secrets does not know."""
_LONG_WORD = 16
"""Every secret that a plug-in finds has such a word, one of these marks, or this beginning. Most lines of prose have none."""


def find_secret(text: str) -> str | None:
    """The kind of the first secret found, such as `AWS Access Key`; None if there is none."""
    for line in text[:_MAX_CHARACTERS].splitlines():
        for kind, plugin in _plugins() if _may_hold_secret(line) else ():
            if any(plugin.analyze_string(line)):
                return kind
        for kind, pattern in _KEYS.items():
            if pattern.search(line):
                return kind
    return None


def _may_hold_secret(line: str) -> bool:
    folded = line.lower()
    has_mark = any(mark in folded for mark in _MARKS) or _ARTIFACTORY.search(line) is not None
    return has_mark or max(map(len, line.split()), default=0) >= _LONG_WORD


@cache
def _plugins() -> tuple[tuple[str, Any], ...]:
    kinds: dict[str, Any] = get_mapping_from_secret_type_to_class()
    return tuple((kind, plugin()) for kind, plugin in sorted(kinds.items()) if kind not in _TOO_EAGER)
