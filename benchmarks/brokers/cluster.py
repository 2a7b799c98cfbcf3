"""Brokers of one KRaft cluster on loopback, each also a controller, to be killed and started again.

Uses the jars that `deploy/services start kafka` fetched. In: an empty folder. Out: addresses. Waits for: each broker's answers.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import KafkaError

from benchmarks.feedback.world import free_port
from benchmarks.paths import ROOT

_DEPLOY = ROOT / "deploy" / "kafka"
_JARS = Path(os.environ.get("MILLRACE_SERVICES", ROOT / "runs" / "services")).resolve() / "kafka" / "lib"
_HEAP = (
    "-Xms128m",
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:MaxDirectMemorySize=64m",
    "-Xss512k",
)
_START_SECONDS, _LOOK_SECONDS = 180.0, 0.3


class Cluster:
    """See the module. `numbers` are the brokers' ids."""

    def __init__(self, folder: Path, num_brokers: int) -> None:
        if not any(_JARS.glob("kafka_*.jar")):
            raise SystemExit(f"no jars in {_JARS}: run `deploy/services start kafka` once")
        self._folder = folder
        self.numbers = range(1, num_brokers + 1)
        self.places = {number: f"127.0.0.1:{free_port()}" for number in self.numbers}
        self._controllers = {number: f"127.0.0.1:{free_port()}" for number in self.numbers}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def servers(self) -> str:
        """All of them."""
        return ",".join(self.places.values())

    def begin(self) -> None:
        """Make the cluster, start every broker, and wait until all answer."""
        cluster = self._tool("random-uuid").strip()
        for number in self.numbers:
            self._write_properties(number)
            self._tool("format", "-c", str(self._properties(number)), "-t", cluster)
        for number in self.numbers:
            self.start(number)
        for number in self.numbers:
            self.wait_for(number)

    def start(self, number: int) -> None:
        """Start a broker; it answers later."""
        with (self._folder / f"broker-{number}.log").open("ab") as output:
            self._processes[number] = subprocess.Popen(  # noqa: S603 our own command
                [*_java(), "kafka.Kafka", str(self._properties(number))],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def kill(self, number: int) -> None:
        """SIGKILL."""
        self._processes[number].kill()
        self._processes[number].wait()

    def wait_for(self, number: int) -> None:
        """Until it answers. Raises RuntimeError."""
        deadline = time.monotonic() + _START_SECONDS
        while subprocess.run(  # noqa: S603 our own program
            [sys.executable, str(_DEPLOY / "answers.py"), self.places[number]], check=False
        ).returncode:
            if self._processes[number].poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((self._folder / f"broker-{number}.log").read_text()[-2000:])
            time.sleep(_LOOK_SECONDS)

    def wait_in_sync(self, topics: list[str]) -> float:
        """Until every broker has all of these topics; the seconds that it took."""
        began = time.monotonic()
        while self._num_behind(topics):
            if time.monotonic() - began > _START_SECONDS:
                raise RuntimeError(f"{self._num_behind(topics)} partitions are not on all brokers again")
            time.sleep(_LOOK_SECONDS)
        return time.monotonic() - began

    def set_min_insync(self, topics: list[str], number: int) -> None:
        """Change how many brokers must have a record."""
        with self._admin() as admin:
            changed = {"min.insync.replicas": str(number)}
            admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, changed) for topic in topics])

    def close(self) -> None:
        """End them all; nothing is kept."""
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()

    def _num_behind(self, topics: list[str]) -> int:
        with suppress(KafkaError), self._admin() as admin:
            found = admin.describe_topics(topics)
            return sum(len(item["isr_nodes"]) < len(self.numbers) for topic in found for item in topic["partitions"])
        return -1

    @contextmanager
    def _admin(self) -> Iterator[KafkaAdminClient]:
        admin = KafkaAdminClient(bootstrap_servers=self.servers.split(","))
        try:
            yield admin
        finally:
            admin.close()

    def _properties(self, number: int) -> Path:
        return self._folder / f"broker-{number}.properties"

    def _write_properties(self, number: int) -> None:
        """Those of `deploy/services`, then what differs: the broker takes the last of two lines about one property."""
        place, controller = self.places[number], self._controllers[number]
        text = (_DEPLOY / "server.properties").read_text()
        for name, value in {
            "PORT": place.rpartition(":")[2],
            "CONTROLLER_PORT": controller.rpartition(":")[2],
            "DATA": str(self._folder / f"data-{number}"),
        }.items():
            text = text.replace(f"@{name}@", value)
        copies = len(self.numbers)
        more = {
            "node.id": number,
            "controller.quorum.voters": ",".join(f"{other}@{at}" for other, at in self._controllers.items()),
            "offsets.topic.replication.factor": copies,
            "offsets.topic.num.partitions": copies,
            "default.replication.factor": copies,
        }
        self._properties(number).write_text(text + "".join(f"{name}={value}\n" for name, value in more.items()))

    def _tool(self, *arguments: str) -> str:
        done = subprocess.run(  # noqa: S603 our own command
            [*_java(), "kafka.tools.StorageTool", *arguments], capture_output=True, text=True, check=True
        )
        return done.stdout


def _java() -> list[str]:
    return ["java", *_HEAP, f"-Dlog4j2.configurationFile={_DEPLOY / 'log4j2.properties'}", "-cp", f"{_JARS}/*"]
