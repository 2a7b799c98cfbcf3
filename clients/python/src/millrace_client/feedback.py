"""What an app calls. Its calls return at once and raise nothing; only `flush` and `close` wait, for a bounded time."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Mapping
from typing import Self

from millrace_client.outbox import Counts, Outbox

FLUSH_SECONDS, CLOSE_SECONDS = 10.0, 5.0


class TrackedAnswer:
    """One answer, and what its user does with it."""

    def __init__(self, outbox: Outbox, answer: object, choice: int, user: str | None) -> None:
        self._outbox, self._answer, self._choice, self._user = outbox, answer, choice, user

    def accepted(self) -> None:
        """The user took the answer: `accepted`, true."""
        self.signal("accepted", value=True)

    def rejected(self) -> None:
        """The user refused it: `accepted`, false."""
        self.signal("accepted", value=False)

    def edited(self, text: str) -> None:
        """The user changed it into this text: `edited`."""
        self.signal("edited", text)

    def retried(self) -> None:
        """The user asked for another answer instead: `regenerated`, true."""
        self.signal("regenerated", value=True)

    def signal(self, name: str, value: bool | float | str) -> None:
        """Any signal that the answer's task declares."""
        try:
            item = {
                "id": f"fb-{uuid.uuid4()}",
                "completion_id": _id_of(self._answer),
                "choice": self._choice,
                "name": name,
                "value": value,
                "at": time.time(),
                **({} if self._user is None else {"submitter": {"id": self._user}}),
            }
            # What is no JSON, such as NaN or half of a character, would make the server refuse the signals beside it.
            self._outbox.put(json.dumps(item, ensure_ascii=False, allow_nan=False).encode())
        except Exception as error:  # noqa: BLE001 no signal is worth an error in the app
            self._outbox.refuse("unusable", f"a signal cannot be sent: {type(error).__name__}: {error}")


class _Tracker:
    """Everything but waiting. `base_url`: as of the OpenAI client, with or without `/v1`; `key`: one whose scopes include feedback."""

    def __init__(self, base_url: str, key: str) -> None:
        self._outbox = Outbox(base_url, key)

    def track(self, answer: object, *, choice: int = 0, user: str | None = None) -> TrackedAnswer:
        """Say what became of an answer.

        Args:
            answer: an answer of the OpenAI SDK, the same as a dict, or its id.
            choice: which of its choices, from 0.
            user: who says it, by an id of yours. Signals of nobody in particular weigh less where one person's weight is limited.
        """
        return TrackedAnswer(self._outbox, answer, choice, user)

    @property
    def counts(self) -> Counts:
        """What became of the signals of this process."""
        return self._outbox.counts()


class Feedback(_Tracker):
    """Sends signals from a thread of its own, which starts with the first signal."""

    def flush(self, timeout: float = FLUSH_SECONDS) -> bool:
        """Wait until everything was sent, at most `timeout` seconds. False: something still waits."""
        return self._outbox.flush(timeout)

    def close(self, timeout: float = CLOSE_SECONDS) -> bool:
        """Flush, and take no more signals. What could not be sent in `timeout` seconds is dropped. May be called twice."""
        return self._outbox.close(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncFeedback(_Tracker):
    """The same for asyncio: the thread sends here too, and waiting for it does not stop the event loop."""

    async def flush(self, timeout: float = FLUSH_SECONDS) -> bool:  # noqa: ASYNC109 it bounds a wait in a thread
        """As `Feedback.flush`."""
        return await asyncio.to_thread(self._outbox.flush, timeout)

    async def close(self, timeout: float = CLOSE_SECONDS) -> bool:  # noqa: ASYNC109 as above
        """As `Feedback.close`."""
        return await asyncio.to_thread(self._outbox.close, timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _id_of(answer: object) -> str:
    found = answer.get("id") if isinstance(answer, Mapping) else getattr(answer, "id", answer)
    if not isinstance(found, str):
        raise TypeError(f"an answer has an id, {type(answer).__name__} has none")
    return found
