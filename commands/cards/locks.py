"""A card belongs to one home of this machine, and is well. In: cards. Out: locks, or a refusal that names the card. Waits for: its last process.

The lock is the operating system's, on a file per card that all homes of the machine see. The processes that compute on a card inherit it, so
it is free only once they have ended too, also after the supervisor was killed.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from contracts.errors import InvalidSettings
from engines.cards import card_of

_OWN_SECONDS, _LOOK_SECONDS = 60.0, 0.2
"""Processes whose supervisor was killed end within half of it."""
_LOOK = "--query-gpu=ecc.errors.uncorrected.volatile.total"
_ASK_SECONDS = 10.0


@contextmanager
def locked(cards: Sequence[int], device: str, home: Path, folder: Path | None = None) -> Iterator[Mapping[int, int]]:
    """Lock cards for a home; gives the descriptor of each. `folder`: the machine's, for the files. Raises InvalidSettings: one is another home's."""
    folder = folder or Path(tempfile.gettempdir())
    with ExitStack() as stack:
        descriptors = {}
        for card in cards:
            name = card_of(f"{device}:{card}") if device != "cpu" else f"cpu-{card}"
            descriptors[card] = _lock(folder / f"millrace-card-{name}.lock", card, home)
            stack.callback(os.close, descriptors[card])
        yield descriptors


def card_problem(device: str, card: int) -> str:
    """What is wrong with a card; empty if it is well. A place that stands for a card always is."""
    if device == "cpu":
        return ""
    command = ["nvidia-smi", f"--id={card_of(f'{device}:{card}')}", _LOOK, "--format=csv,noheader,nounits"]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_ASK_SECONDS)  # noqa: S603 a fixed command
    except (OSError, subprocess.SubprocessError) as error:
        return f"nvidia-smi does not find it: {error}"
    errors = ran.stdout.strip()  # `[N/A]` on a card without error correction
    return f"it has {errors} uncorrected memory errors" if errors.isdigit() and int(errors) else ""


def _lock(path: Path, card: int, home: Path) -> int:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise InvalidSettings(f"[gpu] pool: card {card}: {path} cannot be used: {error.strerror}") from error
    until, own = time.monotonic() + _OWN_SECONDS, str(home.resolve())
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 4096, 0).decode(errors="replace")
            if holder != own or time.monotonic() > until:
                os.close(descriptor)
                whose = "a process of this home that does not end" if holder == own else f"the pool of {holder}"
                raise InvalidSettings(f"[gpu] pool: card {card} is held by {whose}; nothing was changed") from None
            time.sleep(_LOOK_SECONDS)
        else:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, own.encode(), 0)
            return descriptor
