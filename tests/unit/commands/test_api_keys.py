"""`millrace keys api`: what is printed, what is kept, what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from commands.api_keys import read_expiry, read_scopes
from contracts.errors import InvalidSettings
from contracts.keys import Caller, check_key
from runtime.database import Database
from runtime.settings import Settings, write_settings
from tests.command_line import run_here as millrace
from tests.each_case import each_case
from tests.unit.services.serving import make_home

NOW = 1_800_000_000.0


@pytest.fixture
def home(tmp_path: Path, database: Database) -> Settings:
    settings = make_home(tmp_path)
    write_settings(settings, {})
    assert database.url.endswith("millrace.db")
    return settings


def new(home: Settings, *options: str) -> str:
    made = millrace("keys", "api", "new", "--home", str(home.home), *options)
    assert (made.returncode, made.stderr) == (0, ""), made
    assert re.fullmatch(r"mr-(app|operator)-[0-9a-f]{12}-[0-9a-f]{48}\n", made.stdout)
    return made.stdout.strip()


def listed(home: Settings) -> list[list[str]]:
    ran = millrace("keys", "api", "list", "--home", str(home.home))
    assert ran.returncode == 0, ran
    return [re.split(r"\s{2,}", line) for line in ran.stdout.splitlines()]


def caller(database: Database, key: str) -> Caller:
    with database.snapshot() as connection:
        return check_key(connection, f"Bearer {key}")


def test_keys_are_made_listed_and_revoked(home: Settings, database: Database) -> None:
    shop = new(home, "--tenant", "acme", "--scopes", "inference", "--expires", "30d", "--name", "the shop")
    reader = new(home, "--role", "operator", "--scopes", "operator:read,feedback")
    plain = millrace("keys", "--role", "operator", "--home", str(home.home)).stdout.strip()
    assert caller(database, shop).scopes == {"inference"}
    assert caller(database, reader).scopes == {"operator:read", "feedback"}
    assert len(caller(database, plain).scopes) == 4

    header, *rows = listed(home)
    assert header == ["id", "role", "tenant", "scopes", "state", "expires", "made", "name"]
    [first, second, third] = rows
    assert first[:5] == [shop.split("-")[2], "app", "acme", "inference", "good"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\dZ", first[5])
    assert first[7] == "the shop"
    assert second[:6] == [reader.split("-")[2], "operator", "default", "feedback,operator:read", "good", "-"]
    assert third[3] == "feedback,inference,operator:read,operator:write"
    printed = "\n".join(" ".join(row) for row in rows)
    assert not any(key.split("-")[3] in printed for key in (shop, reader, plain))

    ran = millrace("keys", "api", "revoke", shop.split("-")[2], plain, "--home", str(home.home))
    assert ran.returncode == 0, ran
    assert ran.stdout.count("is revoked: refused everywhere within 2 s") == 2
    assert [row[4] for row in listed(home)[1:]] == ["revoked", "good", "revoked"]
    again = millrace("keys", "api", "revoke", f"{shop}\n{plain}", "--home", str(home.home))
    assert again.stdout.startswith(f"{shop.split('-')[2]} is revoked already")


def test_of_several_keys_one_unknown_revokes_none(home: Settings) -> None:
    key = new(home)
    ran = millrace("keys", "api", "revoke", key.split("-")[2], "000000000000", "--home", str(home.home))
    assert ran.returncode == 1
    assert "no key has the id 000000000000" in ran.stderr
    assert listed(home)[1][4] == "good"


def test_whoever_revokes_the_key_of_the_home_is_told_how_to_replace_it(home: Settings) -> None:
    key = new(home, "--role", "operator")
    (home.home / "operator.key").write_text(f"{key}\n")
    ran = millrace("keys", "api", "revoke", key, "--home", str(home.home))
    assert "the key of this home" in ran.stderr
    assert f"> {home.home / 'operator.key'}" in ran.stderr


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--role", "root"], "--role is app or operator"),
        (["--scopes", "operator:read"], "role app cannot have operator:read"),
        (["--scopes", "inference,all"], "--scopes all: there are inference, feedback"),
        (["--expires", "soon"], "--expires takes a duration"),
        (["--expires", "2001-01-01"], "--expires lies in the past"),
        (["--tenant", ""], "--tenant takes 1 to 64"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(home: Settings, options: list[str], says: str) -> None:
    ran = millrace("keys", "api", "new", "--home", str(home.home), *options)
    assert ran.returncode == 1
    assert says in ran.stderr
    assert len(listed(home)) == 1


@each_case(
    ("text", "at"),
    [
        ("", None), ("90s", NOW + 90), ("12h", NOW + 43_200), ("30d", NOW + 2_592_000), ("2w", NOW + 1_209_600),
        ("2027-01-31", 1_801_353_600.0), ("2027-01-31T01:00", 1_801_357_200.0), ("2027-01-31T01:00+01:00", 1_801_353_600.0),
    ],
)  # fmt: skip
def test_times_as_people_write_them(text: str, at: float | None) -> None:
    assert read_expiry(text, NOW) == at


@pytest.mark.parametrize("text", ["30", "d", "-1d", "1.5d", "tomorrow", "2027-13-01", "9999999d"])
def test_other_times_are_refused(text: str) -> None:
    with pytest.raises(InvalidSettings, match="--expires"):
        read_expiry(text, NOW)


def test_scopes_stand_apart_by_commas_or_spaces() -> None:
    wanted = frozenset(("inference", "feedback"))
    assert read_scopes("inference, feedback") == read_scopes("feedback inference") == wanted
    assert read_scopes("") is None
    assert read_scopes(",") == frozenset()
