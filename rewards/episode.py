"""An episode as the reward worker handles it: read from the log, its turn unpacked, then scored by the task's graders."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from contracts.errors import InvalidRecord, InvalidRequest
from contracts.event_log import LogPlace, LogRecord
from contracts.records import Episode, FinishReason, Generation, GenerationBody, Score, decode
from contracts.tasks import Task
from contracts.topics import route_of_key
from contracts.turns import SessionShare
from rewards.verifiers.check import Answer, ParsedAnswer


class UnpackedEpisode(NamedTuple):
    """An episode, its first turn and that turn's decompressed body."""

    episode: Episode
    turn: Generation
    body: GenerationBody
    grader_scores: tuple[Score, ...] = ()
    """One score of each verifier, then of each judge, in the order of the task file; empty until they were asked."""

    source: LogPlace | None = None
    """Where the log has the answer; None if the episode carried it."""

    @property
    def version(self) -> int:
        """The policy version that sampled the first token; -1 if it is unknown."""
        return self.turn.spans[0].version if self.turn.spans else -1

    @property
    def share(self) -> SessionShare | None:
        """The call's part in its session, by the newest signal about the session; None if a user spoke of this call itself."""
        shared = [signal for signal in self.episode.signals if signal.share is not None]
        about_it = any(signal.share is None and signal.submitter.kind == "user" for signal in self.episode.signals)
        newest = max(shared, key=lambda signal: (signal.at, signal.id), default=None)
        if newest is None or newest.share is None or about_it:
            return None
        return msgspec.structs.replace(newest.share, group=self.turn.turn.group if self.turn.turn else None)


class LostEpisode(NamedTuple):
    """An episode whose answer neither the log nor the database has any more."""

    episode: Episode


def unpack_episode(record: LogRecord) -> UnpackedEpisode | LostEpisode:
    """Decode a record of the topic of episodes, and the answer that was fetched for it. Raises InvalidRecord: it is not an episode that can be scored."""
    episode = decode(Episode, record.value)
    if not episode.turns and episode.source is None:
        raise InvalidRecord("not an Episode: it has no turns, and no place of an answer")
    try:
        route_of_key(episode.key)
    except (InvalidRequest, ValueError) as error:
        raise InvalidRecord(f"Episode {episode.key!r}, which is not a sample key") from error
    if episode.turns:
        return UnpackedEpisode(episode, episode.turns[0], episode.turns[0].open())
    if record.answer is None:
        return LostEpisode(episode)
    turn = decode(Generation, record.answer)
    if turn.key != episode.key:
        raise InvalidRecord(f"Episode {episode.key} points to the answer {turn.key}")
    return UnpackedEpisode(episode, turn, turn.open(), source=episode.source)


def answer_of(item: UnpackedEpisode, task: Task, siblings: tuple[str, ...] = ()) -> Answer:
    """What graders may look at. The newest message that followed the answer becomes `metadata.follow_up`."""
    turn, metadata = item.turn, item.body.metadata
    # The task file may no longer declare a signal that was joined to the episode.
    follow_ups = [
        signal
        for signal in item.episode.signals
        if (rule := task.signals.get(signal.name)) is not None and rule.means == "follow_up"
    ]
    if follow_ups:
        newest = max(follow_ups, key=lambda signal: (signal.at, signal.id))
        metadata = metadata | {"follow_up": str(newest.value)}
    answer = answer_in(item.body, turn.finish_reason)
    return answer._replace(metadata=metadata, key=turn.key, siblings=siblings, is_imported=turn.purpose == "imported")


def answer_in(body: GenerationBody, finish_reason: FinishReason) -> Answer:
    """The answer that a body holds, with its tool calls as inference read them."""
    parsed = ParsedAnswer(body.text, body.tool_calls) if body.tools else None
    return Answer(body.text_with_calls, body.metadata, body.messages, finish_reason, parsed=parsed)
