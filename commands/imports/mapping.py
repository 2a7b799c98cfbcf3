"""Which signal of a task each score of an export becomes, and with which value. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from commands.imports.rows import ImportedRow, ImportedScore, Refused, as_text, dig
from contracts.errors import InvalidSettings
from contracts.records import Scalar
from contracts.tasks import Task
from contracts.tasks.signals import SignalRule

MAX_TEXT = 65_536
"""Characters of a text or an edit, as feedback takes them."""
ROW_FIELDS = ("messages", "answer", "id", "user", "session", "at", "model", "tools", "edit", "preferred", "rejected")
"""What `--map` can name beside the signals of the task."""
_EDITED = "edited", "text"
"""Of a signal for edits whose task gives them a reward of its own."""
_SAYS_TRUE, _SAYS_FALSE = ("true", "yes", "1", "1.0"), ("false", "no", "0", "0.0")


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


def with_scores(row: ImportedRow, content: Any, maps: Maps) -> tuple[ImportedScore, ...]:
    """The scores of a row, its edit, and what `--map` finds at a place in it."""
    named = {score.name for score in row.scores} | ({"edit"} if row.edit is not None else set())
    found = [(name, dig(content, path)) for name, path in maps.signals.items() if path not in named]
    mapped = tuple(
        ImportedScore(name=name, value=value) for name, value in found if isinstance(value, bool | int | float | str)
    )
    edit = () if row.edit is None else (ImportedScore(name="edit", value=row.edit, is_edit=True),)
    return (*row.scores, *mapped, *edit)


def signal_of(score: ImportedScore, task: Task, maps: Maps) -> str:
    """The signal that a score becomes. Raises Refused: no signal declares it."""
    for name, path in maps.signals.items():
        if path == score.name:
            return name
    if score.is_edit:
        if edits := [
            name for name, rule in task.signals.items() if rule.means == "edit" or (name, rule.type) == _EDITED
        ]:
            return edits[0]
    elif score.name in task.signals:
        return score.name
    raise Refused("no_signal")


def value_for(rule: SignalRule, given: Any) -> Scalar:
    """The value of a score as its signal takes it. Raises Refused: wrong type, unknown label, out of range, too long."""
    if rule.type == "bool":
        said = str(given).lower()
        if said not in _SAYS_TRUE + _SAYS_FALSE:
            raise Refused("wrong_type")
        return said in _SAYS_TRUE
    if rule.type == "number":
        return _number(rule, given)
    if rule.type == "label":
        return _label(rule, given)
    text = as_text(given)
    if text is None:
        raise Refused("wrong_type")
    if len(text) > MAX_TEXT:
        raise Refused("too_long")
    return text


def _number(rule: SignalRule, given: Any) -> float:
    try:
        number = math.nan if isinstance(given, bool) else float(given)
    except (TypeError, ValueError, OverflowError):
        raise Refused("wrong_type") from None
    if not math.isfinite(number):
        raise Refused("wrong_type")
    if not rule.minimum <= number <= rule.maximum:
        raise Refused("out_of_range")
    return number


def _label(rule: SignalRule, given: Any) -> str:
    if isinstance(given, bool | int | float) and set(rule.labels) == {"up", "down"}:
        return "up" if given > 0 else "down"  # thumbs, as other systems count them
    for label in (str(given), str(given).lower()):
        if label in rule.labels:
            return label
    raise Refused("unknown_label")
