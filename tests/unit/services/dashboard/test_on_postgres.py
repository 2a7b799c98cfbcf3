"""The same pages on PostgreSQL, which partitions tables and computes differently."""

import time

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import delete, func, insert, select

from contracts import heartbeats
from contracts.errors import Unauthorized
from contracts.heartbeats import NEEDED, ProcessBeat
from contracts.keys import create_key
from contracts.tables import dashboard_session, generation, score, session_call, signal, train_answer
from runtime.database import Database
from runtime.settings import Settings
from services.dashboard.app import create_app
from services.dashboard.generations.queries import Search, find_page
from services.dashboard.sessions.queries import find_session
from services.dashboard.sessions.tree import tree_of
from services.dashboard.signin.repository import MAX_SESSIONS, Sessions
from services.dashboard.tenant.watchers import TenantReader
from tests.unit.services.dashboard.conftest import ReaderOf
from tests.worlds.dashboard.seed import HOSTILE_NUMBER, NUM_VERSIONS, STARTED, key_of, seed
from tests.worlds.dashboard.seed_rewards import seed_rewards
from tests.worlds.dashboard.seed_rollout import NUM_POINTS, seed_rollout
from tests.worlds.dashboard.seed_sessions import SeededCall, call_id, linear, seed_session
from tests.worlds.servers.postgres import create_migrated

pytestmark = [pytest.mark.services, pytest.mark.enable_socket]


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    home = tmp_path_factory.mktemp("postgres") / "home"
    return seed(home, num_generations=600, now=STARTED, database_url=create_migrated())


def test_the_state_is_that_of_the_embedded_home(settings: Settings, seeded: Settings, reader_of: ReaderOf) -> None:
    state, embedded = reader_of(settings).read(STARTED), reader_of(seeded).read(STARTED)
    assert state.generations == embedded.generations
    assert state.signals == embedded.signals
    assert [(leg.name, leg.number > 0) for leg in state.freshness] == [(leg.name, True) for leg in embedded.freshness]
    assert sum(rate or 0 for rate in state.rates["generations"]) > 0
    assert [row.version for row in state.versions] == list(range(NUM_VERSIONS, -1, -1))


def test_a_tenants_own_state_is_that_of_the_embedded_home(settings: Settings, seeded: Settings) -> None:
    states = []
    for home in (settings, seeded):
        database = home.database()
        states.append(TenantReader(home.policy, database).read("default", STARTED))
        database.close()
    assert states[0].generations == states[1].generations
    assert states[0].generations.total == 600
    assert states[0].signals == states[1].signals
    assert states[0].tiles == states[1].tiles
    assert states[0].rewards == states[1].rewards


@pytest.mark.parametrize(
    "path",
    ["/", "/policies", "/policies/3", "/ledger", "/generations", "/generations?state=trained&version=3",
     "/generations?text=onerror", "/generations?completion=chatcmpl-0000001", f"/generations/{key_of(HOSTILE_NUMBER)}/0"],
)  # fmt: skip
def test_every_page_is_written(settings: Settings, path: str) -> None:
    database = settings.database()
    with database.transaction() as connection:
        key = create_key(connection, "operator")
    database.close()
    with TestClient(create_app(settings)) as client:
        client.post("/api/login", data={"key": key}, headers={"origin": "http://testserver"})
        answer = client.get(path)
    assert answer.status_code == 200
    assert "data-csrf" in answer.text


def test_a_session_is_a_tree(settings: Settings) -> None:
    database = settings.database()
    calls = [*linear(3), SeededCall(parent=0, shared=50, branch="tools_changed")]
    seed_session(database, "ticket", calls, number=1, now=STARTED)
    try:
        with database.snapshot() as connection:
            page = find_session(connection, "default", "ticket")
            rest = find_session(connection, "default", "ticket", page.calls[1].ref)
        assert [(line.call.number, line.depth) for line in tree_of(page.calls)] == [(1, 0), (4, 1), (2, 0), (3, 0)]
        assert [call.number for call in rest.calls] == [3, 4]
        test_every_page_is_written(settings, "/sessions?tenant=default&id=ticket")
    finally:
        with database.transaction() as connection:
            for table in (generation, session_call, score, signal):
                own = table.c.key if table is score else table.c.completion_id
                connection.execute(table.delete().where(own.like(f"{call_id(1, 0)[:20]}%")))
        database.close()


def test_pages_hold_every_answer_once_newest_first(settings: Settings) -> None:
    database, seen, after = Database(settings.database_url or ""), [], None
    with database.snapshot() as connection:
        while True:
            page = find_page(connection, Search(), after)
            seen += [hit.head.completion_id for hit in page.rows]
            if (after := page.after) is None:
                break
    database.close()
    assert seen == [key_of(number) for number in range(599, -1, -1)]


def test_sessions_are_shared_and_bounded(settings: Settings) -> None:
    database, other = settings.database(), settings.database()
    with database.transaction() as connection:
        for number in range(MAX_SESSIONS):
            row = {"id_hash": f"{number}", "role": "app", "name": "", "csrf": "", "started_at": time.time()}
            connection.execute(insert(dashboard_session).values(**row, used_at=time.time()))
    token = Sessions(database).make_link()
    session_id = Sessions(other).enter(token)
    with pytest.raises(Unauthorized):
        Sessions(database).enter(token)
    assert Sessions(other).find(session_id).name == "one-time link"
    with database.snapshot() as connection:
        assert connection.execute(select(func.count()).select_from(dashboard_session)).scalar_one() == MAX_SESSIONS
        known = connection.execute(select(dashboard_session.c.id_hash)).scalars().all()
        assert "0" not in known
    Sessions(other).end(session_id)
    with pytest.raises(Unauthorized):
        Sessions(database).find(session_id)
    database.close()
    other.close()


def test_a_record_of_no_time_hides_nothing_and_has_its_page(settings: Settings, reader_of: ReaderOf) -> None:
    before = reader_of(settings).read(STARTED)
    database = settings.database()
    with database.transaction() as connection:
        newest = connection.execute(select(generation).order_by(generation.c.completion_id.desc()).limit(1)).one()
        mine = (generation.c.completion_id == newest.completion_id, generation.c.choice == newest.choice)
        connection.execute(generation.update().where(*mine).values(created_at=1e300))
    try:
        after = reader_of(settings).read(STARTED)
        assert (after.generations, after.versions) == (before.generations, before.versions)
        test_every_page_is_written(settings, "/generations")
        test_every_page_is_written(settings, f"/generations/{newest.completion_id}/{newest.choice}")
    finally:
        with database.transaction() as connection:
            connection.execute(generation.update().where(*mine).values(created_at=newest.created_at))
        database.close()


def test_the_train_and_the_lift_are_read(settings: Settings, reader_of: ReaderOf) -> None:
    now = time.time()
    seed_rollout(settings, now)
    seed_rewards(settings)
    database = settings.database()
    with database.transaction() as connection:
        for name in NEEDED:
            heartbeats.beat(connection, settings.policy, ProcessBeat(name, "a/1", now, now, 120.0))
            heartbeats.beat(connection, settings.policy, ProcessBeat(name, "a/1", now + 1, now, 120.0))
        connection.execute(delete(train_answer))
    database.close()
    state = reader_of(settings).read(now)
    assert state.rollout.train is not None
    assert len(state.rollout.train.metrics) == 7
    assert len(state.rollout.points["at"]) == len(state.rollout.lift_points["at"]) == NUM_POINTS
    assert state.rollout.lift.num_holdout == 8 * (NUM_POINTS - 1)
    assert {row.state for row in state.processes} == {"up"}
    assert [num for num in state.acceptance["users_num"] if num]
