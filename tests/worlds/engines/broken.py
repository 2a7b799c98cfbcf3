"""A gateway whose engine is broken: the real inference service over loopback, asked by the openai SDK.

Flows in: the case that the engine plays. Flows out: what is wrong with what the client got, or with what was logged. Waits for: the
SDK, at most a few seconds.
"""

from __future__ import annotations

import asyncio
import json
import re
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import openai

from contracts.event_log import EventLog
from contracts.keys import create_key
from contracts.records import Generation, decode, unpack_floats
from contracts.topics import GENERATIONS
from runtime.days import migrate
from runtime.settings import Settings
from services.inference.app import create_app
from tests.adversary.attacks.cases.broken_answers import GOOD, TOKEN_LOGPROB, BrokenAnswer, status
from tests.unit.services.serving import serve
from tests.worlds.paths import EXAMPLE

PATIENCE_SECONDS, SILENCE_SECONDS = 0.5, 0.25
_DRIP_SECONDS = 0.02
_SOON_SECONDS = 5.0
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_STATE = {
    "status": "serving",
    "engine": "broken/1",
    "dtype": "float32",
    "instance": "the only one",
    "versions": {"live": 1},
}


class BrokenEngine:
    """Plays `case` to whoever asks for a completion. Serves in a thread of its own, from `start` to `stop`."""

    def __init__(self) -> None:
        self.case = GOOD
        self.asked: list[dict[str, Any]] = []
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="broken-engine")

    def start(self) -> None:
        """Listen."""
        self._thread.start()
        self._ready.wait()

    def stop(self) -> None:
        """Cut everything off."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        server.close()
        self._loop.run_until_complete(asyncio.sleep(0.01))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                found = _LENGTH.search(head)
                body = await reader.readexactly(int(found[1]) if found else 0)
                if not head.startswith(b"POST "):
                    writer.write(status(200, json.dumps(_STATE)))
                    continue
                self.asked.append(json.loads(body))
                if not await _play(self.case, reader, writer):
                    break
        writer.close()


async def _play(case: BrokenAnswer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Answer one request; True if the connection may go on."""
    if case.ending == "reset":
        return False
    if case.head is not None:
        writer.write(case.head)
    for part in case.says:
        writer.write(part if case.head is None else b"%x\r\n%s\r\n" % (len(part), part))
        await writer.drain()
    if case.ending == "silent":
        await reader.read()  # until the client has enough
    while case.ending == "dripping" and not reader.at_eof():
        writer.write(case.drips if case.head is None else b"%x\r\n%s\r\n" % (len(case.drips), case.drips))
        await writer.drain()
        await asyncio.sleep(_DRIP_SECONDS)
    if case.ending == "whole" and case.head is not None:
        writer.write(b"0\r\n\r\n")
    return case.ending == "whole"


class Gateway:
    """The real service, and an app that asks it."""

    def __init__(self, engine: BrokenEngine, log: EventLog, url: str, key: str) -> None:
        self._engine = engine
        self._log = log
        self._client = openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=10.0)
        self._num_logged = 0

    def close(self) -> None:
        """Close the app's connections."""
        self._client.close()

    def trouble(self, case: BrokenAnswer, *, stream: bool) -> str | None:
        """Ask an engine that plays this case; what is wrong with the error or the record, or None."""
        self._engine.case, num_asked = case, len(self._engine.asked)
        error, text = self._ask(stream=stream, num_retries=0)
        num_asked = len(self._engine.asked) - num_asked
        if error is None:
            return f"the client got {text!r} and no error"
        problems = [*_wrong_error(case, error, text, stream=stream), *self._wrong_log(case)]
        if num_asked != case.num_asked and case.num_asked:
            problems.append(f"the engine was asked {num_asked} times")
        return "; ".join(problems) or None

    def trouble_with_retries(self, case: BrokenAnswer, num_asked: int) -> str | None:
        """Ask with the SDK's own retries on; what is wrong if the engine was asked another number of times."""
        self._engine.case, before = case, len(self._engine.asked)
        error, _ = self._ask(stream=False, num_retries=2)
        asked = len(self._engine.asked) - before
        return None if error is not None and asked == num_asked else f"the engine was asked {asked} times: {error}"

    def serves(self) -> bool:
        """A whole answer comes through, and is logged as one."""
        self._engine.case = GOOD
        error, text = self._ask(stream=False, num_retries=0)
        return error is None and bool(text) and [item.finish_reason for item in self._logged(1)] == ["stop"]

    def _ask(self, *, stream: bool, num_retries: int) -> tuple[openai.APIError | None, str]:
        text = ""
        client = self._client.with_options(max_retries=num_retries)
        try:
            answer: Any = client.chat.completions.create(
                model="attacked", messages=[{"role": "user", "content": "a table for 4"}], stream=stream
            )
            if not stream:
                return None, answer.choices[0].message.content
            for chunk in answer:
                text += chunk.choices[0].delta.content or ""
        except openai.APIError as error:
            return error, text
        return None, text

    def _wrong_log(self, case: BrokenAnswer) -> Iterator[str]:
        logged = self._logged(min(1, case.num_tokens))
        if case.num_tokens == 0:
            if logged:
                yield f"{len(logged)} generations were logged of an answer that has no token"
            return
        if [item.finish_reason for item in logged] != ["error"]:
            yield f"it was logged as {[item.finish_reason for item in logged]}"
            return
        said = unpack_floats(logged[0].open().logprobs)
        if said != [TOKEN_LOGPROB] * len(said) or len(said) != case.num_tokens:
            yield f"it was logged with the log-probs {said}"

    def _logged(self, least: int) -> list[Generation]:
        """What was logged since the last look, once it is `least`."""
        deadline = time.monotonic() + _SOON_SECONDS
        while True:
            places = range(4)
            records = [item for place in places for item in self._log.read(GENERATIONS, place, 0, 10_000)]
            if len(records) >= self._num_logged + least or time.monotonic() > deadline:
                break
            time.sleep(0.005)
        found = sorted(records, key=lambda item: item.appended_at)[self._num_logged :]
        self._num_logged = len(records)
        return [decode(Generation, item.value) for item in found]


def _wrong_error(case: BrokenAnswer, error: openai.APIError, text: str, *, stream: bool) -> Iterator[str]:
    is_begun = stream and case.num_tokens > 0
    wanted = openai.APIError if is_begun else case.raises
    if type(error) is not wanted:
        yield f"the SDK raised {type(error).__name__}, not {wanted.__name__}: {error}"
    if error.code != case.code:
        yield f"the code is {error.code}, not {case.code}"
    if not re.search(case.match, error.message):
        yield f"the message says {error.message!r}"
    if is_begun and not text:
        yield "what was made before was not shown"
    if isinstance(error, openai.APIStatusError):
        if case.retry_after is not None and error.response.headers.get("retry-after") != case.retry_after:
            yield f"retry-after is {error.response.headers.get('retry-after')}"
        if (case.code == "engine_silent") != (error.response.headers.get("x-should-retry") == "false"):
            yield "only a silent engine must not be asked again by the SDK"


@contextmanager
def gateway() -> Iterator[Gateway]:
    """A home in a new folder, its inference service, and a broken engine behind it."""
    engine = BrokenEngine()
    engine.start()
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(
            home=Path(folder),
            run="attack",
            policy="attacked",
            base=str(EXAMPLE / "base"),
            tasks=(EXAMPLE / "task.toml",),
            engine_port=engine.port,
            weights_unsigned=True,
        )
        database = settings.database()
        migrate(database)
        with database.transaction() as connection:
            key = create_key(connection, "app")
        database.close()
        log = settings.event_log()
        app = create_app(settings, patience_seconds=PATIENCE_SECONDS, silence_seconds=SILENCE_SECONDS)
        with serve(app) as url:
            attacked = Gateway(engine, log, url, key)
            yield attacked
            attacked.close()
        log.close()
        engine.stop()
