"""Engines of one policy in two regions, as processes in network namespaces: an endpoint near, a cache and more engines far.

    near: PostgreSQL, the weight store behind a web server, engine near-1, inference, episodes
      │ one shaped link
    far:  nginx as the region's cache (deploy/nginx), engines far-1 and far-2

In: a base policy, a link. Out: running processes. Waits for: the rows of the engines. All of the far region's traffic crosses the link:
rows and assignments to PostgreSQL, versions to the cache, requests that the endpoint sends there.
"""

from __future__ import annotations

import ctypes
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from hashlib import md5
from pathlib import Path
from typing import TypeVar

import httpx
import msgspec
from sqlalchemy import select

from contracts.assignments import LIVE, move
from contracts.engines import EngineReplica, read_replicas
from contracts.errors import Unavailable
from contracts.keys import create_key
from contracts.tables import swap
from runtime.database import Database
from runtime.days import migrate
from runtime.engine_key import ENGINE_KEY, authorization
from runtime.settings import Settings, write_settings
from services.engine.settings import EngineSettings
from tests.worlds.paths import EXAMPLE, ROOT
from tests.worlds.regions.net import Link, NetPlace, Network, network
from tests.worlds.regions.origin import Egress
from tests.worlds.versions import make_signer, publish_next
from weights.stores.opening import open_store_at
from weights.tensors import Tensors, read_safetensors
from weights.versions.keys import trusted_folder
from weights.versions.layout import chunk_path
from weights.versions.manifest import Manifest
from weights.versions.signing import public_pem

POLICY, RUN = "fleet", "regions"
NEAR, FAR = "near", "far"
WEB_PORT = 8400
_POSTGRES_PORT, _ORIGIN_PORT, _CACHE_PORT, _ENGINE_PORT = 5432, 8000, 8001, 8500
_START_SECONDS, _CHECK_SECONDS = 180.0, 5.0
_LOOK_SECONDS, SELDOM_SECONDS = 0.02, 0.25
"""Between two looks: where the moment is measured, and where processes that start need the processors."""
_MOST_TOLD = 3000
_CLONE_NEWNET = 0x40000000
_Result = TypeVar("_Result")


class RegionFleet:
    """See the module and `fleet`.

    Args:
        net: the namespaces; the trainer's is the near region.
        folder: for everything on disk; readable by the user postgres.
        base: folder of the base policy, whose tensors are bfloat16.
    """

    def __init__(self, net: Network, folder: Path, base: Path) -> None:
        self.net, self.folder, self.base = net, folder, base
        self.near, self.far = net.trainer, net.regions[0]
        self.near_address, self.far_address = self.far.trainer_address, self.far.address
        self.signer = make_signer(secrets.token_hex())
        self.engines: dict[str, subprocess.Popen[bytes]] = {}
        self.homes: dict[str, Settings] = {}
        self.key = ""
        self.engine_key = secrets.token_hex()
        self.tensors: Tensors = read_safetensors(base)
        self.newest = -1
        self._epoch = 0
        (folder / "weights").mkdir()
        self.store = open_store_at(folder / "weights")
        self._socket = folder / "postgres"
        self.database = Database(f"postgresql+psycopg://millrace@/millrace?host={self._socket}&port={_POSTGRES_PORT}")

    @property
    def url(self) -> str:
        """Of the endpoint, from the near region."""
        return f"http://{self.near_address}:{WEB_PORT}"

    def rows(self) -> dict[str, EngineReplica]:
        """The rows that are renewed, by name."""
        with self.database.snapshot() as connection:
            return {row.name: row for row in read_replicas(connection, POLICY) if row.is_fresh(time.time())}

    def serve(self, version: int, *names: str) -> bool:
        """True if these replicas, or all, say that they serve a version."""
        rows = self.rows()
        return all(
            name in rows and rows[name].status == "serving" and rows[name].slots.get(LIVE) == version
            for name in names or self.engines
        )

    def publish(self, target: Tensors) -> Manifest:
        """The next version."""
        edge = publish_next(
            self.store, POLICY, self.newest + 1, base=self.tensors, target=target, run=RUN, signer=self.signer
        )
        self.tensors, self.newest = target, self.newest + 1
        return edge

    def assign(self, edge: Manifest) -> None:
        """Make a version live."""
        with self.database.transaction() as connection:
            move(
                connection, policy=POLICY, arm=LIVE, version=edge.version, expected_epoch=self._epoch, writer="test", reason="test", share=1.0,
                root=edge.target_root, run=RUN,
            )  # fmt: skip
        self._epoch += 1

    def egress(self) -> Egress:
        """What left the near region's weight store over the link."""
        url = f"http://{self.near_address}:{_ORIGIN_PORT}/_stats"
        return inside(self.near, lambda: msgspec.json.decode(get(url), type=Egress))

    def ask_engine(self, name: str) -> list[str]:
        """The versions of the tokens of an answer, asked by a caller in the engine's own region."""
        settings = self.homes[name]
        body = {"model": POLICY, "token_ids": [1, 2, 3], "sampling_params": {"max_tokens": 4}}
        place = self.near if settings.region == NEAR else self.far

        def ask() -> list[str]:
            headers = authorization(self.engine_key)
            answer = httpx.post(
                f"{settings.engine_url}/inference/v1/generate", json=body, headers=headers, timeout=_CHECK_SECONDS
            )
            return [str(span["version"]) for span in answer.raise_for_status().json()["choices"][0]["weight_versions"]]

        return inside(place, ask)

    def arrived_at(self, edge: Manifest) -> float:
        """When the last chunk of a payload lay in the far region's cache, in epoch seconds."""
        # A chunk gets its name when it is whole, which is the last change of its inode.
        names = [md5(f"/{chunk_path(POLICY, chunk.name)}".encode()).hexdigest() for chunk in edge.chunks]  # noqa: S324 nginx's names
        return max((self.folder / "cache" / name[-1] / name[-3:-1] / name).stat().st_ctime for name in names)

    def swaps(self, version: int, since: float) -> dict[str, dict[str, float]]:
        """By engine: when it began to fetch a version and when it served it, in seconds after `since`."""
        with self.database.snapshot() as connection:
            rows = connection.execute(select(swap).where(swap.c.version == version)).mappings()
            return {
                row["replica"]: {
                    "began": row["at"] - row["stage_seconds"] - row["pause_seconds"] - since,
                    "served": row["at"] - since,
                }
                for row in rows
            }

    def start(self) -> None:
        """Everything, until all engines serve version 0.

        Raises:
            Unavailable: something did not start.
        """
        self._start_postgres()
        migrate(self.database)
        with self.database.transaction() as connection:
            self.key = create_key(connection, "app")
        self.assign(self.publish(self.tensors))
        root = str(self.folder / "weights")
        self.run(self.near, "origin", "tests.worlds.regions.origin", "--root", root, "--port", str(_ORIGIN_PORT))
        self._start_cache()
        for name in ("near-1", "far-1", "far-2"):
            self.make_home(name, name.split("-", maxsplit=1)[0], _ENGINE_PORT + len(self.homes))
            self.start_engine(name)
        self.make_home("web", NEAR, _ENGINE_PORT - 1)
        for process in ("inference", "episodes"):
            self.run(self.near, process, "millrace", process, "--home", str(self.homes["web"].home))
        self.wait(lambda: self.serve(0), "the engines do not serve version 0", _START_SECONDS, SELDOM_SECONDS)
        self.wait(self.is_ready, "the endpoint is not ready", _START_SECONDS, SELDOM_SECONDS)

    def tell_logs(self) -> None:
        """Print how the logs of all processes end."""
        for path in sorted(self.folder.glob("*.log")):
            print(f"--- {path.name}\n{path.read_text()[-_MOST_TOLD:]}", file=sys.stderr)

    def is_ready(self) -> bool:
        """Whether the endpoint says so."""
        try:
            return inside(self.near, lambda: httpx.get(f"{self.url}/ready", timeout=_CHECK_SECONDS).is_success)
        except httpx.TransportError:
            return False

    def make_home(self, name: str, region: str, port: int) -> Settings:
        """A home that trusts the publisher; an engine of it reads the store, or the cache of its region."""
        home = self.folder / name
        home.mkdir()
        trusted_folder(home).mkdir(parents=True)
        (trusted_folder(home) / f"{self.signer.key_id}.pub").write_bytes(public_pem(self.signer.public_key))
        (home / "weights").symlink_to(self.folder / "weights")
        address = self.near_address if region == NEAR else self.far_address
        settings = Settings(
            home=home, run=RUN, policy=POLICY, base=str(self.base), tasks=(EXAMPLE / "task.toml",), region=region,
            engine_host=address, engine_port=port, web_host=address, web_port=WEB_PORT, requests_per_minute=0,
            database_url=f"postgresql+psycopg://millrace@{self.near_address}:{_POSTGRES_PORT}/millrace",
        )  # fmt: skip
        weights = None if region == NEAR else f"http://127.0.0.1:{_CACHE_PORT}"
        write_settings(settings, {"engine": EngineSettings(name=name, slots=("live",), weights=weights)})
        self.homes[name] = settings
        return settings

    def start_engine(self, name: str) -> None:
        """Start, or start again, the engine of a home."""
        place = self.near if self.homes[name].region == NEAR else self.far
        self.engines[name] = self.run(place, name, "millrace", "engine", "--home", str(self.homes[name].home))

    def run(self, place: NetPlace, name: str, module: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a module in a region; it writes to `NAME.log`."""
        environment = {ENGINE_KEY: self.engine_key, "NO_PROXY": "*", "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
        argv = [sys.executable, "-m", module, *arguments]
        with (self.folder / f"{name}.log").open("ab") as log:
            return self.net.run_in(place, argv, stdout=log, stderr=log, environment=environment)

    def wait(self, condition: Callable[[], bool], failure: str, seconds: float, pause: float = _LOOK_SECONDS) -> float:
        """Until the condition holds; how long that took. Raises Unavailable."""
        started = time.monotonic()
        while not condition():
            if time.monotonic() - started > seconds:
                raise Unavailable(f"{failure}: see {self.folder}/*.log")
            time.sleep(pause)
        return time.monotonic() - started

    def _start_cache(self) -> None:
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        settings = (ROOT / "deploy/nginx/region-cache.conf").read_text()
        for usual, here in (
            ("store.example:18560", f"{self.near_address}:{_ORIGIN_PORT}"),
            ("/var/cache/millrace", str(self.folder / "cache")),
            ("listen 18561", f"listen {_CACHE_PORT}"),
            (
                "access_log off;",
                "access_log off; " + " ".join(f"{kind}_temp_path {self.folder}/{kind};" for kind in kinds),
            ),
            ("worker_processes 2", f"user root; pid {self.folder}/nginx.pid; daemon off; worker_processes 1"),
        ):
            if usual not in settings:
                raise LookupError(f"region-cache.conf no longer says {usual!r}")
            settings = settings.replace(usual, here)
        path = self.folder / "nginx.conf"
        path.write_text(settings)
        with (self.folder / "cache.log").open("wb") as log:
            argv = [str(shutil.which("nginx")), "-p", str(self.folder), "-c", str(path), "-e", "/dev/stderr"]
            self.net.run_in(self.far, argv, stdout=log, stderr=log)

    def _start_postgres(self) -> None:
        programs = max(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
        data = self._socket / "data"
        self._socket.mkdir()
        shutil.chown(self._socket, "postgres")
        as_postgres = ["runuser", "-u", "postgres", "--"]
        initdb = [
            *as_postgres,
            str(programs / "initdb"),
            "--pgdata",
            str(data),
            "--username",
            "millrace",
            "--auth",
            "trust",
        ]
        subprocess.run([*initdb, "--locale", "C", "--encoding", "UTF8"], check=True, stdout=subprocess.DEVNULL, cwd="/")  # noqa: S603 Debian's
        with (data / "pg_hba.conf").open("a") as file:
            file.write("host all all 10.203.0.0/16 trust\n")
        server = [
            *as_postgres,
            str(programs / "postgres"),
            "-D",
            str(data),
            "-k",
            str(self._socket),
            "-p",
            str(_POSTGRES_PORT),
        ]
        with (self.folder / "postgres.log").open("wb") as log:
            self.net.run_in(self.near, [*server, "-c", "listen_addresses=*"], stdout=log, stderr=log)
        psql = [str(programs / "psql"), "-qAt", "-h", str(self._socket), "-p", str(_POSTGRES_PORT), "-U", "millrace"]
        create = [*psql, "-d", "postgres", "-c", "CREATE DATABASE millrace"]
        made = lambda: subprocess.run(create, check=False, stderr=subprocess.DEVNULL).returncode == 0  # noqa: S603, E731 Debian's
        self.wait(made, "PostgreSQL does not start", _START_SECONDS, SELDOM_SECONDS)


def why_no_fleet() -> str | None:
    """What is missing here beside namespaces; None if nothing is."""
    if not list(Path("/usr/lib/postgresql").glob("*/bin/postgres")):
        return "regions of engines need PostgreSQL: apt-get install postgresql"
    return None if shutil.which("nginx") else "regions of engines need nginx: apt-get install nginx-light"


@contextmanager
def fleet(base: Path, link: Link) -> Iterator[RegionFleet]:
    """A running fleet; its processes end with the block. Raises Unavailable."""
    with ExitStack() as stack:
        net = stack.enter_context(network([link]))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="millrace-fleet-")))
        folder.chmod(0o711)  # the user postgres passes through
        made = RegionFleet(net, folder, base)
        stack.callback(made.database.close)
        # Before the folder is removed.
        stack.callback(net.tear_down)
        try:
            made.start()
            yield made
        except BaseException:
            made.tell_logs()
            raise


def inside(place: NetPlace, do: Callable[[], _Result]) -> _Result:
    """The result of a function whose sockets are in a namespace: it runs in a thread that entered it."""
    results: list[_Result] = []
    errors: list[BaseException] = []

    def enter() -> None:
        try:
            _enter(place)
            results.append(do())
        except BaseException as error:  # noqa: BLE001 raised again in the caller's thread
            errors.append(error)

    thread = threading.Thread(target=enter, name=f"in {place.namespace}")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def _enter(place: NetPlace) -> None:
    """Move this thread, and those that it starts, into a namespace. `os.setns` came with Python 3.12."""
    with Path(f"/run/netns/{place.namespace}").open("rb") as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter {place.namespace}")


def get(url: str, headers: dict[str, str] | None = None) -> bytes:
    """The body of a response."""
    return httpx.get(url, headers=headers, timeout=_CHECK_SECONDS, trust_env=False).raise_for_status().content
