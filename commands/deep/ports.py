"""The ports of this home: who answers there? In: addresses, this home's keys. Out: findings. Waits for: a few seconds per port."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from typing import NamedTuple

import httpx

from commands.findings import Finding
from contracts.errors import MillraceError
from runtime.engine_key import authorization, engine_key
from runtime.operator_key import operator_key
from runtime.settings import Settings

_SECONDS = 3.0


class _Port(NamedTuple):
    """A port, and a request that only this home's key may make."""

    process: str
    host: str
    number: int
    path: str


def port_findings(settings: Settings) -> Iterator[Finding]:
    """One finding per port that the settings name."""
    try:
        operator = {"Authorization": f"Bearer {operator_key(settings.home)}"}
        engine = dict(authorization(engine_key(settings.home)))
    except (OSError, UnicodeDecodeError, MillraceError) as error:
        yield Finding("ports", False, True, f"this home's keys cannot be read ({error}): see docs/operating.md, Keys")
        return
    for port in _ports(settings):
        yield _finding(port, engine if port.process == "engine" else operator)


def _ports(settings: Settings) -> Iterator[_Port]:
    yield _Port("inference" if settings.is_split else "web", settings.web_host, settings.web_port, "/v1/models")
    if settings.feedback_port is not None:
        host = settings.feedback_host or settings.web_host
        yield _Port("feedback", host, settings.feedback_port, "/v1/feedback/none")
    if settings.dashboard_port is not None:
        host = settings.dashboard_host or settings.web_host
        yield _Port("dashboard", host, settings.dashboard_port, "/api/state")
    yield _Port("engine", settings.engine_host, settings.engine_port, "/state")


def _finding(port: _Port, headers: dict[str, str]) -> Finding:
    name, place = f"port {port.number}", f"{port.process} at {port.host}:{port.number}"
    if _is_free(port):
        return Finding(name, True, False, f"{place}: free, so it does not run")
    url = f"http://{port.host}:{port.number}"
    try:
        allowed = httpx.get(f"{url}{port.path}", headers=headers, timeout=_SECONDS)
        ready = httpx.get(f"{url}/ready", timeout=_SECONDS)
    except httpx.HTTPError as error:
        says = f"{place}: something listens and does not answer as Millrace does ({type(error).__name__}): find it with `ss -ltnp`, or "
        return Finding(name, False, True, f"{says}start with another port")
    if allowed.status_code in {httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN}:
        says = (
            f"{place}: it refuses this home's key, so it is of another home: end that one, or start with another port"
        )
        return Finding(name, False, True, says)
    if not ready.is_success and port.process != "engine":
        return Finding(name, False, True, f"{place}: not ready: {ready.text[:300]}")
    return Finding(
        name, True, False, f"{place}: this home's, ready" if port.process != "engine" else f"{place}: this home's"
    )


def _is_free(port: _Port) -> bool:
    """Whether nothing listens there. False for another machine's port: only a request can tell."""
    try:
        address = socket.getaddrinfo(port.host, port.number, type=socket.SOCK_STREAM)[0]
        with socket.socket(address[0]) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address[4])
    except OSError as error:
        return error.errno not in {errno.EADDRINUSE, errno.EADDRNOTAVAIL} and not isinstance(error, socket.gaierror)
    return True
