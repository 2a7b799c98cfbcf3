"""Published versions as plain files on this host: fetched, verified and decoded once, for every server of the host.

In: a version that was assigned. Out: a safetensors file of it. Waits for: the weight store and the disk. Used by one thread at a time;
each server keeps a link to the file it was given, so a later version does not take it away.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

from contracts.errors import WeightsRefused
from engines.following.driver import VersionFile
from weights.replica.replica import Replica


class HostCopy:
    """See the module.

    Args:
        replica: of the policy, on this host's disk.
        run: whose versions are taken.
    """

    def __init__(self, replica: Replica, run: str | None) -> None:
        self._replica = replica
        self._run = run
        self._lock = threading.Lock()

    def file_of(self, version: int, root: str | None, run: str | None, folder: Path) -> VersionFile:
        """The file of a version, linked into `folder`, where only it and the one before are kept.

        Raises:
            WeightsRefused: `wrong_root`: the store has other weights than were assigned; or as `Replica.bring`.
            NotFound, Unavailable: as `Replica.bring`.
        """
        with self._lock:
            slot = self._replica.bring(version, run or self._run)
            if root is not None and slot.root != root:
                raise WeightsRefused(
                    "wrong_root",
                    f"version {version} in the store has the root {slot.root}, but {root} was assigned: see who else writes to "
                    "this store",
                    version=version,
                )
            path = folder / f"v{version:06d}-{slot.root[:12]}.safetensors"
            if not path.exists():
                os.link(self._replica.model, path)
        os.utime(path)
        for old in sorted(folder.glob("v*.safetensors"), key=lambda found: found.stat().st_mtime)[:-2]:
            old.unlink()
        return VersionFile(version, slot.root, path)

    def close(self) -> None:
        """Release the folder for another process."""
        self._replica.close()
