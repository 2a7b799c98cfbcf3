r"""A plug-in for vLLM that receives Millrace's versions. In: which version, and its store. Out: changed elements, written in place.

    VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --dtype bfloat16 \
        --worker-extension-cls policy.vllm_engine.WorkerExtension --weight-transfer-config '{"backend": "millrace"}'

Waits for: the store, `s3://bucket/prefix` or a folder that the workers see. In their environment, AWS_* give access
to the store and MILLRACE_TRUSTED_KEYS names the publishers to trust. `weights/engines/vllm.py` drives it. A worker imports this
module before it loads its model, and the import registers the backend; without vLLM it does nothing. Shapes as read in
vllm-project/vllm, not run: `vllm/distributed/weight_transfer/{base,factory}.py`,
`vllm/model_executor/model_loader/checkpoint_weight_patch.py`.

Limits, all of them vLLM's: NaN stands for "unchanged", so a weight that becomes NaN is refused by name; only floats can be
patched; each patched tensor is staged in full on the device; a failure in the middle is not undone, so the worker accepts
no further update until it is restarted. Bits are kept only where the model runs in the dtype of the checkpoint.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from contracts.errors import NotFound, Unavailable, Unsupported, WeightsRefused
from weights.engines.changes import ChangedElements, changed_elements
from weights.engines.published import PublishedVersions
from weights.tensors import Tensors, read_safetensors

BACKEND = "millrace"
PLAIN = "plain:"
"""Before the path of a store: checkpoints that nobody signed, see `read_plain`."""
LoadVersion = Callable[[str, str, int], Tensors]
"""(store, policy, version) -> its tensors, verified."""

_DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
_SIGNED = {2: "<i2", 4: "<i4"}


class WorkerExtension:
    """For `--worker-extension-cls`: naming it makes each worker import this module."""


@dataclass(frozen=True)
class InitInfo:
    """Empty: the engine needs no agreement beforehand."""


@dataclass(frozen=True)
class UpdateInfo:
    """The body of `POST /update_weights`."""

    policy: str
    version: int
    base_version: int
    store: str


def make_loader() -> LoadVersion:
    """Reads versions as they are published; those of a store named `plain:FOLDER` by `read_plain`."""
    published = PublishedVersions()

    def load(store: str, policy: str, version: int) -> Tensors:
        if store.startswith(PLAIN):
            return read_plain(store.removeprefix(PLAIN), policy, version)
        return published(store, policy, version)

    return load


def read_plain(folder: str, policy: str, version: int) -> Tensors:
    """A version from a folder that every worker sees: `<folder>/<policy>/v000007/`, safetensors as any checkpoint.

    Raises:
        NotFound: there is no such folder, or no weights in it.
        WeightsRefused: a damaged file.
    """
    path = Path(folder) / policy / f"v{version:06d}"
    if not path.is_dir():
        raise NotFound(f"policy {policy!r} version {version} is not in {path}: write it there first", path=str(path))
    return read_safetensors(path)


class Receiver:
    """The behaviour of our transfer engine; `make_engine` mixes it into vLLM's abstract class, which sets `model` and `device`.

    Attributes:
        resident: the version this worker holds; None until the first update.
        is_broken: an update failed while it was written.
    """

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo
    supports_draft_weight_update = False

    model: Any
    device: torch.device
    resident: int | None = None
    is_broken = False
    load: LoadVersion
    make_patch: Callable[..., Any]
    apply_patches: Callable[[Any, list[Any]], object]

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        """Nothing to connect: each worker reads for itself."""

    def start_weight_update(self) -> None:
        """Begin an update.

        Raises:
            Unavailable: an earlier one broke off in the middle.
        """
        if self.is_broken:
            raise Unavailable(
                "an update broke off while it was written, so this worker's weights are mixed: restart the server"
            )

    def receive_weights(self, update_info: UpdateInfo) -> None:
        """Write what changed from `base_version` to `version`.

        Raises:
            InvalidSettings, NotFound, Unavailable: one of the two versions cannot be loaded; nothing was written.
            WeightsRefused: `wrong_base`, or as `changed_elements` or the store; nothing was written.
        """
        if self.resident not in {None, update_info.base_version}:
            raise WeightsRefused(
                "wrong_base",
                f"this worker holds version {self.resident}, the change is for {update_info.base_version}; nothing was written",
            )
        base = self.load(update_info.store, update_info.policy, update_info.base_version)
        target = self.load(update_info.store, update_info.policy, update_info.version)
        patches = [self._patch(change) for change in changed_elements(base, target)]
        self.is_broken = True
        self.apply_patches(self.model, patches)
        self.is_broken = False
        self.resident = update_info.version

    def finish_weight_update(self) -> None:
        """Patches are written in place: nothing is left to do."""

    def shutdown(self) -> None:
        """The engine holds no resources."""

    def _patch(self, change: ChangedElements) -> Any:
        # Only integers of one width cross from numpy to torch; the view gives them back their meaning.
        words = torch.from_numpy(change.words.view(_SIGNED[change.words.itemsize]))
        return self.make_patch(
            name=change.name,
            shape=change.shape,
            dtype=_DTYPES[change.dtype],
            values=words.view(_DTYPES[change.dtype]).to(self.device),
            indices=torch.from_numpy(change.indices).to(self.device),
        )


def make_engine(
    abstract: type,
    *,
    load: LoadVersion,
    make_patch: Callable[..., Any],
    apply_patches: Callable[[Any, list[Any]], object],
) -> type:
    """Our engine as a subclass of vLLM's `WeightTransferEngine`."""
    parts: dict[str, Callable[..., Any]] = {"load": load, "make_patch": make_patch, "apply_patches": apply_patches}
    return type(
        "MillraceWeightTransferEngine",
        (Receiver, abstract),
        {name: staticmethod(part) for name, part in parts.items()},
    )


def register(load: LoadVersion | None = None) -> bool:
    """Register the backend `millrace` with vLLM; False if vLLM is not installed.

    Args:
        load: how a worker gets a version's tensors; None: see `make_loader`.

    Raises:
        Unsupported: this vLLM cannot patch single elements.
        ValueError: vLLM has it registered already.
    """
    try:
        importlib.import_module("vllm")
    except ModuleNotFoundError as error:
        if error.name != "vllm":
            raise
        return False
    try:
        patches = importlib.import_module("vllm.model_executor.model_loader.checkpoint_weight_patch")
    except ModuleNotFoundError as error:
        raise Unsupported("this vLLM has no checkpoint_weight_patch: 0.32 or newer is needed") from error
    base = importlib.import_module("vllm.distributed.weight_transfer.base")
    factory = importlib.import_module("vllm.distributed.weight_transfer.factory")
    engine = make_engine(
        base.WeightTransferEngine,
        load=load or make_loader(),
        make_patch=patches.CheckpointWeightPatch,
        apply_patches=patches.load_checkpoint_weight_patches,
    )
    factory.WeightTransferEngineFactory.register_engine(BACKEND, engine)
    return True


register()
