"""Rank 0's trainee: what the learner asks of it, all ranks do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pipelines.training.checkpoints.tensor_files import TensorFile
from pipelines.training.shards.hands import (
    Backward,
    BackwardText,
    BeginPieces,
    Keep,
    LogProbs,
    LogProbsUnder,
    PlainVerb,
    Probe,
    ReadMasters,
    ask,
    dismiss,
)
from pipelines.training.shards.parts import OwnPart, PartsOfAll
from pipelines.training.shards.whole import ShardedModel

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import torch

    from contracts.records import Experience
    from pipelines.training.learning.masters import Masters
    from pipelines.training.learning.step_bound import Taken
    from pipelines.training.learning.trainee import GradientRows, GradientSums, TextSums, TokenLogProbs
    from pipelines.training.learning.users_first import UsersFirst
    from pipelines.training.shards.group import Group
    from pipelines.training.shards.hands import Verb
    from pipelines.training.shards.sharded import Share
    from pipelines.training.text.samples import TextBatch
    from weights.probe import ProbeAnswers
    from weights.stores.store import WeightStore
    from weights.tensors import Tensor
    from weights.versions.signing import Signer


class GroupTrainee:
    """A `Trainee` in several processes. The other ranks are in `follow` until `close`."""

    can_fork = False

    def __init__(self, share: Share, group: Group) -> None:
        """`share`: rank 0's own part."""
        self._share, self._group = share, group
        self.config, self.device, self.identity = share.config, share.device, share.identity
        self.routing, self.budget = share.routing, share.budget
        self._num_kept = 0

    @property
    def users(self) -> UsersFirst | None:
        """As in `Trainee`: rank 0 asks, and the others wait for it."""
        return self._share.users

    @users.setter
    def users(self, users: UsersFirst | None) -> None:
        self._share.users = users

    def close(self) -> None:
        """Let the other ranks end."""
        dismiss(self._group)

    def _ask(self, verb: Verb) -> Any:
        return ask(self._share, self._group, verb)

    def _number_of(self, bits: Mapping[str, Tensor]) -> int:
        """All ranks have these bits under this number."""
        share = self._share
        known = next((number for number, held in share.versions.items() if held is bits), None)
        if known is None:
            known, self._num_kept = self._num_kept, self._num_kept + 1
            self._ask(Keep.of(known, bits))
            share.versions[known] = bits
        return known

    def backward(self, rows: GradientRows) -> GradientSums:
        """As in `Trainee`."""
        found: GradientSums = self._ask(
            Backward([*rows.experiences], [*rows.pulls], [*rows.denominators], rows.are_new)
        )
        return found

    def backward_text(self, batch: TextBatch, answers: Sequence[Experience]) -> TextSums:
        """As in `Trainee`."""
        found: TextSums = self._ask(BackwardText([*batch.samples], dict[str, float](batch.counts.items()), [*answers]))
        return found

    def clip(self, max_norm: float) -> float:
        """As in `Trainee`."""
        return float(self._ask(PlainVerb("clip", (max_norm,))))

    def take_step(self, scale: float) -> Taken:
        """As in `Trainee`."""
        found: Taken = self._ask(PlainVerb("take_step", (scale,)))
        return found

    def forget_gradient(self) -> None:
        """As in `Trainee`."""
        self._ask(PlainVerb("forget_gradient"))

    def hold_less(self) -> bool:
        """As in `Trainee`."""
        return bool(self._ask(PlainVerb("hold_less")))

    def log_probs(self, experiences: Sequence[Experience]) -> TokenLogProbs:
        """As in `Trainee`."""
        found: TokenLogProbs = self._ask(LogProbs([*experiences]))
        return found

    def log_probs_under(self, bits: Mapping[str, Tensor] | None, experiences: Sequence[Experience]) -> TokenLogProbs:
        """As in `Trainee`."""
        number = None if bits is None else self._number_of(bits)
        found: TokenLogProbs = self._ask(LogProbsUnder([*experiences], number))
        return found

    def bits_of(self, weights: Mapping[str, torch.Tensor]) -> Mapping[str, Tensor]:
        """As in `Trainee`."""
        return self._share.bits_of(weights)

    def probe_answers(self, bits: Mapping[str, Tensor]) -> ProbeAnswers | None:
        """As in `Trainee`."""
        if self._share.is_cut:  # versions with whole weights have none, and no other rank needs their bits
            return None
        found: ProbeAnswers | None = self._ask(Probe(self._number_of(bits)))
        return found

    def publishes(self, store: WeightStore, signer: Signer | None, stop: threading.Event) -> PartsOfAll | None:
        """All ranks, as those who publish; None if rank 0 does, because a version is an adapter."""
        if not isinstance(self._share, ShardedModel):
            return None
        return PartsOfAll(OwnPart(self._share.files, store, 0, self._group.world), self._group, signer, stop)

    def masters(self) -> Masters:
        """As in `Trainee`."""
        return self._share.masters()

    def begin_pieces(self, folder: Path, budget: float) -> None:
        """As in `Trainee`."""
        if self._share.is_cut:
            self._ask(BeginPieces(str(folder), budget))

    def put(self, held: Masters) -> None:
        """As in `Trainee`; where each rank has rows, from the files of a checkpoint."""
        if self._share.is_cut and isinstance(held[0], TensorFile):
            self._ask(ReadMasters(str(held[0].folder)))
            return
        self._share.put(held)
        self._ask(PlainVerb("copy_masters"))

    def restart_from(self, bits: Mapping[str, Tensor]) -> Callable[[], None]:
        """As in `Trainee`."""
        go = self._share.restart_from(bits)

        def restart() -> None:
            go()
            self._ask(PlainVerb("copy_masters"))

        return restart

    def machine(self) -> dict[str, str]:
        """As in `Trainee`."""
        return self._share.machine()

    def seconds(self) -> Mapping[str, float]:
        """As in `Trainee`."""
        return self._share.seconds()
