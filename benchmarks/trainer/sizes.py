"""Bytes that a step of Qwen3-shaped policies of 8 B and 70 B takes, computed with fake tensors: no weight exists, no GPU is needed.

usage: python -m benchmarks.trainer.sizes [--shape 8b|70b|tiny] [--tokens N] [--json]

The forward and backward pass are the trainer's own (packed rows, tree attention, layers that run again, the head in pieces, weights in
bfloat16), and so is AdamW over float32 masters, on the device or in host memory. Every storage that an operation makes is counted until it
is freed. Whoever shards the state over GPUs divides all but activations by their number.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import weakref
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import Qwen3Config, Qwen3ForCausalLM

from benchmarks.report import print_table, write_report
from contracts.memory.training import TrainingWay
from pipelines.training.learning.device import Precision
from pipelines.training.learning.working import MasterAdamW, Pair, make_pairs, move
from policy.adapter import Adapter, all_linear
from policy.logprobs import TokenScorer
from policy.packing import ATTENTION, pack
from weights.adapters import AdapterConfig

SHAPES: dict[str, dict[str, Any]] = {
    "8b": {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32},
    "70b": {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64},
    "tiny": {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4},
}
"""Qwen3 8 B as published; 70 B has the widths of Llama 3's."""
ROWS = 8
_GIB = 2**30


class _FakeScorer(TokenScorer):
    """The check of the head compares numbers, which fake tensors have not."""

    def _check_head(self) -> None:
        pass


class _Made(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Bytes of the storages that operations make, at the most at once."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._alive: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        known = {_key(each.untyped_storage()) for each in tensors}  # views share it
        found = func(*args, **(kwargs or {}))
        for each in tree_leaves(found):
            if isinstance(each, torch.Tensor):
                self._note(each.untyped_storage(), known)
        return found

    def _note(self, storage: torch.UntypedStorage, known: set[int]) -> None:
        key, size = _key(storage), storage.nbytes()
        if key in known or key in self._alive:
            return

        def freed(_: object) -> None:
            self.now -= size
            self._alive.pop(key, None)

        self._alive[key] = weakref.ref(storage, freed)
        self.now += size
        self.peak = max(self.peak, self.now)


def _key(storage: torch.UntypedStorage) -> int:
    return int(storage._cdata)  # noqa: SLF001 torch has no other identity of a storage


def main(arguments: Sequence[str]) -> None:
    """Measure, print, and write a file if asked to."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trainer.sizes")
    parser.add_argument("--shape", choices=sorted(SHAPES), action="append")
    parser.add_argument("--tokens", type=int, default=8192, help="of one forward pass")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    cases = [
        (shape, options.tokens, again, trained)
        for shape in options.shape or ("8b", "70b")
        for again, trained in ((False, "device"), (True, "device"), (True, "host"), (True, 8), (True, 32))
    ]
    # Each in a process of its own: torch 2.13 crashes where fake tensors of two modes were in one. This one computes nothing.
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        rows = pool.starmap(sizes, cases, chunksize=1)
    columns = list(rows[0])
    print_table(f"bytes of a step over {options.tokens} tokens, GiB", columns, [list(row.values()) for row in rows])
    print(json.dumps(rows))
    if options.json:
        print(f"written: {write_report('trainer-sizes', {'tokens': options.tokens, 'rows': rows})}")


def sizes(shape: str, num_tokens: int, recompute: bool, trained: Literal["device", "host"] | int) -> dict[str, Any]:
    """GiB of the device by part at the peak of a step, and of the host; bytes per parameter that are resident between steps.

    `trained`: all weights, with masters there; or an adapter of this rank.
    """
    config = Qwen3Config(vocab_size=151_936, num_key_value_heads=8 if shape != "tiny" else 2, **SHAPES[shape])
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = Qwen3ForCausalLM(config).eval()
        model.config._attn_implementation = ATTENTION  # noqa: SLF001 as `make_packable` does
        precision = Precision(torch.device("cpu"), is_reduced=True)
        if isinstance(trained, int):
            pairs, reference = _adapter(model, trained, precision), []
        else:
            pairs = make_pairs(model, precision, TrainingWay(is_host=trained == "host"))
            # As the frozen copy holds them; a model of fake tensors cannot be copied safely.
            reference = [parameter.detach().clone() for parameter in model.parameters()]
        optimizer = MasterAdamW([*pairs.values()], weight_decay=0.0)
        count = sum(parameter.numel() for parameter in model.parameters())
        _step(model, optimizer, num_tokens, recompute=recompute)  # allocates gradients
        state = {
            "masters": _bytes(master for master, _ in pairs.values()),
            "moments": _bytes(each for state in optimizer.state.values() for each in state.values()),
        }
        resident = {
            "weights": _bytes(model.parameters()),
            "gradients": _bytes(working.grad for _, working in pairs.values()),
            "reference": _bytes(reference),
            **(dict.fromkeys(state, 0) if trained == "host" else state),
        }
        with _Made() as made:
            _step(model, optimizer, num_tokens, recompute=recompute)
    return {
        "shape": shape,
        "parameters": count,
        "recompute": recompute,
        "trained": f"rank {trained}" if isinstance(trained, int) else f"all, masters: {trained}",
        **{name: round(value / _GIB, 2) for name, value in resident.items()},
        "activations": round(made.peak / _GIB, 2),
        "peak": round((sum(resident.values()) + made.peak) / _GIB, 2),
        "host": round(sum(state.values()) / _GIB if trained == "host" else 0.0, 2),
        "resident_bytes_per_parameter": round(sum(resident.values()) / count, 3),
    }


def _adapter(model: Any, rank: int, precision: Precision) -> dict[str, Pair]:
    move(model, precision)
    model.requires_grad_(requires_grad=False)
    config = AdapterConfig(rank=rank, alpha=32.0, targets=all_linear(model), base_root="")
    adapter = Adapter(model, config, dtype=torch.float32)
    adapter.requires_grad_(requires_grad=True)
    return {name: (weight, weight) for name, weight in adapter.named_parameters()}


def _step(model: Any, optimizer: MasterAdamW, num_tokens: int, *, recompute: bool) -> None:
    """Rows of equal length, the second half of each sampled. Gradients stay: the trainer's are there at the next step's peak too."""
    random = np.random.default_rng(0)
    rows = [random.integers(0, model.config.vocab_size, num_tokens // ROWS) for _ in range(ROWS)]
    packing = pack(rows)
    sampled = np.concatenate([places[len(places) // 2 : -1] for places in packing.places])
    states, labels = torch.from_numpy(sampled), packing.ids_N[torch.from_numpy(sampled + 1)]
    scorer = _FakeScorer(model)
    scorer.recomputes = recompute
    with torch.autocast("cpu", torch.bfloat16):
        scores = scorer.score_packed(packing, states, labels, torch.ones(len(sampled)))
    torch.autograd.backward(scores.log_probs_BT.sum())
    optimizer.step()


def _bytes(tensors: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


if __name__ == "__main__":
    main(sys.argv[1:])
