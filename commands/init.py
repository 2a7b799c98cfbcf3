"""`millrace init`: prepare a home whose processes are started by containers or by another supervisor.

In: a policy, tasks, and the addresses of everything. Out: settings, tables, topics, keys, and the base policy as version 0.
A second run makes only what is missing, so it is safe to run before every start.
"""

from __future__ import annotations

from typing import Annotated

import typer

from commands import options
from commands.home import claimed, prepare_home
from commands.home_gates import check_gate, print_gates
from commands.policy_check import check_policy
from commands.servers import Servers
from commands.up import console, make_settings, name_of, print_keys_of, resolve_policy
from contracts.errors import InvalidSettings
from pipelines.training.settings import TrainingSettings

_AS_INFERENCE = typer.Option(help="As --inference.")


def init(
    *,
    policy: options.PolicyOption,
    tasks: options.TaskFilesOption,
    home: options.HomeOption = options.DEFAULT_HOME,
    name: options.NameOption = "",
    device: options.DeviceOption = "cpu",
    sentinels: options.SentinelsOption = None,
    kafka: options.KafkaOption = None,
    database: options.DatabaseOption = None,
    redis: options.RedisOption = None,
    weights: options.WeightsOption = None,
    chosen: options.SetOption = None,
    inference: Annotated[str, typer.Option(help="Where others reach this process: host:port.")] = "127.0.0.1:8400",
    engine: Annotated[str, _AS_INFERENCE] = "127.0.0.1:8401",
    feedback: Annotated[str, _AS_INFERENCE] = "127.0.0.1:8402",
    dashboard: Annotated[str, _AS_INFERENCE] = "127.0.0.1:8403",
) -> None:
    """Prepare a home for processes that something else starts: settings, tables, topics, keys, version 0."""
    addresses = {"web": inference, "engine": engine, "feedback": feedback, "dashboard": dashboard}
    with claimed(home):
        places: dict[str, str | int] = {}
        for process, address in addresses.items():
            option = "inference" if process == "web" else process
            places[f"{process}_host"], places[f"{process}_port"] = _host_and_port(option, address)
        settings = make_settings(
            home,
            name=name or name_of(policy),
            base=resolve_policy(policy),
            tasks=tasks,
            device=device,
            servers=Servers(kafka, database, redis, weights),
            **options.chosen_settings(chosen),
            **places,
        )
        release = check_gate(tasks, home, sentinels)
        ready = prepare_home(settings, {"training": TrainingSettings(), "release": release}, check_policy)
    console.print(f"{ready.settings.home} is ready: policy {settings.policy}, run {ready.settings.run}")
    print_keys_of(ready)
    print_gates(console, ready.settings)


def _host_and_port(process: str, address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise InvalidSettings(f"--{process} takes host:port, not {address!r}")
    return host, int(port)
