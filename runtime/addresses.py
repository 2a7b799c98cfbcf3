"""Addresses of servers. Pure."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address; an empty one or a path is a Unix socket."""
    if not host or host == "localhost" or host.startswith("/"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_and_port(server: str) -> tuple[str, int]:
    """The parts of `host:port`; an IPv6 address stands in brackets. Raises ValueError: it has no host or no port."""
    host, _, port = server.strip().rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError(f"{server!r} is not host:port")
    return host.strip("[]"), int(port)
