"""Secrets of other servers: from a variable, or from the file that another variable names, as Kubernetes mounts them. And those of a home."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from contracts.errors import InvalidSettings
from runtime.private_files import make_secret
from runtime.settings_file import refuse_to_make

SecretType = TypeVar("SecretType")
KAFKA_PASSWORD = "MILLRACE_KAFKA_PASSWORD"  # noqa: S105 the name of a variable
REDIS_PASSWORD = "MILLRACE_REDIS_PASSWORD"  # noqa: S105 as above


def secret_value(name: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """The variable `name`, or the content of the file in `name`_FILE; None: neither is set. Raises InvalidSettings."""
    given, path = environment.get(name), environment.get(f"{name}_FILE")
    if given and path:
        raise InvalidSettings(f"{name} and {name}_FILE are both set: keep one of them")
    if not path:
        return given or None
    try:
        content = Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSettings(f"{name}_FILE: {path} cannot be read ({error}): put the secret there") from error
    if not content:
        raise InvalidSettings(f"{name}_FILE: {path} is empty: put the secret there")
    return content


def own_secret(
    path: Path, variable: str, why: str, make: Callable[[], str], checked: Callable[[str, str], SecretType]
) -> SecretType:
    """A secret of a home: the variable, or else the file, made if it does not exist; all processes get the same one.

    `why`: who needs it, if it must be given; `checked`: of a text, and where it is from. Raises InvalidSettings: it cannot be read or made.
    """
    if given := os.environ.get(variable, "").strip():
        return checked(given, variable)
    try:
        if not path.exists():
            refuse_to_make(why, variable)
            make_secret(path, make())
        return checked(path.read_text().strip(), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSettings(f"{path} cannot be used ({error}); make it readable, or set {variable}") from error
