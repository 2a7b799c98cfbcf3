"""The page of a version lists its alarms."""

from __future__ import annotations

from fastapi.testclient import TestClient
from sqlalchemy import insert

from contracts.tables import alarm
from runtime.settings import Settings
from services.dashboard.app import create_app
from tests.unit.services.dashboard.test_pages import signed_in
from tests.worlds.dashboard.databases import writing

STEP = {
    "words": "questions instead of an action", "test": "step", "mean": 0.21, "num": 400, "reference": 0.041,
    "reference_num": 2100, "versions": [1, 2], "line": None, "evidence": 14.2,
}  # fmt: skip
LINE = {"words": "no reward", "test": "line", "mean": 0.034, "num": 900, "line": 0.01, "evidence": 20.1}


def test_alarms_of_a_version_are_on_its_page_and_on_no_other(small: Settings) -> None:
    with writing(small) as connection:
        connection.execute(insert(alarm), [
            {"task": "t", "name": "asks", "version": 3, "cluster": "<b>edits", "at": 1.0, "details": STEP},
            {"task": "t", "name": "null", "version": 3, "cluster": "", "at": 2.0, "details": LINE},
        ])  # fmt: skip
    with TestClient(create_app(small), follow_redirects=False) as opened:
        client = signed_in(opened, small)
        page, other = client.get("/policies/3").text, client.get("/policies/2").text
    assert "Alarms <small>" not in other
    shown = page[page.index("Alarms <small>") : page.index("Samples that it learned first")]
    assert "<b>asks</b>" in shown
    assert "0.041 <small>of 2,100, v1 to v2" in shown
    assert "above the line of 0.01" in shown
    assert "&lt;b&gt;edits" in shown
    assert shown.index("asks") < shown.index("no reward")
