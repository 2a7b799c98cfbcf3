import math
import re
from typing import Any

import pytest
import sqlalchemy
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select, update
from tokenizers import Tokenizer

from contracts import ledger
from contracts.ledger import find_answer
from contracts.sampling import Span
from contracts.tables import generation
from runtime.database import Database
from runtime.settings import Settings
from services.dashboard.generations import queries
from services.dashboard.generations.detail import TokenTexts, cut, excerpt, messages, pieces, shade, story, tokens
from services.dashboard.generations.queries import PAGE, Cursor, Search, find_page
from tests.worlds.dashboard.databases import writing
from tests.worlds.dashboard.seed import BASE, EPOCH, HOSTILE_NUMBER, SCRIPT, STARTED, key_of

TOKENIZER = Tokenizer.from_file(f"{BASE}/tokenizer.json")


@pytest.fixture(scope="module")
def database(seeded: Settings) -> Database:
    return seeded.database()


def walk(database: Database, search: Search, *, most: int = 100) -> list[str]:
    """The ids of all pages."""
    found: list[str] = []
    after: Cursor | None = None
    for _ in range(most):
        with database.snapshot() as connection:
            page = find_page(connection, search, after)
        found += [hit.head.completion_id for hit in page.rows]
        after = page.after
        if after is None:
            return found
    raise AssertionError("the pages never end")


def test_pages_hold_every_answer_once_newest_first(database: Database) -> None:
    assert walk(database, Search()) == [key_of(number) for number in range(599, -1, -1)]


def test_equal_times_lose_and_repeat_nothing(small: Settings) -> None:
    database = small.database()
    with database.transaction() as connection:
        connection.execute(update(generation).values(created_at=5.0))
        page = find_page(connection, Search())
    assert page.after is None
    assert len(page.rows) == 40 == PAGE
    with database.snapshot() as connection:
        rest = find_page(connection, Search(), Cursor(5.0, key_of(20), 0))
    assert [hit.head.completion_id for hit in rest.rows] == [key_of(number) for number in range(19, -1, -1)]
    database.close()


@pytest.mark.parametrize("state", ["trained", "pending", "unlabelled", "filtered"])
def test_a_state_finds_what_the_ledger_counts(database: Database, state: str) -> None:
    with database.snapshot() as connection:
        expected = ledger.generation_counts(connection).states[state]
    assert len(walk(database, Search(state=state))) == expected


def test_filters_meet(database: Database) -> None:
    assert walk(database, Search(version=3, task="reservations")) == [key_of(number) for number in range(239, 179, -1)]
    assert walk(database, Search(task="other")) == []
    with database.snapshot() as connection:
        at = find_page(connection, Search(completion=key_of(100))).rows[0].head.created_at
    assert walk(database, Search(before=at)) == [key_of(number) for number in range(99, -1, -1)]


def test_a_page_reads_no_table_without_an_index(database: Database) -> None:
    asked: list[tuple[str, Any]] = []

    def note(*event: Any) -> None:
        asked.append(event[2:4])

    searches = (Search(purpose="user"), Search(purpose="shadow", state="stale"), Search(completion=key_of(7)))
    with database.snapshot() as connection:
        sqlalchemy.event.listen(connection, "before_cursor_execute", note)
        for search in searches:
            first = find_page(connection, search)
            find_page(connection, search, first.after or Cursor(STARTED - 60, key_of(300), 0), most=100)
        sqlalchemy.event.remove(connection, "before_cursor_execute", note)
        plans = [
            row[3] for text, values in asked for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}", values)
        ]
    reads = [step for step in plans if re.match(r"(SCAN|SEARCH) (generation|signal|score)\b", step)]
    assert len(reads) > 3 * len(searches)
    assert [step for step in reads if "INDEX" not in step] == []


def test_an_id_or_its_beginning_finds_it(database: Database) -> None:
    assert walk(database, Search(completion=key_of(77))) == [key_of(77)]
    assert walk(database, Search(completion="chatcmpl-0000001")) == [key_of(number) for number in range(31, 15, -1)]
    assert walk(database, Search(completion="chatcmpl-%")) == []


def test_text_is_found_in_prompt_and_answer_whatever_its_case(database: Database) -> None:
    with database.snapshot() as connection:
        (found,) = find_page(connection, Search(text="ONERROR=")).rows
    assert found.head.completion_id == key_of(HOSTILE_NUMBER)
    assert found.body is not None
    assert found.body.text == SCRIPT
    assert len(walk(database, Search(text="please"))) == 599
    assert walk(database, Search(text="onerror=", version=9)) == []


def test_a_search_that_finds_nothing_says_how_far_it_looked(database: Database) -> None:
    with database.snapshot() as connection:
        page = find_page(connection, Search(text="no such words"))
    assert (page.rows, page.after, page.num_looked) == ([], None, 600)


def test_a_walk_ends_at_its_limit_and_goes_on_from_there(database: Database) -> None:
    search, seen, after, num_pages = Search(state="stale"), [], None, 0
    with database.snapshot() as connection:
        while True:
            page = queries.find_page(connection, search, after, most=100)
            assert page.num_looked in {100, None}
            seen += [hit.head.completion_id for hit in page.rows]
            num_pages += 1
            if (after := page.after) is None:
                break
    assert num_pages in {6, 7}
    assert seen == walk(database, search)
    assert seen


def test_one_answer_has_everything_that_became_of_it(database: Database) -> None:
    with database.snapshot() as connection:
        trained = find_page(connection, Search(state="trained", version=2)).rows[0].head
        whole = find_answer(connection, trained.completion_id, 0)
        assert find_answer(connection, trained.completion_id, 1) is None
        assert find_answer(connection, "chatcmpl-x", 0) is None
    assert whole is not None
    assert whole.record is not None
    assert whole.head.state_version == 3
    assert [(row.state, row.epoch, row.version) for row in whole.outcomes] == [("trained", EPOCH, 3)]
    kinds = [event.kind for event in story(whole)]
    assert kinds == ["answer", "join", "signal", "score", "outcome"]
    assert "first in v3" in story(whole)[-1].note


def test_samples_trained_in_an_undone_epoch_are_shown_as_pending(database: Database) -> None:
    with database.snapshot() as connection:
        void = select(generation.c.completion_id).where(
            generation.c.state_writer == "training", generation.c.state_epoch < EPOCH
        )
        whole = find_answer(connection, connection.execute(void).scalars().first() or "", 0)
    assert whole is not None
    assert whole.head.state == "pending"
    assert (whole.outcomes[0].state, whole.outcomes[0].is_valid) == ("trained", False)
    assert "taken back" in story(whole)[-1].note


def test_a_record_that_cannot_be_read_is_said(small: Settings) -> None:
    with writing(small) as connection:
        connection.execute(update(generation).values(record=b"?"))
        page = find_page(connection, Search())
        whole = find_answer(connection, key_of(1), 0)
    assert all(hit.body is None and hit.record is None for hit in page.rows)
    assert whole is not None
    assert whole.record is None
    assert "not a Generation" in whole.problem


@pytest.mark.slow
@given(st.text(max_size=60))
def test_the_pieces_of_a_text_are_the_text(text: str) -> None:
    ids = TOKENIZER.encode(text, add_special_tokens=False).ids
    whole = TOKENIZER.decode(ids, skip_special_tokens=False)
    found = pieces(ids, lambda some: TOKENIZER.decode(list(some), skip_special_tokens=False))
    assert len(found) == len(ids)
    assert "".join(found) == whole


def test_texts_come_from_the_base_and_their_absence_is_said() -> None:
    ids = TOKENIZER.encode('{"party": 4}', add_special_tokens=False).ids
    assert "".join(TokenTexts(BASE).texts(ids) or []) == '{"party": 4}'
    missing = TokenTexts("examples")
    assert missing.texts(ids) is None
    assert "examples" in missing.problem


def test_shades_follow_the_probability() -> None:
    assert [shade(math.log(share)) for share in (1.0, 0.9001, 0.6, 0.3, 0.06, 0.01)] == [0, 0, 1, 2, 3, 4]
    assert shade(None) is None
    assert shade(math.nan) is None
    assert shade(1e-3) == 0


def test_tokens_carry_the_version_of_their_span() -> None:
    shown = tokens([5, 6, 7], [-0.1, -2.0], (Span(0, 3), Span(2, 4)), None)
    assert [token.version for token in shown] == [3, 3, 4]
    assert [token.text for token in shown] == [" 5", " 6", " 7"]
    assert (shown[2].logprob, shown[2].shade, shown[2].probability) == (None, None, None)
    assert tokens([1], [0.0], (), ["\n"])[0].visible == "↵\n"
    assert tokens([1], [0.0], (), [""])[0].visible == "◌"


def test_messages_of_every_shape_have_a_text() -> None:
    shown = messages(
        [{"role": "user", "content": [{"type": "text"}]}, {"content": None, "tool_calls": [1]}, {"role": "x"}]
    )
    assert [(message.role, message.content) for message in shown] == [
        ("user", '[{"type":"text"}]'), ("?", '{"tool_calls":[1]}'), ("x", ""),
    ]  # fmt: skip
    assert excerpt([{"role": "system", "content": "s"}]) == ""
    assert cut("a\n b" + "c" * 500, 10) == "a bcccccc…"
