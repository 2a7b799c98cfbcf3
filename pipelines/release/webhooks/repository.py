"""SQL of webhooks: events are found where they are stored, and one row for each event and URL waits until it is delivered.

A row is inserted unless it exists, and is kept for longer than its event can be found: so each event is inserted once, whatever was
killed, and however many replicas look. A row is claimed by raising its number of tries.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Row, and_, delete, func, or_, select, update
from sqlalchemy.orm import aliased

from contracts.tables import assignment, assignment_change, train, train_hold, webhook_delivery
from contracts.tables.statements import insert_all_new, insert_new
from pipelines.release.train.repository import STOPPED, STOPS
from pipelines.release.webhooks.messages import EventKind, WebhookEvent, make_event, message_id

GIVEN_UP_SECONDS = 86_400.0
"""A message that was not accepted for so long is not sent again."""
KEPT_SECONDS = 3 * 86_400.0
_OF_MOVE = (
    "policy", "run", "arm", "epoch", "version", "share", "previous_version", "previous_share", "writer", "reason",
)  # fmt: skip
_OF_HOLD = ("policy", "epoch", "kind", "version", "until", "writer", "reason")
_OF_TRAIN = ("policy", "version", "blessed", "state", "stage", "reason", "started_at", "ended_at")
"""Columns that receivers are told."""
_MOST = 1000
_NEWEST_TRAINS = 20
_NEXT_SECONDS = 1e-6
"""Between two messages that are queued at once: they are sent in this order, as long as the receiver takes them."""


class Delivery(NamedTuple):
    """One message to one URL. Times are UTC epoch seconds."""

    event: WebhookEvent
    url: str
    at: float
    num_tries: int


class KnownUrl(NamedTuple):
    """A URL, since when it is told, and why it is told no more (empty: it is)."""

    since: float
    problem: str


class Waiting(NamedTuple):
    """Messages that were not accepted yet."""

    num: int
    oldest_at: float | None


def newest_epochs(connection: Connection, policy: str) -> dict[str, int]:
    """By arm: the epoch of its last move. The last hold has the key ""."""
    arms = connection.execute(select(assignment.c.arm, assignment.c.epoch).where(assignment.c.policy == policy))
    found = {row.arm: row.epoch for row in arms}
    last_hold = select(func.max(train_hold.c.epoch)).where(train_hold.c.policy == policy)
    return found | {"": connection.execute(last_hold).scalar_one() or 0}


def find_moves(connection: Connection, policy: str, arm: str, after: int, since: float) -> list[WebhookEvent]:
    """Moves of an arm after an epoch and a time, at most the newest 1000, oldest first."""
    change, before = assignment_change.c, aliased(assignment_change).c
    earlier = and_(before.policy == change.policy, before.arm == change.arm, before.epoch == change.epoch - 1)
    statement = (
        select(assignment_change, before.version.label("previous_version"), before.share.label("previous_share"))
        .outerjoin_from(assignment_change, before.policy.table, earlier)
        .where(change.policy == policy, change.arm == arm, change.epoch > after, change.at >= since)
        .order_by(change.epoch.desc())
        .limit(_MOST)
    )
    return [
        make_event("arm.moved", (row.policy, row.run, row.arm, row.epoch), row.at, _facts(row, _OF_MOVE))
        for row in reversed(connection.execute(statement).all())
    ]


def find_holds(connection: Connection, policy: str, run: str, after: int, since: float) -> list[WebhookEvent]:
    """Freezes, pins and resumes after an epoch and a time, oldest first."""
    columns = train_hold.c
    newer = (columns.policy == policy, columns.epoch > after, columns.at >= since)
    statement = select(train_hold).where(*newer).order_by(columns.epoch.desc()).limit(_MOST)
    return [
        make_event("hold.changed", (policy, run, row.epoch), row.at, _facts(row, _OF_HOLD, run=run))
        for row in reversed(connection.execute(statement).all())
    ]


def find_train_events(connection: Connection, policy: str, run: str, since: float) -> list[WebhookEvent]:
    """Of the newest trains: those that ended after a time, and when they stopped and went on; each train's together, oldest first."""
    newest = select(train).where(train.c.policy == policy).order_by(train.c.id.desc()).limit(_NEWEST_TRAINS)
    found = list[WebhookEvent]()
    for row in reversed(connection.execute(newest).all()):
        about = {"run": run, "train": row.id}
        for stop in row.evidence.get(STOPS, ()):
            if stop["at"] >= since:
                kind: EventKind = "train.stopped" if stop["state"] == STOPPED else "train.went_on"
                why = {name: stop[name] for name in ("state", "stage", "reason")}
                facts = _facts(row, ("policy", "version", "blessed"), **about, **why)
                found.append(make_event(kind, (policy, run, row.id, stop["epoch"]), stop["at"], facts))
        if row.ended_at is not None and row.ended_at >= since:
            facts = _facts(row, _OF_TRAIN, **about, says=str(row.evidence.get("says", "")))
            found.append(make_event("train.ended", (policy, run, row.id), row.ended_at, facts))
    return found


def receiver(connection: Connection, policy: str, url: str) -> KnownUrl | None:
    """A URL as it is known; None if it never was configured before."""
    row = connection.execute(select(webhook_delivery).where(*_start(policy, url))).one_or_none()
    return None if row is None else KnownUrl(row.at, row.problem)


def know_receiver(connection: Connection, policy: str, url: str, now: float) -> None:
    """From now on a URL is told; nothing happens if it is already."""
    row = {"id": _start_id(policy), "url": url, "policy": policy, "content": {}, "at": now}
    insert_new(connection, webhook_delivery, {**row, "num_tries": 0, "next_at": now, "delivered_at": now})


def set_receiver_problem(connection: Connection, policy: str, url: str, problem: str) -> None:
    """Why a URL is told no more; empty: it is told again."""
    connection.execute(update(webhook_delivery).where(*_start(policy, url)).values(problem=problem))


def add(connection: Connection, policy: str, url: str, events: Sequence[WebhookEvent], now: float) -> int:
    """Queue events for a URL, in the order of their times, unless they were queued before; returns how many are new."""
    ordered = sorted(events, key=lambda event: str(event.content["timestamp"]))
    head = {"url": url, "policy": policy, "num_tries": 0, "next_at": now}
    rows = [
        {**head, "id": event.id, "content": dict(event.content), "at": now + place * _NEXT_SECONDS}
        for place, event in enumerate(ordered)
    ]
    return insert_all_new(connection, webhook_delivery, rows)


def find_due(connection: Connection, policy: str, url: str, now: float, limit: int) -> list[Delivery]:
    """Messages to send now, the longest waiting first."""
    columns = webhook_delivery.c
    due = select(webhook_delivery).where(columns.url == url, columns.next_at <= now, *_waiting(policy, now))
    rows = connection.execute(due.order_by(columns.at, columns.id).limit(limit))
    return [Delivery(WebhookEvent(row.id, row.content), row.url, row.at, row.num_tries) for row in rows]


def claim(connection: Connection, held: Delivery, next_at: float) -> bool:
    """Take a message to send it; it is due again at `next_at` if nobody says how it went. False: another replica took it."""
    columns = webhook_delivery.c
    statement = (
        update(webhook_delivery)
        .where(*_same(held), columns.num_tries == held.num_tries, columns.delivered_at.is_(None))
        .values(num_tries=held.num_tries + 1, next_at=next_at)
    )
    return connection.execute(statement).rowcount == 1


def note_delivered(connection: Connection, held: Delivery, now: float) -> None:
    """The receiver accepted it."""
    connection.execute(update(webhook_delivery).where(*_same(held)).values(delivered_at=now, problem=""))


def note_failed(connection: Connection, held: Delivery, problem: str, next_at: float) -> None:
    """The receiver did not accept it."""
    is_open = webhook_delivery.c.delivered_at.is_(None)
    statement = update(webhook_delivery).where(*_same(held), is_open).values(problem=problem, next_at=next_at)
    connection.execute(statement)


def count_waiting(connection: Connection, policy: str, urls: Collection[str], now: float) -> Waiting:
    """Messages of all URLs that are still sent."""
    columns = webhook_delivery.c
    stopped = select(columns.url).where(columns.id == _start_id(policy), columns.problem != "")
    told = (columns.url.in_(urls), columns.url.not_in(stopped), *_waiting(policy, now))
    return Waiting(*connection.execute(select(func.count(), func.min(columns.at)).where(*told)).one())


def forget_old(connection: Connection, policy: str, urls: Collection[str], now: float) -> None:
    """Delete rows that nobody needs: old messages, and URLs that were taken out of the settings."""
    columns = webhook_delivery.c
    is_old = (columns.policy == policy, columns.at < now - KEPT_SECONDS)
    is_needless = or_(columns.id != _start_id(policy), columns.url.not_in(urls))
    connection.execute(delete(webhook_delivery).where(*is_old, is_needless))


def _waiting(policy: str, now: float) -> tuple[ColumnElement[bool], ...]:
    columns = webhook_delivery.c
    return columns.policy == policy, columns.delivered_at.is_(None), columns.at > now - GIVEN_UP_SECONDS


def _same(held: Delivery) -> tuple[ColumnElement[bool], ...]:
    return webhook_delivery.c.id == held.event.id, webhook_delivery.c.url == held.url


def _start(policy: str, url: str) -> tuple[ColumnElement[bool], ...]:
    return webhook_delivery.c.id == _start_id(policy), webhook_delivery.c.url == url


def _start_id(policy: str) -> str:
    return message_id("start", policy)


def _facts(row: Row[Any], names: Sequence[str], **more: object) -> dict[str, Any]:
    return {**more, **{name: getattr(row, name) for name in names}}
