"""What `tests.adversary.kills.engine` kills: an engine on a home whose weights are in a bucket. Also its users.

In: versions to publish and to assign to `live`. Out: every answer, complete or cut off. Waits for: the engine.
"""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec

from commands.keys import make_first_keys
from contracts import assignments
from contracts.assignments import LIVE
from contracts.sampling import Span
from runtime.days import migrate
from runtime.engine_key import authorization, engine_key
from runtime.listening import LISTEN_FD
from runtime.settings import Settings, write_settings
from tests.adversary.kills.bucket_server import BUCKET, BucketServer
from tests.worlds.engines.labels import LabelledAnswer
from tests.worlds.engines.own import POLICY, Job, make_jobs
from tests.worlds.paths import BASE, EXAMPLE
from tests.worlds.versions import moved, publish_next
from weights.codec.history import History
from weights.stores.opening import open_store_at
from weights.tensors import read_safetensors, root_of
from weights.versions.keys import keyring_of, signer_of

_RUN = "kills"
_PREFIX = "weights"
_DENSITY = 0.01
_NUM_JOBS = 1000
_SHORTEST, _LONGEST = 24, 64
_GIVE_UP_SECONDS = 120.0
_AGAIN_SECONDS = 0.02


class AskedAnswer(NamedTuple):
    """An answer, and the versions assigned to `live` when it was requested and when it ended."""

    answer: LabelledAnswer
    first_wanted: int
    last_wanted: int
    is_whole: bool


class EngineHome:
    """A home, its bucket, and a publisher."""

    def __init__(self, folder: Path, bucket: BucketServer, engine_port: int) -> None:
        self.folder = folder / "home"
        settings = Settings(
            requests_per_minute=0,
            signals_per_minute=0,
            home=self.folder,
            run=_RUN,
            policy=POLICY,
            base=str(BASE),
            tasks=(EXAMPLE / "task.toml",),
            engine_port=engine_port,
            weights_url=f"s3://{BUCKET}/{_PREFIX}",
        )
        make_first_keys(self.folder)
        write_settings(settings, {})
        self.headers = authorization(engine_key(self.folder))
        self.store = open_store_at(bucket.folder / _PREFIX, keyring_of(settings))
        self._signer = signer_of(settings)
        self._database = settings.database()
        migrate(self._database)
        self._history, self._weights = History(), read_safetensors(BASE)
        self._epoch = 0
        self.version = -1
        self.wanted = 0
        """What `live` points at."""
        self.roots: dict[int, str] = {}

    def publish(self) -> None:
        """The next version."""
        self.version += 1
        base, self._weights = self._weights, moved(self._weights, _DENSITY if self.version else 0.0, self.version)
        publish_next(
            self.store,
            POLICY,
            self.version,
            base=base,
            target=self._weights,
            run=_RUN,
            history=self._history,
            signer=self._signer,
        )
        self.roots[self.version] = root_of(self._weights)

    def assign(self) -> None:
        """Point `live` at the newest version."""
        self.wanted = self.version
        with self._database.transaction() as connection:
            assignments.move(
                connection,
                policy=POLICY,
                arm=LIVE,
                version=self.version,
                expected_epoch=self._epoch,
                writer="kills",
                reason="newest",
                share=1.0,
            )
        self._epoch += 1

    def close(self) -> None:
        """Close the database."""
        self._database.close()


class EngineProcess:
    """Starts engines of a home and kills them; they share one socket, as under the supervisor.

    `is_forked`: they are forked from a process that has imported everything. Make it before the first thread starts.
    """

    def __init__(self, home: Path, log: Path, listening: socket.socket, *, is_forked: bool) -> None:
        self._home, self._log, self._listening = home, log, listening
        self._nursery = _nursery(self._be_engine) if is_forked else None
        self._pid = 0

    def start(self) -> None:
        """Start one."""
        if self._nursery is not None:
            os.write(self._nursery.orders, b"!")
            self._pid = int.from_bytes(os.read(self._nursery.pids, 4), "little")
            return
        with self._log.open("ab") as output:
            process = subprocess.Popen(  # noqa: S603 our own module
                [sys.executable, "-m", "services.engine", str(self._home)],
                stdout=output,
                stderr=output,
                env=os.environ | {LISTEN_FD: str(self._listening.fileno())},
                pass_fds=[self._listening.fileno()],
            )
        self._pid = process.pid
        # Reaped here, so that it is gone when its id is.
        threading.Thread(target=process.wait, daemon=True).start()

    def kill(self) -> bool:
        """SIGKILL; False if it had ended by itself. Returns when it is gone."""
        try:
            os.kill(self._pid, signal.SIGKILL)
            deadline = time.monotonic() + _GIVE_UP_SECONDS
            while time.monotonic() < deadline:
                os.kill(self._pid, 0)
                time.sleep(0.001)
        except ProcessLookupError:
            return True
        return False

    def close(self) -> None:
        """Kill what runs."""
        self.kill()
        if self._nursery is not None:
            os.close(self._nursery.orders)
            os.close(self._nursery.pids)

    def _be_engine(self) -> None:
        from services.engine.__main__ import main  # noqa: PLC0415 the parent has imported it by now

        os.environ[LISTEN_FD] = str(self._listening.fileno())
        output = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        main(self._home)


class _Nursery(NamedTuple):
    """Descriptors of a process that forks a child for every byte of `orders` and writes its id to `pids`."""

    orders: int
    pids: int


def _nursery(work: Callable[[], None]) -> _Nursery:
    import services.engine.__main__  # noqa: F401, PLC0415 whatever is imported here, no child has to

    orders, order = os.pipe()
    told, tell = os.pipe()
    if os.fork():
        os.close(orders)
        os.close(tell)
        return _Nursery(order, told)
    os.close(order)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system buries them
    status = 1
    try:
        while os.read(orders, 1):
            if (child := os.fork()) == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                work()
                break
            os.write(tell, child.to_bytes(4, "little"))
        status = 0
    finally:
        if status:
            sys.excepthook(*sys.exc_info())
        os._exit(status)


class EngineUsers:
    """Request streamed answers without a pause, each user one at a time, also while no engine runs."""

    def __init__(self, url: str, home: EngineHome, num_users: int) -> None:
        self._url, self._home = url, home
        self._over = threading.Event()
        jobs = make_jobs(BASE, _NUM_JOBS, shortest=_SHORTEST, longest=_LONGEST, seed=0)
        self.asked: list[AskedAnswer] = []
        self.ends: Counter[str] = Counter()
        self._threads = [
            threading.Thread(target=self._ask_all, args=(jobs[number::num_users],)) for number in range(num_users)
        ]

    def start(self) -> None:
        """Begin to ask."""
        for thread in self._threads:
            thread.start()

    def wait_for(self, num_answers: int) -> None:
        """Wait until so many more answers are complete, at most two minutes."""
        wanted, deadline = self.ends["whole"] + num_answers, time.monotonic() + _GIVE_UP_SECONDS
        while self.ends["whole"] < wanted and time.monotonic() < deadline:
            time.sleep(0.01)

    def stop(self) -> None:
        """Stop; answers in flight are completed."""
        self._over.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()

    def _ask_all(self, jobs: Sequence[Job]) -> None:
        with httpx.Client(base_url=self._url, headers=self._home.headers, timeout=_GIVE_UP_SECONDS) as client:
            for job in itertools.cycle(jobs):
                if self._over.is_set():
                    return
                self.ends[how := self._ask(client, job)] += 1
                if how != "whole":
                    time.sleep(_AGAIN_SECONDS)

    def _ask(self, client: httpx.Client, job: Job) -> str:
        wanted, answer, how = self._home.wanted, LabelledAnswer(job.prompt, [], [], []), "broken off"
        params = {"max_tokens": job.num_tokens, "ignore_eos": True}
        body = {"model": POLICY, "token_ids": job.prompt, "sampling_params": params, "stream": True}
        try:
            with client.stream("POST", "/inference/v1/generate", json=body) as response:
                if response.status_code != httpx.codes.OK:
                    return f"status {response.status_code}"
                for line in response.iter_lines():
                    if line == "data: [DONE]":
                        how = "whole"
                    elif line:
                        _take(answer, msgspec.json.decode(line.removeprefix("data: ")))
        except httpx.TransportError:
            pass
        if answer.token_ids:
            self.asked.append(AskedAnswer(answer, wanted, self._home.wanted, how == "whole"))
        return how


def _take(answer: LabelledAnswer, event: dict[str, Any]) -> None:
    (choice,) = event["choices"]
    answer.token_ids.extend(choice["token_ids"])
    answer.logprobs.extend(entry["logprob"] for entry in choice["logprobs"]["content"])
    if choice.get("weight_versions") and choice["finish_reason"] is None:  # the last event repeats them all
        answer.spans.extend(Span(told["start"], int(told["version"][1:])) for told in choice["weight_versions"])


def wait_until_serving(url: str, headers: dict[str, str], version: int) -> float:
    """Wait until `live` serves a version; returns the seconds that it took.

    Raises:
        TimeoutError: it does not serve that version in time.
    """
    started = time.monotonic()
    with httpx.Client(base_url=url, headers=headers, timeout=_GIVE_UP_SECONDS) as client:
        while time.monotonic() < started + _GIVE_UP_SECONDS:
            try:
                health = client.get("/state").json()
            except httpx.TransportError:
                continue
            if health["status"] == "serving" and health["versions"]["live"] == version:
                return time.monotonic() - started
            time.sleep(0.01)
    raise TimeoutError(f"the engine does not serve version {version} after {_GIVE_UP_SECONDS:.0f} s: {health}")
