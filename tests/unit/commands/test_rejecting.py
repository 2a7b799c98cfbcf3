"""`millrace policy withdraw|revoke`: what is said, what is refused, and what the arms are afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from commands.rejecting import revoke_version
from contracts import assignments, revocations
from contracts.assignments import CANARY, LEARNING
from contracts.errors import InvalidValue
from tests.command_line import Ran, run_here
from tests.worlds.dashboard.seed import POLICY, settings_of
from tests.worlds.dashboard.seed_rollout import BLESSED, CANARY_VERSION, seed_rollout


@pytest.fixture
def home(seeded_home: Path) -> Path:
    seed_rollout(settings_of(seeded_home), time.time())
    return seeded_home


def policy(home: Path, *arguments: str) -> Ran:
    return run_here("policy", *arguments, "--home", str(home))


def standing(home: Path) -> tuple[dict[str, int | None], set[int]]:
    database = settings_of(home).database()
    with database.snapshot() as connection:
        arms = assignments.read(connection, POLICY)
        gone = set(revocations.read(connection, POLICY))
    database.close()
    return {name: arm.version for name, arm in arms.items()}, gone


def test_withdraw_says_which_arms_the_version_left_and_what_remains(home: Path) -> None:
    ran = policy(home, "withdraw", str(CANARY_VERSION), "--reason", "complaints")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == (
        f"v{CANARY_VERSION} is withdrawn and left learning and canary; it does not depart again. To serve it after all: "
        f"millrace policy promote {CANARY_VERSION}\n"
    )
    arms, gone = standing(home)
    assert (arms[CANARY], arms[LEARNING], gone) == (None, None, set())
    shown = policy(home, "train").stdout
    assert "no train runs" in shown
    assert "withdrawn by operator: complaints" in shown


def test_revoke_shows_its_effects_first(home: Path) -> None:
    before = standing(home)
    ran = policy(home, "revoke", str(CANARY_VERSION), "--dry-run")
    assert ran.returncode == 0, ran.stderr
    said = ran.stdout.splitlines()
    assert said[0] == (
        f"v{BLESSED} stays live; whoever has a revoked version gets v{BLESSED} from now on, and training goes on from v{BLESSED}."
    )
    assert said[1].startswith(f"Revoked for good: v{CANARY_VERSION}.")
    assert "A revocation cannot be taken back." in ran.stdout
    assert "* --treatment evidence: " in ran.stdout
    assert said[-1] == "This was a dry run: nothing was changed."
    assert standing(home) == before


def test_revoke_does_it(home: Path) -> None:
    ran = policy(home, "revoke", str(CANARY_VERSION), "--treatment", "poison")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-1] == (
        f"v{CANARY_VERSION} revoked; v{BLESSED} stays live, and the trainer goes on from it"
    )
    arms, gone = standing(home)
    assert (arms[CANARY], gone) == (None, {CANARY_VERSION})


@pytest.mark.parametrize("answer", [False, True])
def test_a_person_is_asked(home: Path, answer: bool) -> None:
    asked = list[str]()

    def ask(question: str) -> bool:
        asked.append(question)
        return answer

    confirm: Callable[[str], bool] = ask
    revoke_version(home, CANARY_VERSION, "complaints", ask=confirm)
    assert asked == [f"Revoke v{CANARY_VERSION}?"]
    assert standing(home)[1] == ({CANARY_VERSION} if answer else set())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["withdraw", "7"], f"the train proves v{CANARY_VERSION}"),
        (["revoke", str(BLESSED)], "roll back with `millrace policy rollback`"),
        (["revoke", "99"], "it does not exist"),
        (["revoke", str(CANARY_VERSION), "--treatment", "both"], "--treatment is poison or evidence, not 'both'"),
    ],
)
def test_mistakes_are_named_and_nothing_is_changed(home: Path, arguments: list[str], says: str) -> None:
    before = standing(home)
    ran = policy(home, *arguments)
    assert ran.returncode == 1
    assert says in ran.stderr
    assert standing(home) == before


def test_an_unknown_treatment_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="not 'both'"):
        revoke_version(tmp_path, 7, "r", treatment="both")
