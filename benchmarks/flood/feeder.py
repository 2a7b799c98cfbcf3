"""The process that takes signals in: the real writer and relay of feedback, without HTTP. Others speak at their usual pace meanwhile."""

from __future__ import annotations

import asyncio
import random
import signal as signals
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from benchmarks.flood.timing import begin_timing, save_timing
from contracts.event_log import EventLog
from contracts.records import Generation, Signal
from runtime.log.outbox import Relay
from runtime.settings import load_settings
from services.feedback.relaying import RelayThread
from services.feedback.repository import PROCESS
from services.feedback.requests import ReceivedItem
from services.feedback.writer import Submission, Writer
from tests.worlds.signals import an_answer, answer_message, signals_about

OTHER = "other"
_AT_ONCE = 1_000
_PAUSE_SECONDS = 0.1
_BYTES = 200


def feed(home: Path, num: int, num_answers: int, rate: float, quiet_seconds: float) -> None:
    """Let others speak for a while, then flood, and then let them speak until the process is told to end."""
    begin_timing()
    asyncio.run(_feed(home, num, num_answers, rate, quiet_seconds))
    save_timing(home / "feeder.json")


async def _feed(home: Path, num: int, num_answers: int, rate: float, quiet_seconds: float) -> None:
    settings = load_settings(home)
    database, log = settings.database(), settings.event_log()
    relay = RelayThread(database, Relay(PROCESS, database, log))
    relay.start()
    writer = Writer(database, relay.wake)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signals.SIGTERM, stop.set)
    others = asyncio.create_task(_speak(writer, log, stop))
    await asyncio.sleep(quiet_seconds)
    (home / "flood-begins").write_text(str(time.time()))
    flooded = [an_answer(number) for number in range(num_answers)]
    await asyncio.to_thread(log.append, [answer_message(about) for about in flooded])
    started = time.perf_counter()
    for first in range(0, num, _AT_ONCE):
        await asyncio.sleep(max(0.0, started + first / rate - time.perf_counter()))
        if stop.is_set():
            break
        await _submit(writer, await asyncio.to_thread(_a_batch, flooded, first))
    (home / "flood-ends").write_text(str(time.time()))
    await stop.wait()
    await others
    await writer.close()
    relay.stop()


def _a_batch(flooded: Sequence[Generation], first: int) -> list[Signal]:
    share = _AT_ONCE // len(flooded)
    now = time.time()
    said = (each for about in flooded for each in signals_about(about, share, first // len(flooded)))
    return [replace(each, received_at=now) for each in said]


async def _submit(writer: Writer, said: Sequence[Signal]) -> None:
    await writer.submit(Submission([ReceivedItem(each, each.id) for each in said], _BYTES * len(said)))


async def _speak(writer: Writer, log: EventLog, stop: asyncio.Event) -> None:
    chance = random.Random(0)  # noqa: S311 only varies the answers
    while not stop.is_set():
        about = an_answer(chance.getrandbits(40), OTHER)
        await asyncio.to_thread(log.append, [answer_message(about)])
        said = [replace(each, received_at=time.time()) for each in signals_about(about, 1)]
        await _submit(writer, said)
        await asyncio.sleep(_PAUSE_SECONDS)
