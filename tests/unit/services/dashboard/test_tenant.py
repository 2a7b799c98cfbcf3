"""A tenant sees only its own numbers, and no figure that all tenants share."""

from __future__ import annotations

import json
import time

import msgspec
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import insert, select, update

from contracts.keys import create_key
from contracts.tables import generation, received_signal, score, signal
from runtime.settings import Settings
from services.dashboard.app import create_app
from services.dashboard.formatting import MISSING
from services.dashboard.live.queries import ScoredAnswer
from services.dashboard.live.watcher import MOST_SECONDS, Watcher
from services.dashboard.tenant.queries import read_scores
from services.dashboard.tenant.watchers import MAX_IDLE, TenantReader, Watchers
from tests.unit.services.dashboard.conftest import ReaderOf
from tests.worlds.dashboard.databases import reading, writing
from tests.worlds.dashboard.seed import key_of

ACME = 10
"""The first answers, with their signals and scores, belong to the tenant `acme`; this is their number."""


@pytest.fixture
def shared(small: Settings) -> Settings:
    """A home of two tenants: `acme`, and `default` with the rest."""
    database, ids = small.database(), [key_of(number) for number in range(ACME)]
    with database.transaction() as connection:
        connection.execute(update(generation).where(generation.c.completion_id.in_(ids)).values(tenant="acme"))
        connection.execute(update(signal).where(signal.c.completion_id.in_(ids)).values(tenant="acme"))
        theirs = [f"s{number}" for number in range(ACME)]
        connection.execute(update(received_signal).where(received_signal.c.id.in_(theirs)).values(tenant="acme"))
        keys = [f"{name}:0" for name in ids]
        connection.execute(update(score).where(score.c.key.in_(keys)).values(tenant="acme"))
        row = {"id": "unseen", "tenant": "acme", "body_hash": "", "received_at": 1.0, "record": b""}
        connection.execute(insert(received_signal).values(row))
    database.close()
    return small


def read(settings: Settings, tenant: str, now: float | None = None) -> dict[str, object]:
    database = settings.database()
    state = TenantReader(settings.policy, database).read(tenant, now or time.time())
    database.close()
    return json.loads(msgspec.json.encode(state))  # type: ignore[no-any-return]


def test_tenants_numbers_add_up_to_everybodys(shared: Settings, reader_of: ReaderOf) -> None:
    everybody = reader_of(shared).read(time.time())
    acme, rest, stranger = (read(shared, name) for name in ("acme", "default", "stranger"))
    counts = {name: dict(zip(state["generations"]["names"], state["generations"]["counts"], strict=True))  # type: ignore[index]
              for name, state in (("acme", acme), ("rest", rest))}  # fmt: skip
    all_counts = dict(zip(everybody.generations.names, everybody.generations.counts, strict=True))
    all_counts["pending"] -= everybody.generations.total - 40  # what waits in the log
    for name in counts["acme"]:
        assert counts["acme"][name] + counts["rest"][name] == all_counts[name]
    assert sum(counts["acme"].values()) == ACME
    assert stranger["generations"]["total"] == stranger["signals"]["total"] == 0  # type: ignore[index]
    assert [tile["value"] for tile in stranger["tiles"]] == ["v9", MISSING, MISSING, "0", "0", "0"]  # type: ignore[attr-defined]
    with reading(shared) as connection:
        num = len(list(connection.execute(select(signal.c.id).where(signal.c.tenant == "acme"))))
    told = dict(zip(acme["signals"]["names"], acme["signals"]["counts"], strict=True))  # type: ignore[index]
    assert told["pending"] == 1
    assert sum(told.values()) == num + 1


def test_scores_and_rates_are_a_tenants_own(shared: Settings) -> None:
    with reading(shared) as connection:
        mine, all_of_them = read_scores(connection, "acme"), read_scores(connection, "default")
        rows = connection.execute(select(score.c.at, score.c.version, score.c.reward, score.c.key)).all()
    ours = {f"{key_of(number)}:0" for number in range(ACME)}
    newest = sorted((ScoredAnswer(*row[:3]) for row in rows if row.key in ours), key=lambda row: -row.at)
    assert mine == newest
    assert len(mine) + len(all_of_them) == len(rows)
    rates = [read(shared, name)["rates"] for name in ("acme", "default", "stranger")]
    assert sum(rates[0]["generations"]) * 10 == pytest.approx(ACME)  # type: ignore[index]
    assert sum(rates[1]["generations"]) > 0  # type: ignore[index]
    assert rates[2]["at"] == []  # type: ignore[index]


def test_an_answer_without_a_tenant_counts_for_no_tenant(shared: Settings) -> None:
    before = read(shared, "default")
    with writing(shared) as connection:
        connection.execute(update(generation).where(generation.c.completion_id == key_of(ACME)).values(tenant=None))
    after = read(shared, "default")
    assert after["generations"]["total"] == before["generations"]["total"] - 1  # type: ignore[index]


def test_a_tenants_state_has_no_figure_that_all_tenants_share(shared: Settings) -> None:
    assert set(read(shared, "acme")) == {
        "policy", "tenant", "live", "tiles", "rewards", "generations", "signals", "rates",
    }  # fmt: skip


def test_a_tenants_pages_and_stream_are_its_own(shared: Settings) -> None:
    with writing(shared) as connection:
        key = create_key(connection, "app", "acme")
    with TestClient(create_app(shared), follow_redirects=False) as client:
        assert client.post("/api/login", data={"key": key}, headers={"origin": "http://testserver"}).status_code == 303
        page = client.get("/").text
        assert "tenant_page.js" in page
        assert 'href="/policies"' not in page
        assert "data-decides" not in page
        assert client.get("/api/state").json()["generations"]["total"] == ACME
        assert "Dead letters" not in client.get("/ledger").text
        for path in (
            "/policies",
            "/policies/3",
            "/generations",
            f"/generations/{key_of(1)}/0",
            "/api/rollback",
        ):
            assert client.get(path).status_code == 403, path


def test_a_read_only_key_is_offered_no_decision(small: Settings) -> None:
    from contracts.keys import NewKey, make_key  # noqa: PLC0415

    with writing(small) as connection:
        key = make_key(connection, NewKey("operator", scopes=frozenset(("operator:read",))))
    with TestClient(create_app(small), follow_redirects=False) as client:
        client.post("/api/login", data={"key": key}, headers={"origin": "http://testserver"})
        page = client.get("/policies")
        assert page.status_code == 200
        assert "data-decides" not in page.text


async def test_few_watchers_without_viewers_are_kept(shared: Settings, reader_of: ReaderOf) -> None:
    database = shared.database()
    watchers = Watchers(Watcher(reader_of(shared).read), TenantReader(shared.policy, database))
    watched = watchers.of("acme")
    stream = watched.events()
    await anext(stream)
    for number in range(3 * MAX_IDLE):
        watchers.of(f"tenant-{number}")
    assert watchers.of("acme") is watched
    assert len(watchers._own) <= MAX_IDLE + 1
    await stream.aclose()
    watchers.close()
    database.close()


def test_a_reader_forgets_tenants_without_viewers(shared: Settings) -> None:
    database = shared.database()
    reader = TenantReader(shared.policy, database)
    first = reader.read("acme", 1_000.0)
    assert reader.read("acme", 1_000.1) is first
    for number in range(5):
        reader.read(f"tenant-{number}", 1_001.0)
    assert reader.num_watched == 6
    reader.read("acme", 1_002.0 + MOST_SECONDS)
    assert reader.num_watched == 1
    database.close()
