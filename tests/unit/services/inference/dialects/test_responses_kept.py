"""Kept responses have an owner, older releases wrote some of them, and one request reads a bounded number."""

from __future__ import annotations

import msgspec
import pytest
import zstandard

from contracts.errors import InvalidRequest
from contracts.ids import new_completion_id, response_id_of
from contracts.keys import Caller, Owner
from runtime.replicas.in_process import LocalSessionStore
from services.inference.dialects.responses_kept import MAX_READ, MAX_READ_BYTES, ResponseStore, _name

APP = Caller("k", "app", "t", frozenset())
AGENT = APP._replace(session="a")
ITEMS = [{"type": "message", "role": "user"}, {"type": "message", "role": "assistant"}]


@pytest.fixture
def sessions() -> LocalSessionStore:
    return LocalSessionStore()


@pytest.fixture
def store(sessions: LocalSessionStore) -> ResponseStore:
    return ResponseStore(sessions, 60.0)


async def test_what_was_kept_comes_back_in_its_parts(store: ResponseStore) -> None:
    answer = new_completion_id()
    await store.write(Owner("t", "a"), answer, ITEMS, 1, {"id": "r"})
    [kept] = (await store.read(AGENT, [response_id_of(answer)])).values()
    assert (kept.input, kept.output) == (ITEMS[:1], ITEMS[1:])
    assert kept.shown() == {"id": "r", "output": ITEMS[1:]}


@pytest.mark.parametrize(
    ("caller", "found"),
    [(APP, True), (AGENT, True), (APP._replace(session="b"), False), (APP._replace(tenant="u"), False)],
)
async def test_it_is_found_by_its_session_and_by_apps_of_its_tenant(
    store: ResponseStore, caller: Caller, found: bool
) -> None:
    answer = new_completion_id()
    await store.write(Owner("t", "a"), answer, ITEMS, 1, {})
    assert bool(await store.read(caller, [response_id_of(answer)])) is found


async def test_what_an_older_release_kept_belongs_to_apps(sessions: LocalSessionStore, store: ResponseStore) -> None:
    answer = new_completion_id()
    written = zstandard.compress(msgspec.msgpack.encode((ITEMS, 1, {"id": "r"})))
    await sessions.write({_name("t", answer): written}, 60.0)
    assert (await store.read(APP, [response_id_of(answer)]))[response_id_of(answer)].output == ITEMS[1:]
    assert await store.read(AGENT, [response_id_of(answer)]) == {}


async def test_a_request_reads_so_many_responses_and_bytes(store: ResponseStore) -> None:
    ids = [response_id_of(new_completion_id()) for _ in range(MAX_READ)]
    assert await store.read(APP, ids) == {}
    with pytest.raises(InvalidRequest, match="257 earlier responses, and may refer to 256"):
        await store.read(APP, [*ids, response_id_of(new_completion_id())])
    half = [{"type": "message", "text": "a" * (MAX_READ_BYTES // 2)}]  # a few hundred bytes when compressed
    large = [new_completion_id() for _ in range(2)]
    for answer in large:
        await store.write(Owner("t"), answer, half, 1, {})
    assert len(await store.read(APP, [response_id_of(large[0])])) == 1
    with pytest.raises(InvalidRequest, match="longer than 32 MiB"):
        await store.read(APP, [response_id_of(answer) for answer in large])


@pytest.mark.parametrize("value", [b"", b"junk", zstandard.compress(b"junk"), zstandard.compress(bytes(2**26))])
async def test_what_is_damaged_or_too_large_is_not_found(
    sessions: LocalSessionStore, store: ResponseStore, value: bytes
) -> None:
    answer = new_completion_id()
    await sessions.write({_name("t", answer): value}, 60.0)
    if len(value) > 100:  # it says how large it is
        with pytest.raises(InvalidRequest):
            await store.read(APP, [response_id_of(answer)])
    else:
        assert await store.read(APP, [response_id_of(answer)]) == {}
