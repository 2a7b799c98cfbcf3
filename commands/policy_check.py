"""What a base policy is and needs, found before a process starts.

In: a checkpoint's folder. Out: its report, or why it is refused. Only transformers knows the architecture, so a process of its own looks
at it: commands stay free of torch.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

import msgspec

from commands.findings import Finding, missing
from commands.room import gib, memory_need, room_here, shortage
from commands.template_check import template_findings
from contracts.checkpoints import CheckpointReport
from contracts.errors import InvalidSettings
from contracts.files import read_small

_TIMEOUT_SECONDS = 600
LOAD_RATE = 30e6
"""Bytes of a checkpoint per second that are read at least, on a slow disk and busy cores (see docs/models.md)."""
_REMEMBERED = "checkpoint.json"
_CODE = Path(__file__).parent.parent / "policy"


class _Remembered(msgspec.Struct, frozen=True):
    digest: str
    report: CheckpointReport


def inspect_policy(folder: Path) -> CheckpointReport:
    """The report on a checkpoint. Raises InvalidSettings: the process that looks at it failed."""
    command = [sys.executable, "-m", "policy.inspect", str(folder)]
    seconds = _TIMEOUT_SECONDS + size_of(folder) / LOAD_RATE
    try:
        ran = subprocess.run(command, capture_output=True, check=False, timeout=seconds)  # noqa: S603 our own module
        return msgspec.json.decode(ran.stdout, type=CheckpointReport)
    except (subprocess.TimeoutExpired, msgspec.MsgspecError, UnicodeDecodeError) as error:
        lines = [] if isinstance(error, subprocess.TimeoutExpired) else ran.stderr.decode(errors="replace").split("\n")
        reason = next((line for line in reversed(lines) if line.strip()), str(error))
        if "No module named 'torch'" in reason:
            reason += ": pip install 'millrace[torch]', or use the image millrace-torch"
        raise InvalidSettings(f"{folder} cannot be inspected: {reason}") from error


def check_policy(folder: Path) -> CheckpointReport:
    """The report on a checkpoint that can be served and trained. Raises InvalidSettings: why it cannot, by the code of the problem."""
    report = inspect_policy(folder)
    if report.problems:
        problem = report.problems[0]
        raise InvalidSettings(f"{folder} cannot be served: {problem.code}: {problem.message}")
    for finding in template_findings(folder):
        if finding.needed and not finding.good:
            raise InvalidSettings(finding.says)
    return report


def size_of(folder: Path) -> int:
    """Bytes of the weights of a base policy; 0 if they are not here."""
    return sum(path.stat().st_size for path in folder.glob("*.safetensors") if path.is_file())


class CheckOnce:
    """`check_policy`, which remembers in a home what it found: a later start need not load torch for the same answer.

    It holds for the same files (names, sizes, times of change, the configuration itself), code and transformers. No refusal is remembered.
    """

    def __init__(self, home: Path, check: Callable[[Path], CheckpointReport] = check_policy) -> None:
        self._path, self._check = home / _REMEMBERED, check
        self._found: _Remembered | None = None

    def __call__(self, folder: Path) -> CheckpointReport:
        """See `check_policy`."""
        digest = _digest_of(folder)
        try:
            known = msgspec.json.decode(self._path.read_bytes(), type=_Remembered)
        except (OSError, msgspec.MsgspecError):
            known = None
        if known is None or known.digest != digest:
            known = _Remembered(digest, self._check(folder))
        self._found = known
        return known.report

    def remember(self) -> None:
        """Write down what was found, once the home exists."""
        if self._found is not None:
            self._path.write_bytes(msgspec.json.encode(self._found))


def _digest_of(folder: Path) -> str:
    found = hashlib.blake2b(version("transformers").encode(), digest_size=16)
    for path in sorted(_CODE.glob("*.py")):
        found.update(path.read_bytes())
    for path in sorted(folder.iterdir()):
        seen = path.stat()
        found.update(f"{path.name}\0{seen.st_size}\0{seen.st_mtime_ns}\0".encode())
        if path.name == "config.json":
            try:
                found.update(read_small(path))
            except OSError as error:
                raise InvalidSettings(f"{path}: {error.strerror}") from error
    return found.hexdigest()


def findings_of(folder: Path, device: str) -> Iterator[Finding]:
    """What of a checkpoint is supported, and what it needs."""
    try:
        report = inspect_policy(folder)
    except InvalidSettings as error:
        yield missing("checkpoint", error.message)
        return
    for problem in report.problems:
        yield missing("checkpoint", f"{problem.code}: {problem.message}")
    if report.num_tensors:
        yield from _described(report, device)
    if (folder / "config.json").is_file():
        yield from template_findings(folder)


def _described(report: CheckpointReport, device: str) -> Iterator[Finding]:
    dtypes = ", ".join(f"{count} in {dtype}" for dtype, count in sorted(report.dtypes.items()))
    size = f"{report.num_weights:,} weights in {report.num_tensors} tensors ({dtypes})"
    yield Finding("checkpoint", True, True, f"{report.architecture}: {size}, published in BF16")
    is_fused = report.num_parameters != report.num_tensors
    how = f", slices of {report.num_parameters} parameters in memory" if is_fused else ""
    yield Finding("names", True, True, f"published under the checkpoint's own names{how}")
    for name, other in report.published_as.items():
        how = f"published as {other}" if other else "not published: unused or a tie"
        yield Finding("names", True, False, f"{name} is {how}")
    cached = f"{report.cache_elements_per_token} cached numbers per token"
    yield Finding("sizes", True, True, f"context {report.context} tokens, vocabulary {report.vocabulary}, {cached}")
    recurrent = "it has a recurrent state, so requests are stepped without pages"
    yield Finding("engine", True, True, "requests share a paged cache" if report.is_paged else recurrent)
    if report.is_mixture:
        layers = report.num_expert_layers
        says = f"the engine records their choice in {layers} layers" if layers else "their choice is not recorded"
        yield Finding("experts", layers > 0, False, says)
    need = memory_need(report, device)
    lack = shortage(report, device, room_here(Path(), device))
    engine = f"engine {gib(need.engine)} with two slots, {gib(need.slot)} for each further one"
    trainer = f"trainer {gib(need.trainer)}, {gib(need.trainer_peak)} while it saves"
    yield Finding("room", not lack, False, f"{engine}; {trainer}; {lack or 'this machine has room'}")
