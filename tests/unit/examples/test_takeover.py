from __future__ import annotations

import itertools
import json
import statistics
from pathlib import Path
from typing import Any

import httpx
import pytest

from examples.demo import provider
from examples.demo.command import RESERVATIONS, task_of
from examples.demo.curves import acceptance_curve
from examples.demo.picture import draw_curves
from examples.demo.provider import INPUT_PRICE, OUTPUT_PRICE, DearModel, app_of
from examples.demo.takeover import TAKEOVER, closing_words
from examples.demo.two_arms import OWN, PROVIDER, arms_of, broken_goals, first_shares, own_share
from examples.reservations.sentences import requests


def test_the_provider_is_nearly_always_right_slow_and_never_too_busy_twice_for_one_request() -> None:
    model, asked = DearModel(3), list(itertools.islice(requests("users", 3), 1500))
    drawn = [model.draw(request.sentence) for request in asked]
    busy = [place for place, (text, _) in enumerate(drawn) if text is None]
    assert 10 < len(busy) < 60
    for place in busy:
        drawn[place] = model.draw(asked[place].sentence)
    right = statistics.fmean(text == request.booking.json() for (text, _), request in zip(drawn, asked, strict=True))
    assert 0.95 < right < 0.99
    assert 0.25 < statistics.median(seconds for _, seconds in drawn) < 0.35
    again = DearModel(3)
    assert [again.draw(request.sentence) for request in asked[:50]] == [
        (None, 0.0) if place in busy else drawn[place] for place in range(50)
    ]


async def test_the_provider_speaks_the_wire(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider, "REFUSED", 0.0)
    monkeypatch.setattr(provider, "MEDIAN_SECONDS", 0.01)
    request = next(requests("users", 1))
    asked = {"model": "dear-1", "messages": [{"role": "user", "content": request.sentence}]}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app_of(1)), base_url="http://dear/v1") as client:
        whole = (await client.post("/chat/completions", json=asked)).json()
        streamed = await client.post("/chat/completions", json={**asked, "stream": True})
        unknown = {**asked, "messages": [{"role": "user", "content": "Tell me a joke."}]}
        assert (await client.post("/chat/completions", json=unknown)).status_code == 400
        monkeypatch.setattr(provider, "REFUSED", 1.0)
        refused = await client.post("/chat/completions", json=asked)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert (await client.post("/chat/completions", json=asked)).is_success
    assert {*json.loads(whole["choices"][0]["message"]["content"])} == {"party", "time", "name"}
    assert 0 < whole["usage"]["completion_tokens"] < whole["usage"]["prompt_tokens"]
    *lines, done = [line.removeprefix("data: ") for line in streamed.text.split("\n") if line]
    *pieces, counts = map(json.loads, lines)
    assert done == "[DONE]"
    assert "".join(piece["choices"][0]["delta"].get("content", "") for piece in pieces).endswith("}")
    assert counts["usage"] == whole["usage"]


def listed(num: int, *, provided: bool, accepted: float, at: float) -> list[dict[str, Any]]:
    """So many answers, four a second, and a signal about each."""
    made = []
    for number in range(num):
        key, moment = f"{provided} {number}", at + number / 4
        made.append(
            {
                "kind": "generation",
                "key": key,
                "at": moment,
                "provided": provided,
                "seconds": 0.4 - 0.3 * (not provided),
            }
        )
        made.append({"kind": "signal", "key": key, "at": moment + 0.1, "positive": number % 100 < 100 * accepted})
    return made


def told(accepted: float, dollars: float = 0.01, num_own: int = 400) -> dict[str, Any]:
    clients = listed(400, provided=True, accepted=0.95, at=0.0) + listed(
        num_own, provided=False, accepted=accepted, at=100.0
    )
    begins, ends = first_shares(clients)
    return {
        "own_share": own_share(clients),
        "own_first_seconds": begins,
        "provider_last_seconds": ends,
        "accepted_last": accepted,
        "num_last": 300,
        "arms": {name: arm._asdict() for name, arm in arms_of(clients, {PROVIDER: 0.4, OWN: dollars}).items()},
    }


def test_both_arms_stand_side_by_side() -> None:
    found = told(0.96)
    own, dear = found["arms"][OWN], found["arms"][PROVIDER]
    assert (own["answers"], own["accepted"], own["seconds_p50"]) == (400, 0.96, pytest.approx(0.1))
    assert (dear["answers"], dear["accepted"], dear["seconds_p95"]) == (400, 0.95, 0.4)
    assert dear["dollars_per_accepted"] == pytest.approx(0.4 / 380)
    assert found["own_share"] == 1.0
    said = closing_words(found)
    assert (
        "answers 100.0% of the users. It met the first of them after 100 s, and the provider's last answer came after 100 s"
        in said
    )
    assert "$1.053 for 1,000 accepted answers" in said
    assert "0 answers\n" in closing_words(told(0.0, num_own=0))


def test_a_take_over_must_reach_everybody_at_the_same_quality_for_less() -> None:
    assert broken_goals(told(0.96)) == []
    assert broken_goals(told(0.91)) == [], "chance may do that"
    assert [said.split(",")[0] for said in broken_goals(told(0.85))] == ["users accept 85.0% at the end"]
    assert broken_goals(told(0.96, dollars=0.5)) == [
        "an accepted answer of the own model costs no less than one of the provider"
    ]
    assert (
        broken_goals(told(0.96, num_own=180))[0] == "the own model gives 90.0% of the last 200 answers, less than 95%"
    )


def test_the_curve_shows_who_answered() -> None:
    clients = listed(120, provided=True, accepted=1.0, at=0.0) + listed(120, provided=False, accepted=1.0, at=30.0)
    curve = acceptance_curve(clients, [])
    assert [round(item.own or 0.0) for item in curve] == [0, 0, 1, 1]
    assert "the own model answers" in draw_curves(curve, "takeover", 0.85)
    alone = [item for item in clients if not item.get("provided")]
    assert {item.own for item in acceptance_curve(alone, [])} == {None}
    assert "the own model answers" not in draw_curves(acceptance_curve(alone, []), "demo", 0.85)


def test_the_task_also_learns_from_text(tmp_path: Path) -> None:
    assert task_of(RESERVATIONS, tmp_path) == RESERVATIONS.folder / "task.toml"
    assert "ce = 1.0" in task_of(TAKEOVER, tmp_path).read_text()
    assert OUTPUT_PRICE > INPUT_PRICE > 0
