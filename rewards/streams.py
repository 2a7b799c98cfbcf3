"""What an answer teaches besides its reward, by its task's [learning]: the text of an edit, or what users said of it. Pure."""

from __future__ import annotations

from msgspec.structs import replace

from contracts.records import Provided, Streams
from contracts.tasks import Task
from contracts.tasks.learning import LearningRule
from contracts.tasks.planted_secrets import find_secret
from rewards.episode import UnpackedEpisode
from rewards.rubric import WeightedVerdict
from rewards.signals.edits import edit_in

_LEAKS = "answer_with_secret"


def streams_of(task: Task, item: UnpackedEpisode, learned: WeightedVerdict) -> Streams | None:
    """None: its reward alone teaches, as by default. Where no vote counts, no text does."""
    rule = task.learning
    if rule == LearningRule():
        return None
    found = Streams(rl=rule.rl, ce=rule.ce, pair=rule.pair, thumb=rule.thumb)
    if not learned.is_heard:
        return found
    edit = edit_in(task, item.episode.signals) if rule.reads_edits else None
    refused = why_unlearnable(item, edit)
    if refused or edit is not None:
        return replace(found, refused=refused) if refused else replace(found, edit=edit)
    middle = (task.reward.low + task.reward.high) / 2
    said = [score for score in learned.scores if score.name in task.signals and score.weight > 0]
    if not said or said[0].value is None:
        return found
    is_good = learned.verdict.fault != "model" and said[0].value > middle
    if is_good and find_secret(item.body.text):
        return replace(found, refused=_LEAKS)
    return replace(found, is_good=is_good)


def why_unlearnable(item: UnpackedEpisode, edit: str | None) -> str:
    """Why the text of an edit cannot stand in the answer's place, or a provider's answer cannot be learned word by word; empty if it can.

    Calls and reasoning are marks of the template, which the text of an answer does not contain.
    """
    if item.turn.provided is not None:
        refused = _why_not_taught(item, item.turn.provided, is_edited=edit is not None)
    else:
        refused = "" if edit is None else _why_marked(item)
    if refused or edit is None:
        return refused
    if not edit.strip():
        return "empty_edit"
    if find_secret(edit):
        return "edit_with_secret"  # it would be learned word by word
    return "edit_equals_answer" if edit == item.body.text else ""


def _why_marked(item: UnpackedEpisode) -> str:
    return "edit_of_tool_call" if item.body.tool_calls else "edit_of_reasoning" if item.body.reasoning else ""


def _why_not_taught(item: UnpackedEpisode, provided: Provided, *, is_edited: bool) -> str:
    if not provided.may_train:
        return "may_not_train"
    if provided.is_partial:
        return "partial"
    if item.body.tool_calls:
        return "tool_call"
    if item.turn.finish_reason != "stop" and not is_edited:
        return "cut"  # it would be learned that an answer ends there
    return _LEAKS if is_edited and find_secret(item.body.text) else ""
