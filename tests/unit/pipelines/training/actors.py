"""Several trainers of one home. Each pauses at every fault point, and a test resumes them in any order."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from contracts.errors import StaleWrite
from pipelines.training.worker import Trainer
from tests.unit.pipelines.training.world import World

PATIENCE_SECONDS = 60.0


class Actor:
    """One trainer in its own thread. It runs to the next fault point each time a test says so."""

    def __init__(self, home: Path, play: Callable[[Actor], None], world: Callable[[Path], World]) -> None:
        self.world = world(home)
        self.is_zombie = False
        self.place = ""
        self.places: list[str] = []
        self.error: BaseException | None = None
        self.is_over = False
        self.trainer: Trainer | None = None
        self._play = play
        self._go, self._arrived = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def step(self) -> None:
        """Run to the next fault point, or to the end."""
        self._go.release()
        assert self._arrived.acquire(timeout=PATIENCE_SECONDS), f"nothing came after {self.place}"

    def run(self) -> None:
        """Run to the end."""
        while not self.is_over:
            self.step()

    def run_to(self, place: str) -> bool:
        """Run until it stands at a place; False if it ended before."""
        while not self.is_over:
            self.step()
            if not self.is_over and self.place == place:
                return True
        return False

    def turn(self) -> None:
        """One turn, and what release does then, unless others do that by now."""
        assert self.trainer is not None
        self.trainer.turn()
        if not self.is_zombie:
            self.world.accept()

    def close(self) -> None:
        """After the end."""
        self._thread.join(PATIENCE_SECONDS)
        self.world.close()

    def _fault(self, place: str) -> None:
        self.place = place
        self.places.append(place)
        self._arrived.release()
        assert self._go.acquire(timeout=PATIENCE_SECONDS)

    def _run(self) -> None:
        self._go.acquire()
        try:
            self.trainer = self.world.start(self._fault)
            self._play(self)
        except StaleWrite as error:
            self.error = error
        except BaseException as error:  # noqa: BLE001 of whatever kind: the test that waits for this thread must see it
            self.error = error
        finally:
            self.is_over = True
            self._arrived.release()
