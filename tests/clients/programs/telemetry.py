"""What the programs of Langfuse's and OpenTelemetry's SDKs share: an answer to speak of, and what their loggers say."""

from __future__ import annotations

import logging
import secrets
from typing import Any

import httpx
from cases import KEY, MODEL, URL, Refused, user

BASE = URL.removesuffix("/v1")


def ask(**fields: Any) -> str:
    """The id of an answer."""
    body = {"model": MODEL, "messages": user("Hello"), "max_tokens": 8, **fields}
    answer = httpx.post(f"{URL}/chat/completions", json=body, headers={"authorization": f"Bearer {KEY}"}, timeout=60)
    return str(answer.raise_for_status().json()["id"])


def new_trace() -> str:
    """The id of a trace."""
    return secrets.token_hex(16)


class Said(logging.Handler):
    """Keeps what the SDK's loggers complain about: it tells the app nothing else."""

    def __init__(self, *names: str) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []
        for name in names:
            logging.getLogger(name).addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`."""
        self.lines.append(record.getMessage())

    def take(self) -> str:
        """What was said since the last call."""
        lines, self.lines = self.lines, []
        return "; ".join(lines)


def refusal_of(error: Exception) -> Refused | None:
    """Of an HTTP client's error, or of Langfuse's."""
    if isinstance(error, httpx.HTTPStatusError):
        error.response.read()
        return _refused(error.response.status_code, error.response.json())
    status, body = getattr(error, "status_code", None), getattr(error, "body", None)
    return _refused(status, body) if isinstance(status, int) and isinstance(body, dict) else None


def _refused(status: int, body: dict[str, Any]) -> Refused:
    error = body["error"]
    return Refused(status, error["code"] or "", error["param"] or "", error["message"])
