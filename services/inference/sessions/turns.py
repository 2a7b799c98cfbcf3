"""Which call a new call of a session goes on from, and its prompt. Keeps what the next call needs.

A call is kept under the digest of its messages and its answer. A new call looks for the longest beginning of its own messages that ends
with an answer known here. If only new messages follow, its prompt is the kept ids and the rendered new messages: token for token what
the model saw and wrote. Else the prompt is rendered from the beginning, a new branch of the session's tree, and `branch` says why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

from contracts.ids import sample_key
from contracts.records import pack_ids, unpack_ids
from contracts.turns import Branch, SessionTurn
from runtime.metrics import TURNS
from runtime.replicas import SessionStore
from runtime.replicas.in_process import LocalSessionStore
from services.inference.answer import Choice
from services.inference.requests import ChatRequest
from services.inference.sessions.histories import digest_of, digests_of, extended, reasoning_of
from services.inference.sessions.kept import (
    CallHistory,
    KeptCall,
    NewestCall,
    Setting,
    branch_from,
    branch_without,
    read_kept,
)
from services.inference.sessions.suffixes import keeps_reasoning, suffix_of
from services.inference.template.chat_template import ChatTemplate

PARENT_SECONDS = 900.0
"""How long a call that has a successor waits for another one: a retry, or a second branch."""
_MAX_LOOKED_UP = 64
_LONG_PROMPT = 4096
"""Tokens. What is kept of a longer one is made on another thread."""
_SHORT = 4000
"""Characters. A longer text is rendered on another thread."""
_NOTHING = Setting(b"", b"")


class Turn(NamedTuple):
    """The prompt of one call, and its place in the tree of its session."""

    prompt_ids: list[int]
    session: bytes
    """Begins the names under which it is kept."""
    history: bytes
    """Digest of its messages."""
    digests: list[bytes]
    """Of each message and all before it."""
    setting: Setting = _NOTHING
    parent: str | None = None
    """The sample key of the call that it goes on from, or branches off; None: of none that is known."""
    parent_name: str = ""
    parent_tokens: int = 0
    """With how many tokens of the parent's prompt and answer its prompt begins."""
    branch: Branch = ""
    """Why its prompt was rendered anew; empty: it is all tokens of the parent, then new messages."""
    has_reasoning: bool = False
    group: str | None = None
    """Of its session."""
    task: str = ""

    @property
    def place(self) -> SessionTurn:
        """As it is logged."""
        return SessionTurn(self.parent, self.parent_tokens, self.branch, self.group)


class Turns:
    """See the module. Belongs to one event loop.

    Args:
        template: renders what is new.
        store: what all replicas read.
        seconds: how long a call waits for the next one.
    """

    def __init__(self, template: ChatTemplate, store: SessionStore, seconds: float) -> None:
        self._template = template
        self._store = store
        self._seconds = seconds
        self._memory = LocalSessionStore()

    async def next(
        self,
        request: ChatRequest,
        tenant: str,
        session_id: str,
        *,
        logged: bool,
        task: str = "",
    ) -> Turn:
        """The turn of a chat.

        `logged` False: the answer may not be stored, so its session lives in the memory of this process alone.

        Raises:
            InvalidRequest, Unsupported, ContextLengthExceeded: see `ChatTemplate.encode`.
        """
        messages, is_short, template = request.messages, request.is_short, self._template
        template.check_length(messages)
        options = template.options_of(request.template_variables, request.reasoning_effort)
        digests = digests_of(messages) if is_short else await asyncio.to_thread(digests_of, messages)
        session = f"{tenant}\0{session_id}".encode()
        turn = Turn(
            [], session, digests[-1], digests, Setting(digest_of(request.offered_tools), digest_of(dict(options)))
        )._replace(group=request.labels.get("session_group"), task=task)
        answers = [at for at in range(len(messages) - 1, -1, -1) if messages[at]["role"] == "assistant"]
        names = {at: _name(session, digests[at]) for at in answers[:_MAX_LOOKED_UP]}
        last, *values = await self._place(logged=logged).read([_name(session, b""), *names.values()])
        newest = read_kept(NewestCall, last)
        history = CallHistory(messages, digests, newest.digests if newest else [])
        calls = ((at, read_kept(KeptCall, value)) for at, value in zip(names, values, strict=True))
        at, kept = next(((at, call) for at, call in calls if call is not None), (-1, None))
        if kept is None:
            turn = turn._replace(branch=branch_without(history))
            return await self._rendered(turn, request, options, [])
        branch, ids = branch_from(kept, at, history, turn.setting), unpack_ids(kept.ids)
        turn = turn._replace(branch=branch, parent=kept.call, parent_name=names[at])
        if not turn.branch:
            turn = await self._continued(turn, kept, ids, messages[at:], options)
        if turn.branch:
            return await self._rendered(turn, request, options, ids)
        return _counted(turn if kept.task in {"", task} else turn._replace(branch="task_changed"))

    async def keep(self, turn: Turn, completion_id: str, choices: Sequence[Choice], *, logged: bool) -> None:
        """Keep what the next call needs. Call it before the answer ends."""
        is_long = len(turn.prompt_ids) > _LONG_PROMPT
        values = (
            await asyncio.to_thread(_kept, turn, completion_id, choices)
            if is_long
            else _kept(turn, completion_id, choices)
        )
        if not values:
            return
        store = self._place(logged=logged)
        await store.write(values, self._seconds)
        if turn.parent_name:
            await store.shorten([turn.parent_name], PARENT_SECONDS)

    def _place(self, *, logged: bool) -> SessionStore:
        return self._store if logged else self._memory

    async def _continued(
        self, turn: Turn, kept: KeptCall, ids: list[int], shown: list[dict[str, Any]], options: Mapping[str, Any]
    ) -> Turn:
        """The turn with the kept ids and those of the new messages. `shown`: the answer of the kept call, and what follows it."""
        answer, *new = shown

        def render() -> Turn:
            if kept.has_reasoning and not keeps_reasoning(self._template, answer, new, options):
                return turn._replace(branch="reasoning_dropped")
            suffix = suffix_of(self._template, answer, new, options, ids[-1])
            if suffix is None:
                return turn._replace(branch="template")
            return turn._replace(prompt_ids=ids + suffix, parent_tokens=len(ids), has_reasoning=kept.has_reasoning)

        return render() if _is_short(new) else await asyncio.to_thread(render)

    async def _rendered(
        self, turn: Turn, request: ChatRequest, options: Mapping[str, Any], parent: Sequence[int]
    ) -> Turn:
        ids = await self._template.encode_chat(request, options)
        rendered = turn._replace(
            prompt_ids=ids,
            parent_tokens=_num_equal(ids, parent),
            has_reasoning=any(reasoning_of(message) for message in request.messages),
        )
        return _counted(rendered)


def _kept(turn: Turn, completion_id: str, choices: Sequence[Choice]) -> dict[str, bytes]:
    """What the next call needs, by name."""
    values: dict[str, bytes] = {}
    for choice in choices:
        if not choice.tokens or choice.finish_reason not in {"stop", "length"}:
            continue
        answer = {"role": "assistant", "content": choice.text, "tool_calls": choice.calls}
        history = extended(turn.history, answer)
        kept = KeptCall(
            sample_key(completion_id, choice.index),
            pack_ids([*turn.prompt_ids, *(token.id for token in choice.tokens)]),
            turn.setting,
            digest_of(choice.reasoning) if choice.reasoning else b"",
            turn.has_reasoning or bool(choice.reasoning),
            choice.is_closed,
            turn.task,
        )
        values[_name(turn.session, history)] = msgspec.msgpack.encode(kept)
        values[_name(turn.session, b"")] = msgspec.msgpack.encode(NewestCall([*turn.digests, history]))
    return values


def _counted(turn: Turn) -> Turn:
    TURNS.labels(turn.branch or "extended").inc()
    return turn


def _name(session: bytes, history: bytes) -> str:
    return "turn:" + blake2b(session + b"\0" + history, digest_size=16).hexdigest()


def _is_short(messages: Sequence[Mapping[str, Any]]) -> bool:
    texts = (message.get("content") for message in messages)
    return sum(len(text) for text in texts if isinstance(text, str)) <= _SHORT


def _num_equal(one: Sequence[int], other: Sequence[int]) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
