"""A guarded step leaves a bundle, and the bundle gives the same numbers elsewhere: no home, database or log is opened."""

import json
import math
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from contracts.errors import InvalidSettings, MillraceError, WeightsRefused
from contracts.records import Experience, Streams, pack_floats
from pipelines.training.checkpoints import bundles
from pipelines.training.checkpoints.bundle_replay import ReplayedBundle, read_bundle, replay_bundle
from pipelines.training.checkpoints.bundles import BUNDLE, RewardBundle, StepBundle, decode_bundle, encode_bundle
from pipelines.training.learning import trainees
from pipelines.training.learning.guard import GuardHistory
from pipelines.training.worker import Trainer
from tests.command_line import run_here
from tests.forked import run_forked
from tests.unit.pipelines.training.breaking import NO_NUMBER, RAISES, answer, breaking_model
from tests.unit.pipelines.training.builders import remembering, tiny_model
from tests.unit.pipelines.training.world import World
from tests.worlds.hostile_files import HOSTILE_FILES

KNOWN_STEPS, WARM_STEPS = 5, 8
SPIKE = "ess_spike"
"""What a forged log-prob is named in a batch of short answers: one token carries it."""


def new_world(place: Path, device: str = "cpu") -> World:
    tiny_model().save_pretrained(place / "base")
    world = World.new(place / "home", batch_size=8, publish_samples=10**6)
    world.device = device
    world.settings = world.settings.model_copy(update={"base": str(place / "base")})
    return world


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = new_world(tmp_path)
    yield world
    world.close()


def learn(world: World, trainer: Trainer, count: int, seed: int = 0, *more: Experience) -> None:
    """One batch of good answers, as likely as the policy thought them to be, and others."""
    random = np.random.default_rng(seed)
    world.add(*(likely(trainer, answer(random)) for _ in range(count - len(more))), *more)
    trainer.turn()


def likely(trainer: Trainer, item: Experience) -> Experience:
    """The answer, of one segment, with today's log-probs, so that its ratios are 1."""
    (part,) = item.segments
    values = iter(trainer.learner.trainee.log_probs([item]).found_S.tolist())
    logged = pack_floats([next(values) if is_token else 0.0 for is_token in part.loss_mask])
    return msgspec.structs.replace(item, segments=(msgspec.structs.replace(part, logprobs=logged),))


def forged(trainer: Trainer, seed: int = 99) -> Experience:
    """An answer whose last token is logged as if it had been impossible."""
    item = likely(trainer, answer(np.random.default_rng(seed)))
    (part,) = item.segments
    logged = np.frombuffer(part.logprobs, "<f4").tolist()
    broken = msgspec.structs.replace(part, logprobs=pack_floats([*logged[:-1], -60.0]))
    return msgspec.structs.replace(item, segments=(broken,))


def warmed(world: World) -> Trainer:
    """A trainer whose guard knows what is ordinary, some steps after its newest weights were saved.

    It remembers its first steps as often as a guard wants to see.
    """
    trainer = world.start()
    for step in range(WARM_STEPS):
        if step == KNOWN_STEPS:
            known = trainer.learner.guard_history
            signs = {reason: values * 4 for reason, values in known.signs.items()}
            trainer.learner.guard_history = GuardHistory(known.norms * 4, signs)
            trainer.checkpoint(wait=True, weights=True)
        learn(world, trainer, 8, step)
    assert trainer.state.step == WARM_STEPS
    return trainer


def only_bundle(world: World, kind: str = "step") -> Path:
    (found,) = (world.settings.home / "bundles").iterdir()
    assert found.name.startswith(kind)
    return found


def everything_in(*folders: Path) -> dict[str, tuple[int, int]]:
    paths = [path for folder in folders for path in [folder, *folder.rglob("*")]]
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in paths}


def figures(found: ReplayedBundle) -> dict[str, Any]:
    return {item.name: item.recomputed for item in found.parts[1].figures}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of a step with a forged sample, in its home, which went on."""
    return blamed_bundle(tmp_path_factory.mktemp("made"))


def blamed_bundle(place: Path, device: str = "cpu") -> Path:
    world = new_world(place, device)
    trainer = warmed(world)
    bad = forged(trainer)
    learn(world, trainer, 8, 100, bad)
    fate = trainer.state.fates[bad.key]
    assert (fate.state, fate.reason) == ("quarantined", SPIKE)
    learn(world, trainer, 8, 101)
    trainer.recovery.checkpoints.close()
    world.close()
    return only_bundle(world)


@pytest.fixture
def poisoned(made: Path, tmp_path: Path) -> Path:
    """A copy of it, without its home."""
    return Path(shutil.copytree(made, tmp_path / "copied" / made.name))


@pytest.mark.slow
def test_a_forged_sample_is_blamed_again_with_the_same_numbers_and_nothing_is_written(made: Path) -> None:
    home = made.parents[1]
    before = everything_in(home)
    found = replay_bundle(made)
    assert found.is_same
    assert found.machine == []
    assert everything_in(home) == before
    seen = figures(found)
    assert seen["ratio_max"] > 1e8
    assert {"loss", "ess", "k3", "entropy", "gradient_norm", "noise_scale", "noise"} <= seen.keys()
    assert {
        "direction",
        "reward_mean",
        "ess_spike",
        "kl_spike",
        "ratio_spike",
        "entropy_spike",
        "reward/accepted",
    } <= seen.keys()
    assert all(part.figures for part in found.parts)
    limits = {item.name: item.limit for item in found.parts[1].figures if item.limit is not None}
    assert limits.keys() == {"noise", "direction", "ess_spike", "kl_spike", "ratio_spike", "entropy_spike"}
    assert limits[SPIKE] < seen[SPIKE]
    bundle = step_in(made)
    assert (bundle.reason, bundle.learned, len(bundle.culprits)) == (SPIKE, 7, 1)


def test_a_bundle_needs_no_home(made: Path, poisoned: Path, tmp_path: Path) -> None:
    changed(poisoned, origin=msgspec.structs.replace(step_in(poisoned).origin, base="/nowhere/base"))
    with pytest.raises(InvalidSettings, match="--policy"):
        replay_bundle(poisoned)
    base = shutil.copytree(made.parents[2] / "base", tmp_path / "another place")
    assert replay_bundle(poisoned, base=str(base)).is_same


@pytest.mark.slow
def test_after_a_restart_and_a_new_checkpoint_the_bundle_still_leads_to_its_weights(world: World) -> None:
    trainer = warmed(world)
    for seed in (50, 51):  # twice: the journal continues one of an earlier epoch
        trainer = world.start()
        learn(world, trainer, 8, seed)
    assert trainer.state.epoch == 3
    learn(world, trainer, 8, 100, forged(trainer))
    for step in range(4):
        learn(world, trainer, 8, 200 + step)
        trainer.checkpoint(wait=True, weights=True)
    shutil.rmtree(world.settings.checkpoints)
    found = replay_bundle(only_bundle(world))
    assert found.is_same
    assert found.parts[-1].title == f"{WARM_STEPS - KNOWN_STEPS + 2} steps from the checkpoint to this one"


@pytest.mark.slow
def test_a_skipped_step_without_a_culprit_gives_the_same_numbers(world: World) -> None:
    trainer = world.start()
    remembering(trainer.learner, [(1e-9, 1e-9)] * 64)
    trainer.checkpoint(wait=True, weights=True)
    learn(world, trainer, 8)
    bundle = step_in(only_bundle(world))
    assert (bundle.reason, bundle.learned, bundle.culprits) == ("gradient_spike", 0, [])
    assert replay_bundle(only_bundle(world)).is_same


@pytest.mark.slow
@pytest.mark.parametrize("token", [RAISES, NO_NUMBER])
def test_a_sample_that_raises_or_gives_no_number_does_so_again(
    world: World, token: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.make_model = breaking_model
    trainer = world.start()
    learn(world, trainer, 8, 1, answer(np.random.default_rng(7), token=token))
    monkeypatch.setattr(trainees, "load_model", lambda *_, **__: breaking_model())
    found = replay_bundle(only_bundle(world))
    assert found.is_same
    assert len(step_in(only_bundle(world)).culprits) == 1


def test_rewards_that_jumped_are_found_again_without_weights(world: World) -> None:
    trainer = world.start()
    for step in range(4):
        world.add_random(8, seed=step, reward=1.0, streams=Streams(ce=1.0, edit="a user wrote this"))
        trainer.turn()
    for step in range(4, 7):
        world.add_random(8, seed=step, reward=0.0, streams=Streams(ce=1.0, edit="a user wrote this"))
        trainer.turn()
    places = list((world.settings.home / "bundles").iterdir())
    assert len(places) == 3
    for place in places:
        found = replay_bundle(place)
        assert isinstance(found.bundle, RewardBundle)
        assert found.is_same
        assert [item.name for item in found.parts[0].figures if item.name.endswith("surprise")]
        assert all(not part.token_ids for item in found.bundle.batch for part in item.segments)
        assert "a user wrote this" not in (place / BUNDLE).read_text()


def step_in(place: Path) -> StepBundle:
    bundle = read_bundle(place)[1]
    assert isinstance(bundle, StepBundle)
    return bundle


def changed(place: Path, **fields: Any) -> None:
    """Write another bundle, with a checksum that fits."""
    (place / BUNDLE).write_bytes(encode_bundle(msgspec.structs.replace(step_in(place), **fields)))


@pytest.mark.slow
def test_a_figure_that_differs_and_another_machine_are_named(poisoned: Path) -> None:
    bundle = step_in(poisoned)
    look, *others = bundle.looks
    norm = look.figures["gradient_norm"]
    assert isinstance(norm, float)
    figures = {**look.figures, "gradient_norm": math.nextafter(norm, math.inf)}
    origin = msgspec.structs.replace(bundle.origin, machine={**bundle.origin.machine, "torch": "2.0.0"})
    changed(poisoned, looks=[msgspec.structs.replace(look, figures=figures), *others], origin=origin)
    found = replay_bundle(poisoned)
    assert [item.name for part in found.parts for item in part.figures if not item.is_same] == ["gradient_norm"]
    assert [(item.name, item.recorded) for item in found.machine] == [("torch", "2.0.0")]
    ran = run_here("training", "replay", str(poisoned))
    assert ran.returncode == 3
    assert "torch: 2.0.0 then" in ran.stdout
    assert "not equal bit by bit" in ran.stdout
    assert "different: 1 figures" in ran.stdout
    assert "promised on the same machine, device and number of processes only" in ran.stdout


@pytest.mark.slow
def test_the_command_line_says_same_with_status_0(poisoned: Path) -> None:
    ran = run_forked("training", "replay", str(poisoned))
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == run_here("training", "replay", str(poisoned)).stdout
    assert "same: every figure is equal bit by bit" in ran.stdout
    assert ran.stdout.startswith(f"{SPIKE}: epoch 1, step {WARM_STEPS}")
    for figure in ("noise_scale", "ess", "k3", "ratio_max", "entropy", "loss", "gradient_norm", "reward_mean"):
        assert f"  {figure} " in ran.stdout


def test_the_command_has_help_and_the_process_keeps_its_own() -> None:
    assert "--policy" in run_here("training", "replay", "--help").stdout
    told = run_here("training", "--help").stdout
    assert "replay" in told
    assert "--supervised" in told
    assert run_here("training", "--from", "yesterday").returncode == 1


def cut(path: Path) -> None:
    path.chmod(0o600)
    data = path.read_bytes()
    path.unlink()  # a link: the home keeps its own
    path.write_bytes(data[: len(data) // 2])


def instead(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


def checkpoint_in(place: Path) -> Path:
    (found,) = place.glob("checkpoint-*")
    return found


def with_other_settings(place: Path) -> None:
    origin = step_in(place).origin
    changed(place, origin=msgspec.structs.replace(origin, settings={**origin.settings, "magic": 1}))


def with_flipped_digit(place: Path) -> None:
    text = (place / BUNDLE).read_text()
    (place / BUNDLE).write_text(text.replace('"learned": 7', '"learned": 8'))


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut figures": (lambda place: cut(place / BUNDLE), "is cut or is not JSON"),
    "changed figures": (with_flipped_digit, "does not match its checksum"),
    "another schema": (lambda place: changed(place, schema=99), "schema 99"),
    "not a bundle": (lambda place: (place / BUNDLE).write_text('{"epoch": 1, "metrics": {}}'), "older Millrace"),
    "no figures": (lambda place: (place / BUNDLE).unlink(), "name a folder of the home's bundles"),
    "no checkpoint": (lambda place: shutil.rmtree(checkpoint_in(place)), "is gone"),
    "no weights": (lambda place: (checkpoint_in(place) / "weights.safetensors").unlink(), "lacks weights.safetensors"),
    "cut weights": (lambda place: cut(checkpoint_in(place) / "weights.safetensors"), "bytes, not"),
    "cut moments": (lambda place: cut(checkpoint_in(place) / "optimizer.safetensors"), "bytes, not"),
    "cut state": (lambda place: cut(checkpoint_in(place) / "state.json"), "bytes, not"),
    "no manifest": (lambda place: (checkpoint_in(place) / "MANIFEST.json").unlink(), "no MANIFEST.json"),
    "cut journal": (lambda place: cut(next(checkpoint_in(place).glob("journal-*"))), "lacks this step"),
    "no journal": (lambda place: next(checkpoint_in(place).glob("journal-*")).unlink(), "lacks this step"),
    "a pipe for a journal": (lambda place: instead(next(checkpoint_in(place).glob("journal-*")), os.mkfifo), "no plain file"),
    "a hole for a journal": (
        lambda place: instead(next(checkpoint_in(place).glob("journal-*")), HOSTILE_FILES["sparse"]), "has more than",
    ),
    "a pipe for a manifest": (
        lambda place: instead(checkpoint_in(place) / "MANIFEST.json", os.mkfifo), "cannot be read",
    ),
    "another release": (with_other_settings, "another release"),
    "a path": (lambda place: changed(place, checkpoint="../../checkpoints"), "not the name of one"),
}  # fmt: skip


def test_damaged_bundles_are_refused_by_name_and_nothing_is_written(poisoned: Path, tmp_path: Path) -> None:
    for name, (damage, words) in DAMAGES.items():
        place = Path(shutil.copytree(poisoned, tmp_path / "damaged" / name))
        damage(place)
        before = everything_in(tmp_path)
        with pytest.raises(MillraceError, match=words) as refused:
            replay_bundle(place)
        assert str(place) in str(refused.value), name
        assert everything_in(tmp_path) == before, name
    ran = run_here("training", "replay", str(tmp_path / "damaged" / "cut weights"))
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "cut weights cannot be replayed" in ran.stderr
    assert "copy the whole folder" in ran.stderr


def test_a_hostile_file_instead_of_a_bundle_is_refused_by_name(tmp_path: Path) -> None:
    for number, hostile in enumerate(HOSTILE_FILES.values()):
        (tmp_path / str(number)).mkdir()
        hostile(tmp_path / str(number) / BUNDLE)
        with pytest.raises(WeightsRefused, match=BUNDLE):
            read_bundle(tmp_path / str(number))


@pytest.mark.parametrize(
    "changed",
    [
        {"checkpoint": "../../checkpoints/checkpoint-000001-00000001"},
        {"checkpoint": "/etc"},
        *({"machine": {"device": "cpu", "threads": threads}} for threads in ("0", "-1", "1000000", "x", "9" * 5000)),
        *({"machine": {"device": device, "threads": "1"}} for device in ("meta", "", "/dev/null")),
    ],
)
def test_a_forged_bundle_leads_nowhere_else(poisoned: Path, tmp_path: Path, changed: dict[str, Any]) -> None:
    held = step_in(poisoned)
    if "machine" in changed:
        changed = {"origin": msgspec.structs.replace(held.origin, machine=changed["machine"])}
    (tmp_path / BUNDLE).write_bytes(encode_bundle(msgspec.structs.replace(held, **changed)))
    with pytest.raises(WeightsRefused) as caught:
        replay_bundle(tmp_path)
    assert caught.value.code == "damaged_bundle"


def test_another_base_is_refused_by_name(poisoned: Path, tmp_path: Path) -> None:
    tiny_model(tied=False).save_pretrained(tmp_path / "untied")
    tiny_model(seed=1).save_pretrained(tmp_path / "of another seed")
    for other in ("untied", "of another seed"):
        with pytest.raises(WeightsRefused, match="name its own with --policy") as refused:
            replay_bundle(poisoned, base=str(tmp_path / other))
        assert refused.value.code == "other_model"
        assert str(poisoned) in str(refused.value)


@pytest.mark.slow
def test_a_home_whose_disk_cannot_link_trains_on_and_the_bundle_says_why(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = warmed(world)

    def refuse(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    learn(world, trainer, 8, 100, forged(trainer))
    monkeypatch.undo()
    assert trainer.state.step == WARM_STEPS + 1
    with pytest.raises(WeightsRefused, match="could not be linked: Operation not supported"):
        replay_bundle(only_bundle(world))


@pytest.mark.slow
def test_a_full_disk_costs_the_bundle_and_not_the_step(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = warmed(world)
    bad = forged(trainer)

    def refuse(*_: object) -> bytes:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(bundles, "encode_bundle", refuse)
    learn(world, trainer, 8, 100, bad)
    assert trainer.state.step == WARM_STEPS + 1
    assert trainer.state.fates[bad.key].state == "quarantined"
    assert list((world.settings.home / "bundles").iterdir()) == []


def test_bundles_are_bounded_in_number_disk_and_time(poisoned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, name, origin = poisoned.parent, checkpoint_in(poisoned).name, read_bundle(poisoned)[1].origin
    for number in range(6):
        copied = folder / f"step-000001-{number:08d}-copied"
        shutil.copytree(poisoned, copied)
        (copied / name).rename(copied / f"checkpoint-000009-{number // 2:08d}")
        os.utime(copied / BUNDLE, (10.0 + number, 10.0 + number))
    shutil.copytree(poisoned, folder / "unfinished-step-000001-00000007-copied")
    (folder / "notes.txt").write_text("an operator's")
    (folder / "sample-old.json").write_text("{}")
    os.utime(folder / "sample-old.json", (1.0, 1.0))
    now = 100.0
    kept = bundles.Bundles(folder, folder, origin, clock=lambda: now)
    shutil.rmtree(poisoned)
    kept.expire()
    assert not list(folder.glob("unfinished-*"))
    held = [sorted(path.name for path in place.glob("checkpoint-*")) for place in sorted(folder.glob("step-*"))]
    assert held == [[], [], *[["checkpoint-000009-00000001"]] * 2, *[["checkpoint-000009-00000002"]] * 2]
    now = 14.0 + bundles.CONTENT_SECONDS
    kept.expire()
    assert [path.parent.name[-15:-7] for path in folder.glob("step-*/checkpoint-*")] == ["00000005"]
    assert len(list(folder.glob("step-*/bundle.json"))) == 6, "figures stay"
    monkeypatch.setattr(bundles, "MOST_BUNDLES", 3)
    now = 16.0 + bundles.CONTENT_SECONDS
    kept.expire()
    assert sorted(path.name[:20] for path in folder.iterdir()) == [
        "notes.txt", "step-000001-00000003", "step-000001-00000004", "step-000001-00000005",
    ]  # fmt: skip


def test_a_bundle_is_json_even_about_nan(poisoned: Path) -> None:
    bundle = step_in(poisoned)
    looks = [msgspec.structs.replace(bundle.looks[0], figures={"loss": math.nan, "k3": -math.inf})]
    data = encode_bundle(msgspec.structs.replace(bundle, looks=looks))
    assert json.loads(data)["looks"][0]["figures"] == {"loss": "nan", "k3": "-inf"}
    again = decode_bundle(data, "it")
    assert isinstance(again, StepBundle)
    assert again.looks[0].figures == {"loss": "nan", "k3": "-inf"}
