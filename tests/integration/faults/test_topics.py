"""What the broker says about our topics, and what it never gets to see."""

from __future__ import annotations

import httpx
import pytest
from kafka.admin import ConfigResource, ConfigResourceType

from contracts.errors import RecordTooLarge
from contracts.event_log import MAX_RECORD_BYTES, Message
from contracts.topics import GENERATIONS, RETENTION_DAYS, TOPICS
from tests.worlds.faults.books import balance
from tests.worlds.faults.world import NUM_PARTITIONS, FaultWorld

pytestmark = [pytest.mark.services, pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")]

DAY_MS = 24 * 60 * 60 * 1000


def test_topics_have_their_partitions_and_their_retention(world: FaultWorld) -> None:
    names = {topic: world.prefix + topic for topic in TOPICS}
    admin = world.log._cluster.admin()
    try:
        described = {found["name"]: len(found["partitions"]) for found in admin.describe_topics(list(names.values()))}
        asked = [ConfigResource(ConfigResourceType.TOPIC, name) for name in names.values()]
        [configs] = admin.describe_configs(asked, config_filter="all").values()
    finally:
        admin.close()
    assert described == dict.fromkeys(names.values(), NUM_PARTITIONS)
    retention = {topic: int(configs[name]["retention.ms"]["value"]) for topic, name in names.items()}
    assert retention == {topic: days * DAY_MS for topic, days in RETENTION_DAYS.items()}
    assert {configs[name]["cleanup.policy"]["value"] for name in names.values()} == {"delete"}
    assert all(int(configs[name]["max.message.bytes"]["value"]) > MAX_RECORD_BYTES for name in names.values())
    balance(world)


def test_what_is_too_large_is_refused_and_never_acknowledged(world: FaultWorld) -> None:
    ends = world.log.ends(GENERATIONS)
    with pytest.raises(RecordTooLarge, match=f"larger than {MAX_RECORD_BYTES}, .*make it smaller"):
        world.log.append(
            [Message(GENERATIONS, 0, "small", b"x"), Message(GENERATIONS, 0, "k", b"x" * MAX_RECORD_BYTES)]
        )
    assert world.log.ends(GENERATIONS) == ends
    answer = httpx.post(
        f"{world.settings.feedback_url}/v1/feedback",
        headers={"authorization": f"Bearer {world.key}"},
        content=b'{"value": "' + b"x" * 9 * 2**20 + b'"}',
        timeout=60.0,
    )
    assert answer.status_code == httpx.codes.REQUEST_ENTITY_TOO_LARGE
    assert "send less" in answer.json()["error"]["message"]
    balance(world)
