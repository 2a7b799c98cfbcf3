import io
import json
import stat
import zipfile
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from benchmarks.deltas import __main__ as weight_delta
from benchmarks.deltas import product, threads
from benchmarks.deltas.__main__ import go_through, main, measure_peers
from benchmarks.deltas.peers import DeltaPeer, Words
from benchmarks.deltas.tables import show
from benchmarks.deltas.tools import TOOLS
from benchmarks.deltas.traces import Walk, bisect, joined, learning_rate_for, random_walk, read_trace, to_bf16
from contracts.errors import InvalidValue

pytestmark = pytest.mark.slow  # seconds, for what changes rarely: CI runs it

SHAPES = {"embed": (64, 32), "layer/norm": (32,), "up": (32, 48)}
NUM_STEPS = 17
SMALL = ("--quick", "--rows", "8")
Arrays = dict[str, Words]


def arrays(num_steps: int = NUM_STEPS) -> Arrays:
    """Weights like a trained model's; a step moves some by one unit in the last place, and never the norm."""
    generator = np.random.default_rng(0)
    found = {
        f"base/{name}": to_bf16(generator.normal(0, 0.02, shape).astype(np.float32)) for name, shape in SHAPES.items()
    }
    for step in range(2, num_steps + 2):
        for name in ("embed", "up"):
            found[f"xor/{step}/{name}"] = (generator.random(SHAPES[name]) < 0.02).astype(np.uint16)
    return found


def trace(folder: Path, content: dict[str, Any]) -> Path:
    path = folder / "run.npz"
    np.savez_compressed(path, **content)
    return path


class Run(NamedTuple):
    figures: dict[str, Any]
    folder: Path
    printed: str
    told: str


def run(folder: Path, *arguments: str) -> Run:
    """As called with --json; of the programs among the peers, `folder` holds those on its search path."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(folder))
        printed, told = io.StringIO(), io.StringIO()
        with redirect_stdout(printed), redirect_stderr(told):
            assert main([*arguments, *SMALL, "--json"]) == 0
    return Run(json.loads(printed.getvalue()), folder, printed.getvalue(), told.getvalue())


@pytest.fixture(scope="module")
def with_trace(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """No program is installed."""
    folder = tmp_path_factory.mktemp("traced")
    return run(folder, "--trace", str(trace(folder, arrays())))


@pytest.fixture(scope="module")
def without_trace(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Of the programs only xdelta3 is installed, and left out."""
    folder = tmp_path_factory.mktemp("synthetic")
    (folder / "xdelta3").write_text("#!/bin/sh\nexit 3\n")
    (folder / "xdelta3").chmod(stat.S_IRWXU)
    return run(folder, "--skip-slow")


def test_one_object_holds_every_figure(with_trace: Run) -> None:
    found = with_trace.figures
    assert with_trace.printed.count("\n") == 1
    for name in ("ratio_last_step", "encode_gb_s", "apply_gb_s", "apply_with_base_root_gb_s", "fold8", "fold16"):
        assert found[name] > 0
    assert found["ratio_last_step"] > found["ratio_last_step_with_manifest"]
    assert 0.01 < found["density_last_step"] < 0.03
    assert str(with_trace.folder) not in with_trace.printed
    assert "step 18" in with_trace.told


def test_steps_are_told_one_by_one(with_trace: Run) -> None:
    steps = with_trace.figures["trace"]["steps"]
    assert [step["step"] for step in steps] == [str(step) for step in range(2, NUM_STEPS + 2)]
    for step in steps:
        assert step["full_bytes"] == 2 * sum(int(np.prod(shape)) for shape in SHAPES.values())
        assert step["ratio"] == step["full_bytes"] / step["payload_bytes"]
        assert step["bits_per_changed_weight"] == 8 * step["payload_bytes"] / step["num_changed"]
    assert steps[-1]["ratio"] == with_trace.figures["ratio_last_step"]


def test_peers_are_those_that_can_run(with_trace: Run) -> None:
    found = with_trace.figures
    assert len(found["peers"]) == 5
    for peer in found["peers"].values():
        assert peer.keys() == {"ratio", "encode_gb_s", "decode_gb_s"}
        assert min(peer.values()) > 0
    assert found["peers_skipped"].keys() == {tool.name for tool in TOOLS}
    assert "apt-get install bsdiff" in found["peers_skipped"]["bsdiff"]


def test_slow_peers_can_be_left_out(without_trace: Run) -> None:
    skipped = without_trace.figures["peers_skipped"]
    assert skipped.pop("xdelta3 -9") == "left out by --skip-slow"
    assert len(skipped) == 3
    assert all("apt-get install" in instruction for instruction in skipped.values())
    assert len(without_trace.figures["peers"]) == 5


def test_without_a_trace_it_says_so(without_trace: Run) -> None:
    found = without_trace.figures
    assert found["ratio_last_step"] is found["fold8"] is found["trace"] is None
    assert "no trace was given" in found["of"]
    assert found["encode_gb_s"] == found["synthetic"]["1%"]["encode_gb_s"]
    assert found["peers"] == found["synthetic"]["1%"]["peers"]


@pytest.mark.parametrize("key", ["synthetic", "synthetic_off_grid"])
@pytest.mark.parametrize(("label", "density"), [("0.5%", 0.005), ("1%", 0.01), ("2%", 0.02)])
def test_the_synthetic_runs_have_their_densities(without_trace: Run, key: str, label: str, density: float) -> None:
    assert without_trace.figures[key][label]["density"] == pytest.approx(density, rel=0.02)


def test_the_tables_show_what_must_be_and_what_is(
    with_trace: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    show(with_trace.figures | {"ratio_last_step": 163.7, "fold8": 0.777})
    lines = capsys.readouterr().out.splitlines()
    assert any("150" in line and "163.7" in line and "yes" in line for line in lines)
    assert any("0.5" in line and "0.777" in line and "NO" in line for line in lines)
    assert any(line.startswith("skipped: xdelta3") and "apt-get install xdelta3" in line for line in lines)
    first = [
        next(place for place, line in enumerate(lines) if name in line) for name in ("NeMo-RL", "slime", "raw int32")
    ]
    assert first == sorted(first)


def test_the_tables_say_that_there_was_no_trace(without_trace: Run, capsys: pytest.CaptureFixture[str]) -> None:
    show(without_trace.figures)
    assert capsys.readouterr().out.startswith("no trace was given")


def test_slow_peers_run_once_and_are_told_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chain = go_through(read_trace(trace(tmp_path, arrays(1))), "trace")
    calls = []

    def encode(base: Words, target: Words) -> bytes:
        calls.append(base)
        return target.tobytes()

    slow = DeltaPeer("slow", encode, lambda _base, payload: np.frombuffer(payload, np.uint16), is_slow=True)
    assert measure_peers([slow], chain, 5)["slow"]["ratio"] == 1
    assert len(calls) == 1
    assert "slow" in capsys.readouterr().err
    assert len(measure_peers([slow._replace(is_slow=False)], chain, 5)) == 1
    assert len(calls) == 1 + 6


def test_a_peer_that_loses_a_bit_is_refused(tmp_path: Path) -> None:
    chain = go_through(read_trace(trace(tmp_path, arrays(1))), "trace")
    lossy = DeltaPeer("lossy", lambda _base, _target: b"", lambda base, _payload: base, is_slow=False)
    with pytest.raises(InvalidValue, match="lossy gave back other weights"):
        measure_peers([lossy], chain, 1)


def test_a_run_too_short_has_no_folds(tmp_path: Path) -> None:
    chain = go_through(read_trace(trace(tmp_path, arrays(8))), "trace")
    assert chain.moments.keys() == {1, 8}


def test_a_trace_is_read_in_the_order_of_its_steps(tmp_path: Path) -> None:
    content = arrays(10)
    versions = read_trace(trace(tmp_path, content))
    assert versions.steps == tuple(str(step) for step in range(2, 12))
    expected = {name: content[f"base/{name}"] for name in SHAPES}
    for number, tensors in enumerate(versions.tensors):
        if number:
            expected = {
                name: words ^ content.get(f"xor/{number + 1}/{name}", np.uint16(0)) for name, words in expected.items()
            }
        assert tensors.keys() == expected.keys()
        for name, tensor in tensors.items():
            assert (tensor.dtype, tensor.shape) == ("BF16", SHAPES[name])
            assert tensor.data.tobytes() == expected[name].tobytes()


def without(prefix: str) -> Callable[[Arrays], dict[str, Any]]:
    return lambda content: {name: array for name, array in content.items() if not name.startswith(prefix)}


BROKEN: dict[str, tuple[Callable[[Arrays], dict[str, Any]], str]] = {
    "no steps": (without("xor/"), "is no trace"),
    "no base": (without("base/"), "'xor/2/embed' changes no tensor"),
    "nothing": (lambda _: {"weights": np.zeros(3)}, "is no trace"),
    "an unknown tensor": (lambda content: content | {"xor/3/other": content["base/up"]}, "'xor/3/other' changes no tensor"),
    "floats": (lambda content: content | {"base/up": np.zeros((32, 48), np.float32)}, "'base/up' is float32"),
    "another shape": (lambda content: content | {"xor/5/up": content["base/embed"]}, "'xor/5/up' is uint16"),
    "objects": (lambda content: content | {"base/up": np.array([None])}, "'base/up' cannot be read"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_a_file_that_is_no_trace_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    change, message = BROKEN[case]
    path = trace(tmp_path, change(arrays(5)))
    assert main(["--json", "--trace", str(path)]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert str(path) in printed.err
    assert message in printed.err


def damage(path: Path, member: str) -> None:
    with zipfile.ZipFile(path) as archive:
        place = archive.getinfo(f"{member}.npy").header_offset + 80
    content = bytearray(path.read_bytes())
    content[place : place + 40] = bytes(40)
    path.write_bytes(content)


def test_a_damaged_array_is_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = trace(tmp_path, arrays(3))
    damage(path, "xor/3/up")
    assert main(["--json", "--trace", str(path)]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert f"{path}: the array 'xor/3/up' cannot be read" in printed.err


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x03\x04 cut off", None])
def test_a_file_that_is_no_archive_is_refused_by_name(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "broken.npz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidValue, match=r"broken\.npz"):
        read_trace(path)


def test_a_single_array_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", np.zeros(3))
    with pytest.raises(InvalidValue, match=r"one\.npy is not an \.npz archive"):
        read_trace(tmp_path / "one.npy")


@pytest.mark.parametrize("is_on_grid", [True, False])
def test_the_learning_rate_gives_the_density(is_on_grid: bool) -> None:
    walk = Walk(128, 256, num_matrices=2, num_steps=4, is_on_grid=is_on_grid)
    rates = [learning_rate_for(walk, density) for density in (0.01, 0.03)]
    assert rates[0] < rates[1]
    for rate, density in zip(rates, (0.01, 0.03), strict=True):
        *_, base, target = random_walk(walk, rate).tensors
        assert np.mean(joined(base) != joined(target)) == pytest.approx(density, rel=0.02)


def test_a_walk_off_the_grid_changes_other_weights() -> None:
    walks = [Walk(64, 64, num_matrices=1, is_on_grid=is_on_grid) for is_on_grid in (True, False)]
    (base, first), (other, second) = [list(random_walk(walk, 1e-6).tensors)[:2] for walk in walks]
    assert np.array_equal(joined(base), joined(other))
    # The first step of Adam is the learning rate: off the grid some weights sit just below the next word.
    assert np.sum(joined(base) != joined(first)) < np.sum(joined(other) != joined(second))


def test_bisection_finds_and_refuses() -> None:
    assert bisect(lambda rate: min(1.0, 1e4 * rate), 0.02) == pytest.approx(2e-6, rel=0.0025)
    with pytest.raises(InvalidValue, match=r"no learning rate changes 2\.00%"):
        bisect(lambda rate: 0.0 if rate < 1e-6 else 0.5, 0.02)


@pytest.mark.parametrize(
    ("value", "bits"), [(1.0, 0x3F80), (-0.0, 0x8000), (1 + 2**-8, 0x3F80), (1 + 3 * 2**-8, 0x3F82)]
)
def test_bf16_is_the_nearest_and_the_even(value: float, bits: int) -> None:
    assert to_bf16(np.array([value], np.float32)).tolist() == [bits]


@pytest.mark.parametrize("arguments", [["--rounds", "0"], ["--rows", "many"], ["--what"]])
def test_wrong_options_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert "usage: python -m benchmarks.deltas" in capsys.readouterr().err


def test_the_report_names_no_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    written: dict[str, Any] = {}

    def keep(_name: str, figures: dict[str, Any]) -> Path:
        written.update(figures)
        return Path("kept")

    monkeypatch.setattr(weight_delta, "write_report", keep)
    monkeypatch.setattr(weight_delta, "measure", lambda _options: {"a": 1})
    monkeypatch.setattr(weight_delta, "show", lambda _figures: None)
    assert main(["--trace", str(tmp_path / "run.npz"), "--rounds", "2"]) == 0
    assert written == {"command": "python -m benchmarks.deltas --trace run.npz --rounds 2", "a": 1}
    written.clear()
    assert main(["--trace", str(tmp_path / "run.npz"), "--quick"]) == 0
    assert written == {}
    assert capsys.readouterr().out == "kept\n"


def test_threads_change_no_byte() -> None:
    figures = threads.measure([1, 2], rounds=1, layers=1, vocabulary=256)
    assert figures["payloads_equal"]
    assert figures["ratio"] > 100
    assert [*figures["gb_s"]] == [1, 2]
    with redirect_stdout(io.StringIO()) as shown:
        threads.show(figures)
    assert "decode and verify" in shown.getvalue()


def test_the_product_is_measured_beside_the_codec(capsys: pytest.CaptureFixture[str]) -> None:
    figures = product.measure((1, 2), rounds=1, layers=1, vocabulary=64)
    assert [*figures["gb_s"]] == [1, 2]
    assert all(found.keys() == {"encode", "publish", "stage", "bring"} for found in figures["gb_s"].values())
    product.show(figures)
    assert "stage and apply" in capsys.readouterr().out
