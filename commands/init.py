"""`millrace init`: prepare a home whose processes are started by containers or by another supervisor.

In: a policy, tasks, and the addresses of everything. Out: settings, tables, topics, keys, and the base policy as version 0.
A second run makes only what is missing, so it is safe to run before every start.

With MILLRACE_SETTINGS, for processes that share no home: in the settings that it names and the secrets of the environment, and no
option but the home. Out: the same, without settings.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from commands import options
from commands.home import Home, claimed, prepare_home
from commands.home_gates import check_gate, print_gates
from commands.policy_check import check_policy
from commands.up import console, make_settings, name_of, print_keys_of, resolve_policy
from contracts.errors import InvalidSettings
from pipelines.training.settings import TrainingSettings
from runtime.settings import load_settings
from runtime.settings_file import SETTINGS, is_given

_AS_INFERENCE = typer.Option(help="As --inference.")


def init(
    context: typer.Context,
    *,
    policy: options.PolicyOption = "",
    tasks: Annotated[list[Path] | None, typer.Option("--task", help=options.TASK_HELP)] = None,
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
    if is_given():
        _check_alone(context)
        with claimed(home):
            settings = load_settings(home)
            check_gate(settings.tasks, home, None)
            _print_ready(prepare_home(settings, {}, check_policy))
        return
    if not policy or not tasks:
        raise InvalidSettings(f"init needs --policy and --task, or the whole settings in the file of {SETTINGS}")
    addresses = {"inference": inference, "engine": engine, "feedback": feedback, "dashboard": dashboard}
    with claimed(home):
        places: dict[str, str | int] = {}
        for option, address in addresses.items():
            process = "web" if option == "inference" else option
            places[f"{process}_host"], places[f"{process}_port"] = _host_and_port(option, address)
        settings = make_settings(
            home,
            name=name or name_of(policy),
            base=resolve_policy(policy),
            tasks=tasks,
            device=device,
            servers=options.Servers(kafka, database, redis, weights),
            **options.chosen_settings(chosen),
            **places,
        )
        release = check_gate(tasks, home, sentinels)
        ready = prepare_home(settings, {"training": TrainingSettings(), "release": release}, check_policy)
    _print_ready(ready)


def _check_alone(context: typer.Context) -> None:
    """Raises InvalidSettings for an option that would count only if init wrote the settings."""
    names = {str(parameter.name): parameter.opts[0] for parameter in context.command.params}
    sources = {name: context.get_parameter_source(name) for name in names if name != "home"}
    if given := [
        names[name] for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"
    ]:
        raise InvalidSettings(
            f"{SETTINGS} is set, so the settings are in {os.environ[SETTINGS]}: change them there, and leave out {', '.join(given)}"
        )


def _print_ready(ready: Home) -> None:
    console.print(f"{ready.settings.home} is ready: policy {ready.settings.policy}, run {ready.settings.run}")
    print_keys_of(ready)
    print_gates(console, ready.settings)


def _host_and_port(option: str, address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise InvalidSettings(f"--{option} takes host:port, not {address!r}")
    return host, int(port)
