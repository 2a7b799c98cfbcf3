"""A home with one slot on a real vLLM server, and versions that differ in some bits. Needs the environment of `make vllm`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np

from commands.home import prepare_home
from commands.up import make_settings
from contracts import assignments
from contracts.assignments import LIVE
from contracts.engines import EngineReplica, read_replicas
from engines.vllm.launch import VLLM_PYTHON
from engines.vllm.settings import VllmSettings
from pipelines.release.settings import ReleaseSettings
from pipelines.training.settings import TrainingSettings
from runtime.engine_key import authorization, engine_key
from weights.codec.history import History
from weights.publish import publish_version
from weights.stores.opening import open_weight_store
from weights.tensors import Tensor, Tensors
from weights.versions.keys import signer_of

ROOT = Path(__file__).parent.parent.parent.parent
PRODUCT = ROOT / "examples" / "reservations"
POLICY = "reservations"
START_SECONDS = 600.0
"""A server starts in a minute on an idle machine with two cores."""
NUM_VERSIONS = 10


def vllm_python() -> Path | None:
    """The interpreter of vLLM's environment; None: there is none."""
    found = Path(os.environ.get(VLLM_PYTHON) or ROOT / ".vllm" / "bin" / "python")
    return found if found.exists() else None


class Answer(NamedTuple):
    """An answer of the server."""

    tokens: list[int]
    logprobs: list[float]
    tops: list[dict[int, float]]
    spans: list[tuple[str, int, int]]
    finish_reason: str | None


class VllmWorld:
    """The home, its process `vllm`, and the driver's side of the test."""

    def __init__(self, home: Path, python: Path) -> None:
        settings = make_settings(home, name=POLICY, base=PRODUCT / "base", tasks=[PRODUCT / "task.toml"], device="cpu")
        sections = {
            "training": TrainingSettings(),
            "release": ReleaseSettings(),
            "vllm": VllmSettings(python=python, slots=(LIVE,)),
        }
        self.settings = prepare_home(settings, sections).settings
        self.database = self.settings.database()
        self.store = open_weight_store(self.settings)
        self.versions: list[Tensors] = [self.store.load(POLICY, 0)]
        self._publish()
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def _publish(self) -> None:
        signer, history, rng = signer_of(self.settings), self.store.load_state(POLICY, 0)[1], np.random.default_rng(0)
        for number in range(1, NUM_VERSIONS + 1):
            base = self.versions[-1]
            target = {name: _changed(base[name], rng) for name in sorted(base)}
            publish_version(
                self.store, policy=POLICY, run=self.settings.run, version=number, parent=number - 1, base=base, target=target,
                step=number, epoch=0, num_samples=1, created_at=0.0, history=history, signer=signer,
            )  # fmt: skip
            self.versions.append(target)
        assert isinstance(history, History)

    # the process under test
    def start(self) -> None:
        """Start the process `vllm` of the home, if it does not run."""
        if self.process is not None and self.process.poll() is None:
            return
        with (self.settings.home / "vllm.log").open("ab") as output:
            self.process = subprocess.Popen(  # noqa: S603 our own interpreter and script
                [sys.executable, str(ROOT / "millrace.py"), "vllm", "--home", str(self.settings.home)],
                stdout=output, stderr=subprocess.STDOUT, env=os.environ | {"PYTHONPATH": str(ROOT)},
            )  # fmt: skip

    def kill(self) -> None:
        """SIGKILL the process `vllm`; the server it started goes on."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """End everything in order."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        self.database.close()

    def server(self) -> dict[str, Any]:
        """What the process wrote about its server."""
        return dict(json.loads((self.settings.home / "vllm" / "vllm-1" / "server.json").read_text()))

    # what others do
    def row(self) -> EngineReplica | None:
        """The row of the replica."""
        with self.database.snapshot() as connection:
            return next(iter(read_replicas(connection, POLICY)), None)

    def assign(self, version: int, root: str | None = None, arm: str = LIVE) -> None:
        """Point an arm at a version."""
        with self.database.transaction() as connection:
            held = assignments.read(connection, POLICY).get(arm)
            root = root or self.store.manifest(POLICY, version).target_root
            assignments.move(
                connection, policy=POLICY, arm=arm, version=version, expected_epoch=held.epoch if held else 0, writer="test",
                reason="test", share=1.0, root=root, run=self.settings.run,
            )  # fmt: skip

    def bring(self, version: int) -> EngineReplica:
        """Assign a version, and wait until the replica says that it serves it."""
        self.start()  # a test before may have failed after it killed it
        self.assign(version)
        return self.wait_for(lambda row: row.status == "serving" and row.slots == {LIVE: version})

    def wait_for(self, is_so: Callable[[EngineReplica], bool], seconds: float = START_SECONDS) -> EngineReplica:
        """The row, once it is as wanted and fresh."""
        deadline = time.monotonic() + seconds
        row = None
        while time.monotonic() < deadline:
            row = self.row()
            if row is not None and row.is_fresh(time.time()) and is_so(row):
                return row
            time.sleep(0.05)
        raise AssertionError(f"the row stayed {row}; see {self.settings.home / 'vllm.log'}")

    def client(self) -> httpx.Client:
        """A client of the server, with the home's key."""
        row = self.row()
        assert row is not None
        headers = authorization(engine_key(self.settings.home))
        limits = httpx.Limits(max_keepalive_connections=0)  # as the process under test
        return httpx.Client(base_url=row.url, headers=headers, timeout=120.0, limits=limits)

    def events(self, prompt: Sequence[int], *, model: str = POLICY, **sampling: Any) -> Iterator[dict[str, Any]]:
        """The events of one streamed answer. `sampling`: vLLM's parameters."""
        params = {"temperature": 1.0, "max_tokens": 24, "logprobs": 1, "ignore_eos": True, "seed": 1} | sampling
        body = {
            "request_id": "t",
            "model": model,
            "token_ids": list(prompt),
            "stream": True,
            "sampling_params": params,
        }
        with self.client() as client, client.stream("POST", "/inference/v1/generate", json=body) as stream:
            assert stream.status_code == 200, stream.read()
            for line in stream.iter_lines():
                if line.startswith("data: {"):
                    yield json.loads(line[6:])

    def answer(self, prompt: Sequence[int], **sampling: Any) -> Answer:
        """One whole answer."""
        return collect(self.events(prompt, **sampling))


def collect(events: Iterator[dict[str, Any]]) -> Answer:
    """An answer from its events."""
    found = Answer([], [], [], [], None)
    for event in events:
        assert "error" not in event, event
        for choice in event["choices"]:
            content = (choice["logprobs"] or {"content": []})["content"]
            found.tokens.extend(choice["token_ids"] or [])
            found.logprobs.extend(entry["logprob"] for entry in content)
            found.tops.extend({top["token_id"]: top["logprob"] for top in entry["top_logprobs"]} for entry in content)
            for span in choice["weight_versions"] or []:
                found.spans.append((span["version"], span["start"], span["end"]))
            found = found._replace(finish_reason=choice["finish_reason"] or found.finish_reason)
    return found


def _changed(tensor: Tensor, rng: np.random.Generator) -> Tensor:
    """Some elements one or some steps away in bf16, as training changes them, but more."""
    words = tensor.data.view("<u2").copy()
    places = rng.choice(words.size, max(1, words.size // 20), replace=False)
    words[places] ^= 1
    words[places[: len(places) // 3]] ^= 0x20
    return tensor._replace(data=words.view(np.uint8))
