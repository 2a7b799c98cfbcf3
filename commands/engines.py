"""Which engine `up` and `demo` start, and what it cannot do. In: options. Out: settings and processes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from contracts.assignments import CANDIDATE, LIVE
from contracts.engines import EngineKind
from contracts.errors import InvalidSettings
from runtime.settings import Section, make_section
from services.vllm.settings import VllmSettings

VLLM_PYTHON = "MILLRACE_VLLM_PYTHON"
_MADE_HERE = Path(__file__).parent.parent / ".vllm" / "bin" / "python"
_START_SECONDS = {"millrace": 120.0, "vllm": 900.0}


class EngineChoice(NamedTuple):
    """The engine of a home."""

    kind: EngineKind
    vllm: VllmSettings | None = None

    @property
    def has_own(self) -> bool:
        """True if our engine's process is started."""
        return self.vllm is None

    @property
    def workers(self) -> tuple[str, ...]:
        """Processes to start beside the usual ones."""
        return () if self.vllm is None else ("vllm",)

    @property
    def sections(self) -> dict[str, Section]:
        """Settings of those processes."""
        return {} if self.vllm is None else {"vllm": self.vllm}

    @property
    def start_seconds(self) -> float:
        """How long it may take until everything is ready. vLLM imports for a minute, one server after the other."""
        return _START_SECONDS[self.kind]

    def limits(self) -> list[str]:
        """What this choice cannot do, for the operator."""
        if self.vllm is None or CANDIDATE in self.vllm.slots:
            return []
        return [
            "vLLM has no slot for the arm candidate: new versions cannot be gated, so none is served (--vllm-replicas 2 has one)"
        ]


OWN = EngineChoice("millrace")


def choose_engine(kind: str, python: Path | None, replicas: int) -> EngineChoice:
    """The choice that the options of the command line make.

    Args:
        kind: millrace or vllm.
        python: the interpreter of vLLM's environment; None: that of MILLRACE_VLLM_PYTHON, or the one that `make vllm` made.
        replicas: vLLM servers: the first serves live, the second candidate, further ones live.

    Raises:
        InvalidSettings: another kind, or no such interpreter.
    """
    if kind == "millrace":
        return OWN
    if kind != "vllm":
        raise InvalidSettings(f"--engine is millrace or vllm, not {kind!r}")
    found = python or Path(os.environ.get(VLLM_PYTHON) or _MADE_HERE)
    if not os.access(found, os.X_OK):
        raise InvalidSettings(
            f"{found} is not there. `make vllm` makes .vllm with vLLM for CPUs; --vllm-python names another environment's interpreter"
        )
    slots = (LIVE, CANDIDATE, *[LIVE] * (replicas - 2))[: max(1, replicas)]
    # Not resolved: the link in the environment tells Python which environment it is.
    return EngineChoice("vllm", make_section("[vllm]", VllmSettings, python=found.absolute(), slots=slots))
