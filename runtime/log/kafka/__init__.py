"""The log on Kafka. Only here is the Kafka client known.

clients.py     make, explain and close the client's objects
in_flight.py   how much may wait for the broker
appender.py    messages in
consumer.py    records out, in a group
log.py         the port: both, topics, and looking
"""

import warnings

with warnings.catch_warnings():
    # kafka-python 3.0 reads its schemas with a function that Python deprecates; here is its first import.
    warnings.simplefilter("ignore", DeprecationWarning)
    from runtime.log.kafka.log import SESSION_SECONDS, KafkaLog

__all__ = ["SESSION_SECONDS", "KafkaLog"]
