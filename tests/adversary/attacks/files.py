"""Attacks on an operator by what he is handed: a backup, a policy, a task, a bundle, the address of a receiver."""

from __future__ import annotations

import os
import shutil
import tarfile
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from commands.template_check import template_findings
from contracts.errors import MillraceError
from contracts.tasks.loading import load_tasks
from pipelines.release.webhooks.messages import make_test_event
from pipelines.release.webhooks.sending import SignedUrl, make_client, send
from runtime.backup.archive import CONTENTS, HEADER, read_header, unpack
from tests.adversary.attacks.attack import Attack
from tests.worlds.paths import BASE

_HOLE = 3 * 2**30
_ENDLESS = (
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{{ 9 ** (9 ** (9 ** 9)) }}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{{ 'a' * 10**12 }}",
)
_LOOPBACK = ("127.0.0.1", "localhost", "127.1", "2130706433", "0x7f000001", "[::ffff:127.0.0.1]", "[::1]", "0.0.0.0")  # noqa: S104 hosts of URLs
_DEEP = "[" * 100_000


def attacks() -> list[Attack]:
    """Every attack of this area."""
    return [
        Attack("a backup whose members are holes", partial(_in_folder, holes), 3),
        Attack("a template without end", partial(_in_folder, endless), len(_ENDLESS)),
        Attack("tasks that are holes, pipes, devices, or deep", partial(_in_folder, odd_tasks), 4),
        Attack("a webhook to this machine", webhooks_to_loopback, len(_LOOPBACK)),
    ]


def holes(folder: Path) -> str | None:
    """A header that claims 3 GB in a file of 1.5 KB."""
    for name in (HEADER, CONTENTS, "home/log/signals.db"):
        info = tarfile.TarInfo(name)
        block = b"x".ljust(tarfile.BLOCKSIZE, b"\0")
        info.size = len(block)
        info.pax_headers = {
            "GNU.sparse.size": str(_HOLE),
            "GNU.sparse.numblocks": "1",
            "GNU.sparse.map": f"{_HOLE - 1},1",
        }
        (folder / "backup").write_bytes(info.tobuf(tarfile.PAX_FORMAT) + block + bytes(2 * tarfile.BLOCKSIZE))
        for read in (partial(read_header, schema="", release=""), partial(unpack, folder=folder / "to")):
            with suppress(MillraceError):
                read(folder / "backup")
                return f"{name} is taken"
        if any(path.stat().st_size for path in (folder / "to").rglob("*") if path.is_file()):
            return f"{name} is written"
    return None


def endless(folder: Path) -> str | None:
    """A policy whose template counts without end, or fills the memory."""
    shutil.copytree(BASE, folder, dirs_exist_ok=True)
    for template in _ENDLESS:
        (folder / "chat_template.jinja").write_text(template)
        if template_findings(folder, cpu_seconds=4)[0].good:
            return f"{template} passes"
    return None


def odd_tasks(folder: Path) -> str | None:
    """Task files that are no small plain files of TOML."""
    odd: list[Callable[[Path], object]] = [
        _hole,
        os.mkfifo,
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.write_text(f"a = {_DEEP}"),
    ]
    for number, make in enumerate(odd):
        path = folder / f"{number}.toml"
        make(path)
        with suppress(MillraceError):
            load_tasks((path,))
            return f"{path.name} is taken"
    return None


def webhooks_to_loopback() -> str | None:
    """However the address is written."""
    heard: list[str] = []

    class Listener(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.append(self.path)

    server = HTTPServer(("127.0.0.1", 0), Listener)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    for host in _LOOPBACK:
        with make_client() as client:
            send(client, SignedUrl(f"http://{host}:{server.server_port}/", b"s"), make_test_event("shop"), 0.0)
    server.shutdown()
    server.server_close()
    return f"{len(heard)} messages arrive" if heard else None


def _hole(path: Path) -> None:
    path.touch()
    os.truncate(path, _HOLE)


def _in_folder(attack: Callable[[Path], str | None]) -> str | None:
    with tempfile.TemporaryDirectory() as name:
        return attack(Path(name))
