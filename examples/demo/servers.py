"""The servers of a demo: none, or a database of its own on those that run."""

from __future__ import annotations

import os
import time

from commands.options import EMBEDDED, Servers
from contracts.errors import InvalidSettings
from runtime.database import create_database

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
