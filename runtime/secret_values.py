"""Secrets of other servers: from a variable, or from the file that another variable names, as Kubernetes mounts them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from contracts.errors import InvalidSettings

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
