"""`millrace up`: a home, its processes, and what a person needs to point an app at it."""

from __future__ import annotations

import re
import secrets
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
from rich.console import Console

from commands.gate_home import check_gate, print_gates
from commands.home import Home, claimed, prepare_home
from commands.servers import EMBEDDED, Servers
from commands.supervisor import Supervisor
from contracts.errors import InvalidSettings, Unavailable
from pipelines.training.settings import TrainingSettings
from runtime.settings import Settings, make_section

_START_SECONDS = 120.0
_BACKLOG = 1024
console = Console(highlight=False, soft_wrap=True)


def run_up(
    *,
    policy: str,
    tasks: list[Path],
    home: Path,
    name: str,
    port: int,
    device: str,
    learning_rate: float | None,
    sentinels: Path | None,
    servers: Servers,
) -> None:
    """Start, say where everything is, and stay until Ctrl-C or SIGTERM."""
    with until_interrupted(), claimed(home):
        folder = resolve_policy(policy)
        chosen = name or name_of(policy)
        sockets = listen(port, split=servers.is_shared)
        settings = new_settings(home, sockets, name=chosen, base=folder, tasks=tasks, device=device, servers=servers)
        training = training_settings(learning_rate)
        release = check_gate(tasks, home, sentinels)
        ready = prepare_home(settings, {"training": training, "release": release})
        with running(ready, sockets, servers.replicas) as supervisor:
            greet(ready)
            supervisor.watch(threading.Event())


@contextmanager
def until_interrupted() -> Iterator[None]:
    """Ctrl-C and SIGTERM end what is inside, at any moment; a second one does not wait for the processes."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        console.print("ended")


def name_of(policy: str) -> str:
    """What apps ask for if nobody said: the last part of a folder or hub id."""
    return re.sub(r"[^a-z0-9._-]+", "-", Path(policy).name.lower()).strip("-._")


def resolve_policy(policy: str) -> Path:
    """A folder as it is; anything else is taken for a hub id and downloaded."""
    if Path(policy).is_dir():
        return Path(policy).resolve()
    from huggingface_hub import snapshot_download  # noqa: PLC0415 only a hub id needs the hub
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError  # noqa: PLC0415

    try:
        return Path(snapshot_download(policy, allow_patterns=["*.json", "*.safetensors", "*.jinja"]))
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise InvalidSettings(
            f"--policy {policy!r} is neither a folder nor a hub id that can be had: {error}"
        ) from error


def listen(port: int, *, split: bool = False) -> dict[str, socket.socket]:
    """The listening sockets of the servers; a port of 0 means any free one.

    `split`: inference on that port, feedback two and dashboard three above; else one process, `web`, has all three.

    Raises:
        InvalidSettings: the port is taken, or no port.
    """
    try:
        # The same at every start, as `millrace init` has them by default: apps keep their addresses.
        beside = {"feedback": port and port + 2, "dashboard": port and port + 3}
        ports = {"inference": port, **beside} if split else {"web": port}
        return {
            name: socket.create_server(("127.0.0.1", number), backlog=_BACKLOG)
            for name, number in {**ports, "engine": 0}.items()
        }
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidSettings(f"port {port} cannot be used ({reason}); choose another with --port") from error


def new_settings(
    home: Path,
    sockets: Mapping[str, socket.socket],
    *,
    name: str,
    base: Path,
    tasks: list[Path],
    device: str,
    servers: Servers = EMBEDDED,
) -> Settings:
    """Settings of a home whose servers listen on these sockets."""
    ports = {name: listening.getsockname()[1] for name, listening in sockets.items()}
    return make_section(
        "[millrace]",
        Settings,
        home=home.resolve(),
        run=new_run(),
        policy=name,
        kafka=servers.kafka,
        database_url=servers.database_url,
        redis=servers.redis,
        weights_url=servers.weights_url,
        base=str(base),
        tasks=tuple(task.resolve() for task in tasks),
        web_port=ports.get("web") or ports["inference"],
        feedback_port=ports.get("feedback"),
        dashboard_port=ports.get("dashboard"),
        engine_port=ports["engine"],
        device=device,
    )


def new_run() -> str:
    """A name that no other run has."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(2)}"


def training_settings(learning_rate: float | None) -> TrainingSettings:
    """The trainer's, with what the command line says. Raises InvalidSettings."""
    told = {} if learning_rate is None else {"learning_rate": learning_rate}
    return make_section("[training]", TrainingSettings, **told)


@contextmanager
def running(
    home: Home, sockets: Mapping[str, socket.socket], replicas: Mapping[str, int] | None = None
) -> Iterator[Supervisor]:
    """The processes of a home, up and ready; ended on the way out."""
    supervisor = Supervisor(home.settings.home, sockets, lambda line: console.print(f"[yellow]{line}"), replicas)
    supervisor.start()
    try:
        _wait_ready(home.settings, supervisor)
        yield supervisor
    finally:
        supervisor.stop()
        for listening in sockets.values():
            listening.close()


def greet(home: Home) -> None:
    """What a person needs."""
    settings = home.settings
    token = (settings.home / "dashboard.token").read_text().strip()
    console.print(f"Millrace serves [bold]{settings.policy}[/] at {settings.web_url}/v1")
    if settings.is_split:
        console.print(f"  feedback      {settings.feedback_url}/v1/feedback")
    console.print(f"  dashboard     {settings.dashboard_url}/?token={token}")
    if home.app_key:
        console.print(f"  app key       {home.app_key}   (printed once; `millrace keys` makes more)")
    console.print(f"  operator key  in {settings.home / 'operator.key'}")
    console.print(f"  home          {settings.home}")
    print_gates(console, settings)


def _wait_ready(settings: Settings, supervisor: Supervisor) -> None:
    """Until everything that answers apps does, looking after the processes meanwhile."""
    deadline, reason = time.monotonic() + _START_SECONDS, ""
    while time.monotonic() < deadline:
        done = threading.Event()
        threading.Timer(0.3, done.set).start()
        supervisor.watch(done)
        reason = _unready(settings)
        if not reason:
            return
    raise Unavailable(f"not ready after {_START_SECONDS:.0f} s: {reason}; see {settings.home / 'logs'}")


def _unready(settings: Settings) -> str:
    """Why apps cannot be served yet; empty if they can."""
    for url in dict.fromkeys((settings.web_url, settings.feedback_url, settings.dashboard_url)):
        try:
            answer = httpx.get(f"{url}/ready", timeout=5.0)
        except httpx.TransportError as error:
            return f"{url} does not answer ({type(error).__name__})"
        if not answer.is_success:
            return answer.text
    return ""
