"""Where the settings of a home are: in the home itself, or in a read-only file that MILLRACE_SETTINGS names.

Millrace never changes a given file, and then makes no secret in a home: it would be another one in each home. `${NAME}` in it is a variable
of the environment: what differs between processes of one file, or is secret.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from contracts.errors import InvalidSettings

SETTINGS = "MILLRACE_SETTINGS"
FILE_NAME = "millrace.toml"
_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def settings_file(home: Path) -> Path:
    """The settings file of a home."""
    given = os.environ.get(SETTINGS)
    return Path(given) if given else home / FILE_NAME


def is_given() -> bool:
    """Whether MILLRACE_SETTINGS names the file: it is read only, and secrets come from outside too."""
    return bool(os.environ.get(SETTINGS))


def refuse_to_make(what: str, variable: str) -> None:
    """A secret is missing, and the caller would make one. Raises InvalidSettings: the settings are given, so it must be given too."""
    if is_given():
        raise InvalidSettings(
            f"{variable} is not set: {what}. With {SETTINGS} nothing secret is made here, because other processes would not have it. "
            "`millrace keys secrets` makes one of each"
        )


def expanded(content: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The sections of a given file, with the variables that its texts name, encoded in URLs. Raises InvalidSettings: one is not set."""
    return {
        section: {field: _value(value, f"{path}: [{section}] {field}") for field, value in values.items()}
        if isinstance(values, Mapping)
        else values
        for section, values in content.items()
    }


def _value(value: Any, where: str) -> Any:
    if isinstance(value, str):
        is_url = "://" in value
        return _REFERENCE.sub(lambda match: _variable(match.group(1), where, is_url=is_url), value)
    if isinstance(value, list):
        return [_value(item, where) for item in value]
    if isinstance(value, Mapping):
        return {name: _value(item, f"{where}.{name}") for name, item in value.items()}
    return value


def _variable(name: str, where: str, *, is_url: bool) -> str:
    found = os.environ.get(name, "").strip()
    if not found:
        raise InvalidSettings(f"{where} names ${{{name}}}, which is not set: set it in the environment of this process")
    return quote(found, safe="") if is_url else found
