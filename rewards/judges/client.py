"""Asks one model behind an OpenAI-compatible endpoint. Waits for: the reply, at most the rule's time for each try.

Only errors that may pass are tried again, with jitter: 429, 5xx, timeouts and broken connections. The first request uses all
fields. If it is refused as a bad request, it is repeated with fewer, and the form that worked is remembered.
"""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Literal, NamedTuple

import httpx

from contracts.tasks.judges import JudgeEndpoint, JudgeRule
from rewards.judges.parse import ReplyToken
from rewards.judges.prompt import Messages, schema_of
from runtime.circuit import CircuitBreaker

MAX_FAILURES = 3
FIRST_AWAY_SECONDS = 15.0
"""Before a judge that failed so often in a row is tried again; see `CircuitBreaker`."""
_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 20.0
_MAX_BYTES = 4_000_000
_SERVER_ERROR = 500
_NUM_ALTERNATIVES = 10


def new_breaker(endpoint: JudgeEndpoint, clock: Callable[[], float] = time.monotonic) -> CircuitBreaker:
    """A judge that is away is tried again now and then, not for every sample."""
    return CircuitBreaker(
        f"judge {endpoint.model} at {endpoint.url}",
        max_failures=MAX_FAILURES,
        first_pause_seconds=FIRST_AWAY_SECONDS,
        longest_pause_seconds=240.0,
        clock=clock,
    )


Kind = Literal["busy", "away", "closed", "refused", "odd"]
_KINDS: Mapping[int, Kind] = {429: "busy", 400: "refused", 422: "refused", 401: "closed", 403: "closed", 404: "closed"}


class Reply(NamedTuple):
    """What a model said, and how many tokens it used."""

    content: str
    tokens: tuple[ReplyToken, ...]
    num_input: int
    num_output: int


class NoReply(NamedTuple):
    """Why there is no reply. `busy`: the server is overloaded. `away`: it failed or does not answer in time.

    `closed`: nobody is there, or the key or name is wrong. `refused`: by the model, by a filter, or as a bad request; the
    content of the request may be the cause.
    """

    reason: str
    kind: Kind = "odd"
    after_seconds: float = 0.0
    """The pause that the server asked for."""


class JudgeClient:
    """One endpoint. Safe for threads; `http` is shared and belongs to the caller."""

    def __init__(
        self,
        rule: JudgeRule,
        endpoint: JudgeEndpoint,
        http: httpx.Client,
        *,
        key: str | None = None,
        breaker: CircuitBreaker | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.endpoint = endpoint
        self._rule, self._http, self._sleep = rule, http, sleep
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        self._breaker = breaker or new_breaker(endpoint)
        self._jitter = random.Random()  # noqa: S311 spreads retries
        self._rung, self._is_settled = 0, False
        self._timeout = httpx.Timeout(rule.read_seconds, connect=rule.connect_seconds)

    def ask(self, messages: Messages, *, brief: bool = False) -> Reply | NoReply:
        """Ask, with at most `retries` more tries. `brief`: the schema has no field for a reason."""
        found = NoReply("it does not answer; it is asked again from time to time", "away")
        for attempt in range(self._rule.retries + 1):
            if not self._breaker.allows():
                break
            outcome = self._try(messages, brief)
            if isinstance(outcome, Reply):
                return outcome
            found = outcome
            pause = max(found.after_seconds, _FIRST_PAUSE_SECONDS * 2**attempt * self._jitter.uniform(0.5, 1.5))
            is_last = attempt == self._rule.retries or pause > _LONGEST_PAUSE_SECONDS
            if found.kind not in {"busy", "away"} or is_last or self._breaker.is_open:
                break
            self._sleep(pause)
        if found.kind not in {"busy", "away", "closed"}:
            return found
        return found._replace(reason=f"{self.endpoint.model}: {found.reason}")

    def _try(self, messages: Messages, brief: bool) -> Reply | NoReply:
        try:
            outcome = self._climb_down(messages, brief)
        except (httpx.TimeoutException, httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError) as error:
            outcome = NoReply(f"{type(error).__name__}: {error}", "away")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            self._breaker.failed(str(error))
            return NoReply(f"{type(error).__name__}: {error}", "closed")
        except BaseException:
            self._breaker.failed("interrupted")
            raise
        if isinstance(outcome, NoReply) and outcome.kind in {"away", "closed"}:
            self._breaker.failed(outcome.reason)
        else:
            self._breaker.succeeded()
        return outcome

    def _climb_down(self, messages: Messages, brief: bool) -> Reply | NoReply:
        rungs = self._rungs(brief)
        for rung in range(self._rung, len(rungs)):
            status, headers, body = self._post({"messages": messages, **rungs[rung]})
            if _KINDS.get(status) == "refused" and rung + 1 < len(rungs) and b"context_length" not in body:
                continue
            if status == httpx.codes.OK and not self._is_settled:
                # Settled once, so that no later answer can make the endpoint give up its schema.
                self._rung, self._is_settled = rung, True
            break
        return _read(status, headers, body)

    def _rungs(self, brief: bool) -> list[dict[str, Any]]:
        """Request bodies without messages, from the one with all fields to one that every server accepts."""
        rule = self._rule
        longest = {} if "max_completion_tokens" in rule.request else {"max_tokens": rule.max_tokens}
        bare = {"model": self.endpoint.model, "temperature": rule.temperature, **longest, **rule.request}
        # If the endpoint is a Millrace, it must not log verdicts and learn from them.
        plain = {**bare, "store": False}
        schema = {"name": "verdict", "strict": True, "schema": schema_of(rule.scale, brief=brief)}
        strict = {**plain, "response_format": {"type": "json_schema", "json_schema": schema}}
        weighed = {**strict, "logprobs": True, "top_logprobs": _NUM_ALTERNATIVES}
        return [*([weighed] if rule.expected_level else []), strict, plain, bare]

    def _post(self, body: Mapping[str, Any]) -> tuple[int, httpx.Headers, bytes]:
        """Status, headers and body. The deadline is for the whole reply, however slowly it arrives."""
        deadline = time.monotonic() + self._rule.read_seconds + self._rule.connect_seconds
        url = f"{self.endpoint.url.rstrip('/')}/chat/completions"
        content = b""
        with self._http.stream("POST", url, json=body, headers=self._headers, timeout=self._timeout) as response:
            for chunk in response.iter_bytes():
                content += chunk
                if time.monotonic() > deadline or len(content) > _MAX_BYTES:
                    raise httpx.ReadTimeout("the reply does not end", request=response.request)
            return response.status_code, response.headers, content


def _read(status: int, headers: httpx.Headers, body: bytes) -> Reply | NoReply:
    if status == httpx.codes.OK:
        return _completion(body)
    reason = f"HTTP {status}: {' '.join(body[:300].decode(errors='replace').split())[:150]}"
    kind: Kind = _KINDS.get(status, "away" if status >= _SERVER_ERROR else "odd")
    return NoReply(reason, kind, _seconds_after(headers.get("retry-after", "")))


def _completion(body: bytes) -> Reply | NoReply:
    try:
        content = json.loads(body)
        choice = content["choices"][0]
        message = choice["message"]
        if message.get("refusal"):
            return NoReply(f"it refused: {str(message['refusal'])[:100]}", "refused")
        text = message.get("content") or ""
        if isinstance(text, list):
            text = "".join(str(part.get("text", "")) for part in text)
        usage = content.get("usage") or {}
        tokens = _tokens((choice.get("logprobs") or {}).get("content") or [])
        return Reply(str(text), tokens, int(usage.get("prompt_tokens") or 0), int(usage.get("completion_tokens") or 0))
    except (ValueError, LookupError, TypeError, AttributeError):
        return NoReply("its reply is not a chat completion")


def _tokens(items: list[Any]) -> tuple[ReplyToken, ...]:
    return tuple(
        ReplyToken(
            item["token"],
            {other["token"]: float(other["logprob"]) for other in (item, *(item.get("top_logprobs") or []))},
        )
        for item in items
    )


def _seconds_after(value: str) -> float:
    """`retry-after`: seconds, or a date; 0 if it is neither."""
    with contextlib.suppress(ValueError):
        return max(0.0, float(value))
    with contextlib.suppress(ValueError):
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    return 0.0
