"""A Kafka broker and a PostgreSQL of these tests' own, to be stopped, frozen and slowed."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import psutil

from tests.worlds.processes import free_port
from tests.worlds.servers.slow_proxy import SlowProxy

Name = Literal["kafka", "postgres"]
_NAMES: tuple[Name, ...] = ("kafka", "postgres")
_ROOT = Path(__file__).parent.parent.parent.parent
_SCRIPT = _ROOT / "deploy" / "services"
_JARS = Path(os.environ.get("MILLRACE_SERVICES", _ROOT / "runs" / "services")).resolve() / "kafka" / "lib"
# Whoever comes in by the second listener is told to stay with the proxy before it.
_MORE = """
listeners=PLAINTEXT://127.0.0.1:{port},SLOW://127.0.0.1:{behind},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},SLOW://127.0.0.1:{proxy}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SLOW:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
"""


class FaultServers:
    """See the module.

    Args:
        folder: an empty folder that the user `postgres` can reach.
        proxy: before the broker's second listener, which is `behind`.
    """

    def __init__(self, folder: Path, proxy: SlowProxy, behind: int) -> None:
        self.folder = folder
        self.proxy = proxy
        ports = {name: free_port() for name in ("KAFKA", "CONTROLLER", "POSTGRES", "REDIS", "S3")}
        (folder / "ports").write_text("".join(f"{name}_PORT={port}\n" for name, port in ports.items()))
        (folder / "kafka").mkdir()
        if _JARS.is_dir():
            (folder / "kafka" / "lib").symlink_to(_JARS)
        more = _MORE.format(port=ports["KAFKA"], behind=behind, controller=ports["CONTROLLER"], proxy=proxy.port)
        (folder / "kafka" / "more.properties").write_text(more)
        self.kafka = f"127.0.0.1:{ports['KAFKA']}"
        self.slow_kafka = f"127.0.0.1:{proxy.port}"
        self.database_url = f"postgresql+psycopg://millrace@127.0.0.1:{ports['POSTGRES']}/millrace"

    def start(self, *names: Name) -> None:
        """Start, and wait until they answer."""
        self._run("start", *names)

    def stop(self, *names: Name) -> None:
        """As an operator would; PostgreSQL ends its sessions at once."""
        self._run("stop", *names)

    def freeze(self, name: Name) -> None:
        """SIGSTOP: connections stay open, nothing answers."""
        self._process(name).suspend()

    def wake(self, name: Name) -> None:
        """SIGCONT."""
        self._process(name).resume()

    def _process(self, name: Name) -> psutil.Process:
        return psutil.Process(int((self.folder / name / "pid").read_text().split()[0]))

    def _run(self, verb: str, *names: Name) -> None:
        done = subprocess.run(  # noqa: S603 our own script
            [_SCRIPT, verb, *names],
            env=os.environ | {"MILLRACE_SERVICES": str(self.folder)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr


@contextmanager
def own_servers(*names: Name) -> Iterator[FaultServers]:
    """Started servers, both if none is named, which are stopped and forgotten at the end of the block."""
    folder = Path(tempfile.mkdtemp(prefix="millrace-faults-"))
    folder.chmod(0o755)
    behind = free_port()
    with SlowProxy("127.0.0.1", behind) as proxy:
        servers = FaultServers(folder, proxy, behind)
        try:
            servers.start(*(names or _NAMES))
            yield servers
        finally:
            servers.stop(*(names or _NAMES))
            shutil.rmtree(folder)
