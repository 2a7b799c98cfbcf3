"""A provider's answers teach the trainer's policy: in its own tokens, as text alone, and once."""

import json
from collections.abc import Iterator
from dataclasses import replace as replace_in
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from tokenizers import Tokenizer

from contracts.event_log import LogPlace
from contracts.records import Experience, Generation, Provided, Streams, pack_body
from contracts.topics import GENERATIONS
from pipelines.training.learning.learner import Learner
from pipelines.training.text.rendering import with_tokens
from pipelines.training.text.samples import TextRow
from pipelines.training.worker import Trainer
from policy.logprobs import TokenScores
from runtime.log.outbox import message
from tests.fakes import a_generation
from tests.unit.pipelines.training.builders import a_learner, bits_now, experience, model_of, remembering, tiny_model
from tests.unit.pipelines.training.learning.test_corrections import later
from tests.unit.pipelines.training.text.test_steps import SETTINGS, answers, figures, with_tokenizer
from tests.unit.pipelines.training.world import POLICY, CrashAt, World, named, states, survive, weights_of
from weights.tensors import root_of

CONTEXT = tiny_model().config.max_position_embeddings
GOOD = Streams(ce=1.0, is_good=True)
EDITED = Streams(ce=1.0, pair=1.0, edit="t7 t8 t10")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = a_world(tmp_path)
    yield world
    world.close()


def a_world(folder: Path, *, opens: str = "t2", **training: Any) -> World:
    """A prompt is the words of its messages, then `opens`; an answer ends with t1."""
    world = World.new(folder / "home", **training)
    with_tokenizer(world, folder)
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": CONTEXT}))
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / "chat_template.jinja").write_text("{% for each in messages %}{{ each.content }} {% endfor %}" + opens)
    return world


def said(text: str = "t7 t8 t9", prompt: str = "t3 t4", **changes: Any) -> Generation:
    """A provider's answer. `changes`: of its body."""
    provided = Provided(origin="openai", may_train=True)
    turn = a_generation(text, policy=POLICY, provided=provided, spans=(), engine="", dtype="", created_at=1000.0)
    none = dict.fromkeys(("prompt_ids", "completion_ids", "logprobs"), b"")
    body = replace(turn.open(), **{"messages": [{"role": "user", "content": prompt}], **none, **changes})
    return replace(turn, body=pack_body(body))


def scored(world: World, turn: Generation, streams: Streams | None = GOOD, **changes: Any) -> Experience:
    """Its experience, which points to it in the log, as rewards sends it."""
    sent = message(GENERATIONS, turn.key, turn)
    world.log.append([sent])
    partition = sent.route % world.log.num_partitions
    place = LogPlace(partition, world.log.ends(GENERATIONS)[partition] - 1)
    unlogged: dict[str, Any] = {"segments": (), "engine": "", "dtype": "", "generated_at": 0.0}
    return experience(key=turn.key, streams=streams, source=place, **(unlogged | changes))


def taught(world: World, *items: Experience, turns: int = 2) -> Trainer:
    trainer = world.start()
    world.add(*items)
    world.turns(trainer, turns)
    return trainer


def log_prob(learner: Learner, completion: tuple[int, ...] = (7, 8, 9, 1)) -> float:
    """Of an answer to the prompt that `said` has."""
    row = TextRow((3, 4, 2), completion, (1.0,) * len(completion))
    return float(model_of(learner).log_probs([experience(*row.segments)]).found_S.sum())


def test_an_accepted_answer_is_a_target_in_the_policys_own_tokens(world: World) -> None:
    trainer = world.start()
    before = log_prob(trainer.learner)
    items = [scored(world, said()) for _ in range(4)]
    world.add(*items)
    world.turns(trainer, 2)
    assert log_prob(trainer.learner) > before
    trainer.checkpoint()
    assert states(world) == {("trained", ""): 4}
    assert {trainer.state.fates[item.key].pull for item in items} == {0.0}
    [step] = figures(world)
    assert (step["num_samples"], step["text/target_samples"]) == (4, 4)
    assert {step[name] for name in ("reward_mean", "k3", "entropy", "ess")} == {None}  # no policy of this home answered


def test_silence_about_an_answer_is_not_rendered() -> None:
    item = experience(streams=Streams(ce=1.0), origin="openai")
    found = with_tokens(item, b"not read", None, CONTEXT)
    assert found.streams == Streams(rl=0.0, ce=1.0, refused="provider")


@pytest.mark.parametrize(
    ("turn", "streams", "reason"),
    [
        (said(), None, "provider"),
        (said(), Streams(rl=2.0), "provider"),
        (said(), Streams(ce=1.0), "provider"),
        (said(), Streams(ce=1.0, is_good=False), "provider"),
        (said(), Streams(ce=1.0, refused="may_not_train"), "may_not_train"),
        (said(prompt="t3 " * (CONTEXT - 4)), GOOD, "beyond_the_context"),
        (said(prompt="t3 " * 10 * CONTEXT), GOOD, "beyond_the_context"),
        (said(prompt="look:\n[image_url]"), GOOD, "not_text"),
        (said(messages=[]), GOOD, "template_refuses"),
        (said(tool_calls=[{"function": {"name": "book", "arguments": "{}"}}]), GOOD, "tool_call"),
        (said("words of no token"), GOOD, "edit_outside_vocabulary"),
        (said(), replace(EDITED, edit="t7 " * (CONTEXT - 4) + "t7"), "edit_beyond_context"),
    ],
)
def test_what_teaches_nothing_is_off_support_by_name(
    world: World, turn: Generation, streams: Streams | None, reason: str
) -> None:
    trainer = taught(world, scored(world, turn, streams))
    trainer.checkpoint()
    assert states(world) == {("off_support", reason): 1}
    assert figures(world) == []


@pytest.mark.parametrize("opens", ["<think>{# </think> #}", "t2{# <|channel|> <|message|> #}"])
def test_plain_text_is_no_answer_where_answers_begin_with_reasoning(tmp_path: Path, opens: str) -> None:
    world = a_world(tmp_path, opens=opens)
    words = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    words.add_special_tokens(["<think>"])
    words.save(str(tmp_path / "tokenizer.json"))
    taught(world, scored(world, said())).checkpoint()
    assert states(world) == {("off_support", "reasoning"): 1}
    world.close()


def test_a_log_that_claims_tokens_of_a_provider_teaches_no_ratio(world: World) -> None:
    own = a_generation().open()
    tokens = {name: getattr(own, name) for name in ("prompt_ids", "completion_ids", "logprobs")}
    trainer = taught(world, scored(world, said(**tokens), None), scored(world, said(**tokens), Streams(rl=1.0, ce=1.0)))
    trainer.checkpoint()
    assert states(world) == {("off_support", "provider"): 2}


def test_an_edit_that_comes_later_is_learned_once_whatever_the_answer_taught(world: World) -> None:
    accepted, refused = (scored(world, said(), replace(GOOD, is_good=good)) for good in (True, False))
    trainer = taught(world, accepted, refused)
    for revision, edit in ((1, "t7 t8 t10"), (2, "t7 t8 t11")):
        world.add(*(later(item, 0.0, revision, streams=replace(EDITED, edit=edit)) for item in (accepted, refused)))
        world.turns(trainer, 3)
    trainer.checkpoint()
    assert states(world) == {("trained", ""): 2}
    fates = [trainer.state.fates[item.key] for item in (accepted, refused)]
    assert [(fate.has_edit, fate.knows_edit) for fate in fates] == [(False, True), (True, True)]
    assert [step.get("text/target_samples") for step in figures(world)] == [1, 2]
    assert log_prob(trainer.learner, (7, 8, 10, 1)) > log_prob(trainer.learner, (7, 8, 11, 1))


def test_a_reward_that_is_taken_back_before_the_step_teaches_nothing(world: World) -> None:
    item = scored(world, said())
    gone = later(item, None, status="unlabelled")
    trainer = taught(world, item, gone)
    assert (figures(world), trainer.state.unrewarded[item.key]) == ([], 1)


def test_a_rollback_takes_an_answer_out_and_learns_it_again(world: World) -> None:
    trainer = taught(world, *(scored(world, said()) for _ in range(8)), turns=4)
    assert trainer.state.version == 1
    world.roll_back_to(0)
    world.turns(trainer, 6)
    trainer.checkpoint()
    assert (states(world), trainer.state.lineage[1]) == ({("trained", ""): 8}, 0)
    assert sum(step["text/target_samples"] for step in figures(world)) == 16


def test_own_answers_learn_as_if_no_provider_had_answered() -> None:
    alone, beside = (a_learner(tiny_model(), SETTINGS) for _ in range(2))
    own = answers(streams=None)
    provided = [replace(item, origin="openai", reward=5.0) for item in answers(streams=replace(GOOD, rl=0.0))]
    alone.step(own, [1.0] * 4, {})
    beside.step([*own, *provided], [1.0] * 8, {})
    assert root_of(bits_now(alone)) == root_of(bits_now(beside))


def test_an_answer_of_a_provider_that_breaks_its_step_is_found(world: World) -> None:
    trainer, far = world.start(), 40

    def amplify(_module: Any, arguments: tuple[Any, ...], scores: TokenScores) -> TokenScores:
        held, rows = scores.log_probs_BT, (arguments[2] == far)[:, None]
        return replace_in(scores, log_probs_BT=torch.where(rows, held.detach() + 1e8 * (held - held.detach()), held))

    model_of(trainer.learner).model.register_forward_hook(amplify)
    remembering(trainer.learner, [(25.0, 5.0)] * 20)
    world.add(*(scored(world, said(text)) for text in (f"t{far} t5", "t7 t8", "t7 t9", "t8 t9")))
    world.turns(trainer, 3)
    trainer.checkpoint()
    assert states(world) == {("trained", ""): 3, ("quarantined", "gradient_spike"): 1}


@pytest.mark.slow
@pytest.mark.parametrize("place", ["journal: plan durable", "training: step taken", "checkpoint: durable"])
def test_a_crash_teaches_no_answer_twice(tmp_path: Path, place: str) -> None:
    found: list[tuple[dict[str, torch.Tensor], Any, list[str]]] = []
    turns = [said(f"t{number} t9") for number in range(3, 11)]
    for crashes in (False, True):
        world = a_world(tmp_path / str(crashes), batch_size=3, publish_samples=6)
        world.add(*(scored(world, turn) for turn in turns))
        counter = CrashAt(10**9)
        if crashes:
            counter.left = found[0][2].index(place) + 1

        def run(trainer: Trainer, world: World = world) -> None:
            world.turns(trainer, 5)
            trainer.checkpoint()

        with named(place):
            trainer = survive(world, run, counter)
        found.append((weights_of(trainer), states(world), counter.places))
        world.close()
    assert found[1][1] == found[0][1] == {("trained", ""): 8}
    assert all(torch.equal(value, found[1][0][name]) for name, value in found[0][0].items())
