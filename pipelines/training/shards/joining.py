"""The processes of one trainer find each other, and refuse one that does not belong to them.

    environment of a rank ──▶ GroupMember ──join──▶ a store that all ranks share ──▶ Pulse: whoever hangs is named, and the group ends

Waits for: every rank, up to a deadline.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

import msgspec
import structlog
from blake3 import blake3

from contracts.errors import InvalidSettings, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.distributed.distributed_c10d import Store

    from runtime.settings import Section

BROKEN = 70
"""Exit status of a rank that ends because another one hangs."""
_BEATS = 8
"""Signs of life in a deadline."""
log = structlog.get_logger()


class GroupMember(NamedTuple):
    """One process of a group, as torchrun numbers it."""

    rank: int
    world: int
    local_rank: int

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Self | None:
        """None: this process is the whole trainer. Raises InvalidSettings: only a part of the variables is there."""
        if int(environment.get("WORLD_SIZE", "1")) == 1:
            return None
        try:
            return cls(*(int(environment[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")))
        except KeyError as missing:
            raise InvalidSettings(f"WORLD_SIZE is set, and {missing} is not: start the ranks with torchrun") from None

    def device(self, chosen: str) -> str:
        """The device of this rank, if the settings say `chosen`. Raises InvalidSettings: all ranks would share it."""
        if chosen.startswith("cuda:"):
            raise InvalidSettings(f"device {chosen} is one GPU for {self.world} ranks: set device to cuda")
        return f"cuda:{self.local_rank}" if chosen == "cuda" else chosen


class SharedWords(Protocol):
    """What ranks tell each other outside of collectives: a store of torch, or a fake."""

    def set(self, name: str, value: str) -> object:
        """Write a word."""

    def multi_get(self, names: list[str]) -> Sequence[bytes]:
        """Words, which may not have been written yet: then it waits."""

    def check(self, names: list[str]) -> bool:
        """True if all of them have been written."""


def facts_of(release: str, sections: Mapping[str, Section]) -> dict[str, str]:
    """What must be equal on all ranks, by name. Values are digests, for settings hold passwords."""
    found = {"release": release}
    for section, settings in sections.items():
        for name, value in settings.model_dump(mode="json").items():
            found[f"[{section}] {name}"] = blake3(msgspec.json.encode(value)).hexdigest(8)
    return found


def connect(member: GroupMember, environment: Mapping[str, str], seconds: float) -> tuple[Store, Store]:
    """The store of this attempt of a group, twice, for threads that must not wait for each other: of torchrun's agent, or of rank 0.

    Raises Unavailable: nobody opened it in time, or a rank is missing.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined] # noqa: PLC0415 a process alone takes its lease before it imports torch
    from torch.distributed.distributed_c10d import PrefixStore  # noqa: PLC0415 as above

    where = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
    is_host = member.rank == 0 and environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    options: dict[str, Any] = {"wait_for_workers": False, "multi_tenant": True}
    try:
        words, signs = (
            TCPStore(*where, member.world, is_host, timedelta(seconds=seconds), **options) for _ in range(2)
        )
    except RuntimeError as error:
        raise Unavailable(f"rank 0 at {where[0]}:{where[1]} does not answer within {seconds:g} s: {error}") from error
    name = meet(words, member, seconds)
    return PrefixStore(name, words), PrefixStore(name, signs)


def meet(words: SharedWords, member: GroupMember, seconds: float) -> str:
    """A name for what these processes tell each other, and no earlier ones did: torchrun's store outlives a restart, with all that was said there.

    Each rank says hello under a name of its own; rank 0 answers those of now until all have thanked. Raises Unavailable: a rank is missing.
    """
    until, own = time.monotonic() + seconds, uuid.uuid4().hex
    if member.rank:
        words.set(f"hello/{member.rank}", own)
        while not words.check([f"welcome/{own}"]):
            _wait(until, seconds, [0], member)
        [found] = words.multi_get([f"welcome/{own}"])
        words.set(f"{found.decode()}/{member.rank}", "")
        return found.decode()
    missing = [*range(1, member.world)]
    while missing:
        greeting = [name for rank in missing if words.check([name := f"hello/{rank}"])]
        for other in words.multi_get(greeting) if greeting else ():
            words.set(f"welcome/{other.decode()}", own)
        _wait(until, seconds, missing, member)
        missing = [rank for rank in missing if not words.check([f"{own}/{rank}"])]
    return own


def join(words: SharedWords, member: GroupMember, facts: Mapping[str, str], seconds: float) -> None:
    """Wait until every rank is there, and compare their facts. Nothing has changed on any rank before all agree.

    Raises InvalidSettings: a rank is of another release, home or settings; Unavailable: a rank is missing.
    """
    words.set(f"facts/{member.rank}", msgspec.json.encode(facts).decode())
    names = _all(words, member, "facts", seconds)
    ours, *others = (msgspec.json.decode(text, type=dict[str, str]) for text in words.multi_get(names))
    words.set(f"read/{member.rank}", "")
    if member.rank == 0:  # it may be the store: then it ends after all have read, and they need it no more
        _all(words, member, "read", seconds)
    for rank, theirs in enumerate(others, 1):
        different = sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))
        if different:
            releases = f" ({theirs['release']} there, {ours['release']} on rank 0)" if "release" in different else ""
            raise InvalidSettings(
                f"rank {rank} does not belong to this group: it differs in {', '.join(different)}{releases}; start all ranks of one "
                "release with the same home and settings"
            )


def _all(words: SharedWords, member: GroupMember, what: str, seconds: float) -> list[str]:
    names, until = [f"{what}/{rank}" for rank in range(member.world)], time.monotonic() + seconds
    while not words.check(names):
        _wait(until, seconds, [rank for rank, name in enumerate(names) if not words.check([name])], member)
    return names


def _wait(until: float, seconds: float, missing: Sequence[int], member: GroupMember) -> None:
    if time.monotonic() > until:
        raise Unavailable(f"rank {', '.join(map(str, missing))} of {member.world} did not come within {seconds:g} s")
    time.sleep(seconds / 1000)


class Pulse:
    """Signs of life of all ranks. A rank whose process stands still, or whose network was cut, is silent.

    Two threads, because one that asks the store may wait for a host that stands still. Collectives have the same deadline of their own.
    """

    def __init__(self, words: SharedWords, member: GroupMember, seconds: float, is_moving: Callable[[], bool]) -> None:
        """`is_moving`: this process makes progress; if not, it gives no sign either. `seconds`: after which silence is too long."""
        self._words, self._member, self._seconds, self._is_moving = words, member, seconds, is_moving
        self._heard: list[bytes] = [b""] * member.world
        self._since = [time.monotonic()] * member.world
        self._number = 0

    def beat(self, now: float) -> None:
        """Give a sign of life, and hear those of the others."""
        if self._is_moving():
            self._number += 1
        self._words.set(f"pulse/{self._member.rank}", str(self._number))
        names = [f"pulse/{rank}" for rank in range(self._member.world)]
        if not self._words.check(names):
            return
        for rank, word in enumerate(self._words.multi_get(names)):
            if word != self._heard[rank]:
                self._heard[rank], self._since[rank] = word, now

    def silent(self, now: float) -> list[int]:
        """Ranks that gave no sign for too long. If all are, this process cannot hear them."""
        return [rank for rank, since in enumerate(self._since) if now - since > self._seconds]

    @contextmanager
    def watched(self, end: Callable[[int], object] = os._exit) -> Iterator[None]:
        """Watch while the body runs. `end`: called with `BROKEN` if a rank is silent."""
        stop = threading.Event()
        for work in (self._beat, self._watch):
            threading.Thread(target=work, args=(stop, end), name="pulse", daemon=True).start()
        try:
            yield
        finally:
            stop.set()

    def _beat(self, stop: threading.Event, _: Callable[[int], object]) -> None:
        while not stop.wait(self._seconds / _BEATS):
            try:
                self.beat(time.monotonic())
            except RuntimeError as error:  # torch's errors of a store that is gone
                log.warning("no sign of the other ranks", reason=str(error))

    def _watch(self, stop: threading.Event, end: Callable[[int], object]) -> None:
        while not stop.wait(self._seconds / _BEATS):
            if silent := self.silent(time.monotonic()):
                log.error(
                    "ranks hang, or the network to them is cut: the group ends", ranks=silent, own=self._member.rank
                )
                end(BROKEN)
                break
