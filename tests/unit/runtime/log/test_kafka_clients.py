from __future__ import annotations

import threading
from functools import partial

import pytest
from kafka import KafkaProducer

from contracts.errors import LogRefused
from runtime.log.kafka import clients
from runtime.log.kafka.clients import Cluster


def test_a_broker_that_is_too_old_for_our_batches_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client is told that the broker is Kafka 2.0, so it asks none."""
    monkeypatch.setattr(clients, "KafkaProducer", partial(KafkaProducer, api_version=(2, 0)))
    before = threading.active_count()
    with pytest.raises(LogRefused, match=r"127\.0\.0\.1:9 cannot be used.*2\.1 or newer.*zstd") as raised:
        Cluster("127.0.0.1:9", timeout=1.0, session=10.0, max_poll=60.0, num_partitions=4).producer()
    assert raised.value.facts == {"reason": "old_broker"}
    assert threading.active_count() == before
