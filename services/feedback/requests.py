"""Reads one item of feedback and checks it against the signals that the tasks declare. Pure."""

from __future__ import annotations

import hashlib
import math
import uuid
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any, NamedTuple

import msgspec

from contracts.errors import (
    Forbidden,
    InvalidRequest,
    InvalidTarget,
    InvalidValue,
    NotStored,
    UnknownSignal,
    field_error,
)
from contracts.ids import completion_id_of, is_stored, route_of
from contracts.keys import Role
from contracts.records import Scalar, Signal, Submitter
from contracts.tables import MAX_KEY
from contracts.tasks import Task
from services.http import read_shape

MAX_AHEAD_SECONDS = 60.0
MAX_CHOICE, MAX_ID = 7, 128
_MAX_TEXT, _MAX_COMMENT = 65_536, 16_384
_MAX_PAIRS, _MAX_PAIR_KEY, _MAX_PAIR_VALUE = 16, 64, 512
_MOST_SHOWN = 64
_TARGETS = ("completion_id", "session_id", "join_key")


class FeedbackItem(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that an app may send; any other field is refused by name."""

    name: str
    """Of a signal that a task declares."""
    value: Scalar
    """True or false (also as 1 or 0), a number, a label or a text, as the task declares; up to 65,536 characters."""
    submitter: Submitter = Submitter(id="anonymous")
    """Who says it. An app's key may speak for users only."""
    id: str | None = None
    """The idempotency key of the client: sending the same item again changes nothing. Up to 128 characters."""
    completion_id: str | None = None
    """The answer that it is about, also as `resp_...`. Send exactly one of `completion_id`, `session_id` and `join_key`."""
    session_id: str | None = None
    """The session that it is about."""
    join_key: str | None = None
    """The `metadata.join_key` of the request that it is about."""
    choice: int = 0
    """Which of the answers of a completion: 0 to 7."""
    correction: str | None = None
    """The right answer, up to 65,536 characters."""
    at: str | float | None = None
    """When it happened: ISO 8601 or epoch seconds; the default is now."""
    comment: str | None = None
    """Kept and shown, and no part of a reward; up to 16,384 characters."""
    metadata: dict[str, str] | None = None
    """Kept and shown, and no part of a reward; up to 16 pairs."""


class TargetKey(NamedTuple):
    """The target of a signal that has no completion id. `kind`: "key" for a join key, or "session"."""

    kind: str
    value: str


class ReceivedItem(NamedTuple):
    """A signal that may be stored, and the hash of the content that the client sent. Until its `key` is resolved, it has no completion id."""

    signal: Signal
    body_hash: str
    key: TargetKey | None = None


def read_item(content: Any, tasks: Mapping[str, Task], tenant: str, now: float, role: Role = "app") -> ReceivedItem:
    """Check one item. `role`: of the caller's key.

    Raises NotStored, before everything else: the completion may not be kept; Forbidden: this role may not speak as this kind of submitter;
    InvalidRequest, UnknownSignal, InvalidValue: a field is malformed, or no task declares the signal, or this value for it.
    """
    if isinstance(content, Mapping):
        check_stored(content.get("completion_id"))
        refuse_unknown(content, FeedbackItem.__struct_fields__)
        if isinstance(submitter := content.get("submitter"), Mapping):
            refuse_unknown(submitter, Submitter.__struct_fields__, "submitter.")
    item = read_shape(FeedbackItem, content)
    _check_speaker(item.submitter, role)
    key, completion_id = _key_of(item), ""
    if item.completion_id is not None:
        completion_id = completion_id_of(item.completion_id)
        item = msgspec.structs.replace(item, completion_id=completion_id)
        route_of(completion_id)
    _check_sizes(item)
    item = _with_value(item, tasks)
    signal = Signal(
        id=item.id or f"fb-{uuid.uuid4()}",
        completion_id=completion_id,
        choice=item.choice,
        name=item.name,
        value=item.value,
        correction=item.correction,
        at=_time_of(item.at, now),
        received_at=now,
        tenant=tenant,
        submitter=item.submitter,
        comment=item.comment,
        metadata=item.metadata,
    )
    content_hash = hashlib.blake2b(tenant.encode() + b"\0" + msgspec.json.encode(item), digest_size=32)
    return ReceivedItem(signal, content_hash.hexdigest(), key)


def _check_speaker(submitter: Submitter, role: Role) -> None:
    """Only people's signals are limited in number. An app's key may leak, so it may speak for people only."""
    if submitter.kind != "user" and role != "operator":
        raise Forbidden(
            f"submitter.kind {submitter.kind!r} needs an operator's key; an app's key allows only 'user'. Make a key for feedback "
            "alone with: millrace keys api new --role operator --scopes feedback",
            param="submitter.kind",
        )


def check_stored(completion_id: object) -> None:
    """Raises NotStored if the id says that nothing about its answer may be kept."""
    if isinstance(completion_id, str) and not is_stored(completion_id_of(completion_id)):
        raise NotStored(
            f"the completion {completion_id} was requested with store=false, or its task keeps nothing without store=true: neither "
            "it nor feedback about it is kept. To learn from feedback, request completions with store=true",
            param="completion_id",
        )


def refuse_unknown(given: Iterable[object], known: Collection[str], where: str = "") -> None:
    """Raises InvalidRequest for the first name that is not known, with the one that was meant."""
    for name in given:
        if name not in known:
            shown = str(name)[:_MOST_SHOWN]
            near = get_close_matches(shown.lower(), known, 1)
            hint = f"did you mean {where}{near[0]}?" if near else f"there are {', '.join(known)}"
            raise InvalidRequest(f"there is no field {where}{shown}; {hint}", param=f"{where}{shown}")


def _key_of(item: FeedbackItem) -> TargetKey | None:
    """The session or join key that an item is about; None if it names a completion."""
    given = [name for name in _TARGETS if getattr(item, name) is not None]
    if len(given) != 1:
        found = " and ".join(given) or "none"
        raise InvalidTarget(f"send exactly one of {', '.join(_TARGETS)}; found {found}", param=next(iter(given), None))
    if item.completion_id is not None:
        return None
    if item.choice:
        says = f"{item.choice} goes with a completion_id; a {given[0]} already stands for one choice"
        raise field_error("choice", says, InvalidTarget)
    kind = "key" if item.session_id is None else "session"
    return TargetKey(kind, item.session_id or item.join_key or "")


def _check_sizes(item: FeedbackItem) -> None:
    if not 0 <= item.choice <= MAX_CHOICE:
        raise field_error("choice", f"must lie in [0, {MAX_CHOICE}], not {item.choice}")
    for name, text, longest in (
        ("id", item.id, MAX_ID),
        ("submitter.id", item.submitter.id, MAX_ID),
        ("session_id", item.session_id, MAX_KEY),
        ("join_key", item.join_key, MAX_KEY),
    ):
        if text is not None and not 1 <= len(text) <= longest:
            raise field_error(name, f"takes 1 to {longest} characters, not {len(text)}")
        if text is not None and "\0" in text:
            raise field_error(name, "has a NUL character, which PostgreSQL cannot store; leave it out")
    for name, value, longest in (
        ("value", item.value, _MAX_TEXT),
        ("correction", item.correction, _MAX_TEXT),
        ("comment", item.comment, _MAX_COMMENT),
    ):
        if isinstance(value, str) and len(value) > longest:
            raise field_error(name, f"takes up to {longest} characters, not {len(value)}")
    pairs = item.metadata or {}
    if len(pairs) > _MAX_PAIRS or any(len(key) > _MAX_PAIR_KEY or len(pairs[key]) > _MAX_PAIR_VALUE for key in pairs):
        longest_pair = f"keys of up to {_MAX_PAIR_KEY} characters and values of up to {_MAX_PAIR_VALUE}"
        raise field_error("metadata", f"takes up to {_MAX_PAIRS} pairs, {longest_pair}")


def _with_value(item: FeedbackItem, tasks: Mapping[str, Task]) -> FeedbackItem:
    """The item with a checked value: true or false, where every task that declares the signal means that by 1 or 0.

    The generation may not have arrived yet, so its task is unknown: it is enough that one task takes the value.
    """
    rules = [task.signals[item.name] for task in tasks.values() if item.name in task.signals]
    if not rules:
        declared = sorted({name for task in tasks.values() for name in task.signals})
        raise UnknownSignal(f"no task declares a signal {item.name!r}; declared: {', '.join(declared)}", param="name")
    if not any(rule.takes(item.value) for rule in rules):
        rules[0].check(item.name, item.value)
    if isinstance(item.value, float) and not math.isfinite(item.value):
        raise field_error("value", f"{item.value} is not a finite number", InvalidValue)
    if isinstance(item.value, int) and not -(2**63) <= item.value < 2**63:
        shown = str(item.value)[:20]
        raise field_error("value", f"{shown}... does not fit into 64 bits; send a smaller number", InvalidValue)
    return msgspec.structs.replace(item, value=bool(item.value)) if {rule.type for rule in rules} == {"bool"} else item


def _time_of(at: str | float | None, now: float) -> float:
    if at is None:
        return now
    try:
        seconds = _epoch_of(datetime.fromisoformat(at)) if isinstance(at, str) else at
    except (ValueError, OverflowError) as error:
        raise field_error("at", f"must be an ISO 8601 time or epoch seconds, not {at!r}") from error
    if not 0 <= seconds <= now + MAX_AHEAD_SECONDS:
        ahead = f"more than {MAX_AHEAD_SECONDS:g} s ahead of this server's clock"
        raise field_error("at", f"{at!r} is {ahead}, or before 1970")
    return seconds


def _epoch_of(time: datetime) -> float:
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
