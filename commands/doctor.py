"""`millrace doctor`: checks this machine and a home, and says how to fix what is missing."""

from __future__ import annotations

import importlib.util
import shutil
import sqlite3
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from commands.deep import deep_findings
from commands.deep.servers import bind_error, port_findings, process_findings, store_finding
from commands.engines import engine_findings
from commands.findings import Finding, checked, missing, note
from commands.home_gates import gates_of_home
from commands.options import DEFAULT_HOME, DeviceOption, HomeOption
from commands.policy_check import findings_of
from commands.room import described_shape, fit_table, settings_on
from commands.sections import sections_finding
from commands.up import resolve_policy
from contracts.assignments import LIVE
from contracts.errors import ClockOff, InvalidSettings
from contracts.event_log import EventLog
from contracts.memory.training import USUAL, passes_of
from engines.cards import read_shape
from pipelines.training.settings import TrainingSettings
from rewards.sandbox.choose import MAKERS, Maker, described, sandbox_or_problem
from runtime.clocks import MOST_SECONDS, database_time, offset_seconds
from runtime.database import Database
from runtime.integrity import damaged_files, damaged_records
from runtime.log.loss_detection import losses, read_positions, refusal
from runtime.private_files import open_to_others
from runtime.settings import Settings, load_section, load_settings
from runtime.settings_file import settings_file
from services.provider import load_provider
from weights.stores.opening import inspect_store
from weights.versions.keys import keyring_of, signer_of, signing_key

_OF_TORCH = ("torch", "transformers", "trl", "accelerate")
_PACKAGES = ("fastapi", "sqlalchemy", "alembic", "msgspec", "blake3", "cryptography", "tokenizers")
_INSTALL = "missing: run `make setup`, or install the wheel with its dependencies"
_INSTALL_TORCH = "missing: only engine and training need it; pip install 'millrace[torch]', or the image millrace-torch"
_PYTHON = (3, 11)
_SQLITE = (3, 35)
_FREE_GIB = 2
_CARDS = (24, 48, 80)
_GIB = 2**30
_EVERY_RECORD, _MAX_NAMED = 2**62, 10
_SANDBOX_REMEDY = "get Linux 6.12 or newer, or `apt install bubblewrap` where user namespaces are allowed"


def examine(home: Path, *, deep: bool = False) -> Iterator[Finding]:
    """Run every check, without importing torch. `deep`: also ask everything that the home depends on."""
    version = sys.version_info[:3]
    yield Finding("python", version[:2] >= _PYTHON, True, f"{'.'.join(map(str, version))}; 3.11 or newer is needed")
    for package in (*_PACKAGES, *_OF_TORCH):
        there, needed = importlib.util.find_spec(package) is not None, package in _PACKAGES
        yield Finding(package, there, needed, "installed" if there else _INSTALL if needed else _INSTALL_TORCH)
    says = f"{sqlite3.sqlite_version}; 3.35 or newer is needed"
    yield Finding("sqlite", sqlite3.sqlite_version_info >= _SQLITE, True, says)
    free = shutil.disk_usage(home if home.exists() else Path()).free / _GIB
    yield Finding("disk", free >= _FREE_GIB, True, f"{free:.0f} GiB free; {_FREE_GIB} are needed")
    yield sandbox_of(MAKERS)
    if not settings_file(home).exists():
        free_port = bind_error("127.0.0.1", 8400) is None
        yield Finding("port 8400", free_port, False, "free" if free_port else "taken: start with --port")
        if deep:
            yield missing("home", f"{home} was never started, so --deep has nothing to ask: name a home with --home")
    else:
        settings = load_settings(home)
        yield sections_finding(home)
        yield checked("keys", lambda: _keys(settings))
        if (provider := load_provider(settings)) is not None:
            yield Finding("provider", True, False, provider.terms if settings.base else provider.says)
        if settings.base:
            yield from engine_findings(settings)
            for gate in gates_of_home(settings):
                yield Finding("gate", gate.is_gated, False, f"{gate.task}: {gate.says}")
            yield checked("versions", lambda: versions_of(settings), needed=False)
        yield from process_findings(settings)
        yield _files(settings)
        yield _private(home)
        with closing(settings.database()) as database, closing(settings.event_log()) as event_log:
            yield checked("log", lambda: _log(settings, database, event_log))
            yield checked("clock", lambda: _clock(database), needed=False)
        if settings.weights_url:
            yield checked("weights", lambda: store_finding(str(settings.weights_url)))
        yield from deep_findings(settings) if deep else port_findings(settings)
    gpu = shutil.which("nvidia-smi") is not None
    yield Finding("gpu", gpu, False, "found: try --device cuda" if gpu else "none: everything runs on the CPU")
    browser = shutil.which("chromium") is not None
    yield Finding("chromium", browser, False, "installed" if browser else "the page test is skipped without it")


def sandbox_of(makers: Mapping[str, Maker]) -> Finding:
    """Which sandboxes work here. A program tries to escape from each. Only tasks that run code need one."""
    found = {name: sandbox_or_problem(make) for name, make in makers.items()}
    working = [described(result) for result in found.values() if not isinstance(result, str)]
    refused = "; ".join(f"{name}: {result}" for name, result in found.items() if isinstance(result, str))
    if not working:
        return note("sandbox", f"none works, so tasks that run code are refused; {_SANDBOX_REMEDY} ({refused})")
    return Finding("sandbox", True, False, f"{', '.join(working)}" + (f"; not {refused}" if refused else ""))


def doctor(
    home: HomeOption = DEFAULT_HOME,
    policy: Annotated[
        str | None,
        typer.Option(help="Folder or hub id of a base policy: say what of it is supported and what it needs."),
    ] = None,
    device: DeviceOption = "cpu",
    card: Annotated[
        list[float] | None,
        typer.Option(min=1, help="With --policy: only what fits a card of so many GB, from headers; may be repeated."),
    ] = None,
    processes: Annotated[
        int, typer.Option(min=1, help="With --policy: so many processes train it, each with such a card.")
    ] = 1,
    *,
    deep: Annotated[
        bool, typer.Option("--deep", help="Also ask servers, judges and ports, and look at disks and certificates.")
    ] = False,
) -> int:
    """Check this machine and a home, or a policy, and say how to fix what is missing. Exit status 1 if something needed is missing."""
    findings, folder = [], None if policy is None else resolve_policy(policy)
    if card and folder is None:
        raise InvalidSettings("--card says what of a policy fits: add --policy FOLDER")
    if card and folder is not None:
        return 0 if print_fits(folder, home, card, processes) else 1
    for finding in examine(home, deep=deep) if folder is None else findings_of(folder, device):
        findings.append(finding)
        mark = "ok     " if finding.good else "MISSING" if finding.needed else "note   "
        print(f"{mark}  {finding.name:<12} {finding.says}")
    is_missing = any(finding.needed and not finding.good for finding in findings)
    if folder is not None and not is_missing:
        print_fits(folder, home, _CARDS, processes)
    return 1 if is_missing else 0


def print_fits(folder: Path, home: Path, cards: Sequence[float], processes: int = 1) -> bool:
    """Print which ways of training a checkpoint fit cards of so many GB. Returns whether each card has one. Raises as `read_shape`."""
    shape, passes = read_shape(folder), USUAL
    if settings_file(home).exists():
        passes = passes_of(load_section(home, "training", TrainingSettings).model_dump())
    print(f"\n{described_shape(shape)}\n\nComputed, for [training] {passes.says}; see docs/models.md, What fits\n")
    print("\n".join(fit_table(shape, passes, cards, processes)))
    return all(any(settings_on(shape, passes, card, processes)) for card in cards)


def _keys(settings: Settings) -> Finding:
    keyring = keyring_of(settings)
    if keyring is None:
        says = "weights_unsigned = true: anybody who can write to the weight store decides what is served"
        return note("keys", f"{says}; see docs/operating.md, Keys")
    signer = None if signing_key(settings.home) is None else signer_of(settings)
    signs = "no private key: versions are only read here" if signer is None else f"{signer.key_id} signs"
    return Finding("keys", True, True, f"{', '.join(keyring.key_ids)} trusted; {signs}")


def _files(settings: Settings) -> Finding:
    if found := list(damaged_files(settings.home, everything=True)):
        says = "; ".join(f"{item.path} is damaged ({item.problem})" for item in found)
        return missing("files", f"{says}: see docs/repair.md, Bits flip")
    return Finding("files", True, True, "no damaged page in millrace.db and log/")


def _private(home: Path) -> Finding:
    if found := list(open_to_others(home)):
        says = f"{len(found)} files or folders can be read by other users, first {found[0]}"
        return note("private", f"{says}: `chmod -R go= {home}` as their owner")
    return Finding("private", True, False, "no other user of this machine can read the home")


def _log(settings: Settings, database: Database, event_log: EventLog) -> Finding:
    event_log.check_topics()
    if lost := losses(database, event_log):
        return missing("log", refusal(lost, settings.home).message)
    with database.snapshot() as connection:
        positions = read_positions(connection)
    damaged = [] if settings.kafka else list(damaged_records(event_log, positions, newest=_EVERY_RECORD))
    if damaged:
        places = ", ".join(f"{item.topic}/{item.partition} {item.offset}" for item in damaged[:_MAX_NAMED])
        return note("log", f"{len(damaged)} records are damaged: {places}; check the disk")
    return Finding("log", True, True, "the log is the one that the database was written with")


def _clock(database: Database) -> Finding:
    try:
        offset = offset_seconds(database)
        database_time(database)
    except ClockOff as error:
        return missing("clock", error.message)
    return Finding("clock", True, True, f"{abs(offset):.1f} s from the database's; {MOST_SECONDS:.0f} are allowed")


def versions_of(settings: Settings) -> Finding:
    """Whether everything in the weight store can be read and verified, and the signed list of versions is fresh."""
    found = inspect_store(settings, LIVE)
    if found.junk:
        named = "; ".join(f"{place}: {code}" for place, code in found.junk[:_MAX_NAMED])
        says = f"{len(found.junk)} objects in the weight store cannot be used: {named}"
        return note("versions", f"{says}; see docs/repair.md, Weights are refused")
    if found.expires_in is None:
        return Finding("versions", True, False, f"{found.num_versions}; no signed list yet: training writes it")
    says = f"{found.num_versions} listed; the list is good for {found.expires_in / 3600:.0f} h"
    return (
        Finding("versions", True, False, says)
        if found.expires_in > 0
        else note("versions", f"{says}: millrace keys renew")
    )
