"""Requests made from the OpenAPI document that is served, good and bad, by callers with every right and none.

MILLRACE_CASES says how many at least, each operation as often as any other; each run draws others. Whatever comes in, no answer is a 5xx.
"""

from __future__ import annotations

import itertools
import math
import os
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import requests
import schemathesis
from schemathesis import Case, GenerationMode
from schemathesis.core.result import Ok

from contracts.ids import new_completion_id
from contracts.keys import Role
from runtime.operations import Operations
from runtime.settings import Settings
from services import guarding
from services.serving import make_web
from services.web import make
from tests.in_memory import folder_in_memory
from tests.unit.services.inference.conftest import stage
from tests.unit.services.inference.world import FakeEngine, Stage
from tests.unit.services.serving import make_key, serve
from tests.worlds.dashboard.seed import seed

__all__ = ["stage"]
pytestmark = pytest.mark.slow
NUM_CASES = int(os.environ.get("MILLRACE_CASES", "300"))
PRODUCT = Path(__file__).parent.parent.parent / "examples" / "reservations"
_ENDLESS = {"/events"}
_CHOSEN = {"model": ["reservations"], "name": ["accepted", "edited"]}
_DOORS = {200, 202, 400, 401, 403, 404}
"""Each of these is an answer to some request: doors that never open prove nothing."""
_MOST_EACH, _MOST_TURNS = 50, 20
_SERVER_ERROR = 500


@pytest.fixture
def settings(stage: Stage) -> Iterator[Settings]:
    """A home that has learned for a while, with everything behind it."""
    stage.engine = FakeEngine("Table for 4")
    changes = {
        "base": str(PRODUCT / "base"),
        "tasks": (PRODUCT / "task.toml",),
        "engine_port": int(stage.url.rpartition(":")[2]),
        "requests_per_minute": 0,
        "signals_per_minute": 0,
    }
    with folder_in_memory() as folder:
        yield seed(folder / "home", num_generations=60).model_copy(update=changes)


@pytest.fixture
def url(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(guarding, "_LONGEST_WAIT", 0.0)  # refused keys come by the hundred here
    with serve(make_web(make(settings), Operations())) as place:
        yield place


def callers(url: str, settings: Settings) -> list[requests.Session]:
    """Somebody unknown; apps of two tenants; an operator with a key; a reader and an operator who signed in to the pages."""
    database = settings.database()
    kinds: list[tuple[Role, str]] = [("app", "default"), ("app", "other"), ("operator", "default")]
    keys = [make_key(database, *kind) for kind in kinds]
    database.close()
    found = [requests.Session() for _ in range(6)]
    for session, key in zip(found[1:], keys, strict=False):
        session.headers["authorization"] = f"Bearer {key}"
    for session, key in zip(found[4:], (keys[0], keys[2]), strict=True):
        session.headers["origin"] = url
        session.post(f"{url}/api/login", data={"key": key, "next": "/"}, timeout=10).raise_for_status()
        secret = re.search(r'data-csrf="([^"]+)"', session.get(f"{url}/policies", timeout=10).text)
        if secret:
            session.headers["x-csrf-token"] = secret[1]
    return found


def test_nothing_that_comes_in_is_an_error_of_ours(
    url: str, settings: Settings, record_property: Callable[[str, object], None]
) -> None:
    document = requests.get(f"{url}/openapi.json", timeout=10).json()
    for path in _ENDLESS:
        del document["paths"][path]
    schema = schemathesis.openapi.from_dict(document)
    operations = [result.ok() for result in schema.get_all_operations() if isinstance(result, Ok)]
    assert len(operations) >= sum(map(len, document["paths"].values()))
    asking = callers(url, settings)
    statuses: Counter[int] = Counter()
    strategies = [(operation, operation.as_strategy(mode)) for operation in operations for mode in GenerationMode]
    each = min(_MOST_EACH, math.ceil(NUM_CASES / len(strategies)))
    seed = random.SystemRandom().randrange(10**6)
    for turn in itertools.count():
        for place, (operation, strategy) in enumerate(strategies):
            if turn and statuses.total() >= NUM_CASES and not operation.path.startswith("/v1/feedback"):
                continue  # of all answers, 202 comes last
            pages = "session" in str(operation.definition.raw.get("security"))
            likely = (asking[4:] if pages else asking[1:4]) * 3 + asking
            _run(url, strategy, seed + turn * len(strategies) + place, likely, statuses, each)
        if statuses.total() >= NUM_CASES and (statuses.keys() >= _DOORS or turn == _MOST_TURNS):
            break
    told = f"{statuses.total()} cases of {len(operations)} operations: {dict(sorted(statuses.items()))}"
    record_property("cases", told)
    assert statuses.total() >= NUM_CASES, told
    assert statuses.keys() >= _DOORS, told
    assert requests.get(f"{url}/ready", timeout=10).json()["ready"]


def _run(  # noqa: PLR0917 of one operation
    url: str, strategy: Any, number: int, asking: list[requests.Session], statuses: Counter[int], each: int
) -> None:
    dice = random.Random(number)

    @hypothesis.seed(number)
    @hypothesis.settings(
        max_examples=each,
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate],
    )
    @hypothesis.given(case=strategy)
    def ask(case: Case[Any]) -> None:
        _aim(case, dice)
        answer = case.call(base_url=url, session=dice.choice(asking), timeout=20)
        statuses[answer.status_code] += 1
        assert answer.status_code < _SERVER_ERROR, f"seed {number}: {case.as_curl_command()}"

    with suppress(hypothesis.errors.Unsatisfiable):  # an operation without parameters has no bad form
        ask()


def _aim(case: Case[Any], dice: random.Random) -> None:
    """Now and then what could be meant, so that requests come further than the first check."""
    if not isinstance(case.body, dict):
        return
    for name, values in _CHOSEN.items():
        if name in case.body and dice.random() < 0.7:
            case.body[name] = dice.choice(values)
    if {"name", "value"} <= case.body.keys() and dice.random() < 0.4:
        kept = {name: case.body[name] for name in dice.sample(sorted(case.body), 1)}
        case.body = {"name": "accepted", "value": True, "completion_id": new_completion_id(), **kept}
