"""From the section [gpu] to a pool that is kept while the processes of a home run. What is wrong is said before any of them starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from commands.cards.demand import read_figures
from commands.cards.keeper import TRAINING, CardKeeper
from commands.cards.locks import card_problem, locked
from commands.engines import EngineChoice
from commands.supervisor import Supervisor
from contracts.errors import InvalidSettings
from engines.card_users import GpuSettings
from engines.registry import OWN
from runtime.settings import Settings, make_section, read_home_settings


def pool_of(home: Path, engine: EngineChoice, device: str) -> GpuSettings | None:
    """The section [gpu] of a home with a pool; None: without one. Raises InvalidSettings: it has a mistake, or engine or device do not fit."""
    found = make_section("[gpu]", GpuSettings, **(read_home_settings(home) or {}).get("gpu", {}))
    if not found.pool:
        return None
    if ":" in device:
        raise InvalidSettings(
            f"[gpu] pool says which cards are used, and --device {device} names one: give --device cuda"
        )
    if engine.servers is not None and (engine.servers.urls or engine.num_own):
        raise InvalidSettings(
            "[gpu] pool moves cards between engines that Millrace starts, all of one kind: leave out --engine-url and --engines"
        )
    return found


def moving(gpu: GpuSettings | None, engine: EngineChoice) -> tuple[str, ...]:
    """The processes that start and end with the cards: engine replica and trainer."""
    return () if gpu is None else (_process_of(engine), TRAINING)


@contextmanager
def kept(
    settings: Settings,
    gpu: GpuSettings | None,
    engine: EngineChoice,
    supervisor: Supervisor,
    *,
    report: Callable[[str], None],
    patience: float,
) -> Iterator[Callable[[], None]]:
    """Hold the cards for this home; gives what starts their processes and keeps them in use. Without a pool that does nothing.

    `patience`: see `CardKeeper`. Raises InvalidSettings: a card is not well, or another home's.
    """
    if gpu is None:
        yield lambda: None
        return
    device = settings.device
    for card in gpu.pool:
        if problem := card_problem(device, card):
            raise InvalidSettings(
                f"[gpu] pool: card {card} cannot be used: {problem}; take it out of the pool, or mend it"
            )
    with locked(gpu.pool, device, settings.home) as locks:
        keeper = CardKeeper(
            settings.home, gpu, _process_of(engine), device, locks=locks, children=supervisor, report=report, patience=patience,
            measure=lambda: read_figures(supervisor.addresses()), health=lambda card: card_problem(device, card),
        )  # fmt: skip

        def start() -> None:
            keeper.start()
            supervisor.tend(keeper.step)

        yield start


def _process_of(engine: EngineChoice) -> str:
    return "engine" if engine.kind == OWN else engine.kind
