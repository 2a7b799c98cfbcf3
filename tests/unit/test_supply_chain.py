"""What is installed is what the project names: pinned versions, bounded ranges, no code that runs at every start of Python."""

from __future__ import annotations

import re
import site
import tomllib
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
_BOOTSTRAP = {"millrace", "pip", "setuptools", "wheel"}
_OF_TORCH = ("cuda-", "nvidia-", "triton")
"""What the pinned torch brings on a machine with a GPU: its own metadata names the versions."""
_KNOWN_STARTS = ("__editable__.millrace-", "distutils-precedence.pth", "_virtualenv.pth")


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


PINS = {
    plain(name): version
    for name, version in (line.split("==") for line in (ROOT / "constraints.txt").read_text().split())
}


def test_everything_installed_is_pinned_at_its_version() -> None:
    found = {plain(dist.metadata["Name"]): dist.version.partition("+")[0] for dist in metadata.distributions()}
    ours = {
        name: version for name, version in found.items() if name not in _BOOTSTRAP and not name.startswith(_OF_TORCH)
    }
    assert {name: version for name, version in ours.items() if PINS.get(name) != version} == {}


def test_every_requirement_is_pinned_and_has_an_upper_bound() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    for requirement in wanted:
        name, ranges = re.fullmatch(r"([\w.-]+)(?:\[[^]]*\])?(.*)", requirement).groups()  # type: ignore[union-attr] # a match
        assert plain(name) in PINS, requirement
        assert "<" in ranges or "==" in ranges, requirement


def test_no_package_runs_code_at_every_start() -> None:
    """The payload of a stolen release sat in a .pth file: lines that begin with `import` run whatever Python does."""
    starts = {
        path.name
        for folder in site.getsitepackages()
        for path in Path(folder).glob("*.pth")
        if any(line.startswith(("import ", "import\t")) for line in path.read_text().splitlines())
    }
    assert {name for name in starts if not name.startswith(_KNOWN_STARTS)} == set()
