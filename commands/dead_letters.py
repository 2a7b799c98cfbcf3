"""`millrace dead-letters list|show|redrive|skip`: what no worker could process."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from commands.log import plain
from contracts.errors import InvalidRecord, InvalidRequest, NotFound
from contracts.topics import TOPICS
from runtime.log.dead_letters import OPEN, REDRIVEN, SKIPPED
from runtime.log.outbox import Relay
from runtime.log.redrive import SENDER, DeadLetter, decoded, find, get, parse_place, redrive, skip
from runtime.settings import Settings, load_settings

_MAX_SHOWN_BYTES = 400


def print_letters(home: Path, *, process: str | None, topic: str | None, settled: bool, as_json: bool) -> None:
    """One line each, the oldest first."""
    _check_topic(topic)
    states = (OPEN, SKIPPED, REDRIVEN) if settled else (OPEN,)
    with load_settings(home).database().snapshot() as connection:
        letters = find(connection, process=process, topic=topic, states=states)
    if as_json:
        for letter in letters:
            print(json.dumps(_head(letter)))
        return
    if not letters:
        print("no dead letters" if settled else "no dead letters that nobody has dealt with; --all shows the others")
        return
    table = Table("process", "place", "state", "at", "reason")
    for letter in letters:
        table.add_row(letter.process, str(letter.place), letter.state, _clock(letter.at), letter.reason[:200])
    Console().print(table)


def print_letter(home: Path, process: str, place: str) -> None:
    """Everything about one, its record as far as it can be read."""
    with load_settings(home).database().snapshot() as connection:
        letter = get(connection, process, parse_place(place))
    print(json.dumps(_head(letter) | {"record": _content(letter)}, indent=2, ensure_ascii=False))
    if letter.traceback:
        print(letter.traceback)


def run_redrive(home: Path, process: str, place: str | None, topic: str | None, *, everything: bool) -> None:
    """Put records through their handler again."""
    settings = load_settings(home)
    letters = _chosen(settings, process, place, topic, everything=everything)
    database = settings.database()
    with database.transaction() as connection:
        redrive(connection, letters, time.time())
    _send(settings)
    print(f"redriven: {_named(letters)}; what fails again will be listed again, at its new place")


def run_skip(home: Path, process: str, place: str | None, topic: str | None, *, everything: bool) -> None:
    """Accept a loss."""
    settings = load_settings(home)
    letters = _chosen(settings, process, place, topic, everything=everything)
    with settings.database().transaction() as connection:
        skip(connection, letters, time.time())
    _send(settings)
    print(f"skipped: {_named(letters)}; kept for looking (--all), and what waited for them is named `dead_letter`")


def _chosen(
    settings: Settings, process: str, place: str | None, topic: str | None, *, everything: bool
) -> list[DeadLetter]:
    """One that is named, or all that are open."""
    if (place is None) == (not everything):
        raise InvalidRequest("name one place, TOPIC/PARTITION@OFFSET, or say --all; not both")
    _check_topic(topic)
    with settings.database().snapshot() as connection:
        if place is not None:
            return [get(connection, process, parse_place(place))]
        letters = find(connection, process=process, topic=topic)
    if not letters:
        of_topic = f" of {topic}" if topic else ""
        raise NotFound(f"{process} has no open dead letters{of_topic}; see millrace dead-letters list")
    return letters


def _send(settings: Settings) -> None:
    """What this command, or one that was interrupted before, has to say. Appended twice, it counts once."""
    event_log = settings.event_log()
    Relay(SENDER, settings.database(), event_log).flush()
    event_log.close()


def _check_topic(topic: str | None) -> None:
    if topic is not None and topic not in TOPICS:
        raise InvalidRequest(f"no topic {topic!r}; there are {', '.join(TOPICS)}")


def _head(letter: DeadLetter) -> dict[str, Any]:
    return {
        "process": letter.process,
        "place": str(letter.place),
        "state": letter.state,
        "reason": letter.reason,
        "key": letter.key,
        "num_bytes": len(letter.value),
        "at": letter.at,
        "settled_at": letter.settled_at,
    }


def _content(letter: DeadLetter) -> Any:
    """As its record; else as whatever msgpack it is; else as bytes."""
    record = decoded(letter)
    if record is not None:
        try:
            return plain(record)
        except (InvalidRecord, ValueError):  # its body, or a packed array
            return {name: _shown(value) for name, value in msgspec.structs.asdict(record).items()}
    try:
        return _shown(msgspec.msgpack.decode(letter.value))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _shown(letter.value)


def _shown(value: Any) -> Any:
    if isinstance(value, bytes):
        more = f" and {len(value) - _MAX_SHOWN_BYTES} bytes more" if len(value) > _MAX_SHOWN_BYTES else ""
        return value[:_MAX_SHOWN_BYTES].hex() + more
    if isinstance(value, msgspec.Struct):
        return _shown(msgspec.structs.asdict(value))
    if isinstance(value, dict):
        return {str(name): _shown(item) for name, item in value.items()}
    return [_shown(item) for item in value] if isinstance(value, list | tuple) else value


def _named(letters: list[DeadLetter]) -> str:
    return str(letters[0].place) if len(letters) == 1 else f"{len(letters)} records"


def _clock(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
