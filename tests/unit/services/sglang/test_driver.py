"""Versions on an SGLang server, on a fake of the shapes of 0.5.23: no real one was ever asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from contracts.assignments import Assignment
from contracts.engines import EngineReplica
from contracts.errors import InvalidSettings, Unavailable, WeightsRefused
from services.following.follower import SlotFollower
from services.following.given import GivenServer
from services.following.joining import abilities, check_server
from tests.unit.policy.test_vllm_engine import weights_of
from tests.unit.services.following.test_joining import folder
from tests.unit.services.serving import serve
from tests.unit.services.sglang.fake_sglang import FakeSglang
from weights.engines.held import VersionFile
from weights.engines.sglang import SglangServer
from weights.tensors import root_of, write_safetensors

ALONE = httpx.Limits(max_keepalive_connections=0)
"""As the process has it: a server may close a connection on which it answered an error."""


class Served(NamedTuple):
    driver: SglangServer
    fake: FakeSglang
    files: list[VersionFile]
    url: str
    base: Path

    def bring(self, to: int, base: int | None) -> float:
        self.driver.stage(self.files[to], None)
        return self.driver.push(self.files[to], None if base is None else self.files[base])

    def serves(self, number: int) -> bool:
        root = self.files[number].root
        held = self.driver.held()
        return (held.is_whole, held.version, held.root, self.fake.held_root) == (True, number, root, root)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    base, files = folder(tmp_path / "base"), []
    (base / "model.safetensors").write_bytes(b"the base's own")
    (tmp_path / "slot").mkdir()
    for number in range(5):
        path = tmp_path / "slot" / f"v{number:06d}-x.safetensors"
        write_safetensors(path, weights_of(number))
        files.append(VersionFile(number, root_of(weights_of(number)), path))
    fake = FakeSglang(base)
    with serve(fake.app()) as url, httpx.Client(base_url=url, limits=ALONE) as client:
        yield Served(SglangServer(client, base), fake, files, url, base)


def test_a_version_is_loaded_in_a_pause_that_keeps_requests(served: Served) -> None:
    assert not served.driver.held().is_whole
    served.bring(0, None)
    served.fake.calls.clear()
    assert served.bring(1, 0) > 0
    assert served.serves(1)
    assert served.fake.calls == [
        "/pause_generation", "/update_weight_version", "/update_weights_from_disk", "/continue_generation",
    ]  # fmt: skip
    assert (served.fake.num_flushes, served.fake.is_paused) == (2, False)
    served.bring(0, 1)
    assert served.serves(0)


def test_only_the_last_folders_stay(served: Served) -> None:
    for number in range(5):
        served.bring(number, number - 1 if number else None)
    kept = sorted(path.name for path in served.files[0].path.parent.iterdir() if path.is_dir())
    assert kept == ["v000002-x", "v000003-x", "v000004-x"]


def test_a_wrong_base_and_what_was_not_staged_are_refused_before_a_pause(served: Served) -> None:
    served.bring(0, None)
    served.fake.calls.clear()
    served.driver.stage(served.files[2], None)
    with pytest.raises(WeightsRefused, match="holds v0"):
        served.driver.push(served.files[2], served.files[1])
    with pytest.raises(WeightsRefused, match="is not v3"):
        served.driver.push(served.files[3], served.files[0])
    assert served.fake.calls == []


def test_a_load_that_fails_leaves_it_paused_under_no_version_and_a_whole_one_heals_it(served: Served) -> None:
    served.bring(0, None)
    served.fake.fails_at = "/update_weights_from_disk"
    with pytest.raises(Unavailable, match="out of memory") as caught:
        served.bring(1, 0)
    assert caught.value.facts["mixed"]
    assert served.fake.is_paused
    held = served.driver.held()
    assert (held.name, held.is_broken, held.is_whole) == ("v0-to-v1", True, False)
    served.fake.fails_at = None
    served.bring(1, None)
    assert served.serves(1)
    assert not served.fake.is_paused


def test_a_server_that_does_not_begin_goes_on(served: Served) -> None:
    served.bring(0, None)
    served.fake.fails_at = "/update_weight_version"
    with pytest.raises(Unavailable):
        served.bring(1, 0)
    assert served.serves(0)
    assert not served.fake.is_paused


def test_a_server_that_lies_about_its_version_is_found_out(served: Served) -> None:
    served.driver.stage(served.files[1], None)
    load = served.fake.update_weights_from_disk
    served.fake.update_weights_from_disk = lambda body: load(body | {"weight_version": "v9"})  # type: ignore[method-assign]
    with pytest.raises(Unavailable, match="was given v1 and says it holds v9"):
        served.driver.push(served.files[1], None)


def test_a_new_driver_lets_a_server_go_on_that_the_one_before_had_paused(served: Served) -> None:
    served.bring(0, None)
    with httpx.Client(base_url=served.url) as client:
        driver = SglangServer(client, served.base)
        served.fake.pause_generation({"mode": "retract"})
        assert driver.is_paused()
        driver.resume()
        assert not driver.is_paused()
    assert not served.fake.is_paused


def test_it_says_how_it_was_started(served: Served) -> None:
    facts = served.driver.facts()
    assert (facts.model, facts.tokenizer, facts.dtype) == (str(served.base), str(served.base), "bfloat16")
    assert abilities(facts) == {"spans", "logprobs", "top_logprobs", "penalties"}
    served.bring(1, None)
    check_server(served.driver.facts(), served.base, served.url)


@pytest.mark.parametrize(("status", "says"), [(401, "refuses this home's engine key"), (404, "is no SGLang server")])
def test_what_cannot_be_followed_is_refused(tmp_path: Path, status: int, says: str) -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(status, json={"error": "no"}))
    with httpx.Client(base_url="http://s:1", transport=transport) as client, pytest.raises(InvalidSettings, match=says):
        SglangServer(client, tmp_path).facts()


def test_a_release_that_names_no_version_is_refused(tmp_path: Path) -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(200, json={"version": "0.4.1"}))
    with (
        httpx.Client(base_url="http://s:1", transport=transport) as client,
        pytest.raises(InvalidSettings, match=r"0\.4\.1"),
    ):
        SglangServer(client, tmp_path).facts()


def test_a_follower_drives_it_as_it_does_vllm(served: Served, tmp_path: Path) -> None:
    row = EngineReplica(
        name="sglang-1", policy="demo", url="", kind="sglang", region="local", status="starting", slots={"live": None},
        abilities=frozenset(), instance="", engine="sglang", dtype="", seen_at=0.0,
    )  # fmt: skip
    assigned: dict[str, Assignment] = {}

    class Files:
        def file_of(self, version: int, root: str | None, run: str | None, folder: Path) -> VersionFile:
            assert (root, run, folder) == (served.files[version].root, "run", tmp_path)
            return served.files[version]

        def keep_swap(self, replica: str, arm: str, version: int, stage_seconds: float, pause_seconds: float) -> None:
            assert (replica, arm) == ("sglang-1", "live")
            assert stage_seconds + pause_seconds > 0
            swaps.append(version)

    swaps: list[int] = []
    with ExitStack() as stack:
        follower = SlotFollower(
            row, server=GivenServer(served.url), files=Files(), folder=tmp_path, swaps=Files(), assigned=lambda: assigned,
            connect=lambda url: SglangServer(stack.enter_context(httpx.Client(base_url=url, limits=ALONE)), served.base),
            check=lambda facts, url: check_server(facts, served.base, url),
        )  # fmt: skip
        for number in (0, 1, 0):
            assigned["live"] = Assignment("demo", "live", number, 1.0, number, served.files[number].root, "run")
            follower.step(0.0)
            assert (follower.row.status, follower.row.slots) == ("serving", {"live": number})
            assert served.serves(number)
        served.fake.fails_at = "/update_weights_from_disk"
        assigned["live"] = Assignment("demo", "live", 2, 1.0, 2, served.files[2].root, "run")
        follower.step(1.0)
        assert follower.row.status == "restarting", "nothing could be written"
        served.fake.fails_at = None
        follower.step(60.0)
        assert served.serves(2)
    assert swaps == [1, 0, 2]
    assert {"spans", "logprobs"} <= follower.row.abilities
