"""The engine's process: `python -m services.engine HOME`, and what the supervisor runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import uvicorn
from transformers.utils import cached_file

from contracts.assignments import LIVE, MOVED
from contracts.engines import EngineReplica
from contracts.errors import InvalidSettings, MillraceError, Unavailable
from contracts.faults import no_fault
from engines.following.repository import FollowingRepository
from policy.load import load_model
from runtime.base_policy import fingerprint
from runtime.engine_key import engine_key
from runtime.engine_rows import EngineRows
from runtime.listening import listening_socket, replica_number, told_to_drain
from runtime.logs import set_up_logs
from runtime.operations import LONGEST_WORK_SECONDS, Operations, WeightStoreMetrics
from runtime.settings import Settings, load_section, load_settings
from services.engine.announcing import EngineAnnouncer, address_of, describe, problems_of
from services.engine.app import make_app
from services.engine.engine import Engine
from services.engine.follower import Follower
from services.engine.local_copy import LocalCopy
from services.engine.repository import SwapRecord, keep_swap
from services.engine.settings import EngineSettings
from services.guarding import GuardedProtocol
from weights.replica.slots import Slots
from weights.stores.opening import open_weight_store
from weights.warm_up import warm_up

_GRACEFUL_SECONDS = 5


def main(home: Path) -> None:
    """Serve until SIGTERM or SIGINT. Raises InvalidSettings: no usable millrace.toml, or the base policy cannot be loaded."""
    set_up_logs("engine")
    settings = load_settings(home)
    policy = settings.policy
    own = load_section(home, "engine", EngineSettings)
    torch.set_num_threads(own.threads)
    dtype = torch.float32 if settings.device == "cpu" else torch.bfloat16
    database = settings.database()
    folder = "replica" if replica_number() == 1 else f"replica-{replica_number()}"
    copied = settings.home / folder

    def held() -> set[int]:
        """Versions here: a web server lists nothing, so folds from these are asked for by name."""
        served = {version for version in engine.versions().values() if version is not None}
        return served | {slot.version for slot in Slots(copied, policy, no_fault).held()}

    store = open_weight_store(settings, measures=WeightStoreMetrics(), read_from=own.weights, held=held)
    is_far = own.weights or settings.weights_url
    copy = LocalCopy(copied, store, policy, settings.run) if is_far else None
    server: uvicorn.Server | None = None
    draining = told_to_drain()
    listening = listening_socket(settings.engine_host, settings.engine_port)
    name, url = address_of(settings, own, listening)
    base = fingerprint(settings.base)

    def swapped(record: SwapRecord) -> None:
        if copy is not None and record.arm == LIVE:
            copy.keep(record.version)
        keep_swap(database, record, name)

    def end() -> None:
        """End the process in order; the supervisor starts a new one."""
        if server is not None:
            server.should_exit = True

    engine = Engine(
        policy=policy,
        settings=own,
        store=copy or store,
        make_model=lambda: _load(settings, dtype),
        on_swap=swapped,
        on_gave_up=end,
        run=settings.run,
        tokenizer=_tokenizer(settings.base),
    )
    follower = Follower(engine, FollowingRepository(database, policy).assigned, on_exit=end)

    def row() -> EngineReplica:
        is_ending = draining.is_set() or (server is not None and server.should_exit)
        described = describe(engine, name=name, url=url, region=settings.region, is_ending=is_ending)
        return described._replace(run=settings.run, base=base, problems=problems_of(follower))

    announcer = EngineAnnouncer(row, EngineRows(database, policy), end)
    config = uvicorn.Config(
        make_app(engine, follower, engine_key(settings.home), announcer),
        http=GuardedProtocol,
        ws="none",
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=_GRACEFUL_SECONDS,
    )
    server = uvicorn.Server(config)
    operations = Operations({"engine": lambda: check_ready(engine)}, longest_step_seconds=LONGEST_WORK_SECONDS)
    bell = settings.replica_links().bell
    bell.listen(MOVED, follower.wake)
    server.run([listening])
    bell.close()
    operations.close()
    if copy is not None:
        copy.close()
    for thread in (follower, announcer):
        if thread.fatal is not None:
            raise thread.fatal


def check_ready(engine: Engine) -> None:
    """Raises Unavailable unless the engine serves; it may be loading, restarting or paused."""
    status, facts = engine.health()
    if status != "serving":
        held = ", ".join(f"v{version} in {arm}" for arm, version in facts["versions"].items() if version is not None)
        raise Unavailable(f"the engine is {status}" + (f"; it holds {held}" if held else ""))


def _load(settings: Settings, dtype: torch.dtype) -> Any:
    warm_up()  # now, while nothing serves yet
    try:
        return load_model(settings.base, device=settings.device, dtype=dtype)
    except (MillraceError, ValueError, KeyError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        # transformers raises ValueError or KeyError for an unknown model, torch RuntimeError for a missing device.
        raise InvalidSettings(f"{settings.base} cannot be loaded on {settings.device}: {reason}") from error


def _tokenizer(base: str) -> Path | None:
    """The tokenizer.json of a folder or a Hugging Face id; None: there is none."""
    try:
        return Path(cached_file(base, "tokenizer.json"))
    except OSError:
        return None


if __name__ == "__main__":
    main(Path(sys.argv[1]))
