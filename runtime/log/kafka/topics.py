"""Compares topics with the settings, before anything is read or written. In: descriptions of the brokers. Out: nothing, or the first difference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType

from contracts.errors import InvalidSettings

_MIN_INSYNC = "min.insync.replicas"


class Wanted(NamedTuple):
    """What the settings say; None: whatever the brokers have."""

    partitions: int
    replication: int | None
    min_insync: int | None


class Found(NamedTuple):
    """What the brokers say of a topic. `replication`: the least of its partitions."""

    partitions: int
    replication: int
    min_insync: int


def require_as_set(admin: KafkaAdminClient, names: Sequence[str], wanted: Wanted) -> None:
    """Check the topics that exist; one that is missing is for its caller.

    Raises:
        InvalidSettings: names the first topic that differs, the setting, and what to do.
    """
    described = [topic for topic in admin.describe_topics(list(names)) if not topic["error_code"]]
    if not described:
        return
    asked = [ConfigResource(ConfigResourceType.TOPIC, topic["name"], {_MIN_INSYNC: None}) for topic in described]
    [configs] = admin.describe_configs(asked, config_filter="all").values()
    for topic in described:
        name = topic["name"]
        if problem := difference(name, _found(topic, configs[name]), wanted):
            raise InvalidSettings(problem)


def difference(name: str, found: Found, wanted: Wanted) -> str:
    """What is wrong with a topic and what to do; empty if it is as the settings say. Pure."""
    if found.partitions != wanted.partitions:
        return (
            f"topic {name} has {found.partitions} partitions, not {wanted.partitions}, and this number can never change, because records "
            f"that belong together meet by it: set partitions = {found.partitions} in [millrace] if that is what this home began with; or "
            "use another run or policy name, which gives new topics"
        )
    if wanted.replication is not None and found.replication < wanted.replication:
        return (
            f"topic {name} has {found.replication} replicas, and kafka_replication is {wanted.replication}: add replicas with Kafka's "
            "own kafka-reassign-partitions.sh, or lower kafka_replication"
        )
    if wanted.min_insync is not None and found.min_insync < wanted.min_insync:
        return (
            f"topic {name} has {_MIN_INSYNC} = {found.min_insync}, and kafka_min_insync is {wanted.min_insync}: raise it with "
            f"kafka-configs.sh --alter --topic {name} --add-config {_MIN_INSYNC}={wanted.min_insync}, or lower kafka_min_insync"
        )
    return ""


def _found(topic: Mapping[str, Any], configs: Mapping[str, Any]) -> Found:
    partitions = topic["partitions"]
    replication = min((len(partition["replica_nodes"]) for partition in partitions), default=0)
    return Found(len(partitions), replication, int(configs[_MIN_INSYNC]["value"]))
