"""The operator key that `release` and the commands of a home use.

<home>/operator.key        one line, mode 0600, made by `millrace up` and `millrace init`
MILLRACE_OPERATOR_KEY      used instead of the file, for processes that share no home
"""

from __future__ import annotations

import os
from pathlib import Path

from contracts.errors import InvalidSettings
from runtime.settings_file import refuse_to_make

OPERATOR_KEY = "MILLRACE_OPERATOR_KEY"
APP_KEY = "MILLRACE_APP_KEY"
"""An app key that was made elsewhere, for init to tell the database; without it the first start makes one and prints it."""


def operator_file(home: Path) -> Path:
    """The file of the key, if it is in the home."""
    return home / "operator.key"


def operator_key(home: Path) -> str:
    """The key, which the database may not know. Raises InvalidSettings: there is neither variable nor file."""
    if given := given_operator_key():
        return given
    path = operator_file(home)
    if not path.exists():
        refuse_to_make("init tells it to the database, and release asks with it", OPERATOR_KEY)
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSettings(f"{path} cannot be used ({error}); restore it, or set {OPERATOR_KEY}") from error


def given_operator_key() -> str:
    """The key of the environment; empty without one."""
    return os.environ.get(OPERATOR_KEY, "").strip()
