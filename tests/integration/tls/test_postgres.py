"""PostgreSQL with TLS and a password: what fits is let in encrypted, and what does not is refused by name."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy
from cryptography.hazmat.primitives.serialization import Encoding

from contracts.errors import Unavailable
from runtime.certificates import certificate_of
from runtime.database import Database
from runtime.database_access import ASK_FOR_TLS
from tests.unit.services.serving import wait_until
from tests.worlds.processes import free_port
from tests.worlds.servers.authority import LOOPBACK, Authority, Issued
from tests.worlds.servers.services import kafka_servers

pytestmark = pytest.mark.services
_SCRIPT = Path(__file__).parent.parent.parent.parent / "deploy" / "services"
PASSWORD = "a password of this test"  # noqa: S105 as it says


class Postgres:
    """A server of this test's own; `show` changes its certificate."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        names = ("KAFKA", "CONTROLLER", "REDIS", "S3")
        (folder / "ports").write_text(f"POSTGRES_PORT={self.port}\n" + "".join(f"{name}_PORT=1\n" for name in names))
        self._data = folder / "postgres" / "data"
        self._run("start")
        self._administer(f"ALTER USER millrace PASSWORD '{PASSWORD}'")
        # By its socket anybody is let in, over the network with a password only.
        self._write("pg_hba.conf", "local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n")

    def show(self, issued: Issued | None) -> None:
        """Show this certificate from now on; None: no TLS."""
        if issued is None:
            self._write("postgresql.auto.conf", "")
        else:
            for name, source in (("server.crt", issued.certificate), ("server.key", issued.key)):
                self._write(name, source.read_text())
            self._write("postgresql.auto.conf", "ssl = on\n")
        self._administer("SELECT pg_reload_conf()")
        wait_until(lambda: self._shown() == (None if issued is None else issued.certificate.read_bytes()))

    def _shown(self) -> bytes | None:
        try:
            found = certificate_of("127.0.0.1", self.port, 5.0, ASK_FOR_TLS)
        except OSError:
            return None
        return found.public_bytes(Encoding.PEM)

    def stop(self) -> None:
        self._run("stop")

    def _administer(self, statement: str) -> str:
        url = f"postgresql+psycopg://millrace@/millrace?host={self.folder / 'postgres'}&port={self.port}"
        engine = sqlalchemy.create_engine(url, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            result = connection.exec_driver_sql(statement)
            found = str(result.scalar_one()) if result.returns_rows else ""
        engine.dispose()
        return found

    def _write(self, name: str, content: str) -> None:
        path = self._data / name
        path.write_text(content)
        owner = self._data.stat()
        os.chown(path, owner.st_uid, owner.st_gid)
        path.chmod(0o600)

    def _run(self, verb: str) -> None:
        done = subprocess.run(  # noqa: S603 our own script
            [_SCRIPT, verb, "postgres"],
            env=os.environ | {"MILLRACE_SERVICES": str(self.folder)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    kafka_servers()  # not asked for where no server is
    folder = Path(tempfile.mkdtemp(prefix="millrace-postgres-"))
    folder.chmod(0o755)
    server = Postgres(folder)
    yield server
    server.stop()
    shutil.rmtree(folder)


def read(postgres: Postgres, monkeypatch: pytest.MonkeyPatch, query: str, password: str = PASSWORD) -> bool:
    """Whether a session is encrypted."""
    monkeypatch.setenv("PGPASSWORD", password)
    database = Database(f"postgresql+psycopg://millrace@127.0.0.1:{postgres.port}/millrace?{query}")
    try:
        with database.transaction() as connection:
            statement = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
            return bool(connection.exec_driver_sql(statement).scalar_one())
    finally:
        database.close()


def test_a_session_is_encrypted_and_the_server_checked(
    postgres: Postgres, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    postgres.show(authority.issue("postgres"))
    assert read(postgres, monkeypatch, f"sslmode=verify-full&sslrootcert={authority.file}")


@pytest.mark.parametrize(
    ("certificate", "query", "password", "says"),
    [
        ("old", "sslmode=verify-full&sslrootcert={authority}", PASSWORD, "expired on .* UTC: renew it there"),
        ("other", "sslmode=verify-full&sslrootcert={authority}", PASSWORD, r"not for 127\.0\.0\.1, but for db\.example\.org"),
        ("good", "sslmode=verify-full&sslrootcert={stranger}", PASSWORD, "trusts the issuer .*sslrootcert of database_url"),
        ("good", "sslmode=verify-full&sslrootcert=/none.pem", PASSWORD, r"/none\.pem cannot be read; put the authority"),
        ("good", "sslmode=verify-full&sslrootcert={authority}", "guess", "check user and password"),
        ("none", "sslmode=verify-full&sslrootcert={authority}", PASSWORD, "speaks no TLS: set ssl = on there"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_by_name(  # noqa: PLR0917 a table
    postgres: Postgres,
    authority: Authority,
    stranger: Authority,
    monkeypatch: pytest.MonkeyPatch,
    certificate: str,
    query: str,
    password: str,
    says: str,
) -> None:
    if certificate == "none":
        postgres.show(None)
    else:
        hosts = ("db.example.org",) if certificate == "other" else LOOPBACK
        since = -30.0 if certificate == "old" else -1.0
        postgres.show(authority.issue(f"postgres-{certificate}", hosts, since=since, days=20.0))
    with pytest.raises(Unavailable) as refused:
        read(postgres, monkeypatch, query.format(authority=authority.file, stranger=stranger.file), password)
    assert re.search(says, refused.value.message), refused.value.message
