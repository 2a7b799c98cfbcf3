"""Wake-ups over Redis' publish and subscribe.

    ring() ──▶ this process' listeners at once
           └─▶ Redis channel ──▶ the thread `bell` of every process that listens ──▶ its listeners

Waits for: messages, on one thread that only a process with listeners has. While Redis is away the thread reconnects every second;
once Redis is back every listener is woken, because rings may have been missed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import redis
from redis.backoff import NoBackoff
from redis.client import PubSub
from redis.retry import Retry

from contracts.errors import Unavailable
from runtime.circuit import CircuitBreaker
from runtime.replicas.in_process import LocalBell

_LISTEN_SECONDS = 0.2
_RECONNECT_SECONDS = 1.0


class RedisBell:
    """See the module."""

    def __init__(self, url: str, circuit: CircuitBreaker, prefix: str, timeout_seconds: float) -> None:
        seconds, retry = timeout_seconds, Retry(NoBackoff(), 0)
        self._client = redis.Redis.from_url(
            url, socket_timeout=seconds, socket_connect_timeout=seconds, retry=retry, health_check_interval=10
        )
        self._circuit = circuit
        self._channel = f"{prefix}bell"
        self._own = LocalBell()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def ring(self, name: str) -> None:
        """See the port. Listeners of this process are woken directly, and once more through Redis."""
        self._own.ring(name)
        try:
            with self._circuit.calling():
                self._client.publish(self._channel, name)
        except Unavailable:
            return  # listeners elsewhere find the change at their next poll

    def listen(self, name: str, wake: Callable[[], object]) -> None:
        """See the port."""
        self._own.listen(name, wake)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="bell", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """See the port."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
        self._own.close()
        self._client.close()

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                with self._client.pubsub() as subscribed:  # type: ignore[no-untyped-call] # redis gives it no return type
                    subscribed.subscribe(self._channel)
                    self._hear(subscribed)
            except (redis.RedisError, OSError):
                self._closing.wait(_RECONNECT_SECONDS)

    def _hear(self, subscribed: PubSub) -> None:
        while not self._closing.is_set():
            message = subscribed.get_message(timeout=_LISTEN_SECONDS)
            if message is None:
                continue
            if message["type"] == "message":
                self._own.ring(message["data"].decode(errors="replace"))
            elif message["type"] == "subscribe":  # perhaps after a reconnect: rings may have been missed
                for name in self._own.names():
                    self._own.ring(name)
