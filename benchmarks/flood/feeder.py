"""The process that takes signals in: the real intake, writer and relay of feedback, without HTTP. Others speak at their usual pace meanwhile."""

from __future__ import annotations

import asyncio
import random
import signal as signals
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.flood.timing import begin_timing, save_timing
from contracts.event_log import EventLog
from contracts.keys import Caller
from contracts.records import Generation, Signal
from contracts.tasks.loading import load_tasks
from runtime.log.outbox import Relay
from runtime.settings import load_settings
from services.feedback.intake import Acknowledgement, SignalIntake
from services.feedback.repository import PROCESS
from services.feedback.writer import RelayThread, Writer
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
    intake = SignalIntake(database, load_tasks(settings.tasks), writer)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signals.SIGTERM, stop.set)
    others = asyncio.create_task(_speak(intake, log, stop))
    await asyncio.sleep(quiet_seconds)
    (home / "flood-begins").write_text(str(time.time()))
    flooded = [an_answer(number) for number in range(num_answers)]
    await asyncio.to_thread(log.append, [answer_message(about) for about in flooded])
    started, num_taken = time.perf_counter(), 0
    for first in range(0, num, _AT_ONCE):
        await asyncio.sleep(max(0.0, started + first / rate - time.perf_counter()))
        if stop.is_set():
            break
        num_taken += await _submit(intake, flooded[0].tenant, _a_batch(flooded, first))
    (home / "flood-taken").write_text(str(num_taken))
    (home / "flood-ends").write_text(str(time.time()))
    await stop.wait()
    await others
    await writer.close()
    relay.stop()


def _a_batch(flooded: Sequence[Generation], first: int) -> list[Signal]:
    share = _AT_ONCE // len(flooded)
    return [each for about in flooded for each in signals_about(about, share, first // len(flooded))]


async def _submit(intake: SignalIntake, tenant: str, said: Sequence[Signal]) -> int:
    """Send signals as an app does; returns how many were taken in."""
    items = [
        {
            "id": each.id,
            "completion_id": each.completion_id,
            "name": each.name,
            "value": each.value,
            "submitter": {"id": each.submitter.id},
        }
        for each in said
    ]
    caller = Caller("none", "app", tenant, frozenset({"feedback"}))
    results = await intake.submit(items, caller, _BYTES * len(said))
    return sum(isinstance(result, Acknowledgement) for result in results)


async def _speak(intake: SignalIntake, log: EventLog, stop: asyncio.Event) -> None:
    chance = random.Random(0)  # noqa: S311 only varies the answers
    while not stop.is_set():
        about = an_answer(chance.getrandbits(40), OTHER)
        await asyncio.to_thread(log.append, [answer_message(about)])
        await _submit(intake, OTHER, list(signals_about(about, 1)))
        await asyncio.sleep(_PAUSE_SECONDS)
