"""What is installed in an image, against the locks in deploy/requirements. Runs while the image is built, with its own Python.

    packages.py check LOCK...   what is installed is what the locks name, unchanged since it was unpacked; otherwise status 1
    packages.py list LOCK...    the packages as a CycloneDX document, on standard output
    packages.py prune           delete what no process reads: tests, places of phone numbers, symbols of debuggers

No database of known vulnerabilities is asked: hand the list to a scanner that has one.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import Distribution, distributions
from pathlib import Path

OURS = "millrace"
_KNOWN_STARTS = ("distutils-precedence.pth",)
_UNREAD = ("phonenumbers/geodata", "phonenumbers/carrierdata")
_KEPT = ("numpy", "torch", "transformers", "trl", "accelerate", "datasets")
"""Packages whose folders of tests are read by other code of theirs."""


def plain(name: str) -> str:
    """A package's name as an index compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def locked(text: str) -> dict[str, str]:
    """Names and versions of a lock.

    Raises:
        ValueError: a requirement without an exact version or without a hash.
    """
    found = {}
    for entry in re.split(r"\n(?=\S)", text.strip()):
        match = re.match(r"([\w.-]+)(?:\[[\w,.-]+\])?==([\w.+!-]+)", entry)
        if match is None or "--hash=sha256:" not in entry:
            raise ValueError(f"not an exact version with a hash: {entry.splitlines()[0]}")
        found[plain(match[1])] = match[2]
    return found


def problems(installed: Iterable[Distribution], locks: Sequence[str], folder: Path) -> Iterator[str]:
    """What differs from the locks, one line each. Files are compared with their record for the packages of the last lock only."""
    wanted = {name: version for lock in locks for name, version in locked(lock).items()}
    present = {plain(one.metadata["Name"]): one for one in installed}
    for name in sorted(wanted.keys() - present.keys()):
        yield f"{name} {wanted[name]} is locked, but not installed"
    for name, one in sorted(present.items()):
        if name == OURS:
            continue
        if name not in wanted:
            yield f"{name} {one.version} is installed, but in no lock"
        elif one.version != wanted[name]:
            yield f"{name} is installed as {one.version}, and locked as {wanted[name]}"
        if one.read_text("direct_url.json") is not None:
            yield f"{name} did not come from an index"
        if name in locked(locks[-1]):
            yield from _changed(one)
    yield from _strangers(present.values(), folder)


def _strangers(installed: Iterable[Distribution], folder: Path) -> Iterator[str]:
    owned = {Path(str(one.locate_file(file))).resolve() for one in installed for file in one.files or ()}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix != ".pyc" and path.resolve() not in owned:
            yield f"{path} belongs to no package"
    for path in sorted(folder.glob("*.pth")):
        if path.name not in _KNOWN_STARTS and re.search(r"^import\s", path.read_text(), re.MULTILINE):
            yield f"{path} runs code at every start of Python"


def _changed(one: Distribution) -> Iterator[str]:
    for file in one.files or ():
        if file.hash is None:
            continue
        path = Path(str(one.locate_file(file)))
        if not path.exists():
            yield f"{path} is missing"
            continue
        digest = hashlib.new(file.hash.mode, path.read_bytes()).digest()
        if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != file.hash.value:
            yield f"{path} is not the file that {one.metadata['Name']} {one.version} came with"


def bill(installed: Iterable[Distribution], locks: Sequence[str]) -> dict[str, object]:
    """The packages as a CycloneDX 1.6 document. The same packages make the same document."""
    wanted = {name for lock in locks for name in locked(lock)}
    parts = {plain(one.metadata["Name"]): one for one in installed}
    components = [_component(name, parts[name]) for name in sorted(parts) if name in wanted]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": OURS, "version": parts[OURS].version}},
        "components": components,
    }


def _component(name: str, one: Distribution) -> dict[str, object]:
    component: dict[str, object] = {
        "type": "library",
        "bom-ref": f"pkg:pypi/{name}@{one.version}",
        "name": name,
        "version": one.version,
        "purl": f"pkg:pypi/{name}@{one.version}",
    }
    if "License-Expression" in one.metadata:
        component["licenses"] = [{"expression": one.metadata["License-Expression"]}]
    elif "License" in one.metadata:
        component["licenses"] = [{"license": {"name": one.metadata["License"].strip().partition("\n")[0]}}]
    return component


def prune(folder: Path) -> None:
    """Delete what no process reads."""
    for name in _UNREAD:
        shutil.rmtree(folder / name, ignore_errors=True)
    for path in sorted(folder.rglob("tests")):
        if path.is_dir() and path.relative_to(folder).parts[0] not in _KEPT:
            shutil.rmtree(path)
    libraries = [path for path in folder.rglob("*.so") if not path.parent.name.endswith(".libs")]
    subprocess.run(["strip", "--strip-unneeded", *libraries], check=True)  # noqa: S603, S607 binutils of the image that builds


def main(arguments: Sequence[str]) -> int:
    """Returns the exit status."""
    folder = Path(sysconfig.get_path("purelib"))
    what, *names = arguments
    locks = [Path(name).read_text() for name in names]
    installed = list(distributions(path=[str(folder)]))
    if what == "prune":
        prune(folder)
    elif what == "list":
        json.dump(bill(installed, locks), sys.stdout, indent=1)
    else:
        found = list(problems(installed, locks, folder))
        sys.stderr.write("".join(f"{line}\n" for line in found))
        return bool(found)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
