"""What every test may use: a migrated database and a log of its own."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import hypothesis
import pytest
import structlog
from xdist.remote import Producer  # type: ignore[import-untyped]

from runtime.database import Database
from runtime.log.local import LocalLog
from tests.databases import copy_instead_of_migrating, share_compiled_statements, write_migrated
from tests.in_memory import MEMORY, has_room
from tests.leftovers import end_with_this_process
from tests.scheduling import LongestFirst
from tests.selection import is_left_out, share_of
from tests.torch_marker import touches_torch
from tests.worlds.servers.authority import Authority

# No example has a time limit: machines are slow or busy. Every run draws other examples, so that a run needs fewer, and one without slow
# tests, which comes most often, fewer still.
hypothesis.settings.register_profile(
    "millrace", deadline=None, max_examples=40, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.register_profile("quick", hypothesis.settings.get_profile("millrace"), max_examples=20)
hypothesis.settings.load_profile("millrace")
share_compiled_statements()
copy_instead_of_migrating()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files without a test that `-m` asks for."""
    return is_left_out(collection_path, config.option.markexpr) or None


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """What collection makes stays to the end: to look through it for garbage took a third of its time."""
    gc.disable()
    # Slow tests look at disks, and at sandboxes that see no memory of the host.
    if "not slow" in session.config.option.markexpr:
        hypothesis.settings.load_profile("quick")
        if has_room():
            os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))
    session.config.add_cleanup(end_with_this_process())
    session.config.add_cleanup(_trust_one())


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Import this worker's share before the files of others."""
    if worker := os.environ.get("PYTEST_XDIST_WORKER"):
        number, count = int(worker.removeprefix("gw")), int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        for file in share_of(session.config, number, count):
            with suppress(Exception, pytest.skip.Exception):  # collection comes to it again, and tells
                import_module(".".join(file.relative_to(session.config.rootpath).with_suffix("").parts))


def pytest_collection_finish() -> None:
    """From here on garbage is made."""
    gc.freeze()
    gc.enable()


def _trust_one() -> Callable[[], None]:
    """Let HTTP clients load a list with one authority, whose key nobody has; returns what ends that.

    Each client loads the whole system's list when it is made, which takes 40 ms. No test speaks TLS to the world, and those
    that speak it here name their own authority.
    """
    before = {name: os.environ.get(name) for name in ("SSL_CERT_FILE", "SSL_CERT_DIR")}
    folder = tempfile.TemporaryDirectory()
    os.environ.pop("SSL_CERT_DIR", None)
    os.environ["SSL_CERT_FILE"] = str(Authority(Path(folder.name), "of-no-server").file)

    def end() -> None:
        del os.environ["SSL_CERT_FILE"]
        os.environ.update({name: value for name, value in before.items() if value is not None})
        folder.cleanup()

    return end


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LongestFirst | None:
    """Where a file stays with one worker, the longest begins first."""
    return LongestFirst(config, log) if config.option.dist == "loadfile" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what touches torch: `make test-torch` runs it as other CPUs would."""
    for item in items:
        if touches_torch(item.path):
            item.add_marker("torch")


@pytest.fixture(autouse=True)
def logs_as_they_were() -> Iterator[None]:
    """A command run inside a test configures logging: for that test only."""
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database file built by the real migrations, to be copied."""
    path = tmp_path_factory.mktemp("migrated") / "millrace.db"
    write_migrated(path)
    return path


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    path = tmp_path / "millrace.db"
    write_migrated(path)
    opened = Database(f"sqlite:///{path}")
    yield opened
    opened.close()


@pytest.fixture
def event_log(tmp_path: Path) -> Iterator[LocalLog]:
    log = LocalLog(tmp_path / "log")
    yield log
    log.close()
