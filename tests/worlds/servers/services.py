"""Real servers, where `make services` started them; without them a test is skipped with a message."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from contracts.event_log import NUM_PARTITIONS
from contracts.topics import TOPICS
from runtime.log.kafka import KafkaLog


def kafka_servers() -> str:
    """Where the broker is."""
    if (servers := os.environ.get("MILLRACE_KAFKA")) is None:
        pytest.skip("no MILLRACE_KAFKA: run make test-services")
    return servers


def new_prefix() -> str:
    """Keeps the topics and groups of a test to itself."""
    return f"test-{uuid.uuid4().hex[:12]}-"


@contextmanager
def kafka_log(
    prefix: str, *, timeout: float = 10.0, session: float = 15.0, num_partitions: int = NUM_PARTITIONS
) -> Iterator[KafkaLog]:
    """A log with topics of its own, which go away with it: a broker that was killed looks through all that it has."""
    log = KafkaLog(kafka_servers(), prefix=prefix, timeout=timeout, session=session, num_partitions=num_partitions)
    log.create_topics()
    yield log
    log.close()
    admin = log._cluster.admin()
    admin.delete_topics([prefix + topic for topic in TOPICS])
    admin.close()
