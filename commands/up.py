"""`millrace up`: prepare a home, start its processes, and print what a person needs to connect an app."""

from __future__ import annotations

import os
import re
import secrets
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from rich.console import Console
from rich.markup import escape

from commands import options
from commands.cards.starting import kept, moving, pool_of
from commands.engines import OURS, EngineChoice, check_announced, check_given, choose_engine, settled
from commands.home import Home, claimed, prepare_home
from commands.home_gates import check_gate, print_gates
from commands.link import dashboard_link
from commands.options import EMBEDDED, Servers
from commands.policy_check import LOAD_RATE, CheckOnce, size_of
from commands.room import require_room
from commands.supervisor import Supervisor, replica_names
from contracts.checkpoints import CheckpointReport
from contracts.errors import InvalidSettings, Unavailable
from pipelines.training.settings import TrainingSettings
from runtime.operator_key import OPERATOR_KEY, given_operator_key, operator_file
from runtime.settings import Section, Settings, load_section, load_settings, make_section, read_home_settings
from runtime.settings_file import SETTINGS, is_given, settings_file
from services.engine.settings import EngineSettings
from services.provider import ProviderSettings, load_provider
from services.provider import chosen as chosen_provider

_BACKLOG = 1024
_WAYS = (
    "give --policy FOLDER, or --provider openai|anthropic|URL with --provider-model NAME, or both; a provider has no engine and no trainer, "
    "so their options go with --policy"
)
_OF_WEIGHTS = ("training", "release")
"""Workers that have nothing to do where a provider answers."""
_SAY_SECONDS = 20.0
"""Between two lines about what a slow start waits for."""
_MOST_ENDS = 8
"""Ends of one process before it ever became ready: growing pauses, so about half a minute of trying."""
console = Console(highlight=False, soft_wrap=True)


def up(
    *,
    policy: Annotated[str | None, typer.Option(help="Folder or hub id of the base policy.")] = None,
    provider: options.ProviderOption = None,
    provider_model: options.ProviderModelOption = "",
    input_price: options.InputPriceOption = None,
    output_price: options.OutputPriceOption = None,
    tasks: options.TaskFilesOption,
    home: options.HomeOption = options.DEFAULT_HOME,
    name: options.NameOption = "",
    port: Annotated[int, typer.Option(help="Port of the HTTP endpoint.")] = 8400,
    device: options.DeviceOption = "cpu",
    learning_rate: options.LearningRateOption = None,
    adapter: options.AdapterOption = None,
    sentinels: options.SentinelsOption = None,
    kafka: options.KafkaOption = None,
    database: options.DatabaseOption = None,
    redis: options.RedisOption = None,
    weights: options.WeightsOption = None,
    chosen: options.SetOption = None,
    engine: options.EngineOption = None,
    engine_python: options.EnginePythonOption = None,
    engine_servers: options.EngineServersOption = 2,
    engines: options.EnginesOption = None,
    engine_url: options.EngineUrlsOption = None,
    slots: options.SlotsOption = None,
) -> None:
    """Start Millrace with your own policy, in front of a provider, or with both, and with your tasks. Ctrl-C ends it; the home folder keeps everything."""
    servers = Servers(kafka, database, redis, weights)
    of_policy = (learning_rate, adapter, sentinels, engine, engine_python, engines, engine_url, slots)
    if policy is None and any(value is not None for value in of_policy):
        raise InvalidSettings(_WAYS)
    front = provider_of(provider, provider_model, home, input_price=input_price, output_price=output_price)
    if policy is None:
        if front is None:
            raise InvalidSettings(_WAYS)
        _up_in_front(front, home, port, servers, name=name, tasks=tasks, **options.chosen_settings(chosen))
        return
    with until_interrupted(), claimed(home):
        urls = engine_url or ()
        engines_chosen = choose_engine(engine, engine_python, engine_servers, engines, urls, slots=slots, device=device)
        engines_chosen = _with_canary(engines_chosen, home, front)
        folder = resolve_policy(policy)
        gpu = pool_of(home, engines_chosen, device)
        num_own = engines_chosen.num_own if gpu is None else len(gpu.pool) * bool(engines_chosen.num_own)
        sockets = listen(port, split=servers.is_shared, num_engines=num_own)
        settings = new_settings(
            home,
            sockets,
            name=name or _name_in(home, folder) or name_of(policy),
            base=folder,
            tasks=tasks,
            device=device,
            servers=servers,
            **options.chosen_settings(chosen),
        )
        rate = {} if learning_rate is None else {"learning_rate": learning_rate}
        beside = {} if adapter is None else {"adapter": {"rank": adapter}}
        training = make_section("[training]", TrainingSettings, **rate, **beside)
        release = check_gate(tasks, home, sentinels)
        sections: dict[str, Section] = {"training": training, "release": release, **engines_chosen.sections}
        sections |= {} if front is None else {"provider": front}
        console.print(f"[dim]preparing {home.resolve()} with {folder}")
        check = CheckOnce(home)

        def fitting(base: Path) -> CheckpointReport:
            report = check(base)
            sections["training"] = trained = settle(engines_chosen, settings, training)
            if not settings_file(home).exists():  # a home that was started before has shown that there is room
                slots = len((engines_chosen.own or EngineSettings()).slots)
                how = {"num_engines": engines_chosen.num_own, "num_slots": slots}
                require_room(report, base, home, device, training=trained.model_dump(), **how)
            return report

        ready = prepare_home(settings, sections, fitting)
        check.remember()
        check_given(engines_chosen, ready.settings)
        check_announced(ready.settings)
        for limit in engines_chosen.limits(load_section(home, "training", TrainingSettings)):
            console.print(f"[yellow]{limit}")
        replicas = servers.replicas | {"engine": engines_chosen.num_own}
        with running(ready, sockets, replicas, engines_chosen) as supervisor:
            greet(ready)
            supervisor.watch(threading.Event())


def provider_of(provider: str | None, model: str, home: Path, **prices: float | None) -> ProviderSettings | None:
    """What `--provider` and the options beside it say; None: nothing. Raises InvalidSettings; also if its key, or that of the home's, is missing.

    What the home says of another provider, such as its key and its terms, is not said of this one.
    """
    held = make_section("[provider]", ProviderSettings, **(read_home_settings(home) or {}).get("provider", {}))
    given = {name: price for name, price in prices.items() if price is not None}
    if provider is None and not model and not given:
        _ = held.key if held.url else None
        return None
    if provider is None or not model:
        raise InvalidSettings(
            "--provider openai|anthropic|URL and --provider-model NAME go together, and prices with them"
        )
    found = make_section("--provider", ProviderSettings, **chosen_provider(provider, model), **given)
    _ = found.key
    return found if held.url in {"", found.url} else ProviderSettings(**found.model_dump())


def _with_canary(chosen: EngineChoice, home: Path, front: ProviderSettings | None) -> EngineChoice:
    """Behind a provider, our engine gets a slot for a canary, unless slots were chosen: without one no version takes over."""
    held = read_home_settings(home) or {}
    has_front = front is not None or bool(held.get("provider", {}).get("url"))
    if not has_front or "engine" in held or chosen.own is not None or chosen.servers is not None:
        return chosen
    return chosen._replace(own=EngineSettings(slots=("live", "candidate", "canary")))


def _name_in(home: Path, base: Path) -> str:
    """The name that a home has for this policy, or for the provider before it; empty: it has none."""
    held = load_settings(home) if settings_file(home).exists() else None
    return held.policy if held is not None and held.base in {"", str(base)} else ""


def _up_in_front(front: ProviderSettings, home: Path, port: int, servers: Servers, *, name: str, **chosen: Any) -> None:
    """A home without weights, engine, trainer and release."""
    with until_interrupted(), claimed(home):
        sockets = listen(port, split=servers.is_shared, num_engines=0)
        named = name or name_of(front.model)
        settings = new_settings(home, sockets, name=named, base=None, device="cpu", servers=servers, **chosen)
        ready = prepare_home(settings, {"provider": front})
        with running(ready, sockets, servers.replicas) as supervisor:
            greet(ready)
            supervisor.watch(threading.Event())


@contextmanager
def until_interrupted() -> Iterator[None]:
    """Ctrl-C or SIGTERM ends the block at any moment. A second one does not wait for the processes."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        console.print("ended")


def settle(choice: EngineChoice, settings: Settings, training: TrainingSettings) -> TrainingSettings:
    """[training] as this start writes it, and what was chosen is said. Raises InvalidSettings: as `settled`."""
    found, way = settled(choice, settings, training)
    if way is not None:
        wrote = escape(f"[training] {way.settings} is written into {settings_file(settings.home)}")
        console.print(f"[yellow]{wrote}: engines get what the trainer then leaves of {settings.device}")
    return found


def name_of(policy: str) -> str:
    """The default `model` name: the last part of a folder or hub id, in lower case."""
    return re.sub(r"[^a-z0-9._-]+", "-", Path(policy).name.lower()).strip("-._")


def resolve_policy(policy: str) -> Path:
    """The folder of a policy. Anything that is not a folder is downloaded as a hub id. Raises InvalidSettings: it is neither."""
    if Path(policy).is_dir():
        return Path(policy).resolve()
    from huggingface_hub import snapshot_download  # noqa: PLC0415 only a hub id needs the hub
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError  # noqa: PLC0415

    try:
        return Path(snapshot_download(policy, allow_patterns=["*.json", "*.safetensors", "*.jinja"]))
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        says = f"--policy {policy!r} is not a folder, and it cannot be downloaded as a hub id: {error}"
        raise InvalidSettings(says) from error


def listen(port: int, *, split: bool = False, num_engines: int = 1) -> dict[str, socket.socket]:
    """Open the listening sockets of the servers. Port 0 means any free port.

    Args:
        port: of the HTTP endpoint.
        split: give inference `port`, feedback `port` + 2 and dashboard `port` + 3. Otherwise `web` serves all three on `port`.
        num_engines: how many of our engines are started; each has a port of its own.

    Raises InvalidSettings: the port is taken or not a port.
    """
    # The same ports as the defaults of `millrace init`, at every start, so that apps keep their addresses.
    beside = {"feedback": port and port + 2, "dashboard": port and port + 3}
    ports = {"inference": port, **beside} if split else {"web": port}
    numbers = {**ports, **dict.fromkeys(replica_names("engine", num_engines), 0)}
    with ExitStack() as opened:
        sockets = {name: opened.enter_context(_listening(name, number)) for name, number in numbers.items()}
        opened.pop_all()
    return sockets


def _listening(name: str, port: int) -> socket.socket:
    try:
        return socket.create_server(("127.0.0.1", port), backlog=_BACKLOG)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        end_it = f"end what listens there (`ss -ltnp 'sport = :{port}'` names it), or choose another with --port"
        raise InvalidSettings(f"port {port} of {name} cannot be used ({reason}): {end_it}") from error
    except OverflowError as error:
        raise InvalidSettings(f"--port takes 0 to 65535: {error}") from error


def new_settings(home: Path, sockets: Mapping[str, socket.socket], **chosen: Any) -> Settings:
    """Settings of a home whose servers listen on these sockets. `chosen`: see `make_settings`. Raises InvalidSettings."""
    if is_given():
        raise InvalidSettings(
            f"{SETTINGS} is set: `millrace init` and a command per process read it, and `up` writes its own; unset it"
        )
    ports = {name: listening.getsockname()[1] for name, listening in sockets.items()}
    return make_settings(
        home,
        web_port=ports.get("web") or ports["inference"],
        feedback_port=ports.get("feedback"),
        dashboard_port=ports.get("dashboard"),
        **({"engine_port": ports["engine"]} if "engine" in ports else {}),
        **chosen,
    )


def make_settings(
    home: Path,
    *,
    name: str,
    base: Path | None,
    tasks: list[Path],
    device: str,
    servers: Servers = EMBEDDED,
    **addresses: Any,
) -> Settings:
    """Settings of a new run. `name`: of the policy, that is, the `model` that apps ask for. `base`: its folder; None: a provider answers.

    `addresses`: hosts and ports, and other values, named as in `Settings`.
    """
    return make_section(
        "[millrace]",
        Settings,
        home=home.resolve(),
        run=f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(2)}",
        policy=name,
        base="" if base is None else str(base),
        tasks=tuple(task.resolve() for task in tasks),
        device=device,
        **servers._asdict(),
        **addresses,
    )


@contextmanager
def running(
    home: Home,
    sockets: Mapping[str, socket.socket],
    replicas: Mapping[str, int] | None = None,
    engine: EngineChoice = OURS,
) -> Iterator[Supervisor]:
    """Start the processes of a home, wait until they are ready, and stop them at the end of the block."""
    settings = home.settings
    gpu = pool_of(settings.home, engine, settings.device)
    report = partial(console.print, style="yellow", markup=False)
    without = (*moving(gpu, engine), *(() if settings.base else _OF_WEIGHTS))
    supervisor = Supervisor(settings.home, sockets, report, replicas, engine.workers, without=without)
    seconds = engine.start_seconds + (size_of(Path(settings.base)) / LOAD_RATE if settings.base else 0.0)
    with ExitStack() as stack:
        for listening in sockets.values():
            stack.callback(listening.close)
        start_cards = stack.enter_context(kept(settings, gpu, engine, supervisor, report=report, patience=seconds))
        supervisor.start()
        stack.callback(supervisor.stop)
        start_cards()
        console.print(f"[dim]starting, which takes up to a minute; {settings.home / 'logs'} has what each process says")
        _wait_ready(settings, supervisor, seconds)
        yield supervisor


def greet(home: Home) -> None:
    """Print the addresses and keys that a person needs, and what gates each task."""
    settings = home.settings
    console.print(f"Millrace serves [bold]{settings.policy}[/] at {settings.web_url}/v1")
    if (front := load_provider(settings)) is not None:
        does = "in front     " if settings.base else "answers       of"
        console.print(escape(f"  {does} {front.model} at {front.url}; {front.terms}"))
    if settings.is_split:
        console.print(f"  feedback      {settings.feedback_url}/v1/feedback")
    link = dashboard_link(settings.home)
    console.print(f"  dashboard     {link}   (works once; for another: millrace link --home {settings.home})")
    print_keys_of(home)
    console.print(f"  home          {settings.home}")
    if settings.base:
        print_gates(console, settings)


def print_keys_of(home: Home) -> None:
    """Print the app key of a new home, and where the operator key is."""
    if home.app_key:
        console.print(f"  app key       {home.app_key}   (shown only once; `millrace keys` makes more)")
    where = OPERATOR_KEY if given_operator_key() else operator_file(home.settings.home)
    console.print(f"  operator key  in {where}")


def _wait_ready(settings: Settings, supervisor: Supervisor, seconds: float) -> None:
    """Wait until every server answers apps, and say now and then for whom. Dead processes are started again, a few times.

    Raises Unavailable: it takes longer than `seconds`, or a process ends again and again.
    """
    began, says_at, reason = time.monotonic(), _SAY_SECONDS, ""
    while (waited := time.monotonic() - began) < seconds:
        if waited > says_at:
            waits = "; ".join(_waits_for(supervisor)) or reason
            console.print(f"[dim]still starting after {waited:.0f} s: {escape(waits)}")
            says_at += _SAY_SECONDS
        done = threading.Event()
        threading.Timer(0.3, done.set).start()
        supervisor.watch(done)
        if not (reason := _unready(settings)):
            return
        for child in supervisor.children.values():
            if len(child.ends) >= _MOST_ENDS:
                log = supervisor.log_path(child.name)
                raise Unavailable(f"not ready: {child.name} ended {_MOST_ENDS} times; see {log}")
    raise Unavailable(f"not ready after {seconds:.0f} s: {reason}; see {settings.home / 'logs'}")


def _waits_for(supervisor: Supervisor) -> Iterator[str]:
    for name, address in supervisor.operations_of_servers().items():
        try:
            problems = httpx.get(f"http://{address}/ready", timeout=2.0).json()["problems"]
        except httpx.TransportError:  # one that still imports takes connections and answers none
            yield f"{name} does not answer yet, see {supervisor.log_path(name)}"
            continue
        if reasons := [why if part == name else f"{part}: {why}" for part, why in problems.items()]:
            yield f"{name} waits: {', '.join(reasons)}"


def _unready(settings: Settings) -> str:
    """Why apps cannot be served yet; empty if they can."""
    for url in dict.fromkeys((settings.web_url, settings.feedback_url, settings.dashboard_url)):
        try:
            if not (answer := httpx.get(f"{url}/ready", timeout=5.0)).is_success:
                return answer.text
        except httpx.TransportError as error:
            return f"{url} does not answer ({type(error).__name__})"
    return ""
