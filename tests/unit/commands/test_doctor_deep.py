"""`millrace doctor --deep`: each check names what is broken, and says what to do."""

from __future__ import annotations

import re
import socket
import sqlite3
import threading
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from commands.deep import disk_findings, task_findings
from commands.deep.servers import clock_findings, port_findings, process_findings, server_findings
from commands.deep.tls import certificate_findings
from commands.doctor import examine
from commands.findings import Finding
from commands.home import Home
from contracts import heartbeats
from contracts.heartbeats import NEEDED, ProcessBeat
from runtime.log.local import LocalLog
from runtime.settings import Settings, load_settings, write_settings
from tests.unit.commands.test_backup import set_revision


@pytest.fixture
def settings(seeded_home: Path) -> Settings:
    found = load_settings(seeded_home)
    (found.home / "operator.key").write_text("mr-operator-x\n")
    LocalLog(found.home / "log").create_topics()
    return found


def named(found: Iterable[Finding], name: str) -> Finding:
    return next(item for item in found if item.name == name)


def write_certificate(path: Path, ends: timedelta, begins: timedelta = timedelta(days=-100)) -> Path:
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "broker-1")])
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key()).serial_number(1)
    signed = made.not_valid_before(now + begins).not_valid_after(now + ends).sign(key, hashes.SHA256())
    path.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    return path


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        (timedelta(days=-1), (False, True, "CN=broker-1 expired")),
        (timedelta(days=3, hours=12), (False, False, "in 3 days: renew it where it was issued")),
        (timedelta(days=90, hours=12), (True, False, "in 90 days")),
    ],
    ids=["expired", "soon", "good"],
)
def test_certificates_in_settings_and_addresses_are_read(
    tmp_path: Path, ends: timedelta, expected: tuple[bool, bool, str]
) -> None:
    path = write_certificate(tmp_path / "root.crt", ends)
    url = f"postgresql+psycopg://u@db/m?sslmode=verify-full&sslrootcert={path}"
    settings = Settings(home=tmp_path, run="r", policy="p", base="b", tasks=(Path("t"),), database_url=url)
    write_settings(settings, {})
    [found] = certificate_findings(settings, {})
    assert (found.good, found.needed) == expected[:2]
    assert expected[2] in found.says
    with (tmp_path / "millrace.toml").open("a") as file:
        file.write(f'\n[engine]\nca = "{write_certificate(tmp_path / "b.pem", -ends)}"\n')
    assert len(list(certificate_findings(settings, {}))) == 2


def test_certificates_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, run="r", policy="p", base="b", tasks=(Path("t"),))
    write_settings(settings, {})
    [none] = certificate_findings(settings, {})
    assert none.good
    early = write_certificate(tmp_path / "early.pem", timedelta(days=9), timedelta(days=1))
    (tmp_path / "broken.pem").write_text("-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n")
    for name, says in (
        (str(early), "is valid only from .*check this machine's clock"),
        (str(tmp_path / "broken.pem"), "is damaged"),
        (str(tmp_path / "gone.pem"), "cannot be read .No such file"),
    ):
        [found] = certificate_findings(settings, {"AWS_CA_BUNDLE": name})
        assert not found.good
        assert found.needed
        assert re.search(says, found.says), found.says


def test_a_port_of_another_program_and_of_another_home_is_named(settings: Settings) -> None:
    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(401)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    other = HTTPServer(("127.0.0.1", 0), Refusing)
    threading.Thread(target=other.serve_forever, daemon=True).start()
    silent = socket.create_server(("127.0.0.1", 0))

    def hang_up() -> None:
        silent.accept()[0].close()

    threading.Thread(target=hang_up, daemon=True).start()
    here = settings.model_copy(update={"web_port": other.server_port, "engine_port": silent.getsockname()[1]})
    web, engine = port_findings(here)
    other.shutdown()
    other.server_close()
    silent.close()
    assert (web.good, web.needed, "it is of another home" in web.says) == (False, True, True)
    assert (engine.good, engine.needed, "does not answer as Millrace does" in engine.says) == (False, True, True)
    free, _ = port_findings(here)
    assert (free.good, free.says.endswith("free, so it does not run")) == (True, True)


def test_a_database_of_another_release_and_missing_topics_are_named(settings: Settings) -> None:
    found = list(server_findings(settings))
    assert [item.name for item in found if not item.good] == []
    assert named(found, "processes").says.startswith("none runs")
    (settings.home / "log" / "signals.db").unlink()
    set_revision(settings.home, "ffffffffffff")
    found = list(server_findings(settings))
    assert "has schema ffffffffffff, which a newer release made" in named(found, "database").says
    assert "topics are missing: signals" in named(found, "topics").says


def test_a_process_that_is_missing_beside_others_is_named_and_a_clock_that_is_ahead(settings: Settings) -> None:
    database, now = settings.database(), time.time()
    with database.transaction() as connection:
        heartbeats.beat(connection, settings.policy, ProcessBeat("web", "here/0", now, now, 60.0))
        heartbeats.beat(connection, settings.policy, ProcessBeat("training", "there/0", now + 500, now, 600.0))
    database.close()
    found = named(server_findings(settings), "processes")
    assert (found.good, found.needed, "episodes does not run" in found.says) == (False, True, True)
    [clock] = clock_findings(settings)
    assert not clock.good
    assert clock.says.startswith("training (there/0) signed 500 s in the future") or "499 s" in clock.says


def test_a_store_that_takes_no_writes_is_named(settings: Settings) -> None:
    settings.weights.rename(settings.home / "away")
    settings.weights.touch()  # no folder can be made below a file
    assert not named(server_findings(settings), "weights").good


def test_a_disk_without_room_for_two_checkpoints_is_named(settings: Settings) -> None:
    [found] = disk_findings(settings)
    assert found.good
    folder = settings.checkpoints / "checkpoint-000001-00000001"
    folder.mkdir(parents=True)
    with (folder / "weights.safetensors").open("wb") as file:
        file.truncate(2**43)  # 8 TiB, sparse
    [found] = disk_findings(settings)
    assert (found.good, found.needed, "lower checkpoint_keep" in found.says) == (False, True, True)


def test_task_files_are_read_and_their_judges_asked(settings: Settings, tmp_path: Path) -> None:
    good, broken, judged = tmp_path / "a.toml", tmp_path / "b.toml", tmp_path / "c.toml"
    signals = '[signals.ok]\ntype = "bool"\nlabels = { true = 1.0 }\n'
    good.write_text(f'name = "a"\n{signals}')
    broken.write_text("name = \n")
    judge = '[[judges]]\nname = "j"\nmodel = "m"\nurl = "http://127.0.0.1:9/v1"\nrole = "watch"\ncriteria = "Good."\nretries = 0\n'
    judged.write_text(f'name = "c"\n{signals}{judge}')
    here = settings.model_copy(update={"tasks": (good, broken, judged), "base": str(tmp_path)})
    found = list(task_findings(here))
    assert [item.good for item in found if item.name == "task"] == [True, False, True]
    assert str(broken) in next(item.says for item in found if item.name == "task" and not item.good)
    assert "judge 'j' does not answer at http://127.0.0.1:9/v1" in named(found, "judge").says
    assert "holds no policy" in named(found, "base").says


@pytest.mark.slow
def test_deep_asks_more_than_a_look(settings: Settings, tmp_path: Path) -> None:
    deep = {item.name for item in examine(settings.home, deep=True)} - {item.name for item in examine(settings.home)}
    assert {"certificate", "disk home", "database", "topics", "clocks"} <= deep
    [home] = [item for item in examine(tmp_path / "none", deep=True) if item.name == "home"]
    assert (home.good, home.needed) == (False, True)


def test_a_locked_database_is_named_and_does_not_end_the_look(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.database._BUSY_SECONDS", 0.1)
    lock = sqlite3.connect(settings.home / "millrace.db", isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    found = list(server_findings(settings))
    lock.close()
    assert "database is locked" in named(found, "database").says
    assert named(found, "weights").good


def test_a_look_names_processes_that_are_down(home: Home) -> None:
    assert list(process_findings(home.settings)) == []
    now, database = time.time(), home.settings.database()
    with database.transaction() as connection:
        for name in NEEDED:
            heartbeats.beat(connection, home.settings.policy, ProcessBeat(name, "a/1", now, now, 120.0))
    assert [(found.good, found.says) for found in process_findings(home.settings)] == [
        (True, "episodes, release, rewards, training: all up")
    ]
    with database.transaction() as connection:
        heartbeats.beat(connection, home.settings.policy, ProcessBeat("training", "a/1", now - 60, now - 60, 120.0))
    database.close()
    (found,) = process_findings(home.settings)
    assert not found.good
    assert found.says.startswith("training (a/1) is down: silent for 6")
