"""`millrace dead-letters list|show|redrive|skip`: records that no worker could process."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from sqlalchemy.engine import Connection

from commands.log import plain, visible
from commands.options import DEFAULT_HOME, HomeOption
from contracts.errors import InvalidRecord, InvalidRequest, NotFound
from contracts.topics import TOPICS
from contracts.wire import unpacked
from runtime.log import redrive as letters_of
from runtime.log.dead_letters import OPEN, REDRIVEN, SKIPPED
from runtime.log.outbox import Relay
from runtime.log.redrive import SENDER, DeadLetter, decoded, parse_place
from runtime.settings import load_settings

_MAX_SHOWN_BYTES = 400
_ProcessArgument = Annotated[
    str, typer.Argument(help="episodes, rewards, training or release; or the process that could not send the record.")
]
_PlaceArgument = Annotated[str | None, typer.Argument(help="TOPIC/PARTITION@OFFSET, as `list` prints it.")]
_AllOption = Annotated[bool, typer.Option("--all", help="All open dead letters of the process.")]
_TopicOption = Annotated[str | None, typer.Option(help="Only this topic.")]
app = typer.Typer(help="List, retry or skip records that no worker could process.", no_args_is_help=True)


@app.command("list")
def print_letters(
    *,
    process: Annotated[str | None, typer.Option(help="Only this process.")] = None,
    topic: _TopicOption = None,
    settled: Annotated[bool, typer.Option("--all", help="Include those that were redriven or skipped.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Print the open dead letters, oldest first."""
    _check_topic(topic)
    states = (OPEN, SKIPPED, REDRIVEN) if settled else (OPEN,)
    with load_settings(home).snapshot() as connection:
        letters = letters_of.find(connection, process=process, topic=topic, states=states)
    if as_json:
        for letter in letters:
            print(json.dumps(_head(letter)))
        return
    if not letters:
        print("no dead letters" if settled else "no open dead letters; --all shows those that were redriven or skipped")
        return
    table = Table("process", "place", "state", "at", "reason")
    for letter in letters:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(letter.at))
        table.add_row(letter.process, str(letter.place), letter.state, at, visible(letter.reason[:200]))
    Console(markup=False).print(table)


@app.command("show")
def print_letter(
    process: _ProcessArgument,
    place: Annotated[str, typer.Argument(help="TOPIC/PARTITION@OFFSET, as `list` prints it.")],
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Print one dead letter: its record as far as it can be decoded, why it failed, and the traceback."""
    with load_settings(home).snapshot() as connection:
        letter = letters_of.get(connection, process, parse_place(place))
    print(json.dumps(_head(letter) | {"record": _content(letter)}, indent=2, ensure_ascii=False))
    if letter.traceback:
        print(visible(letter.traceback))


@app.command()
def redrive(
    process: _ProcessArgument,
    place: _PlaceArgument = None,
    *,
    everything: _AllOption = False,
    topic: _TopicOption = None,
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Append the original bytes to their topic again, after the cause of the failure is fixed.

    Consumers recognise records by their keys, so nothing is applied twice. The bytes stay as they are, and the order changes:
    the record now comes after those that followed it. A record that fails again becomes a dead letter again, at its new place.
    """
    letters = _settle(home, letters_of.redrive, process, place, topic, everything=everything)
    print(f"redriven: {_named(letters)}; a record that fails again will be listed again, at its new place")


@app.command()
def skip(
    process: _ProcessArgument,
    place: _PlaceArgument = None,
    *,
    everything: _AllOption = False,
    topic: _TopicOption = None,
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Accept the loss. The record no longer counts against the limits; it is kept for inspection.

    A sample that waits for the record becomes `unscored(dead_letter)`, a signal `rejected(dead_letter)`. A generation is
    counted as `dead_letter`.
    """
    letters = _settle(home, letters_of.skip, process, place, topic, everything=everything)
    kept = "kept for inspection (list --all), and samples that waited are named `dead_letter`"
    print(f"skipped: {_named(letters)}; {kept}")


def _settle(
    home: Path,
    decide: Callable[[Connection, Sequence[DeadLetter], float], None],
    process: str,
    place: str | None,
    topic: str | None,
    *,
    everything: bool,
) -> list[DeadLetter]:
    if (place is None) == (not everything):
        raise InvalidRequest("name one place, TOPIC/PARTITION@OFFSET, or say --all; not both")
    _check_topic(topic)
    settings = load_settings(home)
    with settings.snapshot() as connection:
        if place is not None:
            letters = [letters_of.get(connection, process, parse_place(place))]
        else:
            letters = letters_of.find(connection, process=process, topic=topic)
    if not letters:
        of_topic = f" of {topic}" if topic else ""
        raise NotFound(f"{process} has no open dead letters{of_topic}; see millrace dead-letters list")
    with settings.transaction() as connection:
        decide(connection, letters, time.time())
    with closing(settings.event_log()) as event_log:
        # Also what an earlier command left that was interrupted. A record appended twice counts once.
        Relay(SENDER, settings.database(), event_log).flush()
    return letters


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
    """The record; if it cannot be decoded, its msgpack; else its bytes."""
    record = decoded(letter)
    if record is not None:
        try:
            return plain(record)
        except (InvalidRecord, ValueError, RecursionError):  # the body or a packed array is damaged
            return {name: _printable(value) for name, value in msgspec.structs.asdict(record).items()}
    content = letter.value
    with suppress(InvalidRecord):
        content = unpacked("record", content)
    try:
        return _printable(msgspec.msgpack.decode(content))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _printable(letter.value)


def _printable(value: Any) -> Any:
    if isinstance(value, bytes):
        more = f" and {len(value) - _MAX_SHOWN_BYTES} bytes more" if len(value) > _MAX_SHOWN_BYTES else ""
        return value[:_MAX_SHOWN_BYTES].hex() + more
    if isinstance(value, msgspec.Struct):
        return _printable(msgspec.structs.asdict(value))
    if isinstance(value, dict):
        return {str(name): _printable(item) for name, item in value.items()}
    return [_printable(item) for item in value] if isinstance(value, list | tuple) else value


def _named(letters: list[DeadLetter]) -> str:
    return str(letters[0].place) if len(letters) == 1 else f"{len(letters)} records"
