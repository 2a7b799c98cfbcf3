"""A copy of the live version on the engine's own disk, if the weight store is a bucket: a restart fetches only what is new.

In: versions that the live arm now holds (`keep`), edges from the store. Out: versions and staged changes, as from the store itself.
Waits for: the store and the disk. A thread of its own writes the folder while the engine serves, from the chunks that were fetched to
serve. Only calls that need the store wait for it. If the copy fails, this is logged, and the next start fetches more.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from pathlib import Path

import structlog

from contracts.errors import MillraceError
from weights.codec.history import History
from weights.reader import Hop, WeightReader
from weights.replica.replica import Replica
from weights.tensors import Tensor, Tensors
from weights.versions.manifest import Manifest

_log = structlog.get_logger(__name__)


class LocalCopy:
    """Versions of one policy, from a store and a replica's folder. Its methods are called from one thread."""

    def __init__(self, folder: Path, store: WeightReader, policy: str, run: str | None = None) -> None:
        self._run = run
        self._folder = folder
        self._store = store
        self._policy = policy
        self._keeper = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine-local-copy")
        self._keeping: Future[None] = Future()
        self._keeping.set_result(None)
        self._wanted: int | None = None

    @cached_property
    def _replica(self) -> Replica:
        """Opened at its first use, because opening verifies the files, which takes time."""
        return Replica(self._folder, self._store, self._policy)

    def edges(self, policy: str, version: int) -> list[Manifest]:
        """See `WeightReader.edges`."""
        return self._store.edges(policy, version)

    def run_of(self, policy: str, version: int) -> str:
        """See `WeightReader.run_of`. For the version in the folder, the store is not asked."""
        self._keeping.result()
        held = self._replica.held
        return held.run if held is not None and held.version == version else self._store.run_of(policy, version)

    def load_state(self, policy: str, version: int) -> tuple[Tensors, History]:
        """See `WeightReader.load_state`. For the version in the folder, the store is not asked. Raises as `Replica.bring`, and Conflict."""
        self._check(policy)
        self._keeping.result()
        # Bringing the version that is served already would drop the chunks that were fetched for a candidate.
        if self._replica.serves != version:
            self._replica.bring(version, self._run)
        return self._replica.state()

    def stage_onto(
        self,
        policy: str,
        version: int,
        base_version: int,
        base: Mapping[str, Tensor],
        history: History,
        *,
        base_root: str,
    ) -> list[Hop]:
        """See `WeightReader.stage_onto`. Fetched chunks stay in the folder."""
        self._check(policy)
        self._keeping.result()
        return self._store.stage_onto(
            policy, version, base_version, base, history, base_root=base_root, payload=self._replica.payload
        )

    def keep(self, version: int) -> None:
        """Bring the folder to the live version. Returns at once; of several versions only the last is kept."""
        if self._keeping.done():
            self._keeping.result()  # raises unexpected errors
        self._wanted = version
        self._keeping = self._keeper.submit(self._keep)

    def close(self) -> None:
        """Finish the current copy, and release the folder for other processes."""
        self._keeper.shutdown()
        if "_replica" in self.__dict__:
            self._replica.close()

    def _keep(self) -> None:
        version = self._wanted
        try:
            if version is not None and self._replica.serves != version:
                self._replica.bring(version, self._run)
        except MillraceError as error:
            _log.warning("engine_copy_not_kept", version=version, code=error.code, error=error.message)

    def _check(self, policy: str) -> None:
        if policy != self._policy:
            raise ValueError(f"the folder {self._folder} holds versions of {self._policy!r}, not of {policy!r}")
