"""Which call a new call of a session goes on from, and its prompt. Keeps what the next call needs.

A call is kept under the digest of its messages and its answer. A new call looks for the longest beginning of its own messages that ends
with an answer known here. If only new messages follow, its prompt is the kept ids and the rendered new messages: token for token what
the model saw and wrote. Else the prompt is rendered from the beginning, a new branch of the session's tree, and `branch` says why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from contracts.ids import sample_key
from contracts.records import pack_ids, unpack_ids
from contracts.turns import Branch, SessionTurn
from runtime.metrics import TURNS
from runtime.replicas import SessionStore
from runtime.replicas.in_process import LocalSessionStore
from runtime.template.chat_template import ChatTemplate
from services.inference.answer import Choice
from services.inference.requests import ChatRequest
from services.inference.sessions import histories
from services.inference.sessions.suffixes import continuation_of, num_equal

PARENT_SECONDS = 900.0
"""How long a call that has a successor waits for another one: a retry, or a second branch."""
_MAX_LOOKED_UP = 64
_LONG_PROMPT = 4096
"""Tokens. What is kept of a longer one is made on another thread."""
_SHORT = 4000
"""Characters. A longer text is rendered on another thread."""
_NOTHING = histories.Setting(b"", b"")


class Turn(NamedTuple):
    """The prompt of one call, and its place in the tree of its session."""

    prompt_ids: list[int]
    session: bytes
    """Begins the names under which it is kept."""
    history: bytes
    """Digest of its messages."""
    digests: list[bytes]
    """Of each message and all before it."""
    setting: histories.Setting = _NOTHING
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
    """See the module. Belongs to one event loop. `store`: what all replicas read; `seconds`: how long a call waits for the next one."""

    def __init__(self, template: ChatTemplate, store: SessionStore, seconds: float) -> None:
        self._template = template
        self._store, self._memory = store, LocalSessionStore()
        self._seconds = seconds

    async def next(self, request: ChatRequest, tenant: str, session_id: str, *, logged: bool, task: str = "") -> Turn:
        """The turn of a chat. `logged` False: the answer may not be stored, so its session lives in the memory of this process alone.

        Raises InvalidRequest, Unsupported, ContextLengthExceeded: see `ChatTemplate.encode`.
        """
        messages, template = request.messages, self._template
        template.check_length(messages)
        options = template.options_of(request.template_variables, request.reasoning_effort)
        session = f"{tenant}\0{session_id}".encode()
        digest = partial(histories.digests_of, messages)
        digests = digest() if request.is_short else await asyncio.to_thread(digest)
        setting = histories.Setting(histories.digest_of(request.offered_tools), histories.digest_of(dict(options)))
        answers = [at for at in range(len(messages) - 1, -1, -1) if messages[at]["role"] == "assistant"]
        names = {at: histories.name_of(session, digests[at]) for at in answers[:_MAX_LOOKED_UP]}
        store = self._store if logged else self._memory
        newest, *values = await store.read([histories.name_of(session, b""), *names.values()])
        found = dict(zip(names, values, strict=True))
        parent, at, branch = histories.parent_of(messages, digests, setting, newest, found)
        turn = Turn([], session, digests[-1], digests, setting, group=request.labels.get("session_group"), task=task)
        ids: list[int] = []
        if parent is not None:
            ids, has_reasoning = unpack_ids(parent.ids), parent.has_reasoning
            turn = turn._replace(parent=parent.call, parent_name=names[at], has_reasoning=has_reasoning)
            if not branch:
                shown = messages[at:]
                follow = partial(continuation_of, template, shown, options, ids[-1], has_reasoning=has_reasoning)
                texts = (message.get("content") for message in shown[1:])
                is_short = sum(len(text) for text in texts if isinstance(text, str)) <= _SHORT
                suffix, branch = follow() if is_short else await asyncio.to_thread(follow)
                if not branch:
                    turn = turn._replace(prompt_ids=ids + suffix, parent_tokens=len(ids))
        if branch:
            made = await template.encode_chat(request, options)
            has_reasoning = any(histories.reasoning_of(message) for message in messages)
            shared = num_equal(made, ids)
            turn = turn._replace(prompt_ids=made, parent_tokens=shared, has_reasoning=has_reasoning)
        elif parent is not None and parent.task not in {"", task}:
            branch = "task_changed"
        TURNS.labels(branch or "extended").inc()
        return turn._replace(branch=branch)

    async def keep(self, turn: Turn, completion_id: str, choices: Sequence[Choice], *, logged: bool) -> None:
        """Keep what the next call needs. Call it before the answer ends."""
        make, is_long = partial(_kept, turn, completion_id, choices), len(turn.prompt_ids) > _LONG_PROMPT
        values = await asyncio.to_thread(make) if is_long else make()
        if not values:
            return
        store = self._store if logged else self._memory
        await store.write(values, self._seconds)
        if turn.parent_name:
            await store.shorten([turn.parent_name], PARENT_SECONDS)


def _kept(turn: Turn, completion_id: str, choices: Sequence[Choice]) -> dict[str, bytes]:
    """What the next call needs, by name."""
    values: dict[str, bytes] = {}
    for choice in choices:
        if not choice.tokens or choice.finish_reason not in {"stop", "length"}:
            continue
        answer = {"role": "assistant", "content": choice.text, "tool_calls": choice.calls}
        history = histories.extended(turn.history, answer)
        kept = histories.KeptCall(
            sample_key(completion_id, choice.index),
            pack_ids([*turn.prompt_ids, *(token.id for token in choice.tokens)]),
            turn.setting,
            histories.digest_of(choice.reasoning) if choice.reasoning else b"",
            turn.has_reasoning or bool(choice.reasoning),
            choice.is_closed,
            turn.task,
        )
        values[histories.name_of(turn.session, history)] = msgspec.msgpack.encode(kept)
        newest = histories.NewestCall([*turn.digests, history])
        values[histories.name_of(turn.session, b"")] = msgspec.msgpack.encode(newest)
    return values
