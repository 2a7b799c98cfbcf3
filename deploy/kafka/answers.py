"""Exit status 0 if a broker answers a metadata request within two seconds: an open port says nothing."""

from __future__ import annotations

import logging
import sys

from kafka import KafkaAdminClient
from kafka.errors import KafkaError

logging.disable()  # a broker that is not there yet is no news
try:
    client = KafkaAdminClient(bootstrap_servers=sys.argv[1], bootstrap_timeout_ms=2000)
    client.list_topics()
    client.close()
except KafkaError:
    sys.exit(1)
