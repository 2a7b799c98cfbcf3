"""Prepares a new version for an arm, from the nearest weights in memory, while the old version serves.

In: edges from the weight store. Out: staged updates, decoded and verified, so that only the weights must be written. Waits for:
the store. In memory are the versions that each arm holds, and those it held before. A full copy is fetched only if none of them
is an ancestor, or if they no longer match their checksum. Used on the engine's control thread only.

A version is a whole policy, or an adapter of version 0. Arms with adapters have a module tree each over one base, which is then never
written again: version 0 on such an arm is its adapter switched off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import structlog

from contracts.errors import InvalidSettings, WeightsRefused
from policy.adapter import Adapter, another_tree
from policy.weights import (
    ModelBits,
    changes_from,
    copy_tensors,
    merge_changes,
    stage_changes,
    to_published_values,
)
from services.engine.held import ArmWeights, BaseWeights, HeldParameters, HeldVersion, StagedUpdate
from services.engine.local_copy import LocalCopy
from weights.adapters import CONFIG, AdapterConfig, config_after
from weights.blocks import root_as
from weights.codec.delta import TensorChange
from weights.codec.history import History
from weights.reader import Hop, WeightReader, advance_history
from weights.tensors import Tensor, root_of, words_of
from weights.versions.route import route

_log = structlog.get_logger(__name__)
_WHO_ELSE = "see who else writes to this store"
_BASE_VERSION = 0
"""The version that adapters are for."""
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory")
"""In the messages of torch's errors, which have no type of their own on CPU."""
VersionSource = WeightReader | LocalCopy
"""Where versions come from: the weight store, or a copy of it."""


class Stager:
    """Prepares updates, and remembers what each arm holds; see the module."""

    def __init__(
        self, policy: str, store: VersionSource, make_model: Callable[[], Any], run: str | None = None
    ) -> None:
        self._policy = policy
        self._run = run
        self._store = store
        self._make_model = make_model
        self._arms: dict[str, ArmWeights] = {}

    def stage(self, arm: str, version: int, root: str | None = None, run: str | None = None) -> StagedUpdate:
        """Prepare the change of an arm to a version. One that is not `loaded` gets a model, or a module tree over a base in memory.

        Raises WeightsRefused: `wrong_run`, it is not of `run`, or of the engine's own run; `wrong_root`, its checksum is not the assigned
        `root`; `wrong_base`, `other_adapter`, `shared_base`: the arm cannot have it; `out_of_memory`. NotFound, WeightsRefused,
        Unavailable: the version cannot be loaded, or has another architecture. InvalidSettings: as `make_model`.
        """
        try:
            for wanted in {run, self._run} - {None}:
                self._check_run(arm, version, str(wanted))
            step = self._stage(arm, version, root)
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and not any(words in str(error) for words in _OUT_OF_MEMORY):
                raise
            raise WeightsRefused("out_of_memory", f"version {version} does not fit into memory: {error}") from error
        if root is not None and step.after.root != root:
            said = f"version {version} in the store has the root {step.after.root}, but {root} was assigned"
            raise WeightsRefused("wrong_root", f"{said}: {_WHO_ELSE}", version=version)
        return step

    def loaded(self, name: str, arm: ArmWeights) -> None:
        """Remember the weights of a new arm, to which a staged update was applied."""
        self._arms[name] = arm

    def shared(self) -> Iterator[tuple[str, StagedUpdate]]:
        """Arms with a copy of their own of a base that is under adapters by now, and the update that gives it up. Nothing is copied."""
        for name, arm in self._arms.items():
            held = arm.whole.held
            base = None if held is None or arm.adapter is not None else self._base_with(held.root)
            if base is not None and base.held is not None and base is not arm.whole:
                patches = stage_changes(base.of, {})
                yield name, StagedUpdate(arm, base, patches, base.held, None, payload_bytes=0, whole=base)

    def _check_run(self, arm: str, version: int, run: str) -> None:
        at_hand = self._arms[arm].at_hand(version) if arm in self._arms else None
        found = self._store.run_of(self._policy, version) if at_hand is None else at_hand[1].run
        if found != run:
            said = f"version {version} is of run {found!r}, but run {run!r} was assigned, or is this home's own"
            raise WeightsRefused("wrong_run", f"{said}: {_WHO_ELSE}", version=version)

    def _stage(self, arm: str, version: int, root: str | None) -> StagedUpdate:
        own = self._arms.get(arm)
        if own is not None and (found := own.at_hand(version)) is not None:
            weights, held, undo = found
            patches = stage_changes(weights.of, undo or {})
            before = weights.before if undo is None or weights.held is None else (weights.held, patches.undo)
            return StagedUpdate(own, weights, patches, held, before, 0, own.whole)
        bases, decayed = self._bases(arm, version), list[HeldParameters]()
        while bases:
            base = self._nearest(version, bases)
            try:
                hops = self._hops(base, version)
            except WeightsRefused as error:
                if error.code != "wrong_base":
                    raise
                _log.warning("engine_weights_decayed", arm=base.arm, version=base.held.version, error=error.message)
                bases = [other for other in bases if other[1:] != base[1:]]
                decayed.append(base.weights)
            else:
                return self._from(base, hops, arm, decayed)
        return self._from_nothing(arm, version, root)

    def _bases(self, arm: str, version: int) -> list[BaseWeights]:
        """The weights in memory: the arm's own first; of each, its current version before its previous one."""
        bases = []
        # Adapters have nothing in common with their base: a full copy of one is nearer than many steps from version 0.
        are_adapters = any(each.adapter is not None for each in self._arms.values())
        for name in sorted(self._arms, key=lambda name: name != arm):
            for each in self._arms[name].parts:
                is_kin = isinstance(each.of, Adapter) or not are_adapters
                if each.held is not None and (is_kin or each.held.version == version):
                    bases.append(BaseWeights(name, each, each.held, None))
                if each.before is not None:
                    bases.append(BaseWeights(name, each, *each.before))
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

    def _hops(self, base: BaseWeights, version: int) -> list[Hop]:
        source, held = base.weights.bits(base.undo), base.held
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

    def _from(self, base: BaseWeights, hops: list[Hop], arm: str, decayed: list[HeldParameters]) -> StagedUpdate:
        source = base.weights.bits(base.undo)
        names = target_names(source, hops)
        merged = merge_changes(hop.staged.changes for hop in hops)
        changes = {name: change for name, change in merged.items() if name in names}
        config = config_after(source, changes) if CONFIG in names else None
        after = _held_after(base.held, hops)
        to, weights, whole = self._target(arm, config, after)
        is_adapter = isinstance(base.weights.of, Adapter)
        is_full = any(hop.manifest.base_version is None for hop in hops) or is_adapter != (config is not None)
        changes.pop(CONFIG, None)
        if not is_full and (base.weights is not weights or base.undo is not None):
            changes = changes_from(weights.of, ModelBits(base.weights.of, base.undo), changes)
        before = None if weights in decayed else weights.held
        patches = stage_changes(weights.of, changes, names - {CONFIG}, with_undo=before is not None)
        return StagedUpdate(
            arm=to,
            weights=weights,
            patches=patches,
            after=after,
            before=None if before is None else (before, patches.undo),
            payload_bytes=sum(hop.manifest.payload_bytes for hop in hops),
            whole=whole,
        )

    def _from_nothing(self, arm: str, version: int, root: str | None) -> StagedUpdate:
        tensors, history = self._store.load_state(self._policy, version)
        changes = {name: TensorChange(one.dtype, one.shape, None, words_of(one)) for name, one in tensors.items()}
        after = HeldVersion(version, root_as(tensors, root), history, self._store.run_of(self._policy, version))
        to, weights, whole = self._target(arm, config_after({}, changes), after)
        changes.pop(CONFIG, None)
        patches = stage_changes(weights.of, changes, changes, with_undo=False)
        return StagedUpdate(to, weights, patches, after, before=None, payload_bytes=None, whole=whole)

    def _target(
        self, arm: str, config: AdapterConfig | None, after: HeldVersion
    ) -> tuple[ArmWeights, HeldParameters, HeldParameters]:
        """The arm, what is to be written, and the model's weights that its tree is to have. Raises WeightsRefused."""
        own = self._arms.get(arm)
        if config is not None:
            return self._target_of_adapter(own, config, after)
        base = self._base_with(after.root)
        if own is None:
            own = self._new_arm() if base is None else ArmWeights(another_tree(base.of), base)
        elif own.whole.is_base and own.whole is not base:
            said = f"version {after.version} is a whole policy, and this arm's weights are the base of adapters"
            raise WeightsRefused("shared_base", f"{said}: restart the engine", version=after.version)
        return own, own.whole, own.whole

    def _target_of_adapter(
        self, own: ArmWeights | None, config: AdapterConfig, after: HeldVersion
    ) -> tuple[ArmWeights, HeldParameters, HeldParameters]:
        base = self._base_with(config.base_root)
        if own is None:
            whole = base or self._held_with(config.base_root)
            own = self._arm_on_base(config, after) if whole is None else ArmWeights(another_tree(whole.of), whole)
        whole = own.whole
        if whole.held is None or whole.held.root != config.base_root:
            raise _wrong_base(after.version, config, None if whole.held is None else whole.held.root)
        if own.adapter is None:
            return own, HeldParameters(_new_adapter(own.model, config)), base or whole
        if own.adapter.of.config != config:
            said = f"version {after.version} has {config}, and this arm {own.adapter.of.config}"
            raise WeightsRefused("other_adapter", f"{said}: they stay the same within a run", version=after.version)
        return own, own.adapter, whole

    def _held_with(self, root: str) -> HeldParameters | None:
        """The weights of a model in memory that have this root now."""
        wholes = (each.whole for each in self._arms.values())
        return next((whole for whole in wholes if whole.held is not None and whole.held.root == root), None)

    def _base_with(self, root: str) -> HeldParameters | None:
        """The same, if it is under adapters already."""
        bases = (each.whole for each in self._arms.values() if each.whole.is_base)
        return next((base for base in bases if base.held is not None and base.held.root == root), None)

    def _new_arm(self) -> ArmWeights:
        model = self._make_model()
        to_published_values(model)  # bits that equal a version's are not written, and a checkpoint may be more precise
        return ArmWeights(model, HeldParameters(another_tree(model)))  # now, while nothing is hooked to it

    def _arm_on_base(self, config: AdapterConfig, after: HeldVersion) -> ArmWeights:
        """A new model with the base's weights: it may have them already, else they are version 0 of the store."""
        arm = self._new_arm()
        base = arm.whole.of
        if root_of(ModelBits(base)) != config.base_root:
            root = self._store.edges(self._policy, _BASE_VERSION)[0].target_root
            if root != config.base_root:
                raise _wrong_base(after.version, config, root)
            copy_tensors(base, self._store.load_state(self._policy, _BASE_VERSION)[0])
        arm.whole.held = HeldVersion(_BASE_VERSION, config.base_root, History(), after.run)
        return arm


def target_names(names: Iterable[str], hops: Iterable[Hop]) -> set[str]:
    """The names of the tensors after some hops, from weights with these names."""
    found = set(names)
    for manifest, staged in hops:
        kept = set() if manifest.base_version is None else found - set(staged.removed)
        found = kept | staged.changes.keys()
    return found


def _new_adapter(model: Any, config: AdapterConfig) -> Adapter:
    try:
        adapter = Adapter(model, config, dtype=model.dtype, is_attached=False)
    except InvalidSettings as error:
        raise WeightsRefused("unknown_target", f"this adapter is for another architecture: {error.message}") from error
    to_published_values(adapter)  # as for a new arm
    return adapter


def _wrong_base(version: int, config: AdapterConfig, root: str | None) -> WeightsRefused:
    said = f"version {version} is an adapter for the base {config.base_root}, but the base here is {root}"
    return WeightsRefused("wrong_base", said, version=version)


def _check_root(held: HeldVersion, source: Mapping[str, Tensor]) -> None:
    if (root := root_as(source, held.root)) != held.root:
        said = f"version {held.version} had the root {held.root}, the weights in memory have {root}"
        raise WeightsRefused("wrong_base", said)


def _held_after(held: HeldVersion, hops: list[Hop]) -> HeldVersion:
    if not hops:
        return held
    history = held.history.copy()
    for manifest, staged in hops:
        advance_history(history, manifest, staged.moves)
    return HeldVersion(hops[-1].manifest.version, hops[-1].staged.target_root, history, hops[-1].manifest.run)
