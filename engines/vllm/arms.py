"""Brings one vLLM server to the versions of all arms, where the policy is trained by an adapter.

In: the assignments of the arms. Out: adapters in the server, one row for all arms. Waits for: the server, the store.

Version 0 is the server's own checkpoint. Each later version is an adapter with a name of its own, never loaded in place:

    POST /v1/load_lora_adapter {"lora_name": "POLICY@v7", "lora_path": FOLDER}    before the row names the version
    POST /inference/v1/generate {"model": "POLICY@v7", ...}                       the binding probe, then users
    GET  /v1/models                                                               each turn: a server that was started again forgot them
    GET  /metrics                                                                 whether requests have an adapter
    POST /v1/unload_lora_adapter {"lora_name": "POLICY@v5"}                       when no arm has had it for long, and no request has it

Nothing is paused and no cache is emptied: vLLM keeps prefixes by adapter and folder, and a request ends on the version it began with.
The binding probe finds adapters that the server accepts and does not use, and those with which it computes otherwise than the trainer.

Any number may be loaded: vLLM keeps `--max-cpu-loras` of them in memory, drops the one that was used least recently, and reads its folder
again when it is asked for: vLLM 0.32.0 ends as if it were killed if it is gone. So a folder stays as long as its name or a request of it,
and one that a server lists and that is gone is written again before its version is routed.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import structlog

from contracts.assignments import Assignment
from contracts.engines import EngineReplica, LoadProblem
from contracts.errors import InvalidSettings, MillraceError, WeightsRefused
from engines.following.follower import LoadAttempts, ServerFollower, is_away
from engines.vllm.adapter_server import AdapterServer
from engines.vllm.adapters import KEPT
from engines.vllm.probe import check_binding, is_trained, probed, text_config, tolerance_of
from engines.wire import adapter_name
from weights.adapters import WEIGHTS_FILE, config_of, write_adapter
from weights.mapped import map_safetensors
from weights.probe import ProbeAnswers, probe_prompts
from weights.tensors import Tensors

_DRAIN_SECONDS = 600.0
"""No request that was planned for an adapter takes so long to reach the server. From there on the server counts it."""
_log = structlog.get_logger(__name__)


class ArmsFollower(ServerFollower[AdapterServer]):
    """See the module.

    Args:
        base: the folder of the base policy.
        base_root: reads the root of version 0, under which every adapter was trained.
        probe_of: reads what the trainer said with the version of a root.
        parts: see `ServerFollower`.
    """

    def __init__(
        self,
        row: EngineReplica,
        *,
        base: Path,
        base_root: Callable[[], str],
        probe_of: Callable[[str], ProbeAnswers | None],
        **parts: Any,
    ) -> None:
        super().__init__(row, **parts)
        self._base, self._base_root, self._probe_of = base, base_root, probe_of
        self._adapters = self._folder / "adapters"
        self._config = text_config(base)
        self._prompts = probe_prompts(int(self._config["vocab_size"]))
        self._failed: dict[str, LoadAttempts] = {}
        """By arm; of the server itself under an empty name."""
        self._bound: dict[str, str] = {}
        """Name → root of the base, and of the adapters that this start of the server was seen to use."""
        self._left: dict[str, float] = {}
        """Since when no arm has had an adapter that is loaded."""
        self._begun: AdapterServer | None = None

    def step(self, now: float) -> None:
        """See `ServerFollower`."""
        assigned: Mapping[str, Assignment] = {}
        try:
            assigned = self._assigned()
            if now < self._failed.get("", LoadAttempts()).not_before:
                return
            driver = self._connected()
            driver.check()
            loaded = driver.adapters()
            if driver is not self._begun:
                self._begin(driver, loaded)
            self._failed.pop("", None)
            self._forget(loaded)
            for arm, held in self.row.slots.items():
                wanted = assigned.get(arm)
                if wanted is None or wanted.version is None or self._is_served(held, wanted):
                    self._succeeded(arm)
                elif not self._is_early(arm, wanted.version, now):
                    self._try(driver, arm, wanted, loaded, now)
            self._drop_old(driver, loaded, now)
        except MillraceError as error:
            self._note(assigned, error, now)

    def _begin(self, driver: AdapterServer, loaded: Mapping[str, Path]) -> None:
        """With another start of the server, which reads no folder that it did not load. Its first request takes long, so none is a user's."""
        self._bound, self._left = {self.row.policy: self._base_root()}, {}
        driver.scores(self.row.policy, self._prompts)
        self._begun = driver
        self.row = self.row._replace(abilities=self.row.abilities | {"adapters"}, slots=dict.fromkeys(self.row.slots))
        for folder in self._adapters.glob("*"):
            if folder not in loaded.values():
                shutil.rmtree(folder, ignore_errors=True)

    def _forget(self, loaded: Mapping[str, Path]) -> None:
        """Take from the row what the server does not hold: it was started again, or holds other weights under the name."""
        self._bound = {name: root for name, root in self._bound.items() if name in {*loaded, self.row.policy}}
        slots = {arm: held if self._is_held(held) else None for arm, held in self.row.slots.items()}
        is_serving = any(held is not None for held in slots.values())
        self.row = self.row._replace(slots=slots, status="serving" if is_serving else "starting")

    def _is_held(self, version: int | None) -> bool:
        return version is not None and adapter_name(self.row.policy, version) in self._bound

    def _is_served(self, held: int | None, wanted: Assignment) -> bool:
        """True if an arm has its version. Other weights under a known number are not that version."""
        if held is None or held != wanted.version:
            return False
        return wanted.root in {None, self._bound.get(adapter_name(self.row.policy, held))}

    def _is_early(self, arm: str, version: int, now: float) -> bool:
        failed = self._failed.get(arm, LoadAttempts())
        return failed.version == version and now < failed.not_before

    def _try(self, driver: AdapterServer, arm: str, wanted: Assignment, loaded: dict[str, Path], now: float) -> None:
        """Bring one arm to its version. What is wrong with a version costs the other arms nothing."""
        version, begun = int(wanted.version or 0), time.monotonic()
        try:
            self._bring(driver, version, wanted, loaded)
        except MillraceError as error:
            if is_away(error) or isinstance(error, InvalidSettings):
                raise
            self._failed[arm] = self._failed.get(arm, LoadAttempts()).failed(version, now)
            self._complain({arm: self._failed[arm].problem(error)})
            _log.warning(
                "engine_not_brought", name=self.row.name, arm=arm, version=version, code=error.code, error=error.message
            )
            return
        seconds = time.monotonic() - begun
        if self.serves.is_set():
            self._keep_swap(self.row.name, arm, version, seconds, 0.0)
        self.serves.set()
        _log.info("arm_brought", name=self.row.name, arm=arm, version=version, seconds=round(seconds, 3))
        self.row = self.row._replace(status="serving", slots={**self.row.slots, arm: version})
        self._succeeded(arm)

    def _bring(self, driver: AdapterServer, version: int, wanted: Assignment, loaded: dict[str, Path]) -> None:
        base_root = self._base_root()
        if version == 0:
            if wanted.root not in {None, base_root}:
                raise WeightsRefused(
                    "wrong_root", f"version 0 has the root {base_root}, but {wanted.root} was assigned"
                )
            return
        name = adapter_name(self.row.policy, version)
        if name in self._bound and wanted.root in {None, self._bound[name]}:
            return
        file = self._file_of(version, wanted.root, wanted.run, self._folder)
        tensors = map_safetensors(file.path)
        self._check_adapter(version, tensors, base_root)
        folder = self._adapters / f"v{version:06d}-{file.root}"
        if loaded.get(name, folder) != folder:  # other weights under the name, of a home that was here before
            driver.unload(name)
            del loaded[name]
            self._forget(loaded)
        if name not in loaded or not (folder / WEIGHTS_FILE).exists():
            write_adapter(folder, tensors, str(self._base))
        if name not in loaded:
            driver.load(name, folder)
            loaded[name] = folder
        if is_trained(tensors):
            answers = self._probe_of(file.root)
            dtypes = (self.row.dtype, answers.dtype if answers else self.row.dtype)
            try:
                found = probed(driver, self.row.policy, name, answers.prompts if answers else self._prompts)
                check_binding(found, name, answers, tolerance_of(self._config, *dtypes))
            except WeightsRefused:
                driver.unload(name)
                del loaded[name]
                raise
        self._bound[name] = file.root

    def _check_adapter(self, version: int, tensors: Tensors, base_root: str) -> None:
        config, most = config_of(tensors), self.facts.adapter_rank if self.facts else 0
        if config is None:
            raise WeightsRefused(
                "not_an_adapter", f"v{version} is a whole policy, and this home is trained by an adapter"
            )
        if config.base_root != base_root:
            other = f"v{version} is an adapter for the weights {config.base_root}, and version 0 here is {base_root}"
            raise WeightsRefused("wrong_base", other, version=version)
        if config.rank > most:
            raise WeightsRefused(
                "wrong_rank", f"v{version} has rank {config.rank}, and the server takes {most} at most"
            )

    def _drop_old(self, driver: AdapterServer, loaded: Mapping[str, Path], now: float) -> None:
        used = {adapter_name(self.row.policy, held) for held in self.row.slots.values() if held is not None}
        ours = {name for name, folder in loaded.items() if folder.parent == self._adapters}
        self._left = {name: self._left.get(name, now) for name in ours - used}
        old = sorted(self._left, key=lambda name: self._left[name])[:-KEPT]
        left = {name for name in old if now - self._left[name] > _DRAIN_SECONDS}
        for name in sorted(left - driver.in_use() if left else left):
            driver.unload(name)
            shutil.rmtree(loaded[name], ignore_errors=True)
            self._bound.pop(name, None)

    def _note(self, assigned: Mapping[str, Assignment], error: MillraceError, now: float) -> None:
        """What is wrong with the server."""
        if is_away(error):
            self._lost()
            return
        if isinstance(error, InvalidSettings):
            self._tell("failed", None)
            self._driver = None  # it is asked again how it was started
        failed = self._failed[""] = self._failed.get("", LoadAttempts()).failed(None, now)
        named = {
            arm: each.version for arm, each in assigned.items() if arm in self.row.slots and each.version is not None
        }
        self._complain({arm: failed._replace(version=version).problem(error) for arm, version in named.items()})
        _log.warning("engine_not_brought", name=self.row.name, code=error.code, error=error.message)

    def _complain(self, problems: Mapping[str, LoadProblem]) -> None:
        self.row = self.row._replace(problems={**self.row.problems, **problems})

    def _succeeded(self, arm: str) -> None:
        self._failed.pop(arm, None)
        self.row = self.row._replace(problems={name: each for name, each in self.row.problems.items() if name != arm})

    def _tell(self, status: str, version: int | None) -> None:
        self.row = self.row._replace(status=status, slots=dict.fromkeys(self.row.slots, version))
