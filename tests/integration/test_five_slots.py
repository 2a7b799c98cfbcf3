"""One engine with all five slots follows the assignments, and users of the endpoint get their arm's version from its slot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from contracts.assignments import CANARY, CANDIDATE, HOLDOUT, LEARNING, LIVE, SLOTS
from engines.following.repository import FollowingRepository
from policy.weights import tensors_of
from runtime.database import Database
from runtime.engine_rows import EngineRows
from services.engine.announcing import EngineAnnouncer, describe
from services.engine.app import make_app
from services.engine.engine import Engine
from services.engine.follower import Follower
from services.engine.settings import EngineSettings
from services.engine.staging import VersionSource
from services.inference.app import create_app
from tests.models import llama_config
from tests.unit.services.inference.conftest import Inference
from tests.unit.services.inference.test_versions_asked import assign
from tests.unit.services.inference.world import CONTEXT, FakeEngine, StubbornLog, make_base, make_tokenizer
from tests.unit.services.serving import make_home, make_key, serve, wait_until
from tests.worlds.engines.adapters import Adapted
from tests.worlds.engines.memory_store import StoreInMemory
from tests.worlds.engines.tiny import make_engine
from weights.tensors import root_of

pytestmark = pytest.mark.slow

ARMS = ((LIVE, 2, 0.0), (CANDIDATE, 5, 0.0), (LEARNING, 3, 0.25), (CANARY, 4, 0.4), (HOLDOUT, 1, 0.25))
SECONDS = 30.0


def tiny_model(seed: int = 0) -> Any:
    """A random Llama with the tokenizer of `make_base`."""
    torch.manual_seed(seed)
    config = llama_config(
        vocab_size=make_tokenizer().get_vocab_size(),
        num_hidden_layers=1,
        max_position_embeddings=CONTEXT,
        initializer_range=0.3,
        tie_word_embeddings=False,
    )
    return LlamaForCausalLM(config).eval().requires_grad_(requires_grad=False)


class Slots(Inference):
    """An endpoint, the real engine behind it, and the assignments that both follow."""

    def __init__(self, real: Engine, roots: dict[int, str], database: Database, *arguments: Any) -> None:
        super().__init__(FakeEngine(""), *arguments)
        self.real = real
        self.roots = roots
        """Version → root of the parameters that compute it; of an adapter, that of its base."""
        self.database = database

    def move(self, arm: str, version: int | None, share: float = 0.0) -> None:
        """Point an arm at a version, and wait until its slot has it."""
        assign(self.database, version, arm, share)
        if version is not None:
            wait_until(lambda: self.real.versions().get(arm) == version, SECONDS)

    def say(self, person: str) -> tuple[str, int, set[int]]:
        """Ask as a person. Returns the arm that was logged, and the versions of the answer: by its body, by its record's spans."""
        answer = self.ask(user=person)
        [record] = [record for record in self.logged() if record.completion_id == answer.id]
        return record.arm, answer.policy_version, {span.version for span in record.spans}


def whole_versions(_folder: Path) -> tuple[VersionSource, dict[int, str]]:
    store = StoreInMemory()
    for number in range(1, 7):
        store.add(number, tensors_of(tiny_model(number)), parent=number - 1 or None)
    return store, {number: root_of(tensors) for number, tensors in store.weights.items()}


def adapters(folder: Path) -> tuple[VersionSource, dict[int, str]]:
    published = Adapted(folder, tiny_model, 6)
    return published.store, dict.fromkeys(published.versions, published.config.base_root)


@pytest.fixture(params=[whole_versions, adapters])
def slots(request: pytest.FixtureRequest, tmp_path: Path, database: Database) -> Iterator[Slots]:
    torch.set_num_threads(1)
    store, roots = request.param(tmp_path / "published")
    settings = EngineSettings(slots=SLOTS, max_batch_tokens=256, cache_tokens=2048)
    engine = make_engine(store, make_model=tiny_model, settings=settings)
    follower = Follower(engine, FollowingRepository(database, "demo").assigned, on_exit=lambda: None)
    urls: list[str] = []
    announcer = EngineAnnouncer(
        lambda: describe(engine, name="one", url=urls[0], region="local"), EngineRows(database, "demo")
    )
    make_base(tmp_path / "base")
    home, log = make_home(tmp_path), StubbornLog(tmp_path / "log")
    (tmp_path / "engine.key").write_text("k" * 43)
    for arm, version, share in ARMS:
        assign(database, version, arm, share)
    with serve(make_app(engine, follower, "k" * 43)) as engine_url:
        urls.append(engine_url)
        announcer.start()
        with serve(create_app(home, event_log=log)) as url:
            world = Slots(engine, roots, database, log, url, make_key(database), make_key(database, "operator"))
            wait_until(lambda: len(engine.versions()) == len(SLOTS) and world.holds(5), SECONDS)
            yield world
            world.client.close()
        announcer.stop()


def test_five_slots_follow_five_arms(slots: Slots) -> None:
    engine, held = slots.real, {arm: version for arm, version, _ in ARMS}
    assert engine.versions() == held
    for arm, version in held.items():
        assert root_of(tensors_of(engine.arms[arm].model)) == slots.roots[version]

    found = Counter[str]()
    for number in range(30):
        arm, version, spans = slots.say(f"person {number}")
        assert (version, spans) == (held[arm], {held[arm]})
        found[arm] += 1
    assert set(found) == {LIVE, LEARNING, CANARY, HOLDOUT}, "the candidate waits for the gate"
    assert {model.id for model in slots.client.models.list()} == {
        "demo",
        *(f"demo@v{number}" for number in range(1, 6)),
    }

    # A version in two slots: the canary's answers come from its own, so they keep the version when the other slot moves on.
    slots.move(LEARNING, 4, 0.25)
    assert engine.resolve("demo@v4", CANARY) is engine.arms[CANARY]
    assert engine.resolve("demo@v4", LEARNING) is engine.arms[LEARNING]
    slots.move(LEARNING, 6, 0.25)
    assert engine.versions() == held | {LEARNING: 6}

    # The train arrives, and the slot of the emptied arm keeps its version without traffic.
    slots.move(LIVE, 4)
    slots.move(CANARY, None)
    wait_until(lambda: slots.say("person 1")[0] != CANARY)
    assert engine.versions() == held | {LIVE: 4, LEARNING: 6}
    assert {slots.say(f"person {number}")[0] for number in range(20)} == {LIVE, LEARNING, HOLDOUT}


def test_moves_under_traffic_cost_no_answer_and_no_version_is_mislabelled(slots: Slots) -> None:
    allowed: dict[str, set[int]] = {LIVE: {2, 4}, LEARNING: {3, 6}, CANARY: {4, 5}, HOLDOUT: {1}}
    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(slots.ask, user=f"person {number}") for number in range(60)]
        for arm, version, share in ((LEARNING, 6, 0.25), (CANARY, None, 0.0), (LIVE, 4, 0.0), (CANARY, 5, 0.4)):
            slots.move(arm, version, share)
        said = [answer.result() for answer in answers]
    records = {record.completion_id: record for record in slots.logged()}
    for answer in said:
        record = records[answer.id]
        versions = {span.version for span in record.spans}
        # Live answers where a slot was swapped between the draw and the request.
        assert versions <= allowed[record.arm] | allowed[LIVE]
