"""The log on Kafka. No other module imports the Kafka client.

access.py      TLS and sign-in, from the settings
tokens.py      tokens of OAUTHBEARER
sign_in.py     one connection by hand, to say why a broker refuses
clients.py     make and close the client's objects, translate their errors
topics.py      are the topics as the settings say?
in_flight.py   bounds the records that wait for the broker
appender.py    messages in
consumer.py    records out, as a member of a group
places.py      records out, at given places
log.py         the port: appender, consumers, topics, and reading without a group
"""

import warnings

with warnings.catch_warnings():
    # kafka-python 3.0 reads its schemas with a deprecated function. This is its first import.
    warnings.simplefilter("ignore", DeprecationWarning)
    from runtime.log.kafka.access import Access
    from runtime.log.kafka.log import SESSION_SECONDS, KafkaLog

__all__ = ["SESSION_SECONDS", "Access", "KafkaLog"]
