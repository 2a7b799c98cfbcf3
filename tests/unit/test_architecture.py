"""The rules of the house that a linter cannot state."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import grimp
import pytest

from engines.registry import FOLLOWED, GONE

ROOT = Path(__file__).parent.parent.parent
PACKAGES = ("commands", "contracts", "engines", "pipelines", "policy", "rewards", "runtime", "services", "weights")
_QUALIFIED = {"Config": "each verifier's module has one; its registry says `module.Config`"}
"""Public class names that several modules have on purpose, and why nobody mixes them up."""
KITS = ("benchmarks", "tests/adversary", "tests/worlds")
"""What tests, attacks and benchmarks share."""
LONGEST_FILE = 400
# In one process, one after another: the first that loads torch is named.
TORCH_FREE = (
    "millrace", "commands.process", "commands.up", "examples.demo.command", "services.web", "commands.episodes",
    "commands.release", "engines.vllm.follow", "rewards.__main__", "examples.reservations.users",
)  # fmt: skip


def sources() -> Iterator[Path]:
    for package in PACKAGES:
        yield from (ROOT / package).rglob("*.py")


def test_only_engine_and_training_load_torch() -> None:
    code = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(name)\n"
        "    if {'torch', 'transformers'} & sys.modules.keys():\n"
        "        sys.exit(f'{name} loads torch')\n"
    )
    command = [sys.executable, "-c", code, *TORCH_FREE]
    ran = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)  # noqa: S603
    assert (ran.returncode, ran.stderr) == (0, "")


def test_sql_stays_in_contracts_runtime_repositories_and_queries() -> None:
    allowed = {"Connection"}  # a transaction is handed through, statements are not written
    offenders = []
    for path in sources():
        if (
            path.is_relative_to(ROOT / "contracts")
            or path.is_relative_to(ROOT / "runtime")
            or path.name in {"repository.py", "queries.py"}
        ):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sqlalchemy"):
                offenders += [f"{path.relative_to(ROOT)}: {n.name}" for n in node.names if n.name not in allowed]
            if isinstance(node, ast.Import) and any(n.name.startswith("sqlalchemy") for n in node.names):
                offenders.append(str(path.relative_to(ROOT)))
    assert offenders == []


def _names(path: Path) -> Iterator[str]:
    """What a file of code calls things: its identifiers, and strings that are names of things. Text for users is neither."""
    text = path.read_text()
    if path.suffix != ".py":
        yield from re.findall(r"\w+", text)
        return
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Constant(value=str(value)) if re.fullmatch(r"[\w.:/]+", value):
                yield value
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.alias(name=name):
                yield name
            case ast.keyword(arg=str(name)) | ast.ImportFrom(module=str(name)):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case _:
                pass


def test_only_engines_names_a_kind_of_engine(tmp_path: Path) -> None:
    kinds = re.compile("|".join([*FOLLOWED, *GONE]), re.IGNORECASE)

    def named(paths: Iterable[Path]) -> list[str]:
        return [f"{path}: {name}" for path in paths for name in _names(path) if kinds.search(name)]

    outside = [path for path in sources() if not path.is_relative_to(ROOT / "engines")]
    assert named([*outside, ROOT / "millrace.py", *(ROOT / "services" / "dashboard" / "static").glob("*.js")]) == []
    code = (
        '"""Text for users may say vLLM."""\nfrom engines.vllm.kind import KIND\n'
        'def f(vllm_python, *, x="--vllm-python"):\n    return f"as vLLM says", x == "vllm"\n'
    )
    (tmp_path / "one.py").write_text(code)
    (tmp_path / "two.js").write_text('const LIVE = ["engine", "vllm"]; // as an engine')
    assert [text.rpartition(" ")[2] for text in named(sorted(tmp_path.iterdir()))] == [
        "engines.vllm.kind", "vllm_python", "vllm", "vllm",
    ]  # fmt: skip


def test_no_file_is_longer_than_one_can_read() -> None:
    assert [str(path) for path in sources() if len(path.read_text().splitlines()) > LONGEST_FILE] == []


def test_a_public_class_name_means_one_thing() -> None:
    homes: dict[str, list[str]] = {}
    kits = [path for house in KITS for path in (ROOT / house).rglob("*.py")]
    for path in sorted([*sources(), *(ROOT / "examples").rglob("*.py"), *kits]):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    several = {name: paths for name, paths in homes.items() if len(paths) > 1}
    assert {name: paths for name, paths in several.items() if name not in _QUALIFIED} == {}
    assert _QUALIFIED.keys() <= several.keys()


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph(*PACKAGES, "benchmarks", "tests", cache_dir=None)


def test_rooms_of_a_package_never_import_each_other_in_a_circle(graph: grimp.ImportGraph) -> None:
    rooms = {module for module in graph.modules if graph.find_children(module)}
    kits = tuple(house.replace("/", ".") for house in KITS)
    for package in sorted(room for room in rooms if not room.startswith("tests") or room.startswith(kits)):
        assert graph.nominate_cycle_breakers(package) == set(), package


def test_worlds_know_no_benchmark(graph: grimp.ImportGraph) -> None:
    known = {
        name
        for room in graph.find_descendants("tests.worlds")
        for name in graph.find_modules_directly_imported_by(room)
    }
    assert {name for name in known if name.startswith("benchmarks")} == set()


def test_a_circle_is_named() -> None:
    graph = grimp.ImportGraph()
    for module in ("house", "house.cellar", "house.cellar.stairs", "house.hall"):
        graph.add_module(module)
    graph.add_import(importer="house.hall", imported="house.cellar.stairs")
    assert graph.nominate_cycle_breakers("house") == set()
    graph.add_import(importer="house.cellar", imported="house.hall")
    assert len(graph.nominate_cycle_breakers("house")) == 1


def test_nothing_unpickles() -> None:
    """`marshal` is written by graders for their own driver: only the driver, inside the sandbox, reads it."""
    for path in sources():
        nodes = list(ast.walk(ast.parse(path.read_text())))
        imported = {name.name for node in nodes if isinstance(node, ast.Import) for name in node.names}
        assert not imported & {"pickle", "shelve"}, path
        reads = [
            node for node in nodes if isinstance(node, ast.Attribute) and ast.unparse(node).startswith("marshal.load")
        ]
        assert not reads or path.as_posix().endswith("rewards/sandbox/driver.py"), path


def test_models_and_migrations_agree(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from alembic import command\nfrom alembic.config import Config\nfrom runtime.database import Database\nfrom runtime.days import migrate\n"
        "config = Config()\nconfig.set_main_option('script_location', 'migrations')\n"
        "database = Database(f'sqlite:///{sys.argv[1]}')\nmigrate(database)\n"
        "with database.transaction() as connection:\n"
        "    config.attributes['connection'] = connection\n    command.check(config)\n"
    )
    ran = subprocess.run(  # noqa: S603
        [sys.executable, "-c", code, str(tmp_path / "m.db")], cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
