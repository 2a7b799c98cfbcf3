"""deploy/requirements and deploy/packages.py: what the images install, and how it is compared with what is there."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import re
import tomllib
from collections.abc import Mapping, Sequence
from importlib.metadata import Distribution, distributions
from pathlib import Path
from types import ModuleType

import pytest

from tests.unit.test_supply_chain import PINS, ROOT, plain

LOCKS = {path.stem: path.read_text() for path in (ROOT / "deploy" / "requirements").glob("*.txt")}
_OF_CUDA = ("cuda-", "nvidia-", "triton")
HASH = "--hash=sha256:" + "0" * 64


def _load() -> ModuleType:
    """The script of the images: it runs there without this project."""
    spec = importlib.util.spec_from_file_location("packages_of_images", ROOT / "deploy" / "packages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


packages = _load()


@pytest.mark.parametrize("name", sorted(LOCKS))
def test_a_lock_has_the_versions_of_the_constraints_and_nothing_without_a_hash(name: str) -> None:
    locked: Mapping[str, str] = packages.locked(LOCKS[name])
    assert locked
    others = {one for one in locked if one == "setuptools" or one.startswith(_OF_CUDA)}
    assert {one: version.partition("+")[0] for one, version in locked.items() if one not in others} == {
        one: PINS[one] for one in locked if one not in others
    }
    assert "://" not in LOCKS[name]


def test_the_locks_hold_what_the_project_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    slim, cpu, cuda = (set(packages.locked(LOCKS[name])) for name in ("slim", "torch-cpu", "torch-cuda"))
    assert _names(project["dependencies"]) <= slim
    assert _names(project["optional-dependencies"]["torch"]) <= cpu
    assert not slim & cuda
    assert {name for name in cuda - cpu if not name.startswith(_OF_CUDA)} == set()
    assert cpu < cuda
    assert packages.locked(LOCKS["torch-cpu"])["torch"] == packages.locked(LOCKS["torch-cuda"])["torch"] + "+cpu"


def _names(requirements: Sequence[str]) -> set[str]:
    return {plain(re.split(r"[\[<>=]", one)[0]) for one in requirements}


@pytest.mark.parametrize("text", ["a==1.0", f"a>=1.0 {HASH}", f"a {HASH}", "a==1.0 --hash=md5:00"])
def test_a_lock_that_pins_nothing_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not an exact version with a hash: a"):
        packages.locked(text)


def install(folder: Path, name: str, version: str, files: Mapping[str, str]) -> None:
    """What pip leaves behind."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nLicense-Expression: MIT\n"
    )
    record = [f"{info.name}/METADATA,,", f"{info.name}/RECORD,,"]
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record.append(f"{path},sha256={digest},{len(text)}")
    (info / "RECORD").write_text("\n".join(record) + "\n")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    install(tmp_path, "millrace", "0.1.0", {"millrace.py": ""})
    install(tmp_path, "one", "1.0", {"one/__init__.py": "a = 1\n"})
    return tmp_path


def said(folder: Path, *locks: str) -> list[str]:
    found: list[Distribution] = list(distributions(path=[str(folder)]))
    return [str(line).replace(f"{folder}/", "") for line in packages.problems(found, locks, folder)]


def test_what_is_installed_as_locked_is_fine(folder: Path) -> None:
    assert said(folder, f"one==1.0 {HASH}") == []
    install(folder, "two", "2.0", {"two.py": ""})
    assert said(folder, f"one==1.0 {HASH}", f"two==2.0 {HASH}") == []


def test_each_difference_is_named(folder: Path) -> None:
    (folder / "one" / "__init__.py").write_text("a = 2\n")
    (folder / "late.pth").write_text("import os\n")
    (folder / "one-1.0.dist-info" / "direct_url.json").write_text("{}")
    install(folder, "two", "2.0", {"two.py": ""})
    install(folder, "three", "3.1", {"three.py": ""})
    (folder / "three.py").unlink()
    assert said(folder, f"one==1.0 {HASH}\nthree==3.0 {HASH}\nfour==4 {HASH}") == [
        "four 4 is locked, but not installed",
        "one did not come from an index",
        "one/__init__.py is not the file that one 1.0 came with",
        "three is installed as 3.1, and locked as 3.0",
        "three.py is missing",
        "two 2.0 is installed, but in no lock",
        "late.pth belongs to no package",
        "one-1.0.dist-info/direct_url.json belongs to no package",
        "late.pth runs code at every start of Python",
    ]


def test_the_bill_lists_what_is_locked(folder: Path) -> None:
    bill = packages.bill(list(distributions(path=[str(folder)])), [f"one==1.0 {HASH}"])
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert bill["metadata"]["component"]["version"] == "0.1.0"
    [component] = bill["components"]
    assert (component["purl"], component["licenses"]) == ("pkg:pypi/one@1.0", [{"expression": "MIT"}])
