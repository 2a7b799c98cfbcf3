import asyncio
import signal
from collections.abc import AsyncGenerator
from types import FrameType

import pytest

from runtime.settings import Settings
from services.dashboard.app import create_app


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_streams_end_at_the_signal_and_the_server_hears_it_too(small: Settings, number: signal.Signals) -> None:
    heard: list[int] = []

    def listen(sent: int, _frame: FrameType | None) -> None:
        heard.append(sent)

    before = signal.signal(number, listen)
    try:
        app = create_app(small)
        async with app.router.lifespan_context(app):
            stream = app.state.watchers.of(None).events()
            await anext(stream)
            signal.raise_signal(number)
            rest = await asyncio.wait_for(_count(stream), 2.0)
        assert signal.getsignal(number) is listen
    finally:
        signal.signal(number, before)
    assert heard == [number]
    assert rest == 1


async def _count(stream: AsyncGenerator[bytes, None]) -> int:
    return len([event async for event in stream])
