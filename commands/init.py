"""`millrace init`: a home for processes that containers or another supervisor start.

In: a policy, tasks, and where everything is. Out: settings, tables, topics, keys, the base policy as version 0. Run again, it
makes only what is missing, so that it can stand before every start.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from commands.gate_home import check_gate, print_gates
from commands.home import claimed, prepare_home
from commands.servers import Servers
from commands.up import name_of, new_run, resolve_policy
from contracts.errors import InvalidSettings
from pipelines.training.settings import TrainingSettings
from runtime.settings import Settings, make_section

console = Console(highlight=False, soft_wrap=True)


def run_init(
    *,
    policy: str,
    tasks: list[Path],
    home: Path,
    name: str,
    device: str,
    sentinels: Path | None,
    servers: Servers,
    addresses: Mapping[str, str],
) -> None:
    """Make the home ready and say which keys were made."""
    with claimed(home):
        places = {process: _address(process, text) for process, text in addresses.items()}
        settings = make_section(
            "[millrace]",
            Settings,
            home=home.resolve(),
            run=new_run(),
            policy=name or name_of(policy),
            base=str(resolve_policy(policy)),
            tasks=tuple(task.resolve() for task in tasks),
            device=device,
            kafka=servers.kafka,
            database_url=servers.database_url,
            redis=servers.redis,
            weights_url=servers.weights_url,
            web_host=places["inference"][0],
            web_port=places["inference"][1],
            feedback_host=places["feedback"][0],
            feedback_port=places["feedback"][1],
            dashboard_host=places["dashboard"][0],
            dashboard_port=places["dashboard"][1],
            engine_host=places["engine"][0],
            engine_port=places["engine"][1],
        )
        release = check_gate(tasks, home, sentinels)
        ready = prepare_home(settings, {"training": TrainingSettings(), "release": release})
    console.print(f"{ready.settings.home} is ready: policy {settings.policy}, run {ready.settings.run}")
    if ready.app_key:
        console.print(f"  app key       {ready.app_key}   (printed once; `millrace keys` makes more)")
    console.print(f"  operator key  in {ready.settings.home / 'operator.key'}")
    print_gates(console, ready.settings)


def _address(process: str, text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal():
        raise InvalidSettings(f"--{process} takes host:port, not {text!r}")
    return host, int(port)
