"""An episode on its way through the reward worker: opened, graded, assessed."""

from __future__ import annotations

from typing import NamedTuple

from contracts.errors import InvalidRecord, InvalidRequest
from contracts.event_log import LogRecord
from contracts.records import Episode, Generation, GenerationBody, Score, Segment, Signal, decode, pack_floats
from contracts.tasks import Task
from contracts.topics import route_of_key
from rewards.verifiers.check import Answer

_INT32 = 4


class Opened(NamedTuple):
    """An episode with its turn, decompressed; `checks` are what its task's graders said."""

    episode: Episode
    turn: Generation
    body: GenerationBody
    checks: tuple[Score, ...] = ()

    @property
    def version(self) -> int:
        """The one that began the answer; -1 if none is known."""
        return self.turn.spans[0].version if self.turn.spans else -1


def open_episode(record: LogRecord) -> Opened:
    """Read an episode. Raises InvalidRecord."""
    episode = decode(Episode, record.value)
    if not episode.turns:
        raise InvalidRecord("not an Episode: it has no turns")
    try:
        route_of_key(episode.key)
    except (InvalidRequest, ValueError) as error:
        raise InvalidRecord(f"Episode {episode.key!r}, which is not a sample key") from error
    return Opened(episode, episode.turns[0], episode.turns[0].open())


def answer_of(item: Opened, task: Task, siblings: tuple[str, ...] = ()) -> Answer:
    """What the graders may look at."""
    turn, body = item.turn, item.body
    metadata = body.metadata
    # A task file may have lost a signal since it was joined.
    said = [signal for signal in item.episode.signals if _is_follow_up(task, signal)]
    if said:
        metadata = metadata | {"follow_up": str(max(said, key=lambda signal: (signal.at, signal.id)).value)}
    return Answer(body.text, metadata, body.messages, turn.finish_reason, turn.key, siblings)


def _is_follow_up(task: Task, signal: Signal) -> bool:
    rule = task.signals.get(signal.name)
    return rule is not None and rule.means == "follow_up"


def segment_of(turn: Generation, body: GenerationBody) -> Segment:
    """Prompt and completion of a turn as one run of tokens; only the completion is learned from."""
    num_prompt, num_completion = len(body.prompt_ids) // _INT32, len(body.completion_ids) // _INT32
    return Segment(
        token_ids=body.prompt_ids + body.completion_ids,
        loss_mask=bytes(num_prompt) + b"\x01" * num_completion,
        logprobs=pack_floats([0.0] * num_prompt) + body.logprobs,
        spans=turn.spans,
        sampling=turn.sampling,
    )
