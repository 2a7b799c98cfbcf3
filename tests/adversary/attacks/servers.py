"""Attacks on a server's patience: endless headers, slow senders, guessed keys, questions about readiness.

Flows in: bytes over loopback to the real protocol and frame. Flows out: what got through. Waits for: the server to hang up, with
its patience shortened to fractions of a second.
"""

from __future__ import annotations

import asyncio
import socket
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import uvicorn
from fastapi import FastAPI, Request, Response

from runtime.operations import Operations
from runtime.private_files import create_private_files, make_private, open_to_others
from services import guarding
from services.guarding import MAX_HEADER_BYTES, FailedKeys, GuardedProtocol
from services.serving import Measured, make_web
from tests.adversary.attacks.attack import Attack

START = b"POST /size HTTP/1.1\r\nhost: here\r\n"
ENDLESS: dict[str, tuple[bytes, ...]] = {
    "one large header": (START + b"x: " + b"a" * MAX_HEADER_BYTES + b"\r\n\r\n",),
    "a header without end": (START, b"x: ", *[b"a" * 2000] * 400),
    "many headers": (START, *[b"x: y\r\n" * 1000] * 20),
    "a long path": (b"GET /" + b"a" * MAX_HEADER_BYTES + b" HTTP/1.1\r\n\r\n",),
    "trailers": (START + b"transfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n", *[b"t: " + b"a" * 2000 + b"\r\n"] * 40),
    "a trailer without end": (START + b"transfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\nt: ", *[b"a" * 20_000] * 40),
}
SLOW: dict[str, tuple[bytes, ...]] = {
    "silence": (),
    "an empty line": (b"\r\n",),
    "half of the headers": (START,),
    "a byte at a time": tuple(START[place : place + 1] for place in range(len(START))),
    "half of the body": (START + b"content-length: 10\r\n\r\nabc",),
}
_NUM_GUESSES, _NUM_QUESTIONS = 14, 40
_REFUSED, _OK = 401, 200


def attacks() -> list[Attack]:
    """See the module."""
    return [
        Attack("headers and trailers without end", endless, len(ENDLESS)),
        Attack("slow senders", slow, len(SLOW)),
        Attack("guessing keys one after the other", guesses),
        Attack("asking for readiness all the time", questions),
        Attack("reading another user's home", read_home, 4),
    ]


def endless() -> str | None:
    """Returns which kinds of headers were taken."""
    with serve(Measured(sized(), "sample")) as url:
        taken = [name for name, pieces in ENDLESS.items() if b"HTTP/1.1 200" in talk(url, *pieces)]
    return f"taken: {', '.join(taken)}" if taken else None


def slow() -> str | None:
    """Returns the senders whose connection was never closed."""
    kept = []
    with impatient(), serve(Measured(sized(), "sample")) as url:
        for name, pieces in SLOW.items():
            try:
                talk(url, *pieces, seconds=5.0)
            except TimeoutError:
                kept.append(name)
    return f"still connected: {', '.join(kept)}" if kept else None


def guesses() -> str | None:
    """Returns how fast keys could be tried."""
    with serve(Measured(sized(), "sample")) as url, httpx.Client(base_url=url, timeout=10.0) as client:
        started = time.monotonic()
        statuses = {client.get("/secret").status_code for _ in range(_NUM_GUESSES)}
        seconds = time.monotonic() - started
        known = client.get("/secret", headers={"authorization": "good"}).status_code
    if statuses != {_REFUSED} or known != _OK:
        return f"answers were {statuses} and {known}"
    unhindered = FailedKeys(lambda: 0.0)
    owed = sum(unhindered.wait_seconds("a") for _ in range(_NUM_GUESSES))
    return None if seconds >= owed / 2 > 0 else f"{_NUM_GUESSES} keys in {seconds:.2f} s"


def questions() -> str | None:
    """Returns how often the checks ran."""
    looks: list[float] = []
    web = make_web({"/": FastAPI(title="Millrace sample")}, Operations({"it": lambda: looks.append(time.monotonic())}))
    started = time.monotonic()
    with serve(web) as url, httpx.Client(base_url=url) as client:
        for _ in range(_NUM_QUESTIONS):
            client.get("/ready")
    seconds = time.monotonic() - started
    return None if len(looks) <= 1 + seconds else f"{len(looks)} checks in {seconds:.2f} s"


def read_home() -> str | None:
    """Returns which files of a home others could read, made by an older release and made now."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        (home / "log").mkdir(parents=True)
        for name in ("millrace.db", "log/generations.db"):
            (home / name).touch()
            (home / name).chmod(0o644)
        home.chmod(0o755)
        make_private(home)
        create_private_files()
        (home / "spool").write_text("words of people")
        found = [f"{path.name} {stat.filemode(path.stat().st_mode)}" for path in open_to_others(home)]
    return ", ".join(found) or None


def sized() -> FastAPI:
    """An application that tells how large a body was, and keeps a secret."""
    app = FastAPI(title="Millrace sample")

    @app.post("/size")
    async def size(request: Request) -> dict[str, int]:
        return {"bytes": len(await request.body()), "headers": len(request.headers)}

    @app.get("/secret")
    async def secret(request: Request) -> Response:
        return Response(status_code=_OK if request.headers.get("authorization") == "good" else _REFUSED)

    return app


def talk(url: str, *pieces: bytes, seconds: float = 5.0, pause: float = 0.01) -> bytes:
    """Send pieces one after the other; all that comes back until the server hangs up.

    Raises:
        TimeoutError: it does not, for so long.
    """
    place = httpx.URL(url)
    with socket.create_connection((place.host, place.port or 80), timeout=seconds) as connection:
        received = b""
        try:
            for piece in pieces:
                connection.sendall(piece)
                time.sleep(pause)
            while part := connection.recv(65536):
                received += part
        except (ConnectionResetError, BrokenPipeError):
            pass
        return received


@contextmanager
def impatient() -> Iterator[None]:
    """Patience of fractions of a second."""
    before = guarding.HEADER_SECONDS, guarding.BODY_SECONDS
    guarding.HEADER_SECONDS, guarding.BODY_SECONDS = 0.2, 0.4
    try:
        yield
    finally:
        guarding.HEADER_SECONDS, guarding.BODY_SECONDS = before


@contextmanager
def serve(app: Callable[..., object]) -> Iterator[str]:
    """Run an application in a thread as our processes run theirs; its URL."""
    server = uvicorn.Server(uvicorn.Config(app, "127.0.0.1", 0, http=GuardedProtocol, ws="none", log_level="critical"))
    listening = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listening])), daemon=True)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.005)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
