import json
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from commands.home import prepare_home
from commands.replica import _follow, bring_pointed, run_replica
from contracts.errors import InvalidSettings, NotFound, Unavailable, WeightsRefused
from runtime.settings import Settings
from runtime.snapshot_rows import DatabaseSnapshotRows
from tests.command_line import run_here
from tests.models import BASE
from tests.unit.weights.examples import POLICY, bf16_policy, publish, same, stepped
from weights.adapters import CONFIG, CONFIG_FILE, PREFIX, WEIGHTS_FILE, A, AdapterConfig, B, merged
from weights.issuer import Issuer
from weights.publish import publish_version
from weights.replica.replica import Replica
from weights.stores.opening import open_store_at, open_weight_store
from weights.tensors import Tensors, read_safetensors, root_of, rounded, to_bf16
from weights.versions.keys import keyring_of, signer_of, trusted_folder
from weights.versions.pointer import Pointer, PointerReader, move_pointer
from weights.versions.signing import Keyring, Signer, public_pem

SIGNER = Signer(Ed25519PrivateKey.from_private_bytes(bytes(32)))
KEYRING = Keyring({SIGNER.key_id: SIGNER.public_key})
TASK = Path(__file__).parent.parent.parent.parent / "examples" / "reservations" / "task.toml"
WEIGHTS = [bf16_policy(), stepped(bf16_policy(), 0.03)]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Two signed versions; the first is live."""
    root = tmp_path / "store"
    versions = open_store_at(root, KEYRING)
    publish(versions, 0, WEIGHTS[0], signer=SIGNER)
    publish(versions, 1, WEIGHTS[1], parent=0, base=WEIGHTS[0], signer=SIGNER)
    point(root, 0, 1)
    return root


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A replica's folder that trusts the publisher."""
    folder = tmp_path / "replica"
    trusted_folder(folder).mkdir(parents=True)
    (trusted_folder(folder) / f"{SIGNER.key_id}.pub").write_bytes(public_pem(SIGNER.public_key))
    return folder


def point(root: Path, version: int, epoch: int) -> None:
    pointer = Pointer(policy=POLICY, run="run-1", arm="live", version=version, epoch=epoch)
    move_pointer(open_store_at(root), pointer, SIGNER, KEYRING)


def run(store: Path, folder: Path, version: int | None = None, *, follow: bool = False, unsigned: bool = False) -> None:
    run_replica(
        policy=POLICY, store=str(store), folder=folder, version=version, follow=follow, every=0.0, unsigned=unsigned
    )


def test_it_says_which_file_serves_what_is_live(store: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for version in (0, 1):
        point(store, version, version + 1)
        run(store, folder)
        said, path = capsys.readouterr().out.strip().split(" at ")
        assert said == f"version {version}"
        assert same(read_safetensors(Path(path)), WEIGHTS[version])


def test_one_version_can_be_asked_for(store: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(store, folder, 1)
    assert capsys.readouterr().out.startswith("version 1 at ")
    with pytest.raises(InvalidSettings, match="one of them"):
        run(store, folder, 1, follow=True)


def test_without_a_trusted_key_nothing_is_taken_unless_that_is_said(store: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match="keys/trusted"):
        run(store, tmp_path / "other")
    run(store, tmp_path / "other", unsigned=True)


def test_an_old_pointer_that_was_put_back_is_refused(store: Path, folder: Path) -> None:
    path = store / POLICY / "pointers" / "live.json"
    old = path.read_bytes()
    point(store, 1, 2)
    run(store, folder)
    path.write_bytes(old)
    with pytest.raises(WeightsRefused) as refused:
        run(store, folder)
    assert refused.value.code == "stale_pointer"


def test_a_pointer_to_another_run_brings_nothing(store: Path, folder: Path) -> None:
    pointers = open_store_at(store)
    move_pointer(pointers, Pointer(policy=POLICY, run="run-2", arm="live", version=1, epoch=9), SIGNER, KEYRING)
    reader = PointerReader(pointers, POLICY, "live", KEYRING, folder / "pointer.json")
    with Replica(folder, open_store_at(store, KEYRING), POLICY) as replica:
        with pytest.raises(WeightsRefused) as refused:
            bring_pointed(replica, reader)
        assert refused.value.code == "wrong_run"
        assert replica.serves is None


def test_nothing_live_is_said(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(NotFound, match="nothing is live"):
        run(tmp_path / "empty", folder)


def test_following_says_what_is_new_once_and_goes_on_after_failures(capsys: pytest.CaptureFixture[str]) -> None:
    stop = threading.Event()
    answers: Iterator[str | Unavailable] = iter(
        ["version 0", "version 0", Unavailable("the store is away"), Unavailable("the store is away"), "version 1"]
    )

    def step() -> str:
        answer = next(answers)
        if answer == "version 1":
            stop.set()
        if isinstance(answer, Unavailable):
            raise answer
        return answer

    _follow(step, stop, 0.0)
    assert capsys.readouterr().out.splitlines() == ["version 0", "unavailable: the store is away", "version 1"]


@pytest.fixture
def exported(tmp_path: Path) -> tuple[Path, Path, Tensors]:
    """A home whose version 1 is an adapter, a folder for exports, and the bits of that version."""
    settings = Settings(home=tmp_path / "home", run="r", policy="reservations", base=str(BASE), tasks=(TASK,))
    prepare_home(settings, {})
    store = open_weight_store(settings, publishes=True)
    base = store.load("reservations", 0)
    config = AdapterConfig(rank=2, alpha=32.0, targets=("q_proj",), base_root=root_of(base))
    bits, drawn = {CONFIG: config.tensor()}, np.random.default_rng(0)
    for name, tensor in base.items():
        if name.endswith("q_proj.weight"):
            layer, (num_out, num_in) = PREFIX + name.removesuffix("weight"), tensor.shape
            bits[layer + A] = rounded(drawn.normal(size=(2, num_in)) / 8, (2, num_in))
            bits[layer + B] = rounded(drawn.normal(size=(num_out, 2)) / 8, (num_out, 2))
    publish_version(
        store, policy="reservations", run="r", version=1, parent=0, base={}, target=bits, step=3, epoch=1, num_samples=7,
        created_at=0.0, signer=signer_of(settings),
    )  # fmt: skip
    keyring, signer = keyring_of(settings), signer_of(settings)
    assert signer is not None
    rows = DatabaseSnapshotRows(settings.database(), "reservations")
    Issuer(rows, store, "reservations", "r", signer=signer, keyring=keyring).issue({1})
    return settings.home, tmp_path / "out", bits


def test_an_adapter_is_exported_in_pefts_layout_with_a_card(exported: tuple[Path, Path, Tensors]) -> None:
    home, out, bits = exported
    ran = run_here("export", "1", "--to", str(out), "--home", str(home))
    assert ran.returncode == 0, ran.stderr
    assert same(read_safetensors(out / WEIGHTS_FILE), {name: each for name, each in bits.items() if name != CONFIG})
    described = json.loads((out / CONFIG_FILE).read_text())
    assert (described["r"], described["lora_alpha"], described["target_modules"]) == (2, 32.0, ["q_proj"])
    card = (out / "README.md").read_text()
    assert "LoRA adapter of rank 2, alpha 32, on q_proj" in card
    assert "samples since its parent: 7" in card
    assert "lift: not measured: no hold-out" in card
    assert "## Task reservations" in card
    again = run_here("export", "1", "--to", str(out), "--home", str(home))
    assert again.returncode == 1
    assert "name a folder that does not" in again.stderr


def test_a_merged_export_is_a_whole_checkpoint(exported: tuple[Path, Path, Tensors]) -> None:
    home, out, bits = exported
    assert run_here("export", "1", "--to", str(out), "--merged", "--home", str(home)).returncode == 0
    base = to_bf16(read_safetensors(BASE))
    assert same(read_safetensors(out), merged(base, bits))
    assert {"config.json", "tokenizer.json", "README.md"} <= {path.name for path in out.iterdir()}
    assert run_here("export", "0", "--to", str(out.with_name("base")), "--home", str(home)).returncode == 0
    assert same(read_safetensors(out.with_name("base")), base)


def test_an_export_that_fails_leaves_nothing(exported: tuple[Path, Path, Tensors]) -> None:
    home, out, _ = exported
    assert run_here("export", "5", "--to", str(out), "--home", str(home)).returncode == 1
    assert [*out.parent.iterdir()] == [home]
