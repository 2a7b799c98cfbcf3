"""One faulty replica behind a real endpoint in another region: each request is answered by the others, and the ledger balances.

The regions are names: all processes run on this machine without namespaces, so no link is cut or shaped here.
"""

from __future__ import annotations

import json
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import httpx
import openai
import pytest
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from commands.engines import engine_findings
from contracts.engines import read_replicas
from contracts.ids import sample_key
from runtime.engine_key import ENGINE_KEY, authorization
from tests.unit.services.inference.test_pool import Odd
from tests.unit.services.serving import serve, wait_until
from tests.worlds.fleet import KEY, PATIENCE_SECONDS, POLICY, ReplicaFleet
from tests.worlds.paths import EXAMPLE

pytestmark = pytest.mark.slow

REAL = ("far-1", "far-2")
RATE, SECONDS, AFTER, PAUSED_SECONDS = 10.0, 4.0, 1.5, 3.0


class Gate:
    """A web server in front of the weight store. It keeps chunks back while it is shut."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.open, self.asked = threading.Event(), threading.Event()
        self.open.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        path = self._root / scope["path"].lstrip("/")
        if "/chunks/" in scope["path"] and not self.open.is_set():
            self.asked.set()
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"1000000")]})
            await receive()  # the request's body
            await receive()  # its end: nothing more is sent
            return
        answer: Response = FileResponse(path) if path.is_file() else PlainTextResponse("", 404)
        await answer(scope, receive, send)


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gate, str, Path]]:
    folder = tmp_path_factory.mktemp("fleet")
    gate = Gate(folder / "weights")
    with serve(gate) as url:
        yield gate, url, folder


@pytest.fixture(scope="module")
def fleet(gate: tuple[Gate, str, Path]) -> Iterator[ReplicaFleet]:
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setenv(ENGINE_KEY, KEY)
        fleet = ReplicaFleet(gate[2], stack, forked=True)
        fleet.start_engine("far-1", "far", weights=gate[1])
        fleet.start_engine("far-2", "far")
        wait_until(lambda: fleet.serve(*REAL), PATIENCE_SECONDS)
        fleet.start_endpoint()
        yield fleet


@pytest.fixture(autouse=True)
def balanced(fleet: ReplicaFleet) -> Iterator[None]:
    """After each test both engines serve, and every answer that a client saw has one state."""
    yield
    wait_until(lambda: fleet.serve(*REAL), PATIENCE_SECONDS)
    wait_until(lambda: fleet.audit().balanced, PATIENCE_SECONDS)


def send(fleet: ReplicaFleet, name: str, number: signal.Signals) -> None:
    fleet.processes[name].send_signal(number)


def test_a_stopped_replica_is_left_out_and_comes_back(fleet: ReplicaFleet) -> None:
    try:
        ends = fleet.load(RATE, SECONDS, AFTER, partial(send, fleet, "far-1", signal.SIGSTOP))
        assert ends == {"answered": int(RATE * SECONDS)}
        wait_until(lambda: fleet.serve("far-2"), PATIENCE_SECONDS)
    finally:
        send(fleet, "far-1", signal.SIGCONT)


def test_a_paused_replica_gets_no_requests_and_keeps_what_it_has(fleet: ReplicaFleet) -> None:
    post = partial(httpx.post, headers=authorization(KEY), timeout=PATIENCE_SECONDS)

    def pause_and_resume() -> None:
        url = fleet.homes["far-1"].engine_url
        assert post(f"{url}/pause").is_success
        time.sleep(PAUSED_SECONDS)
        assert post(f"{url}/resume").is_success

    pausing = threading.Thread(target=pause_and_resume)  # beside the loop of the client, which must go on
    assert fleet.load(RATE, SECONDS, AFTER, pausing.start) == {"answered": int(RATE * SECONDS)}
    pausing.join()


def test_a_replica_killed_in_the_middle_of_a_swap_comes_to_the_version_after_its_restart(
    fleet: ReplicaFleet, gate: tuple[Gate, str, Path]
) -> None:
    gate[0].open.clear()
    gate[0].asked.clear()
    version = fleet.publish()

    def swap_and_kill() -> None:
        fleet.assign(version)
        threading.Thread(target=kill).start()

    def kill() -> None:
        assert gate[0].asked.wait(PATIENCE_SECONDS), "it fetches the version"
        send(fleet, "far-1", signal.SIGKILL)

    try:
        assert fleet.load(RATE, SECONDS, AFTER, swap_and_kill) == {"answered": int(RATE * SECONDS)}
        fleet.processes["far-1"].wait(PATIENCE_SECONDS)
        wait_until(lambda: fleet.rows()["far-2"].slots["live"] == version, PATIENCE_SECONDS)
    finally:
        gate[0].open.set()
        fleet.restart_engine("far-1")


def test_all_choices_of_a_request_survive_a_kill(fleet: ReplicaFleet) -> None:
    try:
        ends = fleet.load(RATE, SECONDS, AFTER, partial(send, fleet, "far-1", signal.SIGKILL), n=3)
        assert ends == {"answered": int(RATE * SECONDS)}
    finally:
        fleet.restart_engine("far-1")


@pytest.mark.parametrize(
    ("oddity", "reason"), [("lies", "wrong_version"), ("no_choices", "unusable_answer")], ids=["lies", "choices: []"]
)
def test_a_replica_that_lies_or_breaks_the_protocol_is_left_out_by_name(
    fleet: ReplicaFleet, oddity: str, reason: str
) -> None:
    """It is in the endpoint's own region, so it is asked first. It alone names v77."""
    odd = Odd("Tisch")
    odd.oddity = oddity
    client = openai.OpenAI(base_url=f"{fleet.url}/v1", api_key=fleet.key, max_retries=0, timeout=PATIENCE_SECONDS)
    with serve(odd.app) as url, client, ExitStack() as stack:
        row = fleet.rows()["far-2"]._replace(
            name=f"near-{oddity}",
            region="near",
            url=url,
            instance=oddity,
            slots={"live": fleet.version, "candidate": 77},
        )
        stack.callback(fleet.forget, row)
        fleet.tell(row)
        wait_until(lambda: f"{POLICY}@v77" in {model.id for model in client.models.list()}, PATIENCE_SECONDS)
        messages = [{"role": "user", "content": "A table for 2"}]
        for _ in range(3):
            fleet.tell(row)
            answer = client.chat.completions.create(model=POLICY, messages=messages)  # type: ignore[arg-type]
            fleet.seen.append(sample_key(answer.id, 0))
            assert answer.model_extra is not None
            assert answer.model_extra["policy_version"] == fleet.version
        assert odd.requests, "it was asked first"
        assert f'"engine": "{row.name}", "reason": "{reason}"' in fleet.log_of("web")


def test_a_replica_with_another_base_is_never_asked_and_named_by_doctor(fleet: ReplicaFleet) -> None:
    base = fleet.folder / "another"
    shutil.copytree(EXAMPLE / "base", base)
    config = json.loads((base / "config.json").read_text())
    config["rope_parameters"]["rope_theta"] = 500.0
    (base / "config.json").write_text(json.dumps(config))
    fleet.start_engine("near-other", "near", base=base)
    try:
        wait_until(lambda: "near-other" in fleet.rows(), PATIENCE_SECONDS)
        wait_until(lambda: fleet.rows()["near-other"].status == "serving", PATIENCE_SECONDS)
        found = [finding for finding in engine_findings(fleet.homes["web"]) if finding.needed]
        assert len(found) == 1
        assert found[0].says.startswith("near-other (millrace, region near,")
        assert "another_base: its config.json or tokenizer.json is another's" in found[0].says
        # In the endpoint's own region, it would be asked first, and would not answer.
        send(fleet, "near-other", signal.SIGSTOP)
        fleet.tell(fleet.rows()["near-other"])
        assert fleet.load(RATE, 1.0, 0.0, lambda: None) == {"answered": int(RATE)}
        assert '"engine": "near-other"' not in fleet.log_of("web"), "no request had to leave it"
    finally:
        send(fleet, "near-other", signal.SIGCONT)
        send(fleet, "near-other", signal.SIGTERM)
        fleet.processes["near-other"].wait(PATIENCE_SECONDS)
    with fleet.database.snapshot() as connection:
        names = {row.name for row in read_replicas(connection, POLICY)}
    assert "near-other" not in names, "a replica that ends in order removes its row"


def test_a_second_replica_with_a_name_that_is_taken_ends_with_that_message(fleet: ReplicaFleet) -> None:
    before = fleet.rows()["far-1"]
    fleet.start_engine("twin", "near", own_name="far-1")
    assert fleet.processes["twin"].wait(PATIENCE_SECONDS) == 2
    assert (
        f"an engine named far-1 already runs at {before.url} (region far): give this one another name"
        in fleet.log_of("twin")
    )
    assert fleet.rows()["far-1"].instance == before.instance
