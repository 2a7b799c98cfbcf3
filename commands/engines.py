"""The engines of a home: which ones the options of `up` and `demo` mean, and what `doctor` says of those that announce themselves."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import httpx

from commands.findings import Finding, missing, note
from contracts import assignments
from contracts.assignments import CANARY, CANDIDATE, HOLDOUT, LEARNING, LIVE
from contracts.engines import EngineReplica, read_replicas
from contracts.errors import InvalidSettings, Unavailable
from contracts.memory.training import TrainingWay
from engines.fitting import misfit
from engines.kind import FollowedSection
from engines.registry import FOLLOWED, KINDS, ON_GPU, OWN, followed_of, kind_of, only_followed, why_gone
from pipelines.training.settings import TrainingSettings
from runtime.base_policy import fingerprint
from runtime.engine_key import ENGINE_KEY, authorization, engine_key
from runtime.settings import Section, Settings, completed, load_section, make_section
from runtime.train_settings import TrainSettings
from services.engine.settings import EngineSettings

_ASK_SECONDS, _DOCTOR_SECONDS = 10.0, 2.0
_REMEDIES = {
    "another_run": "it belongs to another run, so it gets no requests: end it, or give its home this run",
    "another_base": "its config.json or tokenizer.json is another's, so it gets no requests: start it with this home's base",
    "unknown_kind": "this release has no such engine, so it gets no requests: end the process that announces it",
}


class EngineChoice(NamedTuple):
    """The engine of a home."""

    kind: str
    servers: FollowedSection | None = None
    """Of the servers of another project that are followed."""
    num_own: int = 1
    """How many of our engine's processes are started."""
    own: EngineSettings | None = None
    """What the command line says of our engine; None: nothing."""
    device: str = "cpu"

    @property
    def workers(self) -> tuple[str, ...]:
        """Processes to start beside the usual ones."""
        return () if self.servers is None else (self.kind,)

    @property
    def sections(self) -> dict[str, Section]:
        """Settings of engines."""
        found: dict[str, Section | None] = {"engine": self.own, self.kind: self.servers}
        return {name: section for name, section in found.items() if section is not None}

    @property
    def start_seconds(self) -> float:
        """How long it may take until everything is ready."""
        return kind_of(self.kind).start_seconds

    def limits(self, training: TrainingSettings | None = None) -> list[str]:
        """What this choice cannot do, for the operator. `training`: where it trains an adapter, each followed server holds all arms."""
        has_all_arms = self.servers is not None and training is not None and training.adapter is not None
        found = []
        if self.num_own and self.device != "cpu":
            found.append(
                f"our own engine on {self.device} is for trying out: it leaves the GPU waiting most of the time; vLLM serves users there (--engine vllm)"
            )
        if not self.num_own and not has_all_arms and (self.servers is None or CANDIDATE not in self.servers.slots):
            found.append(
                "no engine has a slot for the arm candidate: new versions cannot be gated, so none is served (two servers have one)"
            )
        return found


OURS = EngineChoice(OWN)


def choose_engine(
    kind: str | None,
    python: Path | None,
    replicas: int,
    num_own: int | None = None,
    urls: Sequence[str] = (),
    *,
    slots: str | None = None,
    device: str = "cpu",
) -> EngineChoice:
    """The choice that the options of the command line make.

    Args:
        kind: a name of `KINDS`; None: ours on a CPU, vLLM on a GPU.
        python: the interpreter of the servers' environment; None: the kind's own default.
        replicas: servers to start: the first serves live, the second candidate, further ones live.
        num_own: of our engine; None: one, or none beside others.
        urls: servers that run already, instead of `replicas` new ones. With our own kind they stand beside ours.
        slots: arms, with commas: one for each server, instead of `replicas`; without servers, those of each of our replicas.
        device: of the home.

    Raises InvalidSettings: another kind, no such interpreter, or slots that make no sense.
    """
    kind = kind or (ON_GPU if device.startswith("cuda") else OWN)
    if kind not in KINDS:
        raise InvalidSettings(f"--engine is {' or '.join(KINDS)}, not {kind!r}{why_gone(kind)}")
    arms = None if slots is None else tuple(name.strip() for name in slots.split(","))
    if kind == OWN and not urls:
        if num_own == 0:
            raise InvalidSettings(f"--engines 0 leaves no engine; add --engine {' or '.join(FOLLOWED)}")
        own = None if arms is None else make_section("--slots: [engine]", EngineSettings, slots=arms)
        return OURS._replace(num_own=num_own or 1, own=own, device=device)
    is_beside = kind == OWN
    name = only_followed() if is_beside else kind
    num_servers = len(urls) or replicas
    usual = (LIVE, CANDIDATE, *[LIVE] * (num_servers - 2))[: max(1, num_servers)]
    servers = followed_of(name).choose(python, arms or usual, urls)
    return EngineChoice(name, servers, int(is_beside) if num_own is None else num_own, device=device)


def settled(
    choice: EngineChoice, settings: Settings, training: TrainingSettings
) -> tuple[TrainingSettings, TrainingWay | None]:
    """Check before anything is made that the engine can serve this policy. Returns [training] as this start writes it.

    If servers get what the trainer leaves of their card, and the trainer may choose where its masters are, this was chosen too: a trainer
    that starts before them sees an empty card. Then that way is returned, else None.

    Raises InvalidSettings: the engine cannot take versions of this policy, or there is no room for its servers beside the trainer.
    """
    training = completed(settings.home, {"training": training})["training"]
    if choice.servers is None:
        return training, None
    own = completed(settings.home, {choice.kind: choice.servers})[choice.kind]
    way = followed_of(choice.kind).check_policy(settings, own, training.model_dump())
    if way is None or way.rank or training.masters != "auto":
        return training, None
    return training.model_copy(update={"masters": "host" if way.is_host else "device"}), way


def check_given(choice: EngineChoice, settings: Settings) -> None:
    """Check before a process starts the servers of `--engine-url`.

    Raises InvalidSettings: a given server is not there, cannot be followed, or serves another model.
    """
    if choice.servers is None:
        return
    followed = followed_of(choice.kind)
    headers = authorization(engine_key(settings.home))
    for url in choice.servers.urls:
        with httpx.Client(base_url=url, headers=headers, timeout=_ASK_SECONDS) as client:
            try:
                facts = followed.drive(client).facts()
            except Unavailable as error:
                raise InvalidSettings(f"--engine-url {url}: {error.message}") from error
        followed.check(facts, settings, url)


def check_announced(settings: Settings) -> None:
    """Raises InvalidSettings if a replica of a kind that this release lacks announces itself; names it."""
    with settings.snapshot() as connection:
        rows = read_replicas(connection, settings.policy)
    for row in rows:
        if row.kind not in KINDS and row.is_fresh(time.time()):
            raise InvalidSettings(
                f"the engine {row.name} at {row.url} announces itself as {row.kind}, which this release has not{why_gone(row.kind)}; "
                "end the process that announces it"
            )


def engine_findings(settings: Settings) -> Iterator[Finding]:
    """One finding for each replica that announced itself; without any, one for the engine at this home's address."""
    try:
        headers = authorization(engine_key(settings.home))
        rows, has_proved = _rows(settings)
    except (InvalidSettings, Unavailable) as error:
        yield Finding("engine", False, isinstance(error, InvalidSettings), error.message)
        return
    if not rows:
        yield _key_taken(f"the engine at {settings.engine_url}", settings.engine_url, headers)
    base, now = fingerprint(settings.base), time.time()
    for row in rows:
        yield _finding(row, settings.run, base, now, headers)
    fresh = [row for row in rows if row.is_fresh(now) and misfit(row, settings.run, base) is None]
    if fresh:
        try:
            is_enabled = load_section(settings.home, "train", TrainSettings).enabled
        except InvalidSettings as error:
            yield missing("release train", error.message)
            return
        yield train_finding({slot for row in fresh for slot in row.slots}, is_enabled=is_enabled, has_proved=has_proved)


def train_finding(slots: Collection[str], *, is_enabled: bool, has_proved: bool = False) -> Finding:
    """How far the slots of all engines carry a release train. `has_proved`: there was one, so versions wait for a slot that is missing."""
    without = {
        CANARY: "a version that passed the gate goes live at once, without proof on a few users",
        LEARNING: "no share of the users gets the newest gated version for the trainer",
        HOLDOUT: "no lift over a frozen version is measured",
    }
    name = "release train"
    if not is_enabled:
        return Finding(name, True, False, f"off ([train] enabled = false): {without[CANARY]}")
    if has_proved and CANARY not in slots:
        without[CANARY] = (
            "versions that passed the gate wait for one; if it was removed for good, write [train] enabled = false and restart release"
        )
    lacking = [f"no engine has a slot for {arm}: {why}" for arm, why in without.items() if arm not in slots]
    if not lacking:
        return Finding(name, True, False, f"engines have slots for {', '.join(without)}")
    good = not has_proved or CANARY in slots
    return Finding(name, good, False, "; ".join(lacking) + "; add slots with [engine] slots or --slots")


def _finding(row: EngineReplica, run: str, base: str, now: float, headers: Mapping[str, str]) -> Finding:
    held = ", ".join(f"{arm} {'empty' if version is None else f'v{version}'}" for arm, version in row.slots.items())
    who = f"{row.name} ({row.kind}, region {row.region}, {row.url})"
    if not row.is_fresh(now):
        return note("engine", f"{who}: no sign of life for {now - row.seen_at:.0f} s; last {held}")
    if (why := misfit(row, run, base)) is not None:
        return missing("engine", f"{who}: {why}: {_REMEDIES[why]}{why_gone(row.kind)}")
    problems = (
        f"cannot load v{problem['version']} as {arm}: {problem['code']}: {problem['message']}"
        for arm, problem in row.problems.items()
    )
    says = "; ".join([f"{who}: {row.status}, {held}", *problems])
    serves = row.status == "serving" and not row.problems
    if row.kind != OWN:  # such servers are bound to loopback; their follower speaks for them
        return Finding("engine", serves, False, says)
    answered = _key_taken(says, row.url, headers)
    return answered._replace(good=answered.good and serves)


def _key_taken(who: str, url: str, headers: Mapping[str, str]) -> Finding:
    """Whether the engine, if one runs, accepts the key that this home's processes send."""
    try:
        answer = httpx.get(f"{url}/state", headers=headers, timeout=_DOCTOR_SECONDS)
    except httpx.TransportError as error:
        return Finding("engine", True, False, f"{who}: no engine answers from here ({type(error).__name__})")
    if answer.status_code == httpx.codes.UNAUTHORIZED:
        return missing("engine", f"{who}: it refuses this home's key: restart it, or give both the same {ENGINE_KEY}")
    return Finding("engine", answer.is_success, False, f"{who}: accepts this home's key ({answer.status_code})")


def _rows(settings: Settings) -> tuple[list[EngineReplica], bool]:
    if settings.database_url is None and not (settings.home / "millrace.db").exists():
        return [], False  # nothing was started yet, and a look must make no file
    with settings.snapshot() as connection:
        arms = assignments.read(connection, settings.policy)
        return read_replicas(connection, settings.policy), CANARY in arms
