"""Certificates that servers show, and what is wrong with one that was refused. Waits for the server, at most the given seconds."""

from __future__ import annotations

import socket
import ssl
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cryptography import x509

_EXPIRED, _NOT_YET_VALID = 10, 9
_WRONG_NAME = (62, 64)
"""OpenSSL's codes of `X509_verify_cert`: the host name, or the IP address, is not among those of the certificate."""
_UNKNOWN = (2, 18, 19, 20, 21, 27)


def certificate_of(host: str, port: int, seconds: float, first: bytes = b"") -> x509.Certificate:
    """The certificate that a server shows to anybody. Nothing is sent but the handshake.

    `seconds`: how long to wait for each answer. `first`: what asks for TLS, of a protocol that begins without; one byte of answer
    is read. Raises OSError: it cannot be reached, or does not speak TLS.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # only looked at, never trusted
    with _shaken_hands(context, host, port, seconds, first) as stream:
        shown = stream.getpeercert(binary_form=True) or b""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some authorities have odd serial numbers
        return x509.load_der_x509_certificate(shown)


def refusal_of(
    host: str, port: int, seconds: float, *, authority: Path | None, setting: str, first: bytes = b""
) -> tuple[str, str] | None:
    """Try a checked handshake; a code and words for its refusal, or None if it succeeds or the server cannot be reached.

    `authority`: the file of those whom to trust; None: this machine's. `setting`: names it in the words. Others: `certificate_of`.
    """
    try:
        context = ssl.create_default_context(cafile=authority)
        with _shaken_hands(context, host, port, seconds, first):
            return None
    except ssl.SSLError as error:
        shown = None
        with suppress(OSError, ValueError):
            shown = certificate_of(host, port, seconds, first)
        return refusal_in_words(error, f"{host}:{port}", host, shown, setting)
    except OSError:
        return None


@contextmanager
def _shaken_hands(
    context: ssl.SSLContext, host: str, port: int, seconds: float, first: bytes
) -> Iterator[ssl.SSLSocket]:
    with socket.create_connection((host, port), seconds) as plain:
        if first:
            plain.sendall(first)
            plain.recv(1)
        with context.wrap_socket(plain, server_hostname=host) as stream:
            yield stream


def names_of(certificate: x509.Certificate) -> list[str]:
    """Host names and addresses that a certificate is for."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    addresses = found.get_values_for_type(x509.IPAddress)
    return [*found.get_values_for_type(x509.DNSName), *map(str, addresses)]


def refusal_in_words(  # noqa: PLR0911 one line per fault
    error: ssl.SSLError, server: str, host: str, shown: x509.Certificate | None, authorities: str
) -> tuple[str, str]:
    """A code, and what is wrong and what to do. Pure. `shown`: the certificate, if known; `authorities`: the setting that names them."""
    code = getattr(error, "verify_code", None)
    until = "" if shown is None else f" on {shown.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
    if code == _EXPIRED:
        return "certificate_expired", f"the certificate of {server} expired{until}: renew it there"
    if code == _NOT_YET_VALID:
        since = "" if shown is None else f" before {shown.not_valid_before_utc:%Y-%m-%d %H:%M} UTC"
        return "certificate_not_yet_valid", f"the certificate of {server} is not valid{since}: check both clocks"
    if code in _WRONG_NAME:
        names = "" if shown is None else f", but for {', '.join(names_of(shown)) or 'no host at all'}"
        return "wrong_host_name", (
            f"the certificate of {server} is not for {host}{names}: use one of its names in the settings, or give the server a "
            "certificate with this one"
        )
    if code in _UNKNOWN:
        issuer = "" if shown is None else f" ({shown.issuer.rfc4514_string() or 'without a name'})"
        return "unknown_authority", (
            f"nobody here trusts the issuer{issuer} of the certificate of {server}: name the file of its authority in {authorities}"
        )
    if code is not None:
        return "certificate_refused", f"the certificate of {server} is refused ({error}): give the server another one"
    if "ALERT" in (error.reason or "").upper():
        return "client_certificate", (
            f"{server} refuses this client's certificate ({error.reason}): it wants one of an authority that it trusts, "
            "and not expired"
        )
    return (
        "no_tls",
        f"{server} does not speak TLS there ({error.reason or error}): name its TLS port, or switch TLS off",
    )


def days_left(certificate: x509.Certificate) -> float:
    """Days until a certificate ends; negative if it has."""
    return (certificate.not_valid_after_utc.timestamp() - time.time()) / 86_400.0
