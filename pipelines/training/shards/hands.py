"""What rank 0 asks of all ranks, and the loop of those that only do what is asked.

A verb is one of `Trainee`, with its arguments; every rank does the same one at the same time. Samples come as messages, and reach no disk here.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np
import structlog

from contracts.errors import StepsBroken
from contracts.records import Experience
from pipelines.training.learning.device import release_memory
from pipelines.training.learning.trainee import GradientRows
from pipelines.training.shards.group import ranks
from pipelines.training.text.samples import TextBatch, TextSample
from weights.tensors import Tensor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pipelines.training.shards.group import Group
    from pipelines.training.shards.sharded import Share

VERSIONS_HELD = 4
"""Versions whose bits are kept by every rank, for the next time that rank 0 names them."""
log = structlog.get_logger()


class Backward(msgspec.Struct, tag=True):
    """`Trainee.backward`."""

    experiences: list[Experience]
    pulls: list[float]
    denominators: list[float]
    are_new: bool

    def on(self, share: Share) -> Any:
        """Do it."""
        return share.backward(GradientRows(self.experiences, self.pulls, self.denominators, self.are_new))


class BackwardText(msgspec.Struct, tag=True):
    """`Trainee.backward_text`."""

    samples: list[TextSample]
    counts: dict[str, float]
    answers: list[Experience]

    def on(self, share: Share) -> Any:
        """Do it."""
        return share.backward_text(TextBatch(self.samples, self.counts), self.answers)  # type: ignore[arg-type]  # kinds, as text


class PlainVerb(msgspec.Struct, tag=True):
    """A verb that takes numbers, or nothing. `copy_masters`: weights and moments become those of rank 0, which has put them there."""

    name: Literal["clip", "take_step", "forget_gradient", "hold_less", "copy_masters"]
    numbers: tuple[float, ...] = ()

    def on(self, share: Share) -> Any:
        """Do it."""
        return getattr(share, self.name)(*self.numbers)


class LogProbs(msgspec.Struct, tag=True):
    """`Trainee.log_probs`."""

    experiences: list[Experience]

    def on(self, share: Share) -> Any:
        """Do it."""
        return share.log_probs(self.experiences)


class Keep(msgspec.Struct, tag=True):
    """The bits of a version, for verbs that name them by number."""

    number: int
    tensors: list[tuple[str, str, tuple[int, ...], bytes]]

    def on(self, share: Share) -> Any:
        """Do it."""
        bits = {name: Tensor(dtype, shape, np.frombuffer(data, np.uint8)) for name, dtype, shape, data in self.tensors}
        share.versions = dict([*share.versions.items(), (self.number, bits)][-VERSIONS_HELD:])

    @classmethod
    def of(cls, number: int, bits: Mapping[str, Tensor]) -> Keep:
        """These bits."""
        tensors = [(name, dtype, shape, data.tobytes()) for name, (dtype, shape, data) in bits.items()]
        return cls(number, tensors)


class LogProbsUnder(msgspec.Struct, tag=True):
    """`Trainee.log_probs_under`."""

    experiences: list[Experience]
    number: int | None

    def on(self, share: Share) -> Any:
        """Do it."""
        bits = None if self.number is None else share.versions[self.number]
        return share.log_probs_under(bits, self.experiences)


class Probe(msgspec.Struct, tag=True):
    """`Trainee.probe_answers`."""

    number: int

    def on(self, share: Share) -> Any:
        """Do it."""
        return share.probe_answers(share.versions[self.number])


class BeginPieces(msgspec.Struct, tag=True):
    """`Trainee.begin_pieces`."""

    folder: str
    budget: float

    def on(self, share: Share) -> Any:
        """Do it."""
        share.begin_pieces(Path(self.folder), self.budget)


class ReadMasters(msgspec.Struct, tag=True):
    """`Trainee.put`, where each rank reads what it holds from the folder of the checkpoint."""

    folder: str

    def on(self, share: Share) -> Any:
        """Do it."""
        share.read_masters(Path(self.folder))


class LastOrder(msgspec.Struct, tag=True):
    """Rank 0 trains no more."""


Verb = Backward | BackwardText | PlainVerb | LogProbs | Keep | LogProbsUnder | Probe | BeginPieces | ReadMasters


class Order(msgspec.Struct):
    """One message. `max_tokens`: of the token budget, which rank 0 alone changes."""

    max_tokens: int
    verb: Verb | LastOrder


def ask(share: Share, group: Group, verb: Verb) -> Any:
    """Let all ranks do this; returns what rank 0 found. Raises as `perform`."""
    group.send(msgspec.msgpack.encode(Order(share.budget.current, verb)))
    return perform(share, group, verb)


def dismiss(group: Group) -> None:
    """Let the other ranks end."""
    group.send(msgspec.msgpack.encode(Order(0, LastOrder())))


def follow(share: Share, group: Group) -> None:
    """Do what rank 0 asks until it trains no more. Raises StepsBroken: the group is at its end."""
    while True:
        order = msgspec.msgpack.decode(group.receive(), type=Order)
        if isinstance(order.verb, LastOrder):
            return
        share.budget.current = order.max_tokens
        try:
            perform(share, group, order.verb)
        except StepsBroken:
            raise
        except Exception as error:  # noqa: BLE001 rank 0 has it too, and decides
            log.warning("a verb failed on every rank", verb=_named(order.verb), reason=str(error))
            is_failed = True
        else:
            is_failed = False
        if is_failed:
            release_memory()


def perform(share: Share, group: Group, verb: Verb) -> Any:
    """Do a verb with all other ranks, and agree on how it ended.

    Raises the verb's own error where every rank has one; StepsBroken where only some have: they are not in the same state any more.
    """
    found, failure = None, None
    try:
        found = verb.on(share)
    except StepsBroken:
        raise
    except Exception as error:  # noqa: BLE001 it is raised below, once it is known who else has one
        failure = error
    failed = [rank for rank, fails in enumerate(group.all(int(failure is not None))) if fails]
    if not failed:
        return found
    if failure is not None and len(failed) == group.world:
        raise failure
    raise group.ended_by(f"sees {ranks(failed)} fail alone in {_named(verb)}: {failure}") from failure


def _named(verb: Verb) -> str:
    return verb.name if isinstance(verb, PlainVerb) else type(verb).__name__
