"""Take a guarded step again, offline: the same figures, or where they differ and why.

    checkpoint of the bundle ──its plans──▶ the weights before the step ──Trial──▶ looks, culprits ──▶ beside those recorded

It computes with the trainer's own code: `take_again` gives the weights as a restart does, `Trial` takes the step in memory. Nothing is
written: no home, database or log is opened.

Equal bits are promised on the same machine, release, device and number of threads only: an H100 gave other bits in 7 of 16 steps.
"""

from __future__ import annotations

import math
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import torch
from pydantic import ValidationError

from contracts.errors import InvalidSettings, NotFound, WeightsRefused
from contracts.files import read_small
from pipelines.training.checkpoints import bundles
from pipelines.training.checkpoints.bundles import BUNDLE, RewardBundle, StepBundle
from pipelines.training.checkpoints.checkpoint import CheckpointStore
from pipelines.training.checkpoints.checkpoint_names import parse_name
from pipelines.training.checkpoints.journal import Journal
from pipelines.training.checkpoints.plans import Journaled, prepare, take_again
from pipelines.training.known.known_samples import KnownSamples
from pipelines.training.learning.guard import limits_of
from pipelines.training.learning.learner import Learner
from pipelines.training.learning.trainees import make_trainee
from pipelines.training.samples.attempts import AttemptFile, Attempts
from pipelines.training.samples.reward_watch import RewardWatch, WatchMemory
from pipelines.training.samples.trial import DEADLY, Plan, Trial
from pipelines.training.settings import TrainingSettings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pipelines.training.checkpoints.bundles import Bundle, Figure, GuardLook
    from pipelines.training.checkpoints.plans import JournalRecord

_THREADS = re.compile("[1-9][0-9]{0,3}")
_SAMPLES, _TRIED = ": samples", "parts of the batch that were tried"
"""Ends of the titles of parts that are shown only where they differ."""


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
    is_shown: bool = True

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
    """The folder of a bundle, and what it says. `place`: the folder, or its `bundle.json`. Raises WeightsRefused."""
    folder = place.parent if place.name == BUNDLE else place
    file = folder / BUNDLE if folder.is_dir() else folder
    try:
        data = read_small(file)
    except OSError as error:
        raise WeightsRefused(
            "no_bundle",
            f"{file} cannot be read ({error.strerror}): name a folder of the home's bundles/, as in the log",
        ) from error
    return folder, bundles.decode_bundle(data, str(file))


def replay_bundle(place: Path, *, base: str = "", device: str = "") -> ReplayedBundle:
    """Take the step of a bundle again and compare. `place`: see `read_bundle`.

    `base`: folder or hub id of the base policy; empty: where the bundle says. `device`: empty: the kind that the bundle names.

    Raises WeightsRefused: something of the bundle is missing, cut, changed, or belongs to another policy or release.
    InvalidSettings: the base policy or the device is not here. StepsBroken: on this machine any step fails.
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
        watch = RewardWatch(*settings.reward_range, settings.guard_hold_seconds)
        watch.remember(WatchMemory(bundle.levels, bundle.recent, bundle.suspect_since))
        tasks = [item._asdict() for item in watch.suspicions(bundle.batch, bundle.at)]
        return ReplayedBundle(bundle, [], _compared(bundle, msgspec.structs.replace(bundle, tasks=tasks), {}))
    recorded = bundle.origin.machine
    device = device or recorded.get("device", "cpu")
    threads = recorded.get("threads", str(settings.num_threads))
    if not device.startswith(("cpu", "cuda")) or not _THREADS.fullmatch(threads):
        raise WeightsRefused(
            "damaged_bundle", f"{folder} names a device {device} with {threads} threads: there is none"
        )
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise InvalidSettings(f"{folder} was made on {device}, which this machine lacks: add --device cpu to come near")
    torch.set_num_threads(int(threads))
    learner, parts = _step_again(folder, bundle, settings, base or bundle.origin.base, device)
    here = learner.trainee.machine()
    machine = [ComparedFigure(name, recorded.get(name), here.get(name)) for name in {**here, **recorded}]
    return ReplayedBundle(bundle, [item for item in machine if not item.is_same], parts)


def _step_again(
    folder: Path, bundle: StepBundle, settings: TrainingSettings, base: str, device: str
) -> tuple[Learner, list[ComparedPart]]:
    """Take the plans before the step, then the step in memory."""
    name = _checkpoint_of(folder, bundle)
    try:
        checkpoint = CheckpointStore(folder, keep=1).load(name, with_samples=False)
        plan, before = _plan_of(bundle, Journal(folder).read(name, bundle.epoch + 1).records)
    except (WeightsRefused, OSError) as error:
        raise WeightsRefused(
            getattr(error, "code", "unreadable"),
            f"{folder} cannot be replayed: {error}: copy the whole folder from the home again; its figures stand in {BUNDLE}",
        ) from error
    try:
        learner = Learner(make_trainee(base, settings, device), settings)
    except NotFound as error:
        raise InvalidSettings(
            f"the base policy of {folder} is not here ({error.message}): name it with --policy"
        ) from error
    try:
        checkpoint.check(learner.trainee.masters()[0], learner.trainee.identity)
    except WeightsRefused as error:
        raise WeightsRefused(
            error.code, f"{folder} is of another base policy than {base}: {error.message}; name its own with --policy"
        ) from error
    taken = take_again(learner, checkpoint, before, lambda _: KnownSamples())
    limits = limits_of(learner.guard_history, settings.guard_spread)
    prepare(learner, plan, plan.max_tokens)
    deadly = {item.key for item in bundle.culprits if item.error == DEADLY}
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "attempt.json"
        # What ended the trainer's process would end this one too.
        path.write_bytes(msgspec.json.encode(AttemptFile(condemned=deadly)))
        trial = Trial(learner, Attempts(path), plan.batch.everything[0].policy, dict)
        found = trial.step(plan)
    again = msgspec.structs.replace(bundle, **bundles.facts_of(found))
    differing = ComparedFigure("steps with another result", "", " ".join(map(str, taken.different)))
    earlier = f"{taken.num_steps} steps from the checkpoint to this one"
    return learner, [*_compared(bundle, again, limits), ComparedPart(earlier, [differing], is_shown=False)]


def _checkpoint_of(folder: Path, bundle: StepBundle) -> str:
    """The name of the checkpoint that lies in the bundle. A forged one leads nowhere else."""
    name = bundle.checkpoint
    if name and parse_name(name) is None:
        raise WeightsRefused("damaged_bundle", f"{folder} names a checkpoint {name}, which is not the name of one")
    if not name or not (folder / name).is_dir():
        why = bundle.missing or (
            f"{name} is gone. The trainer keeps those of its newest {bundles.MOST_CHECKPOINTS} checkpoints for "
            f"{bundles.CONTENT_SECONDS / 86400:.0f} days: copy a bundle elsewhere to keep it longer"
        )
        raise WeightsRefused("no_weights", f"{folder} has no weights: {why}; its figures stand in {BUNDLE}")
    return name


def _plan_of(bundle: StepBundle, records: Sequence[JournalRecord]) -> tuple[Plan, Journaled]:
    """The plan of the bundle's step, and the records before it. The trainer went on to write after them: the file is a link."""
    for number, record in enumerate(records):
        if isinstance(record, Plan) and record.digest == bundle.plan:
            return record, Journaled(records[:number])
    raise WeightsRefused("no_step", f"the journal in {bundle.checkpoint} is cut or damaged: it lacks this step")


def _compared(recorded: Bundle, again: Bundle, limits: Mapping[str, float]) -> list[ComparedPart]:
    # Read as from a file, so that equal numbers are of one type.
    one, other = _figures_of(recorded), _figures_of(bundles.decode_bundle(bundles.encode_bundle(again), BUNDLE))
    parts = []
    for title in {**one, **other}:
        held, new = one.get(title, {}), other.get(title, {})
        figures = [ComparedFigure(name, held.get(name), new.get(name), limits.get(name)) for name in {**held, **new}]
        parts.append(ComparedPart(title, figures, is_shown=not title.endswith((_SAMPLES, _TRIED))))
    return parts


def _figures_of(bundle: Bundle) -> dict[str, dict[str, Figure]]:
    """What taking the step again gives: part to its figures by name."""
    if isinstance(bundle, RewardBundle):
        return {str(task["task"]): task for task in bundle.tasks}
    whole, tried = ([look for look in bundle.looks if look.is_whole is is_whole] for is_whole in (True, False))
    step: dict[str, Figure] = {
        "reason": bundle.reason,
        "attempts": float(len(whole)),
        "rows learned": float(bundle.learned),
        "rows left": " ".join(bundle.left),
    }
    found = {"the step": step}
    for number, look in enumerate(whole, start=1):
        rows = {f"{row.get('key')} {name}": value for row in look.samples for name, value in row.items()}
        found |= {f"attempt {number}": _figures_at(look), f"attempt {number}{_SAMPLES}": rows}
    parts = [(f"{number}: ", _figures_at(look)) for number, look in enumerate(tried, start=1)]
    found[_TRIED] = {start + name: value for start, figures in parts for name, value in figures.items()}
    return found | {"culprits": {item.key: item.reason for item in bundle.culprits}}


def _figures_at(look: GuardLook) -> dict[str, Figure]:
    # The rest of an error's message may name addresses in memory.
    error = look.error.partition(":")[0]
    rows: dict[str, Figure] = {"number of rows": float(look.num_rows), "rows": look.rows}
    return {**rows, "reason": look.reason, "error": error, **look.figures}
