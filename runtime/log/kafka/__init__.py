"""The log on Kafka. No other module imports the Kafka client."""

import warnings

with warnings.catch_warnings():
    # kafka-python 3.0 reads its schemas with a deprecated function. This is its first import.
    warnings.simplefilter("ignore", DeprecationWarning)
    from runtime.log.kafka.access import Access
    from runtime.log.kafka.log import SESSION_SECONDS, KafkaLog

__all__ = ["SESSION_SECONDS", "Access", "KafkaLog"]
