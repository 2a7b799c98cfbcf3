"""A support agent: an ordinary loop over the `openai` SDK that runs the tools which the model calls, over HTTP.

In: what a customer wrote. Out: the reply, and the answers that led to it. Nothing here is about learning: the session's id is all that is
told.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import httpx
import openai

from examples.support.shop import OFFERED

MOST_CALLS = 6
"""After so many answers it gives up."""


class AgentAnswer(NamedTuple):
    """One answer of the model. `version`: None if nobody can tell which one made it. `at`: UTC epoch seconds."""

    completion_id: str
    version: int | None
    at: float


class Worked(NamedTuple):
    """How a session went. `reply` empty: the agent gave up."""

    reply: str
    answers: list[AgentAnswer]


class Agent:
    """Works with one tool server.

    Args:
        client: of the endpoint.
        tools: of the tool server.
        task: of its sessions.
        offered: the tools, as a request offers them.
        most_calls: after so many answers it gives up.
        fields: what every request has, such as the model.
    """

    def __init__(
        self,
        client: openai.AsyncOpenAI,
        tools: httpx.AsyncClient,
        *,
        task: str = "support",
        offered: Sequence[dict[str, Any]] = OFFERED,
        most_calls: int = MOST_CALLS,
        **fields: Any,
    ) -> None:
        self._client, self._tools, self._fields = client, tools, fields
        self._task, self._most_calls = task, most_calls
        self._offered: list[Any] = [*offered]

    async def work(self, text: str, session_id: str) -> Worked:
        """Answer a customer. Raises openai.OpenAIError, httpx.TransportError: the endpoint, or a tool, could not be reached."""
        messages: list[Any] = [{"role": "user", "content": text}]
        answers: list[AgentAnswer] = []
        metadata = {"session_id": session_id, "task": self._task}
        while len(answers) < self._most_calls:
            answer: Any = await self._client.chat.completions.create(
                messages=messages, tools=self._offered, metadata=metadata, **self._fields
            )
            answers.append(AgentAnswer(answer.id, answer.policy_version, time.time()))
            message = answer.choices[0].message
            if not message.tool_calls:
                return Worked(message.content or "", answers)
            messages.append(message.model_dump(exclude_none=True))
            for call in message.tool_calls:
                result = await self._tools.post(f"/tools/{call.function.name}", content=call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result.text})
        return Worked("", answers)
