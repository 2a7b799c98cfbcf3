from pathlib import Path

import pytest

from contracts.errors import Forbidden, Unauthorized
from services.dashboard.sessions import (
    IDLE_SECONDS,
    LONGEST_SECONDS,
    MAX_SESSIONS,
    TOKEN_FILE,
    Sessions,
    check_csrf,
    check_same_origin,
    spend_token,
)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_session_lasts_while_it_is_used_but_not_for_ever() -> None:
    clock = Clock()
    sessions = Sessions(clock)
    session_id = sessions.start("app", "app 1")
    while clock.now + IDLE_SECONDS - 1 < LONGEST_SECONDS:
        clock.now += IDLE_SECONDS - 1
        assert sessions.find(session_id).role == "app"
    clock.now += IDLE_SECONDS - 1
    with pytest.raises(Unauthorized):
        sessions.find(session_id)


def test_an_idle_or_ended_or_unknown_session_is_none() -> None:
    clock = Clock()
    sessions = Sessions(clock)
    idle, ended = sessions.start("app", "a"), sessions.start("operator", "b")
    sessions.end(ended)
    clock.now += IDLE_SECONDS + 1
    for session_id in (idle, ended, "x", None):
        with pytest.raises(Unauthorized):
            sessions.find(session_id)


def test_the_oldest_session_gives_way() -> None:
    sessions = Sessions(Clock())
    first, second, *_ = [sessions.start("app", "a") for _ in range(MAX_SESSIONS + 1)]
    assert sessions.find(second)
    with pytest.raises(Unauthorized):
        sessions.find(first)


def test_a_token_works_once(tmp_path: Path) -> None:
    (tmp_path / TOKEN_FILE).write_text("abc\n")
    with pytest.raises(Unauthorized):
        spend_token(tmp_path, "abd")
    spend_token(tmp_path, "abc")
    with pytest.raises(Unauthorized):
        spend_token(tmp_path, "abc")


def test_an_empty_token_file_opens_nothing(tmp_path: Path) -> None:
    (tmp_path / TOKEN_FILE).write_text("")
    with pytest.raises(Unauthorized):
        spend_token(tmp_path, "")


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://127.0.0.1:8400", "sec-fetch-site": "same-origin"},
        {"origin": "http://127.0.0.1:8400"},
        {"sec-fetch-site": "same-origin"},
    ],
)
def test_our_own_page_may_ask(headers: dict[str, str]) -> None:
    check_same_origin({"host": "127.0.0.1:8400", **headers})


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "null"},
        {"origin": "http://evil.example", "sec-fetch-site": "cross-site"},
        {"origin": "http://evil.example"},
        {"origin": "http://127.0.0.1:8500"},
        {"origin": "http://127.0.0.1:8400", "sec-fetch-site": "same-site"},
        {"origin": "http://evil.example", "sec-fetch-site": "same-origin"},
        {"sec-fetch-site": "none"},
    ],
)
def test_no_other_page_may(headers: dict[str, str]) -> None:
    with pytest.raises(Forbidden):
        check_same_origin({"host": "127.0.0.1:8400", **headers})


def test_the_secret_of_the_page_must_come_back() -> None:
    sessions = Sessions(Clock())
    session = sessions.find(sessions.start("operator", "o"))
    check_csrf(session, session.csrf)
    for sent in (None, "", "é", session.csrf[:-1]):
        with pytest.raises(Forbidden):
            check_csrf(session, sent)
