"""How simulated users send a signal: until it is acknowledged or refused."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

import httpx

RETRY_SECONDS, LAST_TRY_SECONDS = 0.5, 60.0


async def send_signal(feedback: httpx.AsyncClient, body: Mapping[str, object]) -> str:
    """Why a signal was not taken; empty if it was. Its `id` makes a second try harmless."""
    give_up, reason = time.monotonic() + LAST_TRY_SECONDS, ""
    while time.monotonic() < give_up:
        try:
            answer = await feedback.post("/v1/feedback", json=body)
        except httpx.TransportError as error:
            reason = f"{type(error).__name__}: {error}"
        else:
            if answer.is_success:
                return ""
            reason = answer.text
            if answer.is_client_error:
                break
        await asyncio.sleep(RETRY_SECONDS)
    return reason
