"""Engines and servers of two regions that are forked from a process that has imported torch."""

from __future__ import annotations

import os
from collections.abc import Mapping

from benchmarks.feedback.world import ReplicaProcess
from benchmarks.regions.fleet import Fleet, enter
from benchmarks.regions.net import Place
from millrace import main
from tests.forked import start
from tests.light_processes import StartedProcess


class ForkedFleet(Fleet):
    """See the module."""

    def run(self, place: Place, name: str, module: str, *arguments: str) -> ReplicaProcess:
        if module != "millrace":
            return super().run(place, name, module, *arguments)
        output = self.folder / f"{name}.log"
        return StartedProcess(start(_inside, place, self.environment, arguments, output=output))


def _inside(place: Place, environment: Mapping[str, str], arguments: tuple[str, ...]) -> None:
    os.environ.update(environment)
    enter(place)
    main([*arguments])
