"""What `--map` says: fields of rows and names of scores. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from commands.imports.rows import ImportedRow, dig
from contracts.errors import InvalidSettings
from contracts.tasks import Task
from contracts.tasks.scores import OtherScore

ROW_FIELDS = ("messages", "answer", "id", "user", "session", "at", "model", "tools", "edit", "preferred", "rejected")
"""What `--map` can name beside the signals of the task."""


class Maps(NamedTuple):
    """`--map NAME=PATH`. `fields`: of a row; `signals`: of the task, PATH is the name of a score or a place in the row."""

    fields: Mapping[str, str] = {}
    signals: Mapping[str, str] = {}


def read_maps(given: list[str], task: Task) -> Maps:
    """Raises InvalidSettings: not of the form NAME=PATH, or NAME is neither a field nor a signal of the task."""
    fields, signals = dict[str, str](), dict[str, str]()
    for text in given:
        name, _, path = text.partition("=")
        if not path or (name not in ROW_FIELDS and name not in task.signals):
            known = ", ".join((*ROW_FIELDS, *task.signals))
            raise InvalidSettings(f"--map takes NAME=PATH, and NAME is one of {known}; not {text!r}")
        (signals if name in task.signals else fields)[name] = path
    return Maps(fields, signals)


def with_fields(row: dict[str, Any], maps: Maps) -> dict[str, Any]:
    """A row of JSON lines with the fields that `--map` names."""
    found = {name: dig(row, path) for name, path in maps.fields.items()}
    return row | {name: value for name, value in found.items() if value is not None}


def with_scores(row: ImportedRow, content: Any, maps: Maps) -> tuple[OtherScore, ...]:
    """The scores of a row, its edit, and what `--map` finds at a place in it."""
    named = {score.name for score in row.scores} | ({"edit"} if row.edit is not None else set())
    found = [(name, dig(content, path)) for name, path in maps.signals.items() if path not in named]
    mapped = tuple(
        OtherScore(name=name, value=value) for name, value in found if isinstance(value, bool | int | float | str)
    )
    edit = () if row.edit is None else (OtherScore(name="edit", value=row.edit, is_edit=True),)
    return (*row.scores, *mapped, *edit)
