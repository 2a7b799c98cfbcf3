"""`millrace doctor --deep`: asks everything that a home depends on, once, and says what is wrong and what to do.

In: the settings of a home. Out: findings. Waits for: each server, judge and port, a few seconds each. It changes nothing that stays: a probe
object in the weight store and a key in Redis are removed or expire.
"""

from __future__ import annotations

from collections.abc import Iterator

from commands.deep.certificates import certificate_findings
from commands.deep.encryption import encryption_findings
from commands.deep.places import clock_findings, disk_findings
from commands.deep.ports import port_findings
from commands.deep.servers import server_findings
from commands.deep.tasks import task_findings
from commands.findings import Finding
from runtime.settings import Settings


def deep_findings(settings: Settings) -> Iterator[Finding]:
    """Every check, the cheap ones first; one that fails does not end the others."""
    yield from certificate_findings(settings)
    yield from encryption_findings(settings)
    yield from disk_findings(settings)
    yield from port_findings(settings)
    yield from server_findings(settings)
    yield from clock_findings(settings)
    yield from task_findings(settings)
