"""Take a guarded step again, offline: the same figures, or where they differ and why.

    checkpoint of the bundle ──its journal──▶ the weights before the step ──Trial──▶ looks, culprits ──▶ beside those recorded

In: the folder of a bundle, and the base policy. Out: rows of recorded and recomputed values. Waits for: the device. It computes with
the trainer's own code: `restore` and `replaying` give the weights as a restart does, `Trial` takes the step in memory. Nothing is
written: no home, database or log is opened.

All numbers are equal bit by bit on the same processor and release, with as many threads. Elsewhere sums have other last bits.
"""

from __future__ import annotations

import math
import re
import tempfile
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec
import torch
from pydantic import ValidationError

from contracts.errors import InvalidSettings, NotFound, WeightsRefused
from contracts.files import read_small
from pipelines.training.checkpoints.bundle_records import (
    BUNDLE,
    Figure,
    GuardLook,
    RewardBundle,
    StepBundle,
    decode_bundle,
    encode_bundle,
    machine_of,
)
from pipelines.training.checkpoints.bundles import CONTENT_SECONDS, MOST_CHECKPOINTS, digest_of_plan, facts_of
from pipelines.training.checkpoints.checkpoint import CheckpointStore
from pipelines.training.checkpoints.checkpoint_names import parse_name
from pipelines.training.checkpoints.journal import Journal, Journaled, Place
from pipelines.training.checkpoints.journal_records import Plan
from pipelines.training.checkpoints.replaying import prepare, replay
from pipelines.training.learning.guard import limits_of
from pipelines.training.learning.learner import Learner
from pipelines.training.learning.whole_model import WholeModel
from pipelines.training.samples.attempts import AttemptFile, Attempts
from pipelines.training.samples.known_samples import KnownSamples
from pipelines.training.samples.reward_watch import RewardWatch, WatchMemory
from pipelines.training.samples.trial import DEADLY, Trial
from pipelines.training.settings import TrainingSettings
from policy.load import load_model
from policy.weights import copy_tensors, tensors_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pipelines.training.checkpoints.bundle_records import Bundle
    from pipelines.training.checkpoints.replaying import ReplayedSteps

BundleType = TypeVar("BundleType", StepBundle, RewardBundle)
_THREADS = re.compile("[1-9][0-9]{0,3}")
_NO_LOOK = GuardLook(num_rows=0, rows="")
_NO_ROW: Mapping[str, Figure] = {}


class ComparedFigure(NamedTuple):
    """One value, recorded and recomputed."""

    name: str
    recorded: Figure
    recomputed: Figure
    limit: float | None = None
    """Above it the value is a spike, from a replay that came to the same weights."""

    @property
    def is_same(self) -> bool:
        """True if they are equal bit by bit."""
        return self.recorded == self.recomputed

    @property
    def distance(self) -> float:
        """Relative difference; infinite where only one is a number."""
        one, other = self.recorded, self.recomputed
        if self.is_same:
            return 0.0
        if not (isinstance(one, float) and isinstance(other, float)):
            return math.inf
        return abs(one - other) / max(abs(one), abs(other))


class ComparedPart(NamedTuple):
    """Values that belong together. `is_shown`: also where all of them are the same."""

    title: str
    figures: Sequence[ComparedFigure]
    is_shown: bool

    @property
    def is_same(self) -> bool:
        """True if all are equal."""
        return all(item.is_same for item in self.figures)


class ReplayedBundle(NamedTuple):
    """What a replay found."""

    bundle: Bundle
    machine: Sequence[ComparedFigure]
    """What was another machine, release or device. Empty: every bit must be the same."""
    parts: Sequence[ComparedPart]

    @property
    def is_same(self) -> bool:
        """True if every figure is equal bit by bit."""
        return all(part.is_same for part in self.parts)


def read_bundle(place: Path) -> tuple[Path, Bundle]:
    """The folder of a bundle, and what it says. `place`: the folder, or its `bundle.json`.

    Raises:
        WeightsRefused: `no_bundle`, `damaged_bundle`, `newer_schema` or `old_bundle`.
    """
    folder = place.parent if place.name == BUNDLE else place
    file = folder / BUNDLE if folder.is_dir() else folder
    try:
        data = read_small(file)
    except OSError as error:
        raise WeightsRefused(
            "no_bundle",
            f"{file} cannot be read ({error.strerror}): name a folder of the home's bundles/, as in the log",
        ) from error
    return folder, decode_bundle(data, str(file))


def replay_bundle(place: Path, *, base: str = "", device: str = "") -> ReplayedBundle:
    """Take the step of a bundle again and compare.

    Args:
        place: see `read_bundle`.
        base: folder or hub id of the base policy; empty: where the bundle says.
        device: empty: the kind that the bundle names.

    Raises:
        WeightsRefused: something of the bundle is missing, cut, changed, or belongs to another policy or release.
        InvalidSettings: the base policy or the device is not here.
        StepsBroken: on this machine any step fails.
    """
    folder, bundle = read_bundle(place)
    try:
        settings = TrainingSettings(**bundle.origin.settings)
    except ValidationError as error:
        raise WeightsRefused(
            "other_settings",
            f"{folder} was written by another release, whose [training] this one does not know: replay it with that release "
            f"({error.error_count()} settings, first {error.errors()[0]['loc']})",
        ) from error
    if isinstance(bundle, RewardBundle):
        return ReplayedBundle(bundle, [], _reward_parts(bundle, _rewards_again(bundle, settings)))
    device = device or bundle.origin.machine.get("device", "cpu")
    threads = bundle.origin.machine.get("threads", str(settings.num_threads))
    if not device.startswith(("cpu", "cuda")) or not _THREADS.fullmatch(threads):
        raise WeightsRefused(
            "damaged_bundle", f"{folder} names a device {device} with {threads} threads: there is none"
        )
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise InvalidSettings(f"{folder} was made on {device}, which this machine lacks: add --device cpu to come near")
    torch.set_num_threads(int(threads))
    learner, played = _before(folder, bundle, settings, base or bundle.origin.base, device)
    history = learner.guard_history()
    limits = limits_of(history.norms, history.signs, settings.guard_spread)
    again = _step_again(learner, played, bundle)
    machine = [
        ComparedFigure(name, bundle.origin.machine.get(name), value)
        for name, value in machine_of(learner.device).items()
        if bundle.origin.machine.get(name) != value
    ]
    return ReplayedBundle(bundle, machine, [*_step_parts(bundle, again, limits), _earlier(played)])


def _before(
    folder: Path, bundle: StepBundle, settings: TrainingSettings, base: str, device: str
) -> tuple[Learner, ReplayedSteps]:
    """A learner as it was before the step, and the steps that led to it; `unfinished` is the step itself."""
    name = bundle.checkpoint
    if name and parse_name(name) is None:
        raise WeightsRefused("damaged_bundle", f"{folder} names a checkpoint {name}, which is not the name of one")
    if not name or not (folder / name).is_dir():
        why = bundle.missing or (
            f"{name} is gone. The trainer keeps those of its newest {MOST_CHECKPOINTS} checkpoints for "
            f"{CONTENT_SECONDS / 86400:.0f} days: copy a bundle elsewhere to keep it longer"
        )
        raise WeightsRefused("no_weights", f"{folder} has no weights: {why}; its figures stand in {BUNDLE}")
    try:
        checkpoint = CheckpointStore(folder, keep=1).load(name, with_samples=False)
        found = _up_to(Journal(folder).read(name, bundle.epoch + 1), bundle)
    except (WeightsRefused, OSError, msgspec.MsgspecError) as error:
        raise WeightsRefused(
            getattr(error, "code", "unreadable"),
            f"{folder} cannot be replayed: {error}: copy the whole folder from the home again; its figures stand in {BUNDLE}",
        ) from error
    learner = Learner(WholeModel(_base(folder, base, device), settings, device), settings)
    try:
        learner.restore(checkpoint)
    except WeightsRefused as error:
        raise WeightsRefused(
            error.code, f"{folder} is of another base policy than {base}: {error.message}; name its own with --policy"
        ) from error
    return learner, replay(learner, checkpoint.state, found, lambda _: KnownSamples())


def _up_to(found: Journaled, bundle: StepBundle) -> Journaled:
    """The records until the step of the bundle has begun. The trainer went on to write after them: the file is a link."""
    for number, record in enumerate(found.records, start=1):
        if isinstance(record, Plan) and digest_of_plan(record) == bundle.plan:
            return Journaled(found.records[:number], Place(bundle.epoch, number))
    raise WeightsRefused("no_step", f"the journal in {bundle.checkpoint} is cut or damaged: it lacks this step")


def _base(folder: Path, base: str, device: str) -> Any:
    """The base policy with the bits of version 0, which are those of its files in bfloat16."""
    try:
        model = load_model(base, device=device, dtype=torch.float32)
    except NotFound as error:
        raise InvalidSettings(
            f"the base policy of {folder} is not here ({error.message}): name it with --policy"
        ) from error
    copy_tensors(model, tensors_of(model))
    return model


def _step_again(learner: Learner, played: ReplayedSteps, bundle: StepBundle) -> StepBundle:
    """Take the step in memory."""
    plan = played.unfinished
    if plan is None:
        raise WeightsRefused("no_step", "the records of the journal do not end with the step of the bundle")
    prepare(learner, plan, plan.max_tokens)
    deadly = {item.key for item in bundle.culprits if item.error == DEADLY}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "attempt.json"
        # What ended the trainer's process would end this one too.
        path.write_bytes(msgspec.json.encode(AttemptFile(condemned=deadly)))
        trial = Trial(learner, Attempts(path), plan.batch.everything[0].policy, dict)
        found = trial.step(plan.batch, plan.weights, epoch=bundle.epoch, step=bundle.step)
    return _as_read(msgspec.structs.replace(bundle, **facts_of(found)))


def _rewards_again(bundle: RewardBundle, settings: TrainingSettings) -> RewardBundle:
    watch = RewardWatch(*settings.reward_range, settings.guard_hold_seconds)
    watch.remember(WatchMemory(bundle.levels, bundle.recent, bundle.suspect_since))
    found = watch.suspicions(bundle.batch, bundle.at)
    return _as_read(msgspec.structs.replace(bundle, tasks=[item._asdict() for item in found]))


def _as_read(bundle: BundleType) -> BundleType:
    """As it would be read from a file, so that equal numbers are of one type."""
    found = decode_bundle(encode_bundle(bundle), BUNDLE)
    assert type(found) is type(bundle)  # noqa: S101 for mypy
    return found


def _step_parts(bundle: StepBundle, again: StepBundle, limits: Mapping[str, float]) -> Iterator[ComparedPart]:
    one, other = ([look for look in each.looks if look.is_whole] for each in (bundle, again))
    facts = [
        ComparedFigure("reason", bundle.reason, again.reason),
        ComparedFigure("attempts", float(len(one)), float(len(other))),
        ComparedFigure("rows learned", float(bundle.learned), float(again.learned)),
        ComparedFigure("rows left", " ".join(bundle.left), " ".join(again.left)),
    ]
    yield ComparedPart("the step", facts, is_shown=True)
    for number, (look, new) in enumerate(zip_longest(one, other, fillvalue=_NO_LOOK), start=1):
        yield ComparedPart(f"attempt {number}: {look.num_rows} rows", [*_looks("", look, new, limits)], is_shown=True)
        rows = [*_rows(look.samples, new.samples)]
        yield ComparedPart(f"attempt {number}: samples", rows, is_shown=False)
    parts, tried = ([look for look in each.looks if not look.is_whole] for each in (bundle, again))
    figures = [
        figure
        for number, (look, new) in enumerate(zip_longest(parts, tried, fillvalue=_NO_LOOK), start=1)
        for figure in _looks(f"{number}: ", look, new, {})
    ]
    yield ComparedPart(f"{len(parts)} parts of the batch that were tried", figures, is_shown=False)
    named, found = ({item.key: item.reason for item in each.culprits} for each in (bundle, again))
    culprits = [ComparedFigure(key, named.get(key), found.get(key)) for key in {**named, **found}]
    yield ComparedPart("culprits", culprits, is_shown=True)


def _looks(prefix: str, look: GuardLook, new: GuardLook, limits: Mapping[str, float]) -> Iterator[ComparedFigure]:
    yield ComparedFigure(f"{prefix}rows", look.rows, new.rows)
    yield ComparedFigure(f"{prefix}reason", look.reason, new.reason)
    # The rest of a message may name addresses in memory.
    yield ComparedFigure(f"{prefix}error", look.error.partition(":")[0], new.error.partition(":")[0])
    for name in {**look.figures, **new.figures}:
        yield ComparedFigure(f"{prefix}{name}", look.figures.get(name), new.figures.get(name), limits.get(name))


def _rows(
    recorded: Sequence[Mapping[str, Figure]], recomputed: Sequence[Mapping[str, Figure]]
) -> Iterator[ComparedFigure]:
    for row, new in zip_longest(recorded, recomputed, fillvalue=_NO_ROW):
        for name in {**row, **new}:
            yield ComparedFigure(f"{row.get('key')} {name}", row.get(name), new.get(name))


def _reward_parts(bundle: RewardBundle, again: RewardBundle) -> list[ComparedPart]:
    one, other = ({str(task["task"]): task for task in each.tasks} for each in (bundle, again))
    return [
        ComparedPart(name, [*_rows([one.get(name, _NO_ROW)], [other.get(name, _NO_ROW)])], is_shown=True)
        for name in {**one, **other}
    ]


def _earlier(played: ReplayedSteps) -> ComparedPart:
    differing = " ".join(map(str, played.different))
    title = f"{played.num_steps} steps from the checkpoint to this one"
    return ComparedPart(title, [ComparedFigure("steps with another result", "", differing)], is_shown=False)
