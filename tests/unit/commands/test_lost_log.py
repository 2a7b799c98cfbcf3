"""`millrace up`, its processes, doctor and `log accept-loss` on a home whose log is lost or whose files changed."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from commands.doctor import examine
from commands.home import prepare_home
from commands.log import accept_loss
from contracts.errors import Damaged, LogLost
from contracts.ids import new_completion_id
from contracts.ledger import generation_counts
from contracts.tables import dead_letter
from contracts.topics import GENERATIONS
from pipelines.episodes.handler import EpisodesHandler
from runtime.log.outbox import message
from runtime.settings import Settings
from runtime.worker import Worker
from tests.fakes import BOOKING_TASK, a_generation

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent.parent
PRODUCT = ROOT / "examples" / "reservations"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """A home that served 26 answers."""
    base = str(PRODUCT / "base")
    home = tmp_path / "home"
    settings = Settings(home=home, run="r", policy="reservations", base=base, tasks=(PRODUCT / "task.toml",))
    prepare_home(settings, {})
    serve(settings, 26)
    return settings


def serve(settings: Settings, number: int) -> None:
    database, log = settings.database(), settings.event_log()
    made = [a_generation(completion_id=new_completion_id()) for _ in range(number)]
    log.append([message(GENERATIONS, item.key, item) for item in made])
    worker = Worker(EpisodesHandler({"booking": BOOKING_TASK}), database, log)
    while worker.step():
        pass
    log.close()
    database.close()


def num_joined(settings: Settings) -> int:
    with settings.snapshot() as connection:
        return generation_counts(connection).total


def test_a_start_without_its_log_is_refused_until_the_loss_is_accepted(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(settings.home / "log")
    for _ in range(2):
        says = r"generations is missing: 26 records are gone, all of them were read .*accept-loss"
        with pytest.raises(LogLost, match=says):
            prepare_home(settings, {})
    accept_loss(settings.home, yes=False)
    assert "nothing was changed; run it again with --yes" in capsys.readouterr().out
    with pytest.raises(LogLost):
        prepare_home(settings, {})
    accept_loss(settings.home, yes=True)
    prepare_home(settings, {})
    serve(settings, 26)
    assert num_joined(settings) == 52
    accept_loss(settings.home, yes=True)
    assert "nothing is missing" in capsys.readouterr().out


def test_a_process_of_a_split_installation_refuses_at_its_own_start(settings: Settings) -> None:
    shutil.rmtree(settings.home / "log")
    command = [sys.executable, str(ROOT / "millrace.py"), "episodes", "--home", str(settings.home)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=60)  # noqa: S603 our own
    assert done.returncode == 2
    assert "generations is missing: 26 records are gone" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def findings(settings: Settings) -> dict[str, tuple[bool, str]]:
    return {finding.name: (finding.good, finding.says) for finding in examine(settings.home)}


def test_doctor_says_what_a_start_would_say(settings: Settings) -> None:
    found = findings(settings)
    assert [found[name][0] for name in ("files", "log", "clock")] == [True, True, True]
    shutil.rmtree(settings.home / "log")
    good, says = findings(settings)["log"]
    assert not good
    assert "generations is missing" in says


def test_a_broken_page_is_named_and_nothing_starts(settings: Settings) -> None:
    path = settings.home / "log" / "generations.db"
    checkpoint(path)
    content = bytearray(path.read_bytes())
    content[4096:4196] = bytes(100)
    path.write_bytes(content)
    with pytest.raises(Damaged, match=r"generations\.db .*Nothing was started.*accept-loss"):
        prepare_home(settings, {})
    good, says = findings(settings)["files"]
    assert not good
    assert "generations.db is damaged" in says
    path.unlink()
    accept_loss(settings.home, yes=True)
    prepare_home(settings, {})


def checkpoint(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


def test_a_flipped_bit_in_a_record_costs_that_record_and_is_named(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    log = settings.event_log()
    made = [a_generation(completion_id=new_completion_id(), tenant="flipped") for _ in range(3)]
    log.append([message(GENERATIONS, item.key, item) for item in made])
    log.close()
    path = settings.home / "log" / "generations.db"
    checkpoint(path)
    content = path.read_bytes()
    at = content.index(b"flipped")
    path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    prepare_home(settings, {})
    assert "is damaged" in capsys.readouterr().out
    good, says = findings(settings)["log"]
    assert not good
    assert "1 records are damaged: generations/" in says
    serve(settings, 0)
    with settings.snapshot() as connection:
        reasons = [row.reason for row in connection.execute(dead_letter.select())]
    assert [reason.split(":")[0] for reason in reasons] == ["not the Generation that was appended"]
    assert num_joined(settings) == 26 + 2
