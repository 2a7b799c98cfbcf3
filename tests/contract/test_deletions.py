"""Deletion in two phases, on both databases."""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor

import pytest

from contracts.deletions import Kind, going, refer_to_version
from contracts.errors import LeaseLost, NotFound
from runtime.database import Database
from runtime.deletions import Deletions
from tests.worlds.servers.leases import a_lease


def advance(deletions: Deletions, *names: str) -> list[str]:
    return deletions.advance(lambda _: names)


def gone(database: Database, kind: Kind = "checkpoint") -> set[str]:
    with database.snapshot() as connection:
        return going(connection, "p", kind)


def refer(database: Database, version: int) -> None:
    with database.transaction() as connection:
        refer_to_version(connection, "p", version)


@pytest.fixture
def deletions(any_database: Database) -> Deletions:
    return Deletions(a_lease(any_database, "p"), "p", "checkpoint")


def test_nothing_goes_at_the_first_look(any_database: Database, deletions: Deletions) -> None:
    assert advance(deletions, "a", "b") == []
    assert gone(any_database) == set()
    assert advance(deletions, "a", "b", "c") == ["a", "b"]
    assert gone(any_database) == {"a", "b"}


def test_what_is_needed_again_stays_and_must_be_noted_anew(deletions: Deletions) -> None:
    advance(deletions, "a", "b")
    assert advance(deletions, "b") == ["b"]
    deletions.done(["b"])
    assert advance(deletions, "a") == []
    assert advance(deletions, "a") == ["a"]


def test_what_was_deleted_is_forgotten_and_what_could_not_be_is_named_again(
    any_database: Database, deletions: Deletions
) -> None:
    advance(deletions, "a", "b")
    advance(deletions, "a", "b")
    deletions.done(["a"])
    assert advance(deletions) == ["b"]
    assert gone(any_database) == {"b"}


def test_one_that_was_stopped_before_a_step_cannot_take_it(any_database: Database, deletions: Deletions) -> None:
    advance(deletions, "a")
    successor = Deletions(a_lease(any_database, "p"), "p", "checkpoint")
    with pytest.raises(LeaseLost):
        advance(deletions, "a", "b")
    assert gone(any_database) == set(), "what it only noted is the successor's to keep"
    assert advance(successor) == []
    assert advance(successor, "a") == [], "and is noted anew by the successor itself"
    assert advance(successor, "a") == ["a"]


def test_what_is_going_is_gone_for_the_successor_too_which_finishes_it(
    any_database: Database, deletions: Deletions
) -> None:
    advance(deletions, "a")
    advance(deletions, "a")
    successor = Deletions(a_lease(any_database, "p"), "p", "checkpoint")
    assert gone(any_database) == {"a"}
    assert advance(successor) == ["a"]
    successor.done(["a"])
    assert advance(successor) == []
    assert gone(any_database) == set()


def test_a_chunk_that_its_writer_names_again_is_not_going(any_database: Database) -> None:
    """Only for its own: it wrote the same content again under the same name."""
    lease = a_lease(any_database, "p")
    chunks = Deletions(lease, "p", "chunk")
    advance(chunks, "a")
    assert advance(chunks, "a") == ["a"]
    assert advance(chunks) == []
    assert gone(any_database, "chunk") == set()


def test_a_version_is_taken_off_the_list_by_whoever_refers_to_it_until_it_is_too_late(any_database: Database) -> None:
    versions = Deletions(a_lease(any_database, "p"), "p", "version")
    advance(versions, "3", "4")
    refer(any_database, 3)
    assert advance(versions, "4") == ["4"]
    refer(any_database, 3)
    with pytest.raises(NotFound, match="version 4 were removed"):
        refer(any_database, 4)


def test_a_reference_that_is_taken_at_this_moment_is_waited_for(any_database: Database) -> None:
    """The references are read when the list is locked: whoever was faster is seen, whoever is later is refused."""
    versions = Deletions(a_lease(any_database, "p"), "p", "version")
    referred: set[str] = set()
    advance(versions, "3")

    def unreferenced(_: object) -> Collection[str]:
        return {"3"} - referred

    with ThreadPoolExecutor(1) as pool:
        with any_database.transaction() as connection:
            refer_to_version(connection, "p", 3)
            advancing = pool.submit(versions.advance, unreferenced)
            referred.add("3")
        assert advancing.result() == []
    assert gone(any_database, "version") == set()
