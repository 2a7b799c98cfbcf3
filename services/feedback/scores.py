"""From a score of another system to an item of feedback. Pure.

A score that names one of our completions is about that. Otherwise its trace is the join key: the app sends `metadata.join_key`, with the id of
its trace, along with the request.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from contracts.errors import InvalidRequest, InvalidValue, UnknownSignal
from contracts.ids import completion_id_of, route_of
from contracts.records import Scalar
from contracts.tasks import Task
from contracts.tasks.scores import OtherScore, Refused, signal_of, time_of, value_for

MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What reading a score raises where its parts have other shapes than its system writes."""


def about(names: Sequence[Any], trace: Any, session: Any) -> dict[str, Any]:
    """The target of an item. `names`: what may be the id of a completion. Empty: nothing is named."""
    for name in names:
        try:
            route_of(completion_id_of(str(name)))
        except InvalidRequest:
            continue
        return {"completion_id": str(name)}
    if trace:
        return {"join_key": str(trace)}
    return {"session_id": str(session)} if session else {}


def item_of(score: OtherScore, target: Mapping[str, Any], tasks: Mapping[str, Task], origin: str) -> dict[str, Any]:
    """The item of a score. `origin`: begins its id.

    The id is the score's own and what it says: sent again it changes nothing, and with another value it is the submitter's next word, as
    Langfuse has it. A score without an id gets a new one each time.

    Raises:
        InvalidValue: no signal takes its value, or its time is none.
        UnknownSignal: it is an edit, and no task declares a signal for edits.
    """
    name, value = _said(score, tasks)
    try:
        at = None if score.at is None else time_of(score.at)
    except Refused as refused:
        raise InvalidValue(
            f"the time of the score {score.name[:64]!r} is refused: {refused.reason}", param="at"
        ) from None
    key = hashlib.blake2b(msgspec.json.encode((score, target)), digest_size=16).hexdigest()
    item = {
        "id": f"{origin}-{key}" if score.id else None,
        "name": name,
        "value": value,
        "correction": value if score.is_edit else None,
        "at": at,
        "comment": score.comment,
        "submitter": {"id": score.author or "anonymous", "kind": score.kind},
        **target,
    }
    return {field: given for field, given in item.items() if given is not None}


def _said(score: OtherScore, tasks: Mapping[str, Task]) -> tuple[str, Scalar]:
    """The signal, and its value for the first task that takes it: which task the answer belongs to is not known yet."""
    reason = ""
    for task in tasks.values():
        try:
            name = signal_of(score, task)
        except Refused:
            continue
        try:
            return name, value_for(task.signals[name], score.value)
        except Refused as refused:
            reason = reason or refused.reason
    if reason:
        shown = f"{score.value!r:.40}"
        raise InvalidValue(f"the score {score.name[:64]!r} with the value {shown} is refused: {reason}", param="value")
    if score.is_edit:
        raise UnknownSignal(
            "a score of type CORRECTION is an edit, and no task declares a signal for edits", param="name"
        )
    return score.name, score.value  # feedback names the signals that there are
