"""`http`: a reward server, asked with `POST {"prompts": [...], "completions": [...], ...} -> {"rewards": [...]}`.

The other keys are the columns of `columns.py`. A null reward leaves the answer unlabelled. A failed request counts as our fault
and gives no reward: after the last retry, or at once if the server's answer is invalid.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import httpx
from pydantic import Field

from contracts.errors import InvalidTask
from rewards.verifiers.check import Answer, BatchVerifier, Check, Context, broken, read_config
from rewards.verifiers.database.columns import ColumnsConfig, checks_of, columns_of, in_batches

VERSION = 2

_TRY_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
_REFUSED = frozenset({400, 413, 422})
"""The content was refused. One answer may be the cause, so the others are sent again one by one."""
_MAX_BYTES = 8 << 20
_MAX_PAUSE_SECONDS = 10.0


class HttpConfig(ColumnsConfig):
    """The server and how to call it."""

    url: str = Field(pattern=r"^https?://[^\s/]+")
    """The URL of the POST."""
    headers_env: dict[str, str] = Field(default_factory=dict)
    """Maps a header to the environment variable with its value, for example `Authorization = "REWARD_TOKEN"`."""
    retries: int = Field(default=2, ge=0, le=2)
    """The number of retries after 408, 425, 429, 5xx, or no answer within the deadline."""
    pause_seconds: float = Field(default=0.5, gt=0, le=10)
    """The longest pause before the first retry; before the second, twice that. The length is random, so that callers spread out."""


class _Failed(NamedTuple):
    reason: str
    is_about_content: bool = False
    can_retry: bool = False
    pause_seconds: float = 0.0
    """The pause that the server asked for."""


def build(config: Mapping[str, Any], context: Context = Context()) -> BatchVerifier:  # noqa: B008 immutable
    """See `Builder`."""
    rule = read_config(HttpConfig, config)
    if absent := sorted(name for name in rule.headers_env.values() if not os.environ.get(name)):
        raise InvalidTask(f"the environment has no {absent[0]}; set it where rewards run", param="headers_env")
    headers = {header: os.environ[name] for header, name in rule.headers_env.items()}
    server = _Server(httpx.Client(headers=headers, timeout=context.deadline_seconds), rule, context.deadline_seconds)
    return in_batches(rule, lambda batches: map(server.ask, batches))


class _Server:
    """A client of the reward server. Safe to use from many threads."""

    def __init__(self, client: httpx.Client, rule: HttpConfig, deadline_seconds: float) -> None:
        self._client, self._rule, self._deadline = client, rule, deadline_seconds

    def ask(self, answers: Sequence[Answer]) -> list[Check]:
        """One check for each answer."""
        found = self._asked(answers)
        if isinstance(found, list):
            return found
        if len(answers) > 1 and found.is_about_content:
            return [self.ask([answer])[0] for answer in answers]
        return [broken(found.reason)] * len(answers)

    def _asked(self, answers: Sequence[Answer]) -> list[Check] | _Failed:
        columns, attempt = columns_of(answers, self._rule), 0
        while isinstance(found := self._post(columns), _Failed):
            if not found.can_retry or attempt == self._rule.retries:
                return found
            longest = self._rule.pause_seconds * 2**attempt
            time.sleep(min(_MAX_PAUSE_SECONDS, found.pause_seconds + random.uniform(0, longest)))  # noqa: S311 no secret
            attempt += 1
        checks = checks_of(found["rewards"], len(answers), self._rule)
        return checks if isinstance(checks, list) else _Failed(checks)

    def _post(self, columns: Mapping[str, Any]) -> dict[str, Any] | _Failed:
        end = time.monotonic() + self._deadline
        body = bytearray()
        try:
            with self._client.stream("POST", self._rule.url, json=columns) as response:
                for part in response.iter_bytes():
                    body += part
                    if len(body) > _MAX_BYTES:
                        return _Failed(f"the server answered more than {_MAX_BYTES} bytes")
                    # The client's timeout applies to each read, so a slow stream would never reach it.
                    if time.monotonic() > end:
                        raise httpx.ReadTimeout("the answer was not complete")
        except httpx.TimeoutException as error:
            reason = f"the server did not answer within {self._deadline:g} s ({type(error).__name__})"
            return _Failed(reason, can_retry=True)
        except httpx.HTTPError as error:
            return _Failed(f"{type(error).__name__}: {error}", can_retry=isinstance(error, httpx.TransportError))
        return _read(response, bytes(body))


def _read(response: httpx.Response, body: bytes) -> dict[str, Any] | _Failed:
    status = response.status_code
    if not response.is_success:
        return _Failed(
            f"the server answered {status}: {body[:100].decode(errors='replace')}",
            is_about_content=status in _REFUSED,
            can_retry=status in _TRY_AGAIN,
            pause_seconds=float(told) if (told := response.headers.get("retry-after", "")).isdecimal() else 0.0,
        )
    try:
        found = httpx.Response(status, content=body).json()
    except (ValueError, RecursionError):
        return _Failed("the server's answer is not JSON")
    if not isinstance(found, dict) or "rewards" not in found:
        return _Failed('the server\'s answer is not {"rewards": [...]}')
    return found
