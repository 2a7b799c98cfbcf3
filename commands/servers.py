"""Outside servers: where the log, the tables and the weights live if they are not in the home."""

from __future__ import annotations

import os
import time
from typing import NamedTuple

from contracts.errors import InvalidSettings
from runtime.database import create_database


class Servers(NamedTuple):
    """Kafka, PostgreSQL, Redis and an object store. None means: embedded, in the home. The names are those of `Settings`."""

    kafka: str | None = None
    database_url: str | None = None
    redis: str | None = None
    weights_url: str | None = None

    @property
    def is_shared(self) -> bool:
        """True if log and database take many readers and writers: every service is a process and can have replicas."""
        return self.kafka is not None and self.database_url is not None

    @property
    def replicas(self) -> dict[str, int]:
        """How many of each process to start, if not one. An embedded log or database has one reader."""
        return dict.fromkeys(("inference", "feedback", "episodes", "rewards"), 2) if self.is_shared else {}


EMBEDDED = Servers()
_VARIABLES = ("MILLRACE_KAFKA", "MILLRACE_DATABASE", "MILLRACE_REDIS", "MILLRACE_WEIGHTS")


def servers_of(profile: str) -> Servers:
    """The servers of a demo profile: `embedded`, or `services` with a new database on the running servers.

    Raises:
        InvalidSettings: the profile does not exist, or the environment does not name the servers.
    """
    if profile == "embedded":
        return EMBEDDED
    if profile != "services":
        raise InvalidSettings(f"--profile is embedded or services, not {profile!r}")
    found = {name: os.environ.get(name) for name in _VARIABLES}
    if missing := [name for name, value in found.items() if not value]:
        raise InvalidSettings(
            f"--profile services needs {', '.join(missing)}; `make services` starts the servers and writes their addresses to "
            "runs/services/env"
        )
    now = time.strftime("%Y%m%d_%H%M%S", time.gmtime())
    kafka, database_url, redis, weights = (value or "" for value in found.values())
    return Servers(kafka, create_database(database_url, f"millrace_demo_{now}"), redis, f"{weights}/demo-{now}")
