"""`millrace policy promote|rollback|withdraw|revoke|list`: shown beforehand, two treatments, and no way back for what was revoked."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from commands.operators import promote, revoke_version, roll_back
from commands.policy import print_versions
from contracts import assignments, revocations
from contracts.assignments import CANARY, LEARNING, LIVE
from contracts.errors import InvalidValue, NotFound, StaleWrite, VersionRevoked
from contracts.revocations import Treatment
from tests.command_line import Ran, run_here
from tests.worlds.dashboard.seed import NUM_VERSIONS, POLICY, settings_of
from tests.worlds.dashboard.seed_rollout import BLESSED, CANARY_VERSION, seed_rollout

NEWEST = NUM_VERSIONS - 1
"""Live in the home of these tests; the candidate is one above."""


@pytest.fixture
def home(seeded_home: Path) -> Path:
    return seeded_home


@pytest.fixture
def rollout(home: Path) -> Path:
    """A home in which a train runs."""
    seed_rollout(settings_of(home), time.time())
    return home


def policy(home: Path, *arguments: str) -> Ran:
    return run_here("policy", *arguments, "--home", str(home))


def standing(home: Path) -> tuple[dict[str, int | None], dict[int, Treatment]]:
    """The version of each arm, and how revoked ones are treated."""
    with settings_of(home).snapshot() as connection:
        arms = {name: arm.version for name, arm in assignments.read(connection, POLICY).items()}
        return arms, {version: row.treatment for version, row in revocations.read(connection, POLICY).items()}


def live(home: Path) -> int | None:
    return standing(home)[0][LIVE]


def revoked(home: Path) -> dict[int, Treatment]:
    return standing(home)[1]


def test_a_dry_run_shows_everything_and_changes_nothing(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    roll_back(home, 5, "complaints", dry_run=True)
    text = capsys.readouterr().out
    assert f"Users get v5 instead of v{NEWEST}" in text
    assert "Revoked for good: v6, v7, v8, v9, v10" in text
    assert re.search(r"[1-9]\d* of [1-9]\d* learned samples are undone", text)
    assert re.search(r"that the revoked versions answered: [1-9]\d*, of which \d+ wait", text)
    assert "* --treatment evidence: " in text
    assert "  --treatment poison: " in text
    assert "nothing was changed" in text
    assert (live(home), revoked(home)) == (NEWEST, {})


def test_a_script_is_not_asked_and_goes_on_as_before(home: Path) -> None:
    ran = policy(home, "rollback", "--to", "7", "--treatment", "poison")
    assert ran.returncode == 0, ran.stderr
    assert "learned samples are undone" in ran.stdout
    assert ran.stdout.splitlines()[-1] == "v7 is live now, and the trainer goes on from it"
    assert live(home) == 7
    assert revoked(home) == dict.fromkeys((8, 9, 10), "poison")


def test_only_what_is_named_is_revoked(home: Path) -> None:
    ran = policy(home, "rollback", "--to", "5", "--revoke", "8", "--revoke", "10", "--yes")
    assert ran.returncode == 0, ran.stderr
    assert revoked(home) == dict.fromkeys((8, 9, 10), "evidence")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--revoke", "77"], "v77 cannot be revoked: it does not exist"),
        (["--to", "5", "--revoke", "3"], "v3 cannot be revoked: it is an ancestor of v5"),
        (["--to", "5", "--revoke", "5"], "v5 cannot be revoked: it is the version to go back to"),
        (["--treatment", "mercy"], "--treatment is poison or evidence, not 'mercy'"),
        (["--to", "6"], "never accepted"),
    ],
)
def test_mistakes_are_named_and_nothing_is_changed(home: Path, arguments: list[str], says: str) -> None:
    ran = policy(home, "rollback", *arguments)
    assert ran.returncode == 1
    assert says in ran.stderr
    assert "Traceback" not in ran.stderr
    assert (live(home), revoked(home)) == (NEWEST, {})


def test_what_was_revoked_comes_back_by_no_command(home: Path) -> None:
    roll_back(home, 5, "bought votes")
    with pytest.raises(VersionRevoked, match=r"v9 .*bought votes"):
        promote(9, home, "it had more")
    with pytest.raises(VersionRevoked, match=r"v8 .*bought votes"):
        roll_back(home, 8, "it had more")
    with pytest.raises(NotFound, match="has no version 99"):
        promote(99, home, "typing error")
    assert live(home) == 5


def test_promoting_a_lower_version_is_a_rollback(home: Path) -> None:
    ran = policy(home, "promote", "7", "--reason", "it had more")
    assert ran.returncode == 0, ran.stderr
    said = ran.stdout.splitlines()
    assert said[0] == f"v7 is below v{NEWEST}, which is live: this is a rollback."
    assert said[1] == f"Users get v7 instead of v{NEWEST}, and training goes on from v7."
    assert "learned samples are undone" in ran.stdout
    assert said[-1] == "v7 is live now, and the trainer goes on from it"
    assert (live(home), revoked(home)) == (7, dict.fromkeys((8, 9, 10), "evidence"))


def test_a_promotion_of_a_lower_version_asks_first(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[str]()
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("typer.confirm", asked.append)
    promote(7, home, "it had more")
    assert asked == ["Roll back to v7?"]
    assert (live(home), revoked(home)) == (NEWEST, {})
    promote(7, home, "it had more", yes=True)
    assert live(home) == 7


def test_a_refused_version_is_no_way_back(home: Path) -> None:
    with pytest.raises(InvalidValue, match="never accepted"):
        promote(6, home, "better then")
    assert (live(home), revoked(home)) == (NEWEST, {})


def test_the_list_says_what_was_revoked_and_why(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    roll_back(home, 7, "bought votes", treatment="poison")
    capsys.readouterr()
    print_versions(home)
    text = capsys.readouterr().out
    assert text.count("revoked") == 3 + 1
    assert "revoked as poison: v8, v9, v10 (operator: bought votes)" in text.splitlines()


def test_a_version_that_went_live_meanwhile_stops_the_rollback(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def while_she_thinks(question: str) -> bool:
        assert question == "Roll back to v5?"
        promote(NUM_VERSIONS, home, "another operator")
        return True

    with pytest.raises(StaleWrite, match="check the versions again"):
        roll_back(home, 5, "complaints", ask=while_she_thinks)
    assert (live(home), revoked(home)) == (NUM_VERSIONS, {})
    assert "learned samples are undone" in capsys.readouterr().out


def test_who_says_no_changes_nothing(home: Path) -> None:
    roll_back(home, 5, "complaints", ask=lambda _: False)
    assert (live(home), revoked(home)) == (NEWEST, {})


def test_withdraw_says_which_arms_the_version_left_and_what_remains(rollout: Path) -> None:
    ran = policy(rollout, "withdraw", str(CANARY_VERSION), "--reason", "complaints")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == (
        f"v{CANARY_VERSION} is withdrawn and left learning and canary; it does not depart again. To serve it after all: "
        f"millrace policy promote {CANARY_VERSION}\n"
    )
    arms, gone = standing(rollout)
    assert (arms[CANARY], arms[LEARNING], gone) == (None, None, {})
    shown = policy(rollout, "train").stdout
    assert "no train runs" in shown
    assert "withdrawn by operator: complaints" in shown


def test_revoke_shows_its_effects_first(rollout: Path) -> None:
    before = standing(rollout)
    ran = policy(rollout, "revoke", str(CANARY_VERSION), "--dry-run")
    assert ran.returncode == 0, ran.stderr
    said = ran.stdout.splitlines()
    assert said[0] == (
        f"v{BLESSED} stays live; whoever has a revoked version gets v{BLESSED} from now on, and training goes on from v{BLESSED}."
    )
    assert said[1].startswith(f"Revoked for good: v{CANARY_VERSION}.")
    assert "A revocation cannot be taken back." in ran.stdout
    assert "* --treatment evidence: " in ran.stdout
    assert said[-1] == "This was a dry run: nothing was changed."
    assert standing(rollout) == before


def test_revoke_does_it(rollout: Path) -> None:
    ran = policy(rollout, "revoke", str(CANARY_VERSION), "--treatment", "poison")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-1] == (
        f"v{CANARY_VERSION} revoked; v{BLESSED} stays live, and the trainer goes on from it"
    )
    arms, gone = standing(rollout)
    assert (arms[CANARY], gone) == (None, {CANARY_VERSION: "poison"})


@pytest.mark.parametrize("answer", [False, True])
def test_a_person_is_asked(rollout: Path, answer: bool) -> None:
    def ask(question: str) -> bool:
        assert question == f"Revoke v{CANARY_VERSION}?"
        return answer

    revoke_version(rollout, CANARY_VERSION, "complaints", ask=ask)
    assert revoked(rollout) == ({CANARY_VERSION: "evidence"} if answer else {})


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["withdraw", "7"], f"the train proves v{CANARY_VERSION}"),
        (["revoke", str(BLESSED)], "roll back with `millrace policy rollback`"),
        (["revoke", "99"], "it does not exist"),
        (["revoke", str(CANARY_VERSION), "--treatment", "both"], "--treatment is poison or evidence, not 'both'"),
    ],
)
def test_mistakes_about_other_versions_are_named_and_nothing_is_changed(
    rollout: Path, arguments: list[str], says: str
) -> None:
    before = standing(rollout)
    ran = policy(rollout, *arguments)
    assert ran.returncode == 1
    assert says in ran.stderr
    assert standing(rollout) == before


def test_an_unknown_treatment_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="not 'both'"):
        revoke_version(tmp_path, 7, "r", treatment="both")
