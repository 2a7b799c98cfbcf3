"""Who of the workers gets which tests when servers are shared (`--dist loadfile`), on machines where most of these tests wait.

A file stays with one worker, and so does a folder whose servers are made once a process. What takes longest begins first, so that
nobody waits in the end for one worker that has a minute more to do.
"""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]
from xdist.workermanage import WorkerController  # type: ignore[import-untyped]

LONGEST = (
    "tests/integration/faults/",
    "tests/integration/test_regions.py",
    "tests/integration/own_broker/",
    "tests/integration/tls/",
    "tests/contract/test_log_loss.py",
    "tests/adversary/test_feedback_kills.py",
    "tests/adversary/test_store_on_servers.py",
    "tests/contract/test_event_log.py",
    "tests/integration/test_redis.py",
    "tests/integration/vllm/one_server/",
    "tests/integration/vllm/test_models.py",
)
"""Files, and folders that stay together, the longest of `make test-services` and of `make test-vllm` first. What is not named follows."""


class LongestFirst(LoadFileScheduling):  # type: ignore[misc] # xdist has no types
    """See the module."""

    def _split_scope(self, nodeid: str) -> str:
        """The part of the tests that stays together with this one."""
        file: str = super()._split_scope(nodeid)
        return next((place for place in LONGEST if file.startswith(place)), file)

    def _assign_work_unit(self, node: WorkerController) -> None:
        """Give a worker the longest that is left."""
        longest = next((place for place in LONGEST if place in self.workqueue), None)
        if longest is not None:
            self.workqueue.move_to_end(longest, last=False)
        super()._assign_work_unit(node)
