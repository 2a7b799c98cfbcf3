"""The engine: its arms, the versions they hold, and how a new version is loaded.

    event loop: routes ─▶ resolve() ─▶ EngineArm.submit() ─▶ the manager's queue ─▶ generation thread of the arm
                             ▲                                                            │ tokens of each step
                             └── ActiveRequest.queue ◀─── hand_over() wakes the loop ◀────┘
    follower thread: update() ─┐
    routes: pause(), resume() ─┴▶ _control, one thread ─▶ Stager: fetch and verify ─▶ EngineArm.swap(), between two steps

Who waits for whom: a route waits for its request's queue, which the generation thread fills after each step. Callers of `update`,
`pause` and `resume` wait for the control thread, which does one thing at a time: two updates never overlap, and the thread that
enters a pause also leaves it. The control thread waits for the store while the arm serves; only then it waits for the arm's
manager to pause, and after the swap for one token of each request in flight, for at most two seconds.

In: versions of the weight store (`update`), pauses. Out: arms that serve, and a record of every swap.
"""

from __future__ import annotations

import gc
import time
import uuid
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import structlog
import transformers

from contracts.assignments import LIVE
from contracts.engines import Ability
from contracts.errors import InvalidRequest, Unavailable, UnknownModel, VersionNotResident
from runtime.metrics import ENGINE_IN_FLIGHT, ENGINE_VERSION, SWAP_PAUSE_SECONDS
from services.engine.arm import EngineArm
from services.engine.experts import observer_of
from services.engine.grammar_queue import QueueBounds
from services.engine.grammars import Grammars
from services.engine.manager import end_ids
from services.engine.repository import SwapRecord, added_gap
from services.engine.runners import ForwardObserver
from services.engine.sampling import ABILITIES
from services.engine.settings import EngineSettings
from services.engine.staging import Stager, VersionSource

ENGINE = f"millrace-transformers/{transformers.__version__}"
_MAX_SWAPS = 1000
_log = structlog.get_logger(__name__)


class Engine:
    """See the module.

    Args:
        policy: the `model` of requests.
        run: the training run whose versions this engine serves; None: any run.
        make_model: makes a model of the policy's architecture on its device; its weights are replaced, unless they are an adapter's base.
        on_swap: called on the control thread after every change of weights under traffic.
        on_gave_up: called when the live arm dies again and again; a new process is the last resort.
        tokenizer: the policy's tokenizer.json; None: requests with grammars are refused.
        make_observer: called with the model of each arm; what it returns is told of every forward.
    """

    def __init__(
        self,
        *,
        policy: str,
        settings: EngineSettings,
        store: VersionSource,
        make_model: Callable[[], Any],
        on_swap: Callable[[SwapRecord], None],
        on_gave_up: Callable[[], None],
        run: str | None = None,
        tokenizer: Path | None = None,
        make_observer: Callable[[Any], ForwardObserver | None] = observer_of,
    ) -> None:
        self.policy = policy
        self.slots = settings.slots
        self._first = LIVE if LIVE in settings.slots else settings.slots[0]
        self.instance = uuid.uuid4().hex
        self.arms: dict[str, EngineArm] = {}
        self.swaps: deque[SwapRecord] = deque(maxlen=_MAX_SWAPS)
        self._settings = settings
        self._stager = Stager(policy, store, make_model, run)
        self._on_swap = on_swap
        self._on_gave_up = on_gave_up
        self._tokenizer = tokenizer
        self._make_observer = make_observer
        self._grammars: Grammars | None = None
        self._held = ExitStack()
        self.is_paused = False
        """True between `pause` and `resume`."""
        self._control = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine-control")

    def resolve(self, model: str, wanted: str | None = None) -> EngineArm:
        """The arm that serves `POLICY` (live) or `POLICY@vN` (an arm that holds version N now; `wanted`, if it does).

        A swap may follow before the first token or between two tokens; the spans of the answer show it.

        Raises UnknownModel: it is not this engine's policy; VersionNotResident: no arm holds this version; Unavailable: the live arm is
        still loading.
        """
        policy, at, version = model.partition("@v")
        if policy != self.policy or (at and not version.isdecimal()):
            said = f"{model!r} is not served here; ask for {self.policy} or {self.policy}@vN"
            raise UnknownModel(said, param="model")
        for name in sorted(self.slots, key=lambda name: name != wanted):
            arm = self.arms.get(name)
            if arm is not None and (arm.version == int(version) if at else name == LIVE):
                return arm
        if at:
            said = f"{model} is not resident; resident: {sorted(self.versions().items())}"
            raise VersionNotResident(said, param="model")
        if LIVE not in self.slots:
            said = f"this replica has no slot for the live version; ask for {policy}@vN"
            raise VersionNotResident(said, param="model")
        raise Unavailable("the live version is still loading; try again")

    def held(self) -> dict[str, int | None]:
        """The version that each slot can answer with. One that gave up has its version, and cannot."""
        arms = {name: arm for name, arm in self.arms.items() if not arm.gave_up or name == self._first}
        return {name: arms[name].version if name in arms else None for name in self.slots}

    def versions(self) -> dict[str, int]:
        """The version that each arm holds."""
        return {name: self.arms[name].version for name in self.slots if name in self.arms}

    def update(self, arm: str, version: int, root: str | None = None, run: str | None = None) -> SwapRecord | None:
        """Bring an arm to a version, newer or older. Returns the record of the swap, or None if nothing was interrupted.

        The version is decoded and verified while the arm serves the old one; the pause only writes the weights that differ.
        `root` and `run`: the checksum and the training run that the assignment names.

        Raises NotFound, WeightsRefused, Unavailable: it cannot be loaded, or the arm is restarting; the arm keeps its version.
        """
        if arm not in self.slots:
            raise InvalidRequest(f"arm must be one of {', '.join(self.slots)}, not {arm!r}", param="arm")
        return self._control.submit(self._update, arm, version, root, run).result()

    def pause(self) -> None:
        """Pause every arm between two steps until `resume`; requests in flight are kept."""
        self._control.submit(self._pause).result()

    def resume(self) -> None:
        """End the pause, if there is one."""
        self._control.submit(self._resume).result()

    def health(self) -> tuple[Literal["serving", "starting", "restarting", "paused", "failed"], dict[str, Any]]:
        """The status of the live arm (without a slot for it, of the first), and facts about all arms. `instance` is different for each start of an engine."""
        facts = {
            "instance": self.instance,
            "versions": self.held(),
            "restarts": sum(arm.restarts for arm in self.arms.values()),
            "in_flight": sum(arm.num_in_flight for arm in self.arms.values()),
            **self.system(),
        }
        first = self.arms.get(self._first)
        if first is None:
            return "starting", facts
        if first.gave_up:
            return "failed", facts
        if self.is_paused:
            return "paused", facts
        return ("serving" if first.serving else "restarting"), facts

    def system(self) -> dict[str, str | None]:
        """Engine and dtype, the provenance of every answer."""
        first = self.arms.get(self._first)
        return {"engine": ENGINE, "dtype": str(first.model.dtype).removeprefix("torch.") if first else None}

    @property
    def abilities(self) -> frozenset[Ability]:
        """What an answer can be asked for and have; `experts` if the policy is a mixture, no grammars without a tokenizer.json."""
        first = self.arms.get(self._first)
        able = ABILITIES if self._tokenizer is not None else ABILITIES - {"constraints"}
        return able | {"experts"} if first is not None and first.records_experts else able

    def close(self) -> None:
        """Stop every arm; requests in flight fail."""
        self.resume()
        self._control.shutdown()
        gc.freeze()  # every manager runs two full garbage collections when it stops, which takes seconds
        for arm in self.arms.values():
            arm.stop()
        if self._grammars is not None:
            self._grammars.close()

    def _update(self, name: str, version: int, root: str | None, run: str | None) -> SwapRecord | None:
        arm = self.arms.get(name)
        if arm is None:
            self._load(name, version, root, run)
            record = None
        elif arm.version == version and not arm.gave_up:
            return None
        else:
            record = self._swap(arm, version, root, run)
        for other, step in self._stager.shared():
            with (
                suppress(Unavailable),
                self.arms[other].pause(),
            ):  # one that restarts keeps its copy until the next version
                step.apply()
        return record

    def _swap(self, arm: EngineArm, version: int, root: str | None, run: str | None) -> SwapRecord | None:
        started = perf_counter()
        step = self._stager.stage(arm.name, version, root, run)
        stage_seconds = perf_counter() - started
        if arm.gave_up:
            arm.replace(step.apply, version)
            return None
        swapped_at, pause_seconds, token_times = arm.swap(step.apply, version, held=self.is_paused)
        record = SwapRecord(
            policy=self.policy,
            arm=arm.name,
            version=version,
            at=time.time(),
            stage_seconds=stage_seconds,
            pause_seconds=pause_seconds,
            gap_seconds=added_gap(token_times, swapped_at, arm.recent_gaps),
            num_changed=step.patches.num_changed,
            density=step.patches.num_changed / step.patches.num_weights,
            payload_bytes=step.payload_bytes,
        )
        self.swaps.append(record)
        SWAP_PAUSE_SECONDS.observe(pause_seconds)
        ENGINE_VERSION.labels(arm.name).set(version)
        self._on_swap(record)
        return record

    def _load(self, name: str, version: int, root: str | None, run: str | None) -> None:
        started = perf_counter()
        step = self._stager.stage(name, version, root, run)
        step.apply()
        model = step.arm.model
        if self._grammars is None:
            self._grammars = self._make_grammars(model)
        arm = EngineArm(
            name,
            model,
            version,
            settings=self._settings,
            grammars=self._grammars,
            # Another slot that gave up stays down until its next version; the first goes on.
            on_gave_up=self._on_gave_up if name == self._first else lambda: None,
            observer=self._make_observer(model),
        )
        self._stager.loaded(name, step.arm)
        if self.is_paused:
            self._held.enter_context(arm.pause())
        self.arms[name] = arm
        ENGINE_VERSION.labels(name).set(version)
        ENGINE_IN_FLIGHT.labels(name).set_function(lambda: float(arm.num_in_flight))
        _log.info("engine_arm_loaded", arm=name, version=version, seconds=round(perf_counter() - started, 3))

    def _make_grammars(self, model: Any) -> Grammars:
        settings = self._settings
        return Grammars(
            self._tokenizer,
            model.config.vocab_size,
            end_ids(model),
            settings.grammar_seconds,
            num_workers=settings.grammar_workers,
            bounds=QueueBounds(settings.grammar_seconds_per_minute, max(1, settings.max_open_requests // 2)),
        )

    def _pause(self) -> None:
        if not self.is_paused:
            with ExitStack() as stack:
                for arm in self.arms.values():
                    stack.enter_context(arm.pause())
                self._held = stack.pop_all()
            self.is_paused = True

    def _resume(self) -> None:
        self._held.close()
        self.is_paused = False
