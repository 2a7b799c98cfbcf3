"""Why Redis does not let this client in, and what to do. `rediss://` checks certificate and host name.

Millrace runs without Redis, so its clients never say. In: the address. Out: words. Waits for: Redis, a few seconds.
"""

from __future__ import annotations

import ssl
from contextlib import suppress
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from runtime.certificates import certificate_of, refusal_of
from runtime.replicas.redis_connection import with_password

_SECONDS = 3.0
_PORT = 6379


def redis_refusal(url: str) -> str:
    """What is wrong and what to do; empty if Redis lets this client in, or cannot be reached.

    Raises:
        InvalidSettings: the file with the password cannot be read.
        ValueError: the URL is not a Redis URL.
    """
    client = redis.Redis.from_url(
        with_password(url), socket_timeout=_SECONDS, socket_connect_timeout=_SECONDS, retry=Retry(NoBackoff(), 0)
    )
    try:
        client.ping()
    except redis.AuthenticationError as error:
        return f"Redis refuses this sign-in ({error}): check the user in `redis` and the password in MILLRACE_REDIS_PASSWORD"
    except redis.ResponseError as error:
        return f"Redis refuses ({error}): allow this user what Millrace does there"
    except (redis.RedisError, OSError) as error:
        return _why_no_connection(url, error)
    finally:
        client.close()
    return ""


def _why_no_connection(url: str, error: BaseException) -> str:
    parts = urlsplit(url)
    host, port = parts.hostname or "localhost", parts.port or _PORT
    if parts.scheme == "rediss":
        named = parse_qs(parts.query).get("ssl_ca_certs", [""])[0]
        if named and not Path(named).is_file():
            return f"ssl_ca_certs in `redis`: {named} cannot be read; put the authority of Redis' certificate there"
        found = refusal_of(
            host, port, _SECONDS, authority=Path(named) if named else None, setting="ssl_ca_certs of `redis`"
        )
        if found is None and _ssl_error_in(error):
            return f"Redis refuses this client's certificate ({error}): set ssl_certfile and ssl_keyfile in `redis`"
        return "" if found is None else f"Redis at {found[1]}" if found[0] == "no_tls" else found[1]
    with suppress(OSError, ValueError):
        certificate_of(host, port, _SECONDS)
        return f"Redis at {host}:{port} speaks TLS: write rediss:// instead of redis://"
    return ""


def _ssl_error_in(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, ssl.SSLError):
            return True
        error = error.__cause__ or error.__context__
    return False
