"""Every product module is reached from the command line, or from a program that is documented to load it.

A module reaches what it imports, also inside functions, and what it names in a string: `"package.module"`, `"package.module:name"`,
`"file.py"` beside it, and in a `registry.py` the bare name of a module beside it. Tests and benchmarks reach nothing.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.unit.test_architecture import PACKAGES, ROOT

_LOADED_BY_OTHERS = {
    # vLLM loads its worker extension by the dotted name on its command line.
    "engines.vllm.server.receiver": (
        "docs/engines.md",
        "--worker-extension-cls engines.vllm.server.receiver.WorkerExtension",
    ),
}
"""Module to the page that shows how it is loaded, and the words there."""


def modules_below(root: Path, packages: Iterable[str]) -> dict[str, Path]:
    """Dotted name of each module to its file; a package is its `__init__.py`."""
    files = [path for package in packages for path in (root / package).rglob("*.py")] + list(root.glob("*.py"))
    return {".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path for path in files}


def unreached(modules: dict[str, Path], roots: Iterable[str]) -> list[str]:
    """The modules that nothing among `roots` leads to. A package without code of its own counts as its modules do."""
    reached: set[str] = set()
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if name not in reached and name in modules:
            reached.add(name)
            waiting += [*_named_in(name, modules[name]), name.rpartition(".")[0]]
    return sorted(modules.keys() - reached)


def _named_in(name: str, path: Path) -> Iterator[str]:
    """Everything in a file that may be the name of a module."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    nodes = list(ast.walk(ast.parse(path.read_text())))
    strings = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    yield from (text.partition(":")[0] for text in strings)
    yield from (f"{package}.{text.removesuffix('.py')}" for text in strings if text.endswith(".py"))
    if path.name == "registry.py":
        yield from (f"{package}.{text}" for text in strings)
    for node in nodes:
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), names=names, level=0):
                yield from (module, *(f"{module}.{alias.name}" for alias in names))
            case _:
                pass


def entry_points() -> list[str]:
    """The modules of the commands that the wheel installs."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    return [target.partition(":")[0] for target in scripts.values()]


def test_every_module_is_reached() -> None:
    found = unreached(modules_below(ROOT, [*PACKAGES, "examples"]), [*entry_points(), *_LOADED_BY_OTHERS])
    assert [name for name in found if not name.startswith("examples")] == []


def test_what_others_load_is_documented_and_reached_by_nothing_else() -> None:
    for page, words in _LOADED_BY_OTHERS.values():
        assert words in (ROOT / page).read_text(), page
    assert _LOADED_BY_OTHERS.keys() <= set(unreached(modules_below(ROOT, [*PACKAGES, "examples"]), entry_points()))


def test_a_dead_module_is_named(tmp_path: Path) -> None:
    texts = {
        "main.py": "def run():\n    from house.lazy import go\n    go('house.process:main', '-m')\n",
        "house/__init__.py": "",
        "house/lazy.py": "from house import shared\nimport house.kinds.registry\n",
        "house/kinds/registry.py": "KINDS = ['exact']\n",
        "house/shared.py": "DRIVER = 'driver.py'\n'As house.mentioned does.'\n",
        "house/driver.py": "",
        "house/process.py": "",
        "house/kinds/__init__.py": "",
        "house/kinds/exact.py": "",
        "house/kinds/unlisted.py": "",
        "house/dead.py": "import house.only_by_dead\n",
        "house/only_by_dead.py": "",
        "house/mentioned.py": "",
    }
    (tmp_path / "house" / "kinds").mkdir(parents=True)
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    found = unreached(modules_below(tmp_path, ["house"]), ["main"])
    assert found == ["house.dead", "house.kinds.unlisted", "house.mentioned", "house.only_by_dead"]
