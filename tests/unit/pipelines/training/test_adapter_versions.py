"""A trainer that trains an adapter: its versions, its restarts, and what it refuses."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from commands.home import check_adapter
from contracts.assignments import LIVE
from contracts.errors import InvalidSettings, WeightsRefused
from pipelines.training.settings import AdapterSettings
from policy.weights import copy_tensors
from tests.tolerances import network_tolerance
from tests.unit.pipelines.training.builders import bits_now, model_of, tiny_model, weights_now
from tests.unit.pipelines.training.world import POLICY, World
from weights.adapters import CONFIG, PREFIX, A, B, config_of
from weights.probe import NUM_TOP, read_probe
from weights.tensors import floats, root_of

RANK_2 = {"adapter": {"rank": 2}}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World.new(tmp_path, **RANK_2)
    yield made
    made.close()


def test_versions_are_adapters_on_the_base_and_steps_between_them_are_deltas(world: World) -> None:
    trainer = world.start()
    world.add_random(24)
    world.turns(trainer, 14)
    store, base = world.store, world.store.manifest(POLICY, 0)
    assert world.arm(LIVE) == 3
    first, later = store.edges(POLICY, 1), store.edges(POLICY, 3)
    assert {(edge.kind, edge.base_version) for edge in first} == {("step", 0), ("full", None)}
    assert [(edge.kind, edge.base_version) for edge in later] == [("step", 2)]
    assert first[0].base_root == base.target_root
    for version in (1, 2, 3):
        config = config_of(store.load(POLICY, version))
        assert config is not None
        assert (config.rank, config.base_root) == (2, base.target_root)
    assert root_of(store.load(POLICY, 3)) == root_of(bits_now(trainer.learner))
    assert first[0].full_bytes < base.full_bytes / 2
    # Whoever holds the base takes the first step; whoever has nothing takes the small full copy.
    onto_base = store.stage_onto(POLICY, 1, 0, store.load(POLICY, 0))
    assert onto_base[-1].staged.changes.keys() == store.load(POLICY, 1).keys()


def test_a_version_has_the_answers_of_base_and_adapter_for_engines_to_compare(world: World) -> None:
    trainer = world.start()
    world.add_random(16)
    world.turns(trainer, 9)
    store, scale = world.store, 32.0 / 2
    for version in (1, 2):
        root = store.manifest(POLICY, version).target_root
        answers = read_probe(store, POLICY, root, None)
        assert answers is not None
        assert answers.dtype == "float32"
        model, adapter = tiny_model(), store.load(POLICY, version)
        copy_tensors(model, store.load(POLICY, 0))
        layers = dict(model.named_modules())
        for scores in (answers.base, answers.adapted):
            with torch.no_grad():
                expected = model(torch.tensor(answers.prompts)).logits[:, -1].log_softmax(-1)
            for row, found in zip(expected, scores, strict=True):
                assert len(found) == NUM_TOP
                assert list(found.values()) == pytest.approx(
                    row[list(found)].tolist(), abs=network_tolerance(model.config)
                )
            for name in (name for name in adapter if name.endswith(A)):
                up, down = floats(adapter[name.replace(A, B)]), floats(adapter[name])
                layers[name.removeprefix(PREFIX).removesuffix(f".{A}")].weight.data += scale * torch.from_numpy(
                    up @ down
                )
        assert answers.base != answers.adapted


def test_the_base_stays_as_it_is(world: World) -> None:
    trainer = world.start()
    world.add_random(16)
    world.turns(trainer, 8)
    named, fresh = dict(model_of(trainer.learner).model.named_parameters()), tiny_model()
    assert all(torch.equal(named[name], each.bfloat16().float()) for name, each in fresh.named_parameters())


def test_a_restart_and_a_rollback_continue_with_the_adapter_to_the_bit(world: World) -> None:
    trainer = world.start()
    world.add_random(16)
    world.turns(trainer, 9)
    before = weights_now(trainer.learner)
    again = world.start()
    assert all(torch.equal(each, before[name]) for name, each in weights_now(again.learner).items())
    world.roll_back_to(1)
    world.turns(again, 9)
    assert world.store.manifest(POLICY, 3).parent == 1


@pytest.mark.parametrize("version", [0, 1])
def test_without_checkpoints_it_continues_from_the_live_version(world: World, version: int) -> None:
    trainer = world.start()
    world.add_random(16)
    world.turns(trainer, 9)
    world.point(LIVE, version)
    shutil.rmtree(world.settings.checkpoints)
    again = world.start()
    found = bits_now(again.learner)
    if version:
        assert root_of(found) == root_of(world.store.load(POLICY, version))
    else:
        assert not any(tensor.data.any() for name, tensor in found.items() if name.endswith("lora_B.weight"))


@pytest.mark.parametrize("adapter", [None, AdapterSettings(rank=3), AdapterSettings(rank=2, targets=("q_proj",))])
def test_another_adapter_is_refused_by_name(world: World, adapter: AdapterSettings | None) -> None:
    trainer = world.start()
    world.add_random(8)
    world.turns(trainer, 5)
    world.training = world.training.model_copy(update={"adapter": adapter})
    with pytest.raises(WeightsRefused, match="begin a new home") as refused:
        world.start()
    assert refused.value.code == "other_adapter"
    with pytest.raises(InvalidSettings, match=r"has an adapter of rank 2, and another was chosen"):
        check_adapter(world.settings.checkpoints, adapter)
    own = config_of(bits_now(trainer.learner))
    assert own is not None
    for same in (AdapterSettings(rank=2), AdapterSettings(rank=2, targets=own.targets)):
        check_adapter(world.settings.checkpoints, same)


def test_a_target_that_no_layer_has_is_refused_with_those_there_are(world: World) -> None:
    world.training = world.training.model_copy(update={"adapter": AdapterSettings(targets=("q_proj", "query"))})
    with pytest.raises(InvalidSettings, match=r"'query'.*q_proj"):
        world.start()


def test_an_adapter_is_not_taken_for_another_base(world: World) -> None:
    trainer = world.start()
    bits = bits_now(trainer.learner)
    config = config_of(bits)
    assert config is not None
    elsewhere = type(config)(rank=2, alpha=32.0, targets=config.targets, base_root="0" * 64)
    with pytest.raises(WeightsRefused, match="within a run"):
        trainer.learner.restart_from({**bits, CONFIG: elsewhere.tensor()})
