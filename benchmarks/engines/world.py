"""A home whose engine is one process: ours, or vLLM's. In: a kind. Out: its URL, and versions to bring it to. Waits for: the process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from sqlalchemy import select

from commands.home import prepare_home
from commands.up import listen, new_settings
from contracts import assignments
from contracts.assignments import LIVE
from contracts.engines import read_replicas
from contracts.errors import Unavailable
from contracts.tables import swap
from engines.vllm.settings import VllmSettings
from pipelines.release.settings import ReleaseSettings
from pipelines.training.settings import TrainingSettings
from runtime.engine_key import authorization, engine_key
from services.engine.settings import EngineSettings
from tests.worlds.paths import BASE, EXAMPLE, ROOT
from tests.worlds.versions import moved
from weights.publish import publish_version
from weights.stores.opening import open_weight_store
from weights.tensors import Tensors
from weights.versions.keys import signer_of

POLICY = "reservations"
DENSITY = 0.02
_START_SECONDS, _SWAP_SECONDS, _END_SECONDS = 900.0, 120.0, 60.0
_LOOK_SECONDS = 0.1


class OneEngine:
    """A home with versions 0 to `num_versions`, and its engine's process.

    Args:
        folder: a new home.
        vllm: the interpreter of vLLM's environment; None: our engine.
        num_versions: versions to publish beside the base.
    """

    def __init__(self, folder: Path, vllm: Path | None, num_versions: int) -> None:
        self.kind = "millrace" if vllm is None else "vllm"
        sockets = listen(0)
        settings = new_settings(
            folder, sockets, name=POLICY, base=BASE, tasks=[EXAMPLE / "task.toml"], device="cpu"
        )  # fmt: skip
        for listening in sockets.values():
            listening.close()
        sections = {
            "training": TrainingSettings(),
            "release": ReleaseSettings(),
            "engine": EngineSettings(),
            **({} if vllm is None else {"vllm": VllmSettings(python=vllm, slots=(LIVE,))}),
        }
        self.settings = prepare_home(settings, sections).settings
        self.database = self.settings.database()
        self.headers = authorization(engine_key(self.settings.home))
        self._publish(num_versions)
        self.url = ""

    def _publish(self, num_versions: int) -> None:
        store, signer = open_weight_store(self.settings), signer_of(self.settings)
        target, history = store.load_state(POLICY, 0)
        for version in range(1, num_versions + 1):
            base: Tensors = target
            target = moved(base, DENSITY, seed=version)
            publish_version(
                store, policy=POLICY, run=self.settings.run, version=version, parent=version - 1, base=base, target=target,
                step=version, epoch=0, num_samples=1, created_at=0.0, history=history, signer=signer,
            )  # fmt: skip
        self._store = store

    @contextmanager
    def running(self) -> Iterator[float]:
        """Start the process, and end it after the block. Gives the seconds until it served version 0."""
        name = "engine" if self.kind == "millrace" else "vllm"
        begun = time.monotonic()
        with (self.settings.home / f"{name}.log").open("ab") as output:
            process = subprocess.Popen(  # noqa: S603 our own interpreter and script
                [sys.executable, str(ROOT / "millrace.py"), name, "--home", str(self.settings.home)],
                stdout=output, stderr=subprocess.STDOUT, env=os.environ | {"PYTHONPATH": str(ROOT)},
            )  # fmt: skip
        try:
            self._wait_until_it_holds(0, _START_SECONDS)
            yield time.monotonic() - begun
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()

    def bring(self, version: int) -> None:
        """Assign a version, and wait until it is served. Raises Unavailable."""
        with self.database.transaction() as connection:
            held = assignments.read(connection, POLICY)[LIVE]
            assignments.move(
                connection, policy=POLICY, arm=LIVE, version=version, expected_epoch=held.epoch, writer="benchmark",
                reason="benchmark", share=1.0, root=self._store.manifest(POLICY, version).target_root, run=self.settings.run,
            )  # fmt: skip
        self._wait_until_it_holds(version, _SWAP_SECONDS)

    def pauses(self) -> list[tuple[float, float]]:
        """(seconds to stage, seconds of pause) of each swap so far."""
        with self.database.snapshot() as connection:
            rows = connection.execute(select(swap.c.stage_seconds, swap.c.pause_seconds).order_by(swap.c.id))
            return [(row.stage_seconds, row.pause_seconds) for row in rows]

    def _wait_until_it_holds(self, version: int, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self._holds() == version:
                return
            time.sleep(_LOOK_SECONDS)
        raise Unavailable(f"{self.kind} did not come to v{version} within {seconds:.0f} s; see {self.settings.home}")

    def _holds(self) -> int | None:
        if self.kind == "vllm":
            with self.database.snapshot() as connection:
                rows = [row for row in read_replicas(connection, POLICY) if row.status == "serving"]
            self.url = rows[0].url if rows else ""
            return rows[0].slots.get(LIVE) if rows else None
        self.url = self.settings.engine_url
        try:
            state = httpx.get(f"{self.url}/state", headers=self.headers, timeout=5.0).json()
        except (httpx.TransportError, ValueError):
            return None
        held = state.get("versions", {}).get(LIVE)
        return held if isinstance(held, int) else None
