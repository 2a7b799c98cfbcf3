"""Where log and tables live, if not in the home."""

from __future__ import annotations

import os
import time
from typing import NamedTuple

from contracts.database import create_database
from contracts.errors import InvalidSettings


class Servers(NamedTuple):
    """Kafka and PostgreSQL; None: embedded, in the home."""

    kafka: str | None = None
    database_url: str | None = None

    @property
    def replicas(self) -> dict[str, int]:
        """Workers that share their partitions; an embedded log or database has one reader."""
        return {"episodes": 2, "rewards": 2} if self.kafka and self.database_url else {}


EMBEDDED = Servers()


def servers_of(profile: str) -> Servers:
    """What a profile of the demo means: `embedded`, or `services` with a database of its own on the running servers.

    Raises:
        InvalidSettings: no such profile, or the servers are not in the environment.
    """
    if profile == "embedded":
        return EMBEDDED
    if profile != "services":
        raise InvalidSettings(f"--profile is embedded or services, not {profile!r}")
    kafka, database_url = os.environ.get("MILLRACE_KAFKA"), os.environ.get("MILLRACE_DATABASE")
    if not kafka or not database_url:
        raise InvalidSettings(
            "--profile services needs MILLRACE_KAFKA and MILLRACE_DATABASE; `make services` starts servers and writes both "
            "to runs/services/env"
        )
    name = f"millrace_demo_{time.strftime('%Y%m%d_%H%M%S', time.gmtime())}"
    return Servers(kafka, create_database(database_url, name))
