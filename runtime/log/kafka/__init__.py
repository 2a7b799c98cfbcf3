"""The log on Kafka. No other module imports the Kafka client.

clients.py     make and close the client's objects, translate their errors
in_flight.py   bounds the records that wait for the broker
appender.py    messages in
consumer.py    records out, as a member of a group
log.py         the port: appender, consumers, topics, and reading without a group
"""

import warnings

with warnings.catch_warnings():
    # kafka-python 3.0 reads its schemas with a deprecated function. This is its first import.
    warnings.simplefilter("ignore", DeprecationWarning)
    from runtime.log.kafka.log import SESSION_SECONDS, KafkaLog

__all__ = ["SESSION_SECONDS", "KafkaLog"]
