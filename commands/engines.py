"""Which engine `up` and `demo` start, and what it cannot do. In: options. Out: settings and processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import httpx

from contracts.assignments import CANDIDATE, LIVE
from contracts.engines import EngineKind
from contracts.errors import InvalidSettings, Unavailable
from runtime.engine_key import authorization, engine_key
from runtime.settings import Section, Settings, make_section
from services.engine.settings import EngineSettings
from services.following.joining import check_server
from services.sglang.settings import SglangSettings
from services.vllm.command import has_experts
from services.vllm.settings import VllmSettings
from weights.engines.held import EngineDriver
from weights.engines.sglang import SglangServer
from weights.engines.vllm import VllmServer

VLLM_PYTHON = "MILLRACE_VLLM_PYTHON"
_MADE_HERE = Path(__file__).parent.parent / ".vllm" / "bin" / "python"
_ASK_SECONDS = 10.0
_START_SECONDS = {"millrace": 300.0, "vllm": 900.0, "sglang": 900.0}


class EngineChoice(NamedTuple):
    """The engine of a home."""

    kind: EngineKind
    vllm: VllmSettings | None = None
    num_own: int = 1
    """How many of our engine's processes are started."""
    sglang: SglangSettings | None = None
    own: EngineSettings | None = None
    """What the command line says of our engine; None: nothing."""

    @property
    def workers(self) -> tuple[str, ...]:
        """Processes to start beside the usual ones."""
        return tuple(name for name in self.sections if name != "engine")

    @property
    def sections(self) -> dict[str, Section]:
        """Settings of engines."""
        found: dict[str, Section | None] = {"engine": self.own, "vllm": self.vllm, "sglang": self.sglang}
        return {name: section for name, section in found.items() if section is not None}

    @property
    def start_seconds(self) -> float:
        """How long it may take until everything is ready. vLLM imports for a minute, one server after the other."""
        return _START_SECONDS[self.kind]

    def limits(self) -> list[str]:
        """What this choice cannot do, for the operator."""
        slots = {slot for others in (self.vllm, self.sglang) if others is not None for slot in others.slots}
        if self.num_own or CANDIDATE in slots:
            return []
        return [
            "no engine has a slot for the arm candidate: new versions cannot be gated, so none is served (two servers have one)"
        ]


OWN = EngineChoice("millrace")


def choose_engine(
    kind: str,
    python: Path | None,
    replicas: int,
    num_own: int | None = None,
    urls: Sequence[str] = (),
    *,
    slots: str | None = None,
) -> EngineChoice:
    """The choice that the options of the command line make.

    Args:
        kind: millrace, vllm or sglang.
        python: the interpreter of vLLM's environment; None: that of MILLRACE_VLLM_PYTHON, or the one that `make vllm` made.
        replicas: vLLM servers: the first serves live, the second candidate, further ones live.
        num_own: of our engine; None: one, or none beside vLLM.
        urls: servers that run already, instead of `replicas` new ones: vLLM's, or SGLang's with `kind` sglang.
        slots: arms, with commas: one for each server of vLLM or SGLang, instead of `replicas`; without such servers, those that each of
            our replicas holds. None: the defaults.

    Raises:
        InvalidSettings: another kind, no such interpreter, or slots that make no sense.
    """
    arms = None if slots is None else tuple(name.strip() for name in slots.split(","))
    if kind == "millrace" and not urls:
        if num_own == 0:
            raise InvalidSettings("--engines 0 leaves no engine; add --engine vllm")
        own = None if arms is None else make_section("--slots: [engine]", EngineSettings, slots=arms)
        return OWN._replace(num_own=num_own or 1, own=own)
    if kind not in {"vllm", "millrace", "sglang"}:
        raise InvalidSettings(f"--engine is millrace, vllm or sglang, not {kind!r}")
    if kind == "sglang":
        return _choose_sglang(urls, num_own or 0, arms)
    if urls:
        given = make_section("[vllm]", VllmSettings, urls=tuple(urls), slots=arms or _slots(len(urls)))
        return EngineChoice("vllm", given, (1 if kind == "millrace" else 0) if num_own is None else num_own)
    found = python or Path(os.environ.get(VLLM_PYTHON) or _MADE_HERE)
    if not os.access(found, os.X_OK):
        raise InvalidSettings(
            f"{found} is not there. `make vllm` makes .vllm with vLLM for CPUs; --vllm-python names another environment's interpreter"
        )
    # Not resolved: the link in the environment tells Python which environment it is.
    section = make_section("[vllm]", VllmSettings, python=found.absolute(), slots=arms or _slots(replicas))
    return EngineChoice("vllm", section, num_own or 0)


def _slots(num_servers: int) -> tuple[str, ...]:
    return (LIVE, CANDIDATE, *[LIVE] * (num_servers - 2))[: max(1, num_servers)]


def _choose_sglang(urls: Sequence[str], num_own: int, arms: tuple[str, ...] | None) -> EngineChoice:
    if not urls:
        raise InvalidSettings(
            "--engine sglang needs --engine-url: Millrace follows SGLang servers, and does not start them"
        )
    section = make_section("[sglang]", SglangSettings, urls=tuple(urls), slots=arms or _slots(len(urls)))
    return EngineChoice("sglang", None, num_own, section)


def check_given(choice: EngineChoice, settings: Settings) -> None:
    """Check before a process starts that the engine can serve this policy, and the servers of `--engine-url`.

    Raises:
        InvalidSettings: vLLM on CPU cannot take versions of this policy; or a given server is not there, was started in a way that cannot be followed, or serves another model.
    """
    if choice.vllm is not None and settings.device == "cpu" and has_experts(Path(settings.base)):
        raise InvalidSettings(
            f"{settings.base} is a mixture of experts, and vLLM on CPU cannot take versions of one: its reload leaves the experts wrong; "
            "use our engine, or a GPU"
        )
    headers = authorization(engine_key(settings.home))
    drivers: list[tuple[str, Callable[[httpx.Client], EngineDriver]]] = []
    if choice.vllm is not None:
        drivers += [(url, VllmServer) for url in choice.vllm.urls]
    if choice.sglang is not None:
        drivers += [(url, partial(SglangServer, base=Path(settings.base))) for url in choice.sglang.urls]
    for url, drive in drivers:
        with httpx.Client(base_url=url, headers=headers, timeout=_ASK_SECONDS) as client:
            try:
                facts = drive(client).facts()
            except Unavailable as error:
                raise InvalidSettings(f"--engine-url {url}: {error.message}") from error
        check_server(facts, Path(settings.base), url)
