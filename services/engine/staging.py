"""Prepares a new version for a model, from the nearest weights in memory, while the old version serves.

In: edges from the weight store. Out: staged updates, decoded and verified, so that only the weights must be written. Waits for:
the store. In memory are the version that each arm holds, and the one it held before. A full copy is fetched only if none of them
is an ancestor, or if they no longer match their checksum. Used on the engine's control thread only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import structlog

from contracts.errors import WeightsRefused
from policy.weights import Changes, ModelBits, Patches, changes_from, merge_changes, stage_changes
from services.engine.local_copy import LocalCopy
from weights.codec.delta import TensorChange
from weights.codec.history import History
from weights.reader import Hop, WeightReader, advance_history
from weights.tensors import Tensor, digest_of, root_of, root_of_leaves, words_of
from weights.versions.route import route

_log = structlog.get_logger(__name__)
_WHO_ELSE = "see who else writes to this store"
VersionSource = WeightReader | LocalCopy
"""Where versions come from: the weight store, or a copy of it."""


class HeldVersion(NamedTuple):
    """The version of a model's parameters. Arms share `history`, so it is never changed."""

    version: int
    root: str
    history: History
    run: str


class BaseWeights(NamedTuple):
    """Weights in memory: those of an arm, or what `undo` leads to from there."""

    arm: str
    held: HeldVersion
    undo: Changes | None


class StagedUpdate(NamedTuple):
    """A prepared change of a model. `before` None: it was not verified. `payload_bytes` None: a full copy was fetched."""

    patches: Patches
    after: HeldVersion
    before: HeldVersion | None
    payload_bytes: int | None


class Stager:
    """Prepares updates, and remembers what each arm holds; see the module."""

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
        """Prepare the change of an arm's model to a version. The model is not changed.

        Raises WeightsRefused: `wrong_run`, it is not of `run`, or of the engine's own run; `wrong_root`, its checksum is not the assigned
        `root`; NotFound, WeightsRefused, Unavailable: the version cannot be loaded, or has another architecture.
        """
        for wanted in {run, self._run} - {None}:
            self._check_run(arm, version, str(wanted))
        step = self._stage(arm, model, version)
        if root is not None and step.after.root != root:
            said = f"version {version} in the store has the root {step.after.root}, but {root} was assigned"
            raise WeightsRefused("wrong_root", f"{said}: {_WHO_ELSE}", version=version)
        return step

    def _check_run(self, arm: str, version: int, run: str) -> None:
        before = self._before.get(arm)
        is_at_hand = before and before[0].version == version
        found = before[0].run if before and is_at_hand else self._store.run_of(self._policy, version)
        if found != run:
            said = f"version {version} is of run {found!r}, but run {run!r} was assigned, or is this home's own"
            raise WeightsRefused("wrong_run", f"{said}: {_WHO_ELSE}", version=version)

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

    def applied(self, arm: str, model: Any, step: StagedUpdate) -> None:
        """Remember that a staged update was applied."""
        self._models[arm], self._held[arm] = model, step.after
        self._before.pop(arm, None)
        if step.before is not None:
            self._before[arm] = (step.before, step.patches.undo)

    def _bases(self, arm: str) -> list[BaseWeights]:
        """The weights in memory: the arm's own first; of each arm, its current version before its previous one."""
        bases = []
        for name in sorted(self._held, key=lambda name: name != arm):
            bases.append(BaseWeights(name, self._held[name], None))
            if name in self._before:
                bases.append(BaseWeights(name, *self._before[name]))
        return bases

    def _nearest(self, version: int, bases: list[BaseWeights]) -> BaseWeights:
        """The base of the cheapest path to a version; the first base if only a full copy leads to it."""
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
            onto = (held.version, source, held.history)
            return self._store.stage_onto(self._policy, version, *onto, base_root=held.root)
        except WeightsRefused:
            # Checking the root of the target checks the base too, so the base alone is checked only after a failure.
            _check_root(held, source)
            raise

    def _from_nothing(self, model: Any, version: int) -> StagedUpdate:
        tensors, history = self._store.load_state(self._policy, version)
        whole = {name: TensorChange(one.dtype, one.shape, None, words_of(one)) for name, one in tensors.items()}
        patches = stage_changes(model, whole, whole, with_undo=False)
        after = HeldVersion(version, root_of(tensors), history, self._store.run_of(self._policy, version))
        return StagedUpdate(patches, after, before=None, payload_bytes=None)


def target_names(names: Iterable[str], hops: Iterable[Hop]) -> set[str]:
    """The names of the tensors after some hops, from weights with these names."""
    found = set(names)
    for manifest, staged in hops:
        kept = set() if manifest.base_version is None else found - set(staged.removed)
        found = kept | staged.changes.keys()
    return found


def _check_root(held: HeldVersion, source: Mapping[str, Tensor]) -> None:
    root = root_of_leaves((name, tensor.dtype, tensor.shape, digest_of(tensor)) for name, tensor in source.items())
    if root != held.root:
        said = f"version {held.version} had the root {held.root}, the weights in memory have {root}"
        raise WeightsRefused("wrong_base", said)


def _held_after(held: HeldVersion, hops: list[Hop]) -> HeldVersion:
    if not hops:
        return held
    history = held.history.copy()
    for manifest, staged in hops:
        advance_history(history, manifest, staged.moves)
    return HeldVersion(hops[-1].manifest.version, hops[-1].staged.target_root, history, hops[-1].manifest.run)
