"""Exit status 0 if a broker does what its clients ask of it first: it knows its topics and coordinates groups.

An open port says nothing, and metadata come earlier than groups: a broker that starts for the first time makes the topic
of group positions only when somebody asks for a coordinator, and refuses until it has read that topic.
"""

from __future__ import annotations

import logging
import sys

from kafka import KafkaAdminClient
from kafka.errors import KafkaError

_GROUPS = [f"answers-{number}" for number in range(20)]  # they lie in several partitions of that topic
_LOADED = {"Dead", "Empty", "Stable"}

logging.disable()  # a broker that is not there yet is no news
try:
    client = KafkaAdminClient(bootstrap_servers=sys.argv[1], bootstrap_timeout_ms=2000)
    try:
        client.list_topics()
        described = client.describe_groups(_GROUPS)
    finally:
        client.close()
except KafkaError:
    sys.exit(1)
sys.exit(any(group["group_state"] not in _LOADED for group in described.values()))
