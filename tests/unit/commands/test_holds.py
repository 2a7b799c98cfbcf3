"""`millrace policy freeze|pin|resume|holdout`: what is said, what is refused, and what `policy list` shows."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from contracts import assignments, holds
from contracts.assignments import CANARY, HOLDOUT, LEARNING, LIVE
from contracts.errors import Held
from contracts.holds import Hold
from contracts.rollback import promote
from tests.command_line import Ran, run_here
from tests.worlds.dashboard.seed import NUM_VERSIONS, POLICY, settings_of

NEWEST = NUM_VERSIONS - 1


@pytest.fixture
def home(seeded_home: Path) -> Path:
    return seeded_home


def policy(home: Path, *arguments: str) -> Ran:
    return run_here("policy", *arguments, "--home", str(home))


def standing(home: Path) -> tuple[dict[str, tuple[int | None, float]], Hold | None]:
    with settings_of(home).snapshot() as connection:
        arms = assignments.read(connection, POLICY)
        held = holds.read(connection, POLICY, time.time())
    return {name: (arm.version, arm.share) for name, arm in arms.items()}, held


def test_freeze_and_resume(home: Path) -> None:
    before, _ = standing(home)
    ran = policy(home, "freeze", "--for", "2h", "--reason", "the launch")
    assert re.fullmatch(r"the arms are frozen until \d{4}-.* UTC \(by operator: the launch\)\n", ran.stdout), ran.stderr
    arms, held = standing(home)
    assert arms == before
    assert held is not None
    assert held.until == pytest.approx(time.time() + 7200.0, abs=60.0)
    assert "to go on: millrace policy resume" in policy(home, "list").stdout.lower()
    refused = policy(home, "promote", str(NUM_VERSIONS))
    assert (refused.returncode, standing(home)[0]) == (1, before)
    assert "millrace policy resume" in refused.stderr
    assert policy(home, "resume").stdout == "the arms move again\n"
    assert standing(home)[1] is None
    assert policy(home, "promote", str(NUM_VERSIONS)).returncode == 0


def test_a_freeze_without_a_time_holds_until_somebody_resumes(home: Path) -> None:
    assert "until somebody resumes" in policy(home, "freeze").stdout
    assert "nothing is frozen or pinned" not in policy(home, "resume").stderr
    ran = policy(home, "resume")
    assert ran.returncode == 1
    assert "nothing is frozen or pinned" in ran.stderr


def test_pin_moves_everybody_and_a_rollback_ends_it(home: Path) -> None:
    ran = policy(home, "pin", "7", "--for", "30m", "--reason", "an incident")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("v7 is pinned until ")
    arms, held = standing(home)
    assert arms[LIVE] == (7, 1.0)
    assert held is not None
    assert (held.kind, held.version) == ("pin", 7)
    database = settings_of(home).database()
    with pytest.raises(Held), database.transaction() as connection:
        promote(connection, policy=POLICY, to=NEWEST, writer="o", reason="r")
    database.close()
    assert policy(home, "rollback", "--to", "5").returncode == 0
    arms, held = standing(home)
    assert (arms[LIVE], held) == ((5, 1.0), None)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["pin", "99", "--for", "2h"], "has no version 99"),
        (["pin", "6", "--for", "2h"], "was never accepted by the gate"),
        (["pin", "7", "--for", "2 hours"], "'2 hours' is not a duration"),
        (["pin", "7", "--for", "31d"], "at most 30 days"),
        (["freeze", "--for", "0s"], "more than 0 seconds"),
        (["resume"], "nothing is frozen or pinned"),
        (["holdout", "5"], "give a version and --share, or only --off"),
        (["holdout", "5", "--off"], "give a version and --share, or only --off"),
        (["holdout", "--share", "0.02"], "give a version and --share, or only --off"),
        (["holdout", "5", "--share", "0.5"], "at most 0.2"),
        (["holdout", "99", "--share", "0.02"], "has no version 99"),
        (["holdout", "6", "--share", "0.02"], "was never accepted by the gate"),
        (["holdout", "--off"], "there is no hold-out"),
    ],
)
def test_mistakes_are_named_and_nothing_is_changed(home: Path, arguments: list[str], says: str) -> None:
    before = standing(home)
    ran = policy(home, *arguments)
    assert ran.returncode == 1
    assert says in ran.stderr
    assert "Traceback" not in ran.stderr
    assert standing(home) == before


def test_a_pin_without_a_time_is_refused(home: Path) -> None:
    assert policy(home, "pin", "7").returncode == 2
    assert standing(home)[1] is None


@pytest.mark.parametrize(("share", "says"), [("0.005", "very long"), ("0.02", ""), ("0.1", "miss every improvement")])
def test_a_hold_out_is_set_by_hand_and_its_size_is_judged(home: Path, share: str, says: str) -> None:
    ran = policy(home, "holdout", "3", "--share", share)
    assert f"{float(share):.1%} of the users stay on v3" in ran.stdout, ran.stderr
    assert says in ran.stdout
    assert len(ran.stdout.splitlines()) == 1 + bool(says)
    assert standing(home)[0][HOLDOUT] == (3, float(share))
    assert "there is no hold-out any more" in policy(home, "holdout", "--off").stdout
    assert standing(home)[0][HOLDOUT] == (None, 0.0)


def test_the_list_shows_every_arm_with_its_share(home: Path) -> None:
    with settings_of(home).transaction() as connection:
        for arm, version, share in ((LEARNING, NUM_VERSIONS, 0.05), (CANARY, NUM_VERSIONS, 0.2), (HOLDOUT, 0, 0.02)):
            assignments.move(
                connection,
                policy=POLICY,
                arm=arm,
                version=version,
                expected_epoch=0,
                writer="t",
                reason="t",
                share=share,
            )
    shown = policy(home, "list").stdout
    newest = f"v{NUM_VERSIONS}"
    assert f"learning {newest} (5.0% of the users), canary {newest} (20.0% of the users), holdout v0 (2.0%" in shown
    assert "nothing moves" not in shown
