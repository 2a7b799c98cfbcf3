"""What the log says about answers, in text: edits, accepted answers, better and worse answers to one prompt, lone thumbs.

In: generations, signals, rewards and outcomes, partition by partition: what is about one answer is in one partition. Out: a `Remark` for each thing that
an answer can teach. In memory: the signals of one partition, and the newest `MOST_REMARKS` remarks.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from msgspec.structs import replace

from contracts.errors import InvalidRecord
from contracts.event_log import EventLog, is_damaged, pages_of
from contracts.ledger import UNDONE
from contracts.records import Experience, Generation, GenerationBody, Outcome, Record, Signal, decode
from contracts.tasks import Task
from contracts.topics import EXPERIENCES, GENERATIONS, OUTCOMES, SIGNALS
from pipelines.episodes.curation.curator import hash_of
from rewards.signals.edits import edit_in

Kind = Literal["edit", "accepted", "pair", "thumb", "refused"]
MOST_REMARKS = 100_000
GOOD, BAD = 0.9, 0.1
"""Shares of the range of a signal or a reward: from here on an answer is accepted, or refused."""
ANONYMOUS = "anonymous"
_LEARNED = frozenset(("user", "imported"))
RecordType = TypeVar("RecordType", bound=Record)


@dataclass(frozen=True, kw_only=True)
class Remark:
    """One thing that was said about an answer. `record`: the answer, without its body."""

    record: Generation
    body: GenerationBody
    kind: Kind
    chosen: str
    """The text to learn: an edit, the answer itself, or the better of a pair."""
    rejected: str | None = None
    """The answer that was edited, or the worse of a pair."""
    is_good: bool = True
    """Of a thumb."""
    person: str = ""
    """Who said it; empty: nobody knows."""
    revision: int = 0
    """Of the newest reward of the answer; 0: it has none."""
    weight: float = 1.0
    """How much of whoever decided that reward is believed, in [0, 1]."""

    @property
    def prompt(self) -> bytes:
        """Equal for equal prompts of one task; upper case and white space do not count."""
        return hash_of(" ".join([self.record.task, *texts_in([self.body.messages, self.body.tools])]))


@dataclass
class Heard:
    """What the log says about one answer."""

    signals: dict[str, Signal] = field(default_factory=dict)
    """By id; None of them was taken back."""
    revision: int = 0
    """Of the newest reward."""
    reward: float | None = None
    weight: float = 1.0
    """Of that reward."""
    is_refused: bool = False
    """True if it has a vote that does not count, so that there is no reward."""
    is_undone: bool = False
    """True if its import was taken back."""

    def hear(self, said: Signal) -> None:
        """Take a signal into account, or its retraction. Delivery is at least once."""
        if said.retracted:
            self.signals.pop(said.id, None)
        else:
            self.signals[said.id] = said

    def pay(self, scored: Experience, signals: Collection[str]) -> None:
        """Take a reward into account; the newest revision counts. `signals`: names of those of its task."""
        if scored.revision >= self.revision:
            self.revision, self.reward, self.weight = scored.revision, scored.reward, scored.weight
            has_vote = any(
                score.name in signals and score.weight > 0 and score.value is not None for score in scored.scores
            )
            is_graded = all(score.status == "scored" for score in scored.scores)
            self.is_refused = has_vote and is_graded and scored.status == "unlabelled"


@dataclass
class Selection:
    """All remarks, and how many answers were read and left out."""

    remarks: list[Remark] = field(default_factory=list)
    num_answers: int = 0
    left_out: Counter[str] = field(default_factory=Counter)


def select(log: EventLog, tasks: Mapping[str, Task], since: float, *, most: int = MOST_REMARKS) -> Selection:
    """Read the whole log once. `since`: UTC epoch seconds; answers before it are not looked at. Raises Unavailable, Damaged."""
    found, newest = Selection(), list[tuple[float, int, Remark]]()
    for partition in sorted(log.ends(GENERATIONS)):
        heard = _heard(log, partition, tasks, found.left_out)
        for key, value in _values(log, GENERATIONS, partition):
            found.num_answers += 1
            about = heard.pop(key, None)
            if about is None:
                found.left_out["silent"] += 1
                continue
            record = _decoded(Generation, value, found.left_out)
            if record is None or record.created_at < since:
                found.left_out["before_since"] += record is not None
                continue
            for remark in _remarks(record, about, tasks, found.left_out):
                item = (record.created_at, found.num_answers, remark)
                if len(newest) < most:
                    heapq.heappush(newest, item)
                else:
                    heapq.heappushpop(newest, item)
                    found.left_out["older_than_the_newest"] += 1
    found.left_out = +found.left_out
    found.remarks = [remark for *_, remark in sorted(newest, key=lambda item: item[:2])]
    return found


def _heard(log: EventLog, partition: int, tasks: Mapping[str, Task], left_out: Counter[str]) -> dict[str, Heard]:
    """By sample key."""
    heard: dict[str, Heard] = defaultdict(Heard)
    for key, value in _values(log, SIGNALS, partition):
        if (said := _decoded(Signal, value, left_out)) is not None:
            heard[key].hear(said)
    for key, value in _values(log, EXPERIENCES, partition):
        if (scored := _decoded(Experience, value, left_out)) is not None:
            task = tasks.get(scored.task)
            heard[key].pay(scored, task.signals if task else ())
    # The ledger may not know yet what was taken back.
    for _, value in _values(log, OUTCOMES, partition):
        told = _decoded(Outcome, value, left_out)
        if told is not None and (told.state, told.reason) == ("quarantined", UNDONE):
            for item in told.each():
                if item.key in heard:
                    heard[item.key].is_undone = True
    return heard


def _why_not_provided(record: Generation) -> str:
    # Of imported text nobody but the operator who imported it knows the terms: they are declared by importing it and learning from it.
    if record.provided is None or record.purpose == "imported":
        return ""
    return "provider_terms" if not record.provided.may_train else "partial" if record.provided.is_partial else ""


def _remarks(record: Generation, about: Heard, tasks: Mapping[str, Task], left_out: Counter[str]) -> Iterator[Remark]:
    task = tasks.get(record.task)
    if record.purpose not in _LEARNED or task is None:
        left_out["unknown_task" if task is None else "purpose"] += 1
        return
    if about.is_undone:
        left_out["quarantined"] += 1
        return
    if about.is_refused or about.weight <= 0:
        left_out["not_believed"] += 1
        return
    if refused := _why_not_provided(record):
        left_out[refused] += 1
        return
    try:
        body = record.open()
    except InvalidRecord:
        left_out["unreadable"] += 1
        return
    if not body.messages:  # no template renders a prompt that is no chat
        left_out["no_chat"] += 1
        return
    body = replace(body, logprobs=b"", experts=b"", support=b"")
    said = [*remarks_of(replace(record, body=b""), body, about, task)]
    left_out["undecided"] += not said
    for remark in said:
        if remark.kind != "edit" and record.finish_reason != "stop":
            left_out["cut"] += 1
        else:
            yield remark


def remarks_of(record: Generation, body: GenerationBody, about: Heard, task: Task) -> Iterator[Remark]:
    """What one answer teaches. An edit says more than a vote: where there is one, it alone counts."""
    signals = sorted(about.signals.values(), key=lambda item: (item.at, item.id))
    edits = [signal for signal in signals if edit_in(task, [signal]) is not None]
    if edits:
        text, person = edit_in(task, edits[-1:]) or "", _person(edits[-1], record)
        yield Remark(
            record=record,
            body=body,
            kind="edit",
            chosen=text,
            rejected=body.text,
            person=person,
            revision=about.revision,
            weight=about.weight,
        )
        return
    votes = [(signal, share) for signal in signals if (share := _share_of(signal, task)) is not None]
    ranks = {name: rank for rank, (name, _) in enumerate(task.ranked_signals)}
    decisive = min(votes, key=lambda item: (ranks[item[0].name], -item[0].at), default=None)
    share, person, is_thumb = None, record.person or "", False
    if decisive is not None:
        signal, share = decisive
        person, is_thumb = _person(signal, record), task.signals[signal.name].means == "thumbs"
    if about.reward is not None and not is_thumb:
        share = (about.reward - task.reward.low) / (task.reward.high - task.reward.low)
    if share is None or BAD < share < GOOD:
        return
    is_good = share >= GOOD
    kind: Kind = "thumb" if is_thumb else "accepted" if is_good else "refused"
    yield Remark(
        record=record, body=body, kind=kind, chosen=body.text, is_good=is_good, person=person, revision=about.revision,
        weight=about.weight,
    )  # fmt: skip


def with_pairs(remarks: Iterable[Remark], left_out: Counter[str]) -> list[Remark]:
    """A pair of each good and bad answer to one prompt of one tenant. Their thumbs are not lone then; a refused answer alone teaches nothing."""
    found, votes = list[Remark](), defaultdict[tuple[str, bytes], list[Remark]](list)
    for remark in remarks:
        (found if remark.kind == "edit" else votes[remark.record.tenant, remark.prompt]).append(remark)
    for said in votes.values():
        good, bad = ([item for item in said if item.is_good is wanted] for wanted in (True, False))
        paired = [(one, other) for one, other in zip(good, bad, strict=False) if one.chosen != other.chosen]
        used = {id(item) for pair in paired for item in pair}
        for one, other in paired:
            found.append(
                dataclasses.replace(one, kind="pair", rejected=other.chosen, weight=min(one.weight, other.weight))
            )
        for item in said:
            if item.kind == "accepted" or (item.kind == "thumb" and id(item) not in used):
                found.append(item)
            elif item.kind == "refused" and id(item) not in used:
                left_out["only_refused"] += 1
    return found


def texts_in(value: object) -> Iterator[str]:
    """Every text in messages, tools or calls, as it was written."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from texts_in(each)


def _share_of(signal: Signal, task: Task) -> float | None:
    """What a signal is worth, as a share of its range; None: nothing."""
    rule = task.signals.get(signal.name)
    if rule is None or rule.depends_on_answer or not rule.takes(signal.value):
        return None
    worth, low, high = rule.reward_of(signal.value), task.reward.low, task.reward.high
    if len(set(rule.worths)) > 1:
        low, high = min(rule.worths), max(rule.worths)
    return None if worth is None or high <= low else (worth - low) / (high - low)


def _person(signal: Signal, record: Generation) -> str:
    name = signal.submitter.id if signal.submitter.id != ANONYMOUS else record.person
    return f"{record.tenant}/{name}" if name else ""


def _values(log: EventLog, topic: str, partition: int) -> Iterator[tuple[str, bytes]]:
    for records in pages_of(log, topic, partition, 0, log.ends(topic).get(partition, 0)):
        yield from ((record.key, record.value) for record in records if not is_damaged(record.value))


def _decoded(kind: type[RecordType], value: bytes, left_out: Counter[str]) -> RecordType | None:
    try:
        return decode(kind, value)
    except InvalidRecord:
        left_out["unreadable"] += 1
        return None
