"""How a version gets to a model: from the nearest weights at hand, decoded and verified while the old version serves.

Flows in: edges from the weight store. Flows out: steps, checked so far that only the scatter is left. Waits for: the
store. At hand are what each arm holds and what it held before; the store gives a full copy only when no ancestor is
among them, or when memory no longer holds what was verified. On the engine's control thread only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

import structlog

from contracts.errors import WeightsRefused
from policy.weights import Changes, ModelBits, Patches, changes_from, merge_changes, stage_changes
from weights.codec.delta import TensorChange
from weights.codec.history import History
from weights.reader import Hop, advance_history
from weights.tensors import Tensor, Tensors, digest_of, root_of, root_of_leaves, words_of
from weights.versions.manifest import Manifest
from weights.versions.route import route

_log = structlog.get_logger(__name__)


class VersionSource(Protocol):
    """Where versions come from: weights.stores.store."""

    def edges(self, policy: str, version: int) -> list[Manifest]:
        """All edges to a version."""

    def run_of(self, policy: str, version: int) -> str:
        """The training run that made a version."""

    def load_state(self, policy: str, version: int) -> tuple[Tensors, History]:
        """The verified tensors of a version, and its history."""

    def stage_onto(
        self,
        policy: str,
        version: int,
        base_version: int,
        base: Mapping[str, Tensor],
        history: History,
        *,
        base_root: str,
    ) -> list[Hop]:
        """What makes `base` the weights of `version`, verified; base and history are read only."""


class HeldVersion(NamedTuple):
    """What a model's parameters are."""

    version: int
    root: str
    history: History
    """Never written to: arms share it."""
    run: str


class BaseWeights(NamedTuple):
    """Weights at hand."""

    arm: str
    held: HeldVersion
    undo: Changes | None
    """What leads to them from what the arm holds; None: it holds them."""


class StagedUpdate(NamedTuple):
    """All that is known of one change of a model before it is made."""

    patches: Patches
    after: HeldVersion
    before: HeldVersion | None
    """What undoing it leads to; None: nothing that was verified."""
    payload_bytes: int | None
    """Fetched from the store; None: a full copy, since nothing at hand would do."""


class Stager:
    """See the module."""

    def __init__(self, policy: str, store: VersionSource, run: str | None = None) -> None:
        self._policy = policy
        self._run = run
        self._store = store
        self._models: dict[str, Any] = {}
        self._held: dict[str, HeldVersion] = {}
        self._before: dict[str, tuple[HeldVersion, Changes]] = {}

    def stage(
        self, arm: str, model: Any, version: int, root: str | None = None, run: str | None = None
    ) -> StagedUpdate:
        """What brings an arm's model to a version; the model is not changed.

        Raises:
            WeightsRefused: `wrong_run`, the version, or one on the way to it, is not of `run`, or of the engine's own;
                `wrong_root`, it is not the one that was assigned, which adds up to `root`.
            NotFound, WeightsRefused, Unavailable: the version cannot be had, or is not of this architecture.
        """
        for wanted in {run, self._run} - {None}:
            self._check_run(arm, version, str(wanted))
        step = self._stage(arm, model, version)
        if root is not None and step.after.root != root:
            raise WeightsRefused(
                "wrong_root",
                f"version {version} in the store adds up to {step.after.root}, and the one that was assigned to {root}: "
                "see who else writes to this store",
                version=version,
            )
        return step

    def _check_run(self, arm: str, version: int, run: str) -> None:
        before = self._before.get(arm)
        is_at_hand = before is not None and before[0].version == version
        found = before[0].run if before is not None and is_at_hand else self._store.run_of(self._policy, version)
        if found != run:
            raise WeightsRefused(
                "wrong_run",
                f"version {version} is of run {found!r}, and {run!r} is what was assigned or what this home serves: see who "
                "else writes to this store",
                version=version,
            )

    def _stage(self, arm: str, model: Any, version: int) -> StagedUpdate:
        before = self._before.get(arm)
        if before is not None and before[0].version == version:
            held, undo = before
            return StagedUpdate(stage_changes(model, undo), held, self._held[arm], 0)
        own, bases = self._held.get(arm), self._bases(arm)
        while bases:
            base = self._nearest(version, bases)
            try:
                return self._from(base, arm, model, version, own)
            except WeightsRefused as error:
                if error.code != "wrong_base":
                    raise
                _log.warning("engine_weights_decayed", arm=base.arm, version=base.held.version, error=error.message)
                bases = [other for other in bases if other is not base]
                own = None if base.arm == arm else own
        return self._from_nothing(model, version)

    def made(self, arm: str, model: Any, step: StagedUpdate) -> None:
        """Note that a step was applied."""
        self._models[arm], self._held[arm] = model, step.after
        self._before.pop(arm, None)
        if step.before is not None:
            self._before[arm] = (step.before, step.patches.undo)

    def _bases(self, arm: str) -> list[BaseWeights]:
        """Weights at hand: the arm's own first, then those of others; what an arm holds before what it held."""
        names = sorted(self._held, key=lambda name: name != arm)
        bases = []
        for name in names:
            bases.append(BaseWeights(name, self._held[name], None))
            if name in self._before:
                bases.append(BaseWeights(name, *self._before[name]))
        return bases

    def _nearest(self, version: int, bases: list[BaseWeights]) -> BaseWeights:
        """Where the cheapest way begins, the first of equals; the first of all if only a full copy will do."""
        by_version = {base.held.version: base for base in reversed(bases)}
        if len(by_version) == 1 or version in by_version:
            return by_version.get(version, bases[0])
        held = {number: base.held.history.digest for number, base in by_version.items()}
        way = route(lambda number: self._store.edges(self._policy, number), version, held)
        start = way[0].base_version
        return bases[0] if start is None else by_version[start]

    def _from(self, base: BaseWeights, arm: str, model: Any, version: int, own: HeldVersion | None) -> StagedUpdate:
        source, held = ModelBits(self._models[base.arm], base.undo), base.held
        hops = self._hops(held, source, version)
        names = target_names(source, hops)
        merged = merge_changes(hop.staged.changes for hop in hops)
        changes = {name: change for name, change in merged.items() if name in names}
        is_full = any(hop.manifest.base_version is None for hop in hops)
        if not is_full and (base.arm != arm or base.undo is not None):
            changes = changes_from(model, source, changes)
        return StagedUpdate(
            patches=stage_changes(model, changes, names, with_undo=own is not None),
            after=_held_after(held, hops),
            before=own,
            payload_bytes=sum(hop.manifest.payload_bytes for hop in hops),
        )

    def _hops(self, held: HeldVersion, source: ModelBits, version: int) -> list[Hop]:
        if held.version == version:
            _check_root(held, source)
            return []
        try:
            return self._store.stage_onto(
                self._policy, version, held.version, source, held.history, base_root=held.root
            )
        except WeightsRefused:
            # The root of the target is worked out from the base too: looking at the base's own can wait until then.
            _check_root(held, source)
            raise

    def _from_nothing(self, model: Any, version: int) -> StagedUpdate:
        tensors, history = self._store.load_state(self._policy, version)
        whole = {
            name: TensorChange(tensor.dtype, tensor.shape, None, words_of(tensor)) for name, tensor in tensors.items()
        }
        patches = stage_changes(model, whole, whole, with_undo=False)
        return StagedUpdate(
            patches,
            HeldVersion(version, root_of(tensors), history, self._store.run_of(self._policy, version)),
            None,
            None,
        )


def target_names(names: Iterable[str], hops: Iterable[Hop]) -> set[str]:
    """The tensors that weights of these names have after some hops."""
    found = set(names)
    for manifest, staged in hops:
        kept = set() if manifest.base_version is None else found - set(staged.removed)
        found = kept | staged.changes.keys()
    return found


def _check_root(held: HeldVersion, source: Mapping[str, Tensor]) -> None:
    root = root_of_leaves((name, tensor.dtype, tensor.shape, digest_of(tensor)) for name, tensor in source.items())
    if root != held.root:
        raise WeightsRefused("wrong_base", f"version {held.version} was {held.root}, here stands {root}")


def _held_after(held: HeldVersion, hops: list[Hop]) -> HeldVersion:
    if not hops:
        return held
    history = held.history.copy()
    for manifest, staged in hops:
        advance_history(history, manifest, staged.moves)
    return HeldVersion(hops[-1].manifest.version, hops[-1].staged.target_root, history, hops[-1].manifest.run)
