"""What the log of a home holds of sessions: each call with its tokens and its place in the tree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from contracts.records import Generation, GenerationBody, decode, open_body, unpack_ids
from contracts.topics import GENERATIONS
from contracts.turns import CountedCall, SessionTurn
from runtime.settings import load_settings

_READ = 1000


class LoggedCall(NamedTuple):
    """A record of a session."""

    key: str
    session: str
    turn: SessionTurn
    prompt: list[int]
    sampled: list[int]
    labels: dict[str, str]
    versions: list[int]
    finish_reason: str

    @property
    def counted(self) -> CountedCall:
        """For `count_rows`."""
        return CountedCall(self.key, self.turn, len(self.prompt), len(self.sampled))


def generations_of(home: Path) -> Iterator[Generation]:
    """All that the log holds, by partition."""
    log = load_settings(home).event_log()
    try:
        for partition, end in log.ends(GENERATIONS).items():
            offset = 0
            while offset < end and (records := log.read(GENERATIONS, partition, offset, _READ)):
                yield from (decode(Generation, record.value) for record in records)
                offset = records[-1].offset + 1
    finally:
        log.close()


def calls_of(home: Path) -> list[LoggedCall]:
    """The calls of all sessions, in the order of the log."""
    return [_call(generation) for generation in generations_of(home) if generation.session_id and generation.turn]


def goes_on(call: LoggedCall, by_key: Mapping[str, LoggedCall]) -> bool:
    """Whether a prompt begins as its `turn` says: with all of its parent's tokens, or as many as are told."""
    if call.turn.parent is None:
        return bool(call.turn.branch) and not call.turn.parent_tokens
    parent = by_key.get(call.turn.parent)
    if parent is None:
        return True  # a problem of its own
    before, shared = [*parent.prompt, *parent.sampled], call.turn.parent_tokens
    begins = parent.session == call.session and call.prompt[:shared] == before[:shared]
    return begins and (bool(call.turn.branch) or shared == len(before))


def _call(generation: Generation) -> LoggedCall:
    body = open_body(GenerationBody, generation.body)
    return LoggedCall(
        generation.key,
        generation.session_id or "",
        generation.turn or SessionTurn(),
        unpack_ids(body.prompt_ids),
        unpack_ids(body.completion_ids),
        dict(body.metadata or {}),
        [span.version for span in generation.spans],
        generation.finish_reason,
    )
