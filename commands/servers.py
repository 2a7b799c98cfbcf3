"""Outside servers: where the log, the tables and the weights live if they are not in the home."""

from __future__ import annotations

from typing import NamedTuple


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
