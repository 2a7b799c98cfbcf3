"""Steps that learn text beside rewards: once per answer, whatever crashes, and as the same sums in whatever pieces."""

import json
import math
from collections.abc import Iterator
from dataclasses import replace as replace_in
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from sqlalchemy import select
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from contracts.event_log import LogPlace, LogRecord
from contracts.records import Episode, Experience, Streams, encode, pack_floats, pack_ids
from contracts.tables import training_step
from contracts.tasks import Task
from contracts.topics import EPISODES
from pipelines.training.known.batches import Batch, Lesson
from pipelines.training.learning.learner import Learner
from pipelines.training.settings import AdapterSettings, TrainingSettings
from pipelines.training.text.samples import TextBatch, TextRow, TextSample
from pipelines.training.worker import Trainer
from policy.logprobs import TokenScores
from rewards.worker import RewardsHandler
from tests.fakes import BOOKING_TASK, a_generation, a_signal
from tests.unit.pipelines.training.builders import (
    VOCABULARY,
    a_learner,
    bits_now,
    experience,
    model_of,
    random_experience,
    remembering,
    segment,
    tiny_model,
    weights_now,
)
from tests.unit.pipelines.training.learning.test_corrections import later
from tests.unit.pipelines.training.text.test_golden_trl_text import KINDS, random_text
from tests.unit.pipelines.training.world import POLICY, CrashAt, World, named, states, survive, weights_of
from weights.tensors import root_of

EDIT = "t7 t8 t9"
SETTINGS = TrainingSettings(learning_rate=1e-2, divergence_bound=math.inf, step_bound=math.inf)
BOTH = Streams(rl=0.0, ce=1.0, pair=1.0)


@pytest.fixture
def world(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    world = World.new(tmp_path / "home", **getattr(request, "param", {}))
    with_tokenizer(world, tmp_path)
    yield world
    world.close()


def with_tokenizer(world: World, folder: Path) -> None:
    """The base policy's folder: words are tokens, and t1 ends an answer."""
    tokenizer = Tokenizer(WordLevel({f"t{index}": index for index in range(VOCABULARY)}, unk_token="t0"))  # noqa: S106 a token of text
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 1}))
    world.settings = world.settings.model_copy(update={"base": str(folder)})


def answers(count: int = 4, streams: Streams | None = BOTH, **changes: Any) -> list[Experience]:
    random = np.random.default_rng(3)
    found = [random_experience(random, streams=streams, reward=float(number % 2)) for number in range(count)]
    return [replace(item, **changes) for item in found]


def edited(items: list[Experience], edit: str = EDIT) -> list[Experience]:
    return [replace(item, streams=item.streams and replace(item.streams, edit=edit)) for item in items]


def log_prob(learner: Learner, item: Experience, completion: tuple[int, ...] = (7, 8, 9, 1)) -> float:
    """Of a completion after the prompt of an answer."""
    ids = np.frombuffer(item.segments[0].token_ids, "<i4").tolist()[: item.segments[0].loss_mask.index(1)]
    row = TextRow(tuple(ids), completion, (1.0,) * len(completion))
    [found] = model_of(learner).log_probs([experience(*row.segments)]).found_S[None].sum(-1).tolist()
    return float(found)


def figures(world: World) -> list[dict[str, Any]]:
    with world.database.snapshot() as connection:
        return [row.metrics for row in connection.execute(select(training_step))]


def taught(world: World, *items: Experience) -> Trainer:
    trainer = world.start()
    world.add(*items)
    world.turns(trainer, 2)
    return trainer


def test_an_edit_is_learned_in_its_samples_step(world: World) -> None:
    trainer = world.start()
    items = edited(answers())
    before = [log_prob(trainer.learner, item) for item in items]
    world.add(*items)
    world.turns(trainer, 2)
    assert all(log_prob(trainer.learner, item) > old for item, old in zip(items, before, strict=True))
    assert {trainer.state.fates[item.key].has_edit for item in items} == {True}
    trainer.checkpoint()
    assert states(world) == {("trained", ""): 4}
    [step] = figures(world)
    assert (step["num_samples"], step["text/target_samples"], step["text/pair_samples"]) == (4, 4, 4)
    assert step["text/pair_loss"] == pytest.approx(math.log(2.0), abs=1e-4)  # today's policy is the base
    assert step["loss"] == pytest.approx(step["text/pair_loss"] + step["text/target_loss"], abs=1e-4)


def test_what_a_user_wrote_comes_from_the_signal_into_the_weights(world: World) -> None:
    task = Task.model_validate(BOOKING_TASK.model_dump(exclude_unset=True) | {"learning": {"ce": 1.0, "pair": 1.0}})
    turn = a_generation("t4 t5", policy=POLICY, completion_ids=pack_ids([4, 5, 1]), logprobs=pack_floats([-3.0] * 3))
    said = a_signal(turn, "edited", EDIT, correction=EDIT)
    episode = Episode(key=turn.key, revision=1, reason="decisive", turns=(turn,), signals=(said,), closed_at=103.0)
    handler = RewardsHandler({task.name: task}, lambda: 104.0)
    read = handler.read(LogRecord(EPISODES, 0, 0, episode.key, encode(episode), 0.0))
    with world.database.transaction() as connection:
        world.log.append(handler.handle(connection, handler.prepare([read])))
    trainer = world.start()
    row = TextRow((1, 2, 3), (7, 8, 9, 1), (1.0,) * 4)
    before, after = (_after(trainer, world, row, turns) for turns in (0, 2))
    assert after > before
    assert trainer.state.fates[turn.key].has_edit


def _after(trainer: Trainer, world: World, row: TextRow, turns: int) -> float:
    world.turns(trainer, turns)
    return float(model_of(trainer.learner).log_probs([experience(*row.segments)]).found_S.sum())


def test_an_edit_that_is_refused_costs_its_sample_nothing(world: World) -> None:
    plain = answers(streams=Streams(rl=1.0, ce=1.0))
    trainer = taught(world, *edited(plain, "t7 words that no token stands for"))
    assert {trainer.state.fates[item.key].has_edit for item in plain} == {False}
    [step] = figures(world)
    assert (step["num_samples"], "text/target_loss" in step) == (4, False)


def test_an_edit_of_an_answer_that_nobody_has_any_more_is_never_learned(world: World) -> None:
    [gone] = edited(answers(1, segments=(), source=LogPlace(0, 999)))
    trainer = taught(world, gone)
    trainer.checkpoint()
    assert states(world) == {("stale", "body_lost"): 1}
    assert figures(world) == []


def test_without_streams_a_step_is_as_it_was() -> None:
    plain, streamed = (a_learner(tiny_model(), SETTINGS) for _ in range(2))
    plain.step(answers(streams=None), [1.0] * 4, {})
    streamed.step(answers(streams=Streams(ce=1.0)), [1.0] * 4, {})
    assert root_of(bits_now(plain)) == root_of(bits_now(streamed))


@pytest.mark.slow
@pytest.mark.parametrize(
    "place", ["journal: plan durable", "training: step taken", "journal: before the plan", "checkpoint: durable"]
)
def test_a_crash_teaches_no_edit_twice(tmp_path: Path, place: str) -> None:
    found: list[tuple[dict[str, torch.Tensor], Any, list[str]]] = []
    for crashes in (False, True):
        world = World.new(tmp_path / str(crashes), batch_size=3, publish_samples=6)
        with_tokenizer(world, tmp_path)
        world.add(*edited(answers(8, replace(BOTH, rl=1.0))))
        counter = CrashAt(10**9)
        if crashes:
            counter.left = found[0][2].index(place) + 1

        def run(trainer: Trainer, world: World = world) -> None:
            world.turns(trainer, 5)
            trainer.checkpoint()

        with named(place):
            trainer = survive(world, run, counter)
        assert counter.place == (place if crashes else "")
        found.append((weights_of(trainer), states(world), counter.places))
        world.close()
    assert found[1][1] == found[0][1] == {("trained", ""): 8}
    assert all(torch.equal(value, found[1][0][name]) for name, value in found[0][0].items())


def test_an_edit_that_comes_later_is_learned_once_and_a_second_one_changes_the_reward_alone(world: World) -> None:
    items = answers(streams=Streams(ce=1.0, pair=1.0))
    trainer = taught(world, *items)
    first, *_ = items
    before = log_prob(trainer.learner, first)
    [late] = edited([later(first, first.reward)])
    world.add(late)
    world.turns(trainer, 3)
    assert log_prob(trainer.learner, first) > before
    fate = trainer.state.fates[first.key]
    assert (fate.has_edit, fate.knows_edit, fate.late_reason, fate.applied_now) == (
        False,
        True,
        "corrected",
        first.reward,
    )
    weights = weights_of(trainer)
    [again] = edited([later(first, first.reward, 2)], "t4 t5")
    world.add(again)
    world.turns(trainer, 3)
    assert trainer.state.fates[first.key].late_reason == "same_reward"
    assert all(torch.equal(value, weights[name]) for name, value in weights_of(trainer).items())


def test_a_thumb_keeps_no_later_edit_away(world: World) -> None:
    trainer = taught(world, *answers(streams=Streams(thumb=1.0, ce=1.0, is_good=True)))
    [step] = figures(world)
    assert step["text/thumb_samples"] == 4
    assert step["text/thumb_loss"] == pytest.approx(0.5, abs=1e-4)
    assert not any(fate.knows_edit for _, fate in trainer.state.fates_since(0))


def test_a_task_without_rewards_pulls_by_text_alone() -> None:
    items, learner = answers(), a_learner(tiny_model(), SETTINGS, kl_coefficient=0.0)
    before = weights_now(learner)
    found = learner.step(items, [1.0] * 4, {})
    assert set(found.pulls.values()) == {0.0}
    assert all(torch.equal(value, before[name]) for name, value in weights_now(learner).items())
    text = TextBatch.of([random_text(np.random.default_rng(1), "target", key=items[0].key)])
    learner.step(items, [1.0] * 4, {}, text=text)
    assert any(not torch.equal(value, before[name]) for name, value in weights_now(learner).items())


def test_a_sample_of_which_only_the_text_is_learned_does_not_leave_its_batch() -> None:
    far = [experience(segment([1, 2], [3, 4], [-0.01, -0.01]), streams=streams) for streams in (BOTH, None)]
    learner = a_learner(tiny_model(), SETTINGS, divergence_bound=2.0)
    assert learner.step(far, [1.0, 1.0], {}, dry_run=True).left == [far[1].key]


def test_an_old_answer_of_which_only_the_text_is_learned_is_no_spike() -> None:
    forged = experience(segment([1, 2], [3] * 20, [-60.0] * 20), streams=replace(BOTH, edit=EDIT))
    text = TextBatch.of([random_text(np.random.default_rng(1), "pair", key=forged.key)])
    learner = a_learner(tiny_model(), SETTINGS)
    remembering(learner, ratio_spike=[2.0] * 20, kl_spike=[0.1] * 20)
    assert not learner.step([forged], [1.0], {}, text=text).skipped
    assert learner.guard_history.signs["ratio_spike"] == [2.0] * 20
    assert learner.step([replace(forged, streams=None)], [1.0], {}, text=text).skipped == "kl_spike"


def test_a_sample_whose_edit_makes_a_spike_is_found_and_the_others_are_trained(world: World) -> None:
    trainer, far = world.start(), 40

    def amplify(_module: Any, arguments: tuple[Any, ...], scores: TokenScores) -> TokenScores:
        held, rows = scores.log_probs_BT, (arguments[2] == far)[:, None]
        return replace_in(scores, log_probs_BT=torch.where(rows, held.detach() + 1e8 * (held - held.detach()), held))

    model_of(trainer.learner).model.register_forward_hook(amplify)
    remembering(trainer.learner, [(25.0, 5.0)] * 20)
    bad, *good = answers(4)
    world.add(*edited([bad], f"t{far} t5"), *edited(good))
    world.turns(trainer, 3)
    trainer.checkpoint()
    assert states(world) == {("trained", ""): 3, ("quarantined", "gradient_spike"): 1}
    assert trainer.state.fates[bad.key].state == "quarantined"


def test_the_gradient_of_text_does_not_depend_on_its_pieces() -> None:
    random = np.random.default_rng(4)
    text = TextBatch.of([random_text(random, kind) for kind in KINDS for _ in range(3)])
    whole, pieces = (a_learner(tiny_model(), SETTINGS, max_tokens=most) for most in (4096, 12))
    results = [learner.step([], [], {}, text=text, dry_run=True) for learner in (whole, pieces)]
    for name in ("loss", "gradient_norm", "gradient_norm_expected", *(f"text/{kind}_loss" for kind in KINDS)):
        first, second = (result.metrics[name] for result in results)
        assert first == pytest.approx(second, rel=1e-4), name


@pytest.mark.parametrize("adapter", [None, AdapterSettings(rank=2)])
def test_text_is_learned_alone_by_all_weights_and_by_an_adapter(adapter: AdapterSettings | None) -> None:
    random = np.random.default_rng(4)
    text = TextBatch.of([random_text(random, kind) for kind in KINDS for _ in range(3)])
    learner = a_learner(tiny_model(), SETTINGS, adapter=adapter)
    results = [learner.step([], [], {}, text=text) for _ in range(12)]
    first, last = results[0].metrics, results[-1].metrics
    assert not any(result.skipped for result in results)
    assert first["text/pair_loss"] == pytest.approx(math.log(2.0), abs=1e-4)
    for kind in KINDS:
        assert (last[f"text/{kind}_loss"] or 0.0) < (first[f"text/{kind}_loss"] or 0.0), kind


def test_a_token_that_a_user_kept_pulls_less() -> None:
    learner, weights = a_learner(tiny_model(), SETTINGS), (1.0, 0.25)
    row = TextRow((2, 3), (7, 8), weights)
    found_S = model_of(learner).log_probs([experience(*row.segments)]).found_S  # noqa: N806 S tokens
    target = TextSample(key="a", revision=0, kind="target", prompt_ids=(2, 3), chosen_ids=(7, 8), token_weights=weights)
    result = learner.step([], [], {}, text=TextBatch.of([target]), dry_run=True)
    assert result.metrics["text/target_loss"] == pytest.approx(-(float(found_S[0]) + 0.25 * float(found_S[1])) / 1.25)


def test_a_step_of_text_alone_is_bounded_too() -> None:
    text = TextBatch.of([random_text(np.random.default_rng(4), "target") for _ in range(3)])
    bounded = a_learner(tiny_model(), SETTINGS, step_bound=1e-7)
    assert (bounded.step([], [], {}, text=text).metrics["step_scale"] or 1.0) < 0.5


def test_text_goes_wherever_its_sample_goes() -> None:
    first, second, third = answers(3)
    texts = [random_text(np.random.default_rng(1), kind, key=key) for key in (first.key, third.key) for kind in KINDS]
    batch = Batch([first, second], [Lesson(third, 0.5, 1.0)], TextBatch.of(texts))
    parts = batch.parts()
    assert [len(part.text.samples) for part in parts] == [3, 0, 3]
    assert {tuple(part.text.counts.items()) for part in parts} == {tuple(batch.text.counts.items())}
    assert Batch.joined(parts) == batch
    assert batch.only({second.key, third.key}).text == TextBatch(texts[3:], batch.text.counts)
    assert batch.without([(parts[2], None)]).text.samples == texts[:3]


def test_thumbs_of_long_prompts_and_answers_have_no_baseline_beyond_the_context() -> None:
    """An answer after the prompt of another may be longer than the model takes."""
    most = int(tiny_model().config.max_position_embeddings)
    long, short = (2,) * (most - 2), (3, 4)
    texts = [
        TextSample(key=str(number), revision=0, kind="thumb", prompt_ids=prompt, chosen_ids=answer)
        for number, (prompt, answer) in enumerate([(long, (5, 1)), (short, (6,) * (most - 2))])
    ]
    learner = a_learner(tiny_model(), SETTINGS)
    assert not learner.step([], [], {}, text=TextBatch.of(texts), dry_run=True).skipped
