"""Where a webhook's URL leads. In: a host. Out: its addresses, all of them public. Waits: for the name to be resolved.

The caller connects to an address from here, not to the name: a second look at the name could lead elsewhere.
"""

from __future__ import annotations

import ipaddress
import socket
from ipaddress import IPv4Address, IPv6Address
from urllib.request import getproxies, proxy_bypass

_OLD = (ipaddress.ip_network("::/96"), ipaddress.ip_network("fec0::/10"))
"""Forms that were given up: an IPv4 address inside, and a site's own addresses."""
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


class NotPublic(Exception):
    """A host has an address on this machine or in a private network."""


def addresses_of(host: str, port: int, *, may_be_private: bool) -> list[str]:
    """The addresses of a host, in the order to try them.

    Raises:
        NotPublic: one of them is loopback, link-local, private, or for another special purpose.
        OSError: the name has no address.
    """
    found = list(dict.fromkeys(str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)))
    if not may_be_private:
        for address in found:
            if not is_public(address):
                raise NotPublic(
                    f'{host} is {address}, which is not public; to allow it: [webhooks] private_hosts = ["{host}"]'
                )
    return found


def goes_by_proxy(scheme: str, host: str) -> bool:
    """Whether the environment names a proxy for it: then the proxy resolves the name, and decides where it may lead."""
    return scheme in getproxies() and not proxy_bypass(host)


def is_public(address: str) -> bool:
    """Whether an address is one of the internet, and so is the IPv4 address inside it, if there is one."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if any(ip in network for network in _OLD):
        return False
    inner = _inside(ip) if isinstance(ip, IPv6Address) else ()
    return all(one.is_global and not one.is_multicast for one in inner or (ip,))


def _inside(ip: IPv6Address) -> tuple[IPv4Address | IPv6Address, ...]:
    """The IPv4 address that stands in an IPv6 one: mapped, 6to4, Teredo, NAT64."""
    if ip.ipv4_mapped is not None:
        return (ip.ipv4_mapped,)
    if ip.sixtofour is not None:
        return ip, ip.sixtofour
    if ip.teredo is not None:
        return ip, *ip.teredo
    return (ip, IPv4Address(int(ip) & 0xFFFFFFFF)) if ip in _NAT64 else ()
