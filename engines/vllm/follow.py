"""The process `vllm`: one server per slot, each with a thread that follows its assignment; one decoder for all of them."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from contracts.errors import InvalidSettings
from engines.following.follower import SlotFollower
from engines.following.given import GivenServer
from engines.following.process import Host, follow
from engines.vllm.deliver import VllmServer
from engines.vllm.launch import make_plug_in, serve_command, serve_environment
from engines.vllm.process import ServerProcess
from engines.vllm.settings import VllmSettings
from runtime.engine_key import engine_key
from runtime.settings import load_section, load_settings


def main(home: Path, stop: threading.Event) -> None:
    """Follow until `stop` is set; then end the servers.

    Raises:
        InvalidSettings: the interpreter does not exist, or a setting is missing.
        NameTaken: another replica has the name of one of these.
    """
    settings, own = load_settings(home), load_section(home, "vllm", VllmSettings)
    if own.python is not None and not os.access(own.python, os.X_OK):
        raise InvalidSettings(f"[vllm] python: {own.python} is no interpreter; `make vllm` makes .vllm/bin/python")
    host = Host.of(settings, "vllm", own.weights)
    follow(host, [_follower(host, own, number) for number in range(len(own.slots))], stop)


def _follower(host: Host, own: VllmSettings, number: int) -> SlotFollower:
    settings, name = host.settings, f"{own.name}-{number + 1}"
    folder, key, is_cpu = host.folder / name, engine_key(settings.home), settings.device == "cpu"
    plug_in = make_plug_in(host.folder / "plug_in")
    server = (
        GivenServer(own.urls[number])
        if own.urls
        else ServerProcess(
            folder,
            lambda port: serve_command(own, settings.policy, Path(settings.base), port=port, is_cpu=is_cpu),
            lambda lease: serve_environment(os.environ, plug_in, lease, key, own),
        )
    )
    slot = own.slots[number]
    return host.follower(
        kind="vllm", name=name, slot=slot, region=own.region or host.settings.region, server=server, drive=VllmServer
    )
