"""The Rewards page: figures by version, faults, alarms, curation, judges and people of one task."""

from __future__ import annotations

import html
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import delete, select, update

from contracts.keys import create_key
from contracts.tables import behaviour, generation, score
from runtime.settings import Settings
from services.dashboard.app import create_app
from tests.unit.services.dashboard.test_pages import signed_in
from tests.worlds.dashboard.databases import reading, writing
from tests.worlds.dashboard.seed import NUM_VERSIONS, POLICY, SCRIPT, seed, settings_of
from tests.worlds.dashboard.seed_rewards import NUM, NUM_PEOPLE, OTHER, seed_rewards


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("rewards") / "home"
    seed_rewards(seed(home, num_generations=200))
    return home


@pytest.fixture
def settings(filled: Path, tmp_path: Path) -> Settings:
    return settings_of(shutil.copytree(filled, tmp_path / "home"))


@pytest.fixture
def open_client() -> Iterator[Any]:
    with ExitStack() as held:
        yield lambda of: held.enter_context(TestClient(create_app(of), follow_redirects=False))


@pytest.fixture(scope="module")
def page(filled: Path) -> str:
    settings = settings_of(filled)
    with TestClient(create_app(settings), follow_redirects=False) as client:
        return str(signed_in(client, settings).get("/rewards").text)


def section(page: str, title: str) -> str:
    [found] = re.findall(rf'<section [^>]*aria-labelledby="{title}".*?</section>', page, re.DOTALL)
    return str(found)


def rows(part: str) -> list[list[str]]:
    """The words in the cells of its tables' bodies."""
    found = "".join(re.findall(r"<tbody>(.*?)</tbody>", part, re.DOTALL))
    return [
        [html.unescape(re.sub(r"<[^>]+>", "", cell)).strip() for cell in re.findall(r"<td[^>]*>(.*?)</td>", row)]
        for row in re.findall(r"<tr>(.*?)</tr>", found)
    ]


def columns(page: str, name: str) -> Any:
    [found] = re.findall(rf"""id="{name}" data-columns='([^']*)'""", page)
    return json.loads(html.unescape(found))


def test_charts_get_means_by_version_oldest_first(page: str) -> None:
    found = columns(page, "rewards")
    assert found["at"] == list(range(NUM_VERSIONS))
    assert found["reward"] == pytest.approx([0.5 + 0.04 * version for version in range(NUM_VERSIONS)])
    assert found["score:schema"][6:8] == pytest.approx([0.99, 0.81])
    assert found["null"][7:] == pytest.approx([0.01, 0.034, 0.01])
    assert "flatters" not in found
    assert columns(page, "shares") == found


def test_the_table_says_the_same_newest_first(page: str) -> None:
    part = section(page, "versions-title")
    heads = re.findall(r"<th [^>]*>([^<]*)</th>", part)
    assert heads[2:6] == ["reward", "polite", "schema", "accepted (signal)"]
    shown = rows(part)
    assert [row[0] for row in shown] == [f"v{version}" for version in range(NUM_VERSIONS - 1, -1, -1)]
    means = ["0.500 of 360", "0.600 of 200", "0.990 of 400", "0.450 of 340"]
    assert shown[-1] == ["v0", f"{NUM}", *means, "1.0 %", "8.0 %", "30.0 %"]
    assert 'href="/policies/8"' in part


def test_alarms_are_words_newest_first_with_links(page: str) -> None:
    part = section(page, "alarms-title")
    lines = [html.unescape(re.sub(r"<[^>]+>", "", line)) for line in re.findall(r"<li>(.*?)</li>", part)]
    assert [line.split()[0] for line in lines] == ["v8", "v7", "v7"]
    assert "no reward by a fault that is not the model's: 0.034 over 900 answers, above the line of 0.010" in lines[0]
    assert "value of a component: fell little by little from 0.930 over 400 answers of v1 to 0.810" in lines[1]
    assert "openings that flatter: rose from 0.041 over 2,100 answers of v5 to v6 to 0.210 over 400 answers" in lines[2]
    assert re.findall(r'href="([^"]+)"', part) == ["/policies/8", "/policies/7", "/policies/7"]
    assert "asks" not in part


def test_faults_are_counted_with_the_part_that_bears_them(page: str, settings: Settings) -> None:
    shown = rows(section(page, "faults-title"))
    by_fault = {row[1]: int(row[3]) for row in shown if len(row) == 4 and row[0] in {"scored", "unscored"}}
    num = len(stored(settings, score.c.key))
    assert by_fault["ours: not trained on"] == -(-num // 20)
    assert by_fault["the model's: worst reward"] == -(-num // 10) - -(-num // 20)
    parts = {row[0]: row[1:] for row in shown[-2:]}
    assert parts == {
        "polite": ["ours", f"{-(-num // 20)}", "no answer within 60 s"],
        "schema": ["the model's", f"{-(-num // 10) - -(-num // 20)}", SCRIPT],
    }
    assert all(row[2] == row[3] for row in shown[:-2]), "all of it was in the last hour"


def stored(settings: Settings, *wanted: Any) -> list[Any]:
    with reading(settings) as connection:
        found = connection.execute(score.select().with_only_columns(*wanted)).all()
    return list(found)


def test_answers_without_reward_and_filtered_answers_have_reasons(page: str) -> None:
    without = rows(section(page, "without-title"))
    assert {(row[0], row[1]) for row in without} == {
        ("unlabelled", "silence"), ("unlabelled", "missing: polite"), ("unscored", "infra fault: polite"),
    }  # fmt: skip
    curated = rows(section(page, "curation-title"))
    assert {row[0] for row in curated} == {"near duplicate", "secret"}, "sentinels are no prompts of users"
    assert all(int(row[2]) > 0 and row[3].endswith(" %") for row in curated)


def test_judges_have_their_cost_and_the_verdicts_that_are_kept(page: str) -> None:
    [row] = rows(section(page, "judges-title"))
    assert (row[0], row[-1]) == ("polite", "70")
    assert [int(figure) for figure in row[1:5:3]] in ([100, 300], [0, 200]), "midnight may have passed"


def test_people_are_counted_and_never_named(page: str) -> None:
    part = section(page, "people-title")
    facts = dict(re.findall(r"<dt>([^<]+)</dt><dd>([^<]+?) <small>", part))
    said = 100 + NUM_PEOPLE - 1
    assert facts["Voted"] == f"{NUM_PEOPLE}"
    assert facts["Votes"] == f"{said}"
    assert facts["Busiest hundredth"] == f"{101 / said * 100:.1f} %", "of 150 people, two"
    assert facts["Checked by audits"] == "100"
    assert rows(part) == [["influence cap", "4", "2"], ["suspended submitter", "4", "2"]]
    assert "person-" not in page


def test_one_task_of_several_is_chosen_by_its_name(open_client: Any, settings: Settings) -> None:
    client = signed_in(open_client(settings), settings)
    assert f'href="/rewards?task={OTHER}"' in client.get("/rewards").text
    page = client.get(f"/rewards?task={OTHER}").text
    assert columns(page, "rewards")["reward"] == [0.5]
    assert f"<b>{OTHER}</b>" in page
    assert "1 <small>people" in section(page, "people-title")
    assert "Nothing was scored in the last day." in page
    assert "Nothing was filtered." in page
    assert rows(section(page, "judges-title"))[0][0] == "strict"
    unknown = client.get("/rewards?task=nonsense")
    assert unknown.status_code == 404
    assert f"choose one of: {POLICY}, {OTHER}" in unknown.text


def test_hostile_words_are_text(page: str) -> None:
    assert "&lt;script&gt;" in page
    assert "<script>" not in page
    assert "<img" not in page


def test_an_app_key_sees_its_tenants_counts_but_no_sums_of_all_tenants_and_no_graders_words(
    open_client: Any, settings: Settings
) -> None:
    client = open_client(settings)
    all_of_them = signed_in(client, settings).get("/rewards").text
    own = signed_in(client, settings, "app").get("/rewards").text
    for title in ("without-title", "curation-title", "people-title"):
        assert rows(section(own, title)) == rows(section(all_of_them, title))
    assert [row[:3] for row in rows(section(own, "faults-title"))] == [
        row[:3] for row in rows(section(all_of_them, "faults-title"))
    ]
    assert "most often because" not in own
    assert "no answer within 60 s" not in own
    for shared in ("rewards-title", "shares-title", "versions-title", "alarms-title", "judges-title", "/generations"):
        assert shared in all_of_them
        assert shared not in own


def test_another_tenant_sees_only_its_own_answers(open_client: Any, settings: Settings) -> None:
    with writing(settings) as connection:
        key = create_key(connection, "app", "acme")
        first = select(score.c.key).where(score.c.fault != "none", score.c.task == POLICY).limit(1)
        mine = connection.execute(first).scalar_one()
        connection.execute(update(score).where(score.c.key == mine).values(tenant="acme"))
        completion_id = mine.partition(":")[0]
        connection.execute(update(generation).where(generation.c.completion_id == completion_id).values(tenant="acme"))
    client = open_client(settings)
    client.post("/api/login", data={"key": key}, headers={"origin": "http://testserver"})
    page = client.get("/rewards").text
    assert [int(row[-1]) for row in rows(section(page, "faults-title"))[:1]] == [1]
    assert "No named person has voted" in page
    assert OTHER not in page
    answer = client.get(f"/rewards?task={OTHER}")
    assert answer.status_code == 404
    assert f"choose one of: {POLICY}<" in answer.text.replace("\n", "")


def test_without_a_session_there_is_the_form(open_client: Any, settings: Settings) -> None:
    answer = open_client(settings).get("/rewards")
    assert answer.status_code == 401
    assert 'name="next" value="/rewards"' in answer.text


def test_an_empty_home_says_what_to_do(open_client: Any, bare: Settings) -> None:
    page = signed_in(open_client(bare), bare).get("/rewards").text
    assert "Nothing has been scored yet" in page
    assert "/feedback" in page
    assert "<table" not in page


def test_answers_without_sums_have_a_page_that_says_what_is_missing(open_client: Any, settings: Settings) -> None:
    with writing(settings) as connection:
        connection.execute(delete(behaviour))
        connection.execute(delete(score))
        connection.execute(delete(generation).where(generation.c.state != "pending"))
    page = signed_in(open_client(settings), settings).get("/rewards").text
    assert columns(page, "rewards") == {"at": [], "reward": [], "null": [], "model_fault": [], "unlabelled": []}
    assert "No user's answer has been scored" in page
    assert "Every answer of the last day has a reward or waits for one." in page
