"""Signatures against the receivers' own library, and the secret of a home."""

from __future__ import annotations

import base64
import stat
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from standardwebhooks import Webhook, WebhookVerificationError

from contracts.errors import InvalidSettings
from pipelines.release.webhooks.messages import (
    FILE_NAME,
    VARIABLE,
    WebhookEvent,
    make_event,
    read_secret,
    signed_headers,
)
from pipelines.release.webhooks.settings import WebhookSettings
from tests.each_case import each_case
from tests.worlds.release.receiver import SECRET, SECRET_TEXT

WORDS = st.dictionaries(st.text(), st.text() | st.floats(allow_nan=False, allow_infinity=False) | st.none(), max_size=4)


@given(content=WORDS, message_id=st.text("abcdef0123456789_", min_size=1, max_size=64))
def test_receivers_accept_the_signature(content: dict[str, object], message_id: str) -> None:
    body = WebhookEvent(message_id, content).body
    assert Webhook(SECRET_TEXT).verify(body, signed_headers(SECRET, message_id, time.time(), body)) == content


@pytest.mark.parametrize("changed", ["body", "webhook-id", "webhook-timestamp", "webhook-signature"])
def test_receivers_refuse_what_was_changed(changed: str) -> None:
    body = b'{"a": 1}'
    headers = signed_headers(SECRET, "msg_1", time.time(), body)
    if changed == "webhook-timestamp":
        headers[changed] = str(int(headers[changed]) - 1)
    elif changed == "webhook-signature":
        headers[changed] = f"v1,{base64.b64encode(bytes(32)).decode()}"
    elif changed == "webhook-id":
        headers[changed] = "msg_2"
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET_TEXT).verify(b'{"a": 2}' if changed == "body" else body, headers)


def test_an_event_has_a_time_that_every_receiver_reads_and_an_id_of_its_own() -> None:
    event = make_event("arm.moved", ("p", "live", 3), 1_800_000_000.25, {"reason": "größer"})
    assert event.body == (
        '{"data": {"reason": "größer"}, "timestamp": "2027-01-15T08:00:00.250Z", "type": "arm.moved"}'.encode()
    )
    same = make_event("arm.moved", ("p", "live", 3), 1.0, {})
    assert same.id == event.id
    assert len({event.id, make_event("arm.moved", ("p", "live", 4), 1.0, {}).id}) == 2
    assert len(event.id) <= 64


def test_a_home_gets_a_secret_that_only_its_owner_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    made = read_secret(tmp_path)
    assert len(made) == 32
    assert read_secret(tmp_path) == made
    path = tmp_path / FILE_NAME
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    body = b"{}"
    assert Webhook(path.read_text().strip()).verify(body, signed_headers(made, "msg_1", time.time(), body)) == {}
    monkeypatch.setenv(VARIABLE, SECRET_TEXT)
    assert read_secret(tmp_path) == SECRET


@pytest.mark.parametrize(
    "text", ["", "secret", "whsec_", "whsec_c2hvcnQ=", f"whsec_{'A' * 200}", SECRET_TEXT[6:], "whsec_ü"]
)
def test_a_secret_that_is_none_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE_NAME).write_text(text)
    with pytest.raises(InvalidSettings, match=r"webhook.secret has no secret for webhooks"):
        read_secret(tmp_path)


@each_case(
    ("urls", "says"),
    [
        (["ftp://a.example/x"], "is not a URL that begins with http"),
        (["a.example"], "is not a URL"),
        (["https://"], "is not a URL"),
        (["https://a b"], "is not a URL"),
        (["https://[::1"], "is not a URL"),
        (["https://[::1]x/"], "is not a URL"),
        (["https://a\x7f/"], "is not a URL"),
        (["https://ü.example"], "is not a URL"),
        ([f"https://a.example/{'x' * 2000}"], "is not a URL"),
        (["https://user:word@a.example"], "name or password"),
        (["https://a.example", "https://a.example"], "named twice"),
        ([f"https://a.example/{number}" for number in range(17)], "at most 16"),
    ],
)
def test_urls_that_cannot_be_meant_are_refused(urls: list[str], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        WebhookSettings(urls=tuple(urls))


def test_urls_of_this_machine_and_of_others_are_the_operators_choice() -> None:
    urls = ("http://127.0.0.1:8080/hook?a=1", "https://hooks.example/x", "http://[::1]:1/")
    assert WebhookSettings(urls=urls).urls == urls
