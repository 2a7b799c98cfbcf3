"""Rows of different lengths in one forward pass: without padding, and with a prefix that rows share computed once.

A *node* is a run of tokens that some rows have in common, or the rest of one row. A row is the tokens of a node after those of the
node's ancestors. All layers but attention work on single tokens, so they see one row with the tokens of all nodes. In attention,
the tokens of a node see its ancestors and, causally, themselves. The gradient of a shared prefix is the sum over its rows without
further work.

`tree_attention` does this without copies, on the CPU and on a GPU that has its kernel. Elsewhere, for states that no kernel takes, and
with sliding windows, `grouped_attention` computes groups of nodes.

Shapes: N tokens of all nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from policy.flash_attention import plan_of, problem_on
from policy.grouped_attention import Node, NodeGroups, grouped, grouped_attention
from policy.load import is_paged
from policy.off_device import onto
from policy.routing import within
from policy.tree_attention import can_compute, tree_attention

if TYPE_CHECKING:
    from collections.abc import Sequence

    from policy.flash_attention import FlashPlan, Range

ATTENTION = "millrace_packed"
"""The name under which transformers finds the attention below."""
LEAST_SHARED = 16
"""A shorter common prefix is computed by each row: sharing it would cost more."""


@dataclass(eq=False)  # not frozen: torch's compiler would trace every field of it, arrays of the host too
class Packing:
    """Packed rows. `places[i]` are the places of row i's tokens among the N; shared places occur in several rows."""

    ids_N: torch.Tensor
    positions_N: torch.Tensor
    places: tuple[np.ndarray, ...]
    tree: tuple[Range, ...] | FlashPlan | None
    """Of all nodes, for attention over the tree; None: it computes groups of them."""
    longest: int
    """Tokens of the longest row: a sliding window that is as wide hides nothing."""
    nodes: tuple[Node, ...]
    """What the groups are made from, where attention needs them."""
    windowed: bool

    @cached_property
    def groups(self) -> NodeGroups:
        """The nodes in groups, on the device: made once."""
        return grouped(self.nodes, windowed=self.windowed, device=self.ids_N.device)


def make_packable(model: Any) -> str:
    """Give a model the attention that packing needs.

    Returns the reason why packed rows would not mean the same to it, then nothing has changed; or an empty string.
    """
    if not is_paged(model):
        return "not all of its layers are attention"
    before = model.config._attn_implementation  # noqa: SLF001 the public setter wants an installed kernel
    ids = np.arange(LEAST_SHARED + 5) % model.config.get_text_config().vocab_size
    rows = [ids, np.append(ids[:-3], ids[:2])]
    with torch.no_grad():
        expected = [within(model, partial(_states, model, row)) for row in rows]
        model.config._attn_implementation = ATTENTION  # noqa: SLF001 as above
        packing = pack(rows, windowed=has_windows(model), device=model.device)
        try:
            found = within(model, partial(packed_states, model, packing)).last_hidden_state[0]
            problem = _difference(found, packing, expected)
        except Exception as error:  # noqa: BLE001 any model may be given, and padding serves all of them
            problem = f"its forward failed on packed rows ({type(error).__name__}: {error})"
    if problem:
        model.config._attn_implementation = before  # noqa: SLF001 as above
    return problem


def _difference(found: torch.Tensor, packing: Packing, expected: Sequence[torch.Tensor]) -> str:
    limit = (1e-3 if found.dtype == torch.float32 else 0.1) * max(float(states.abs().max()) for states in expected)
    are_near = all(  # NaN compares false
        (found[torch.from_numpy(places).to(found.device)] - states).abs().max() <= limit
        for places, states in zip(packing.places, expected, strict=True)
    )
    return "" if are_near else "the states of packed rows differ from those of single rows"


def has_windows(model: Any) -> bool:
    """True if a layer attends to a sliding window only."""
    return getattr(model.config.get_text_config(), "sliding_window", None) is not None


def packed_states(model: Any, packing: Packing) -> Any:
    """The output of the model's backbone for packed rows; its `last_hidden_state` is [1, N, D]."""
    return model.base_model(
        input_ids=packing.ids_N[None], position_ids=packing.positions_N[None], use_cache=False, packing=packing
    )


def pack(
    rows: Sequence[np.ndarray],
    *,
    share: bool = True,
    windowed: bool = False,
    device: torch.device | str = "cpu",
    in_groups: bool = False,
) -> Packing:
    """Pack rows of token ids.

    Args:
        rows: at least one, each with at least one token.
        share: compute common prefixes once.
        windowed: the model has layers with a sliding window, whose masks limit the length of every node.
        device: of the tensors.
        in_groups: attention computes groups of nodes though a kernel could do without.
    """
    nodes = _tree(rows) if share else [Node(row, 0, None, [i]) for i, row in enumerate(rows)]
    ends = np.cumsum([len(node.token_ids) for node in nodes])
    own = [np.arange(end - len(node.token_ids), end) for node, end in zip(nodes, ends, strict=True)]
    paths: list[np.ndarray] = []
    for node, places in zip(nodes, own, strict=True):  # a parent comes before its children
        paths.append(places if node.parent is None else np.concatenate([paths[node.parent], places]))
    of_rows = {row: path for node, path in zip(nodes, paths, strict=True) for row in node.rows}
    positions = [node.depth + np.arange(len(node.token_ids)) for node in nodes]
    return Packing(
        ids_N=onto(torch.from_numpy(np.concatenate([node.token_ids for node in nodes]).astype(np.int64)), device),
        positions_N=onto(torch.from_numpy(np.concatenate(positions)), device),
        places=tuple(of_rows[i] for i in range(len(rows))),
        tree=None if in_groups else _tree_on(torch.device(device), _ranges(nodes, ends), windowed=windowed),
        longest=max(map(len, paths)),
        nodes=tuple(nodes),
        windowed=windowed,
    )


def _tree_on(
    device: torch.device, ranges: tuple[Range, ...], *, windowed: bool
) -> tuple[Range, ...] | FlashPlan | None:
    """What attention over the tree needs on a device, or None."""
    if device.type == "cpu":
        return None if windowed else ranges
    return None if problem_on(device) else plan_of(ranges, device)


def _ranges(nodes: list[Node], ends: np.ndarray) -> tuple[Range, ...]:
    """The nodes' tokens and their last descendants': children follow their parent."""
    last = ends.tolist()
    for index in reversed(range(len(nodes))):
        if (parent := nodes[index].parent) is not None:
            last[parent] = max(last[parent], last[index])
    starts = (ends - [len(node.token_ids) for node in nodes]).tolist()
    return tuple(zip(starts, ends.tolist(), last, strict=True))


def _tree(rows: Sequence[np.ndarray]) -> list[Node]:
    """The nodes of the rows' prefix tree, parents first."""
    order = sorted(range(len(rows)), key=lambda i: rows[i].astype(">i8").tobytes())
    nodes: list[Node] = []
    waiting: list[tuple[list[int], int, int | None]] = [(order, 0, None)]
    while waiting:
        members, depth, parent = waiting.pop()
        common = common_prefix(rows[members[0]], rows[members[-1]], depth)
        # Sorted, so the rows that end here are the first.
        over = [i for i in members if len(rows[i]) == common]
        if len(members) == 1 or common - depth >= LEAST_SHARED:
            nodes.append(Node(rows[members[0]][depth:common], depth, parent, over))
            depth, parent = common, len(nodes) - 1
        else:
            nodes += [Node(rows[i][depth:], depth, parent, [i]) for i in over]
        rest = members[len(over) :]
        waiting += [(list(same), depth, parent) for _, same in groupby(rest, key=lambda i: int(rows[i][common]))]
    return nodes


def common_prefix(first: np.ndarray, last: np.ndarray, depth: int = 0) -> int:
    """The number of tokens at the beginning that two rows share; they are known to be equal up to `depth`."""
    length = min(len(first), len(last))
    differ = np.flatnonzero(first[depth:length] != last[depth:length])
    return depth + int(differ[0]) if len(differ) else length


def _packed_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    packing: Packing | None = None,
    sliding_window: int | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Attention as transformers calls it; query [1, heads, N, D] with positions applied. Returns [1, N, heads, D].

    Without a packing it is causal attention over right-padded rows: padding comes after every token, so it needs no mask.
    """
    if packing is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)[0], None
    sees_all = sliding_window is None or sliding_window >= packing.longest
    if packing.tree is not None and sees_all and can_compute(query, key, value, packing.tree):
        scale = options.get("scaling") or query.shape[-1] ** -0.5
        return tree_attention(query, key, value, packing.tree, scale).transpose(1, 2), None
    if type(packing.tree) is tuple:  # a model that the CPU's kernel does not take is padded
        raise ValueError("these states need a packing in groups")
    return grouped_attention(module, (query, key, value), packing.groups, sliding_window, **options), None


def _states(model: Any, row: np.ndarray) -> torch.Tensor:
    ids = torch.from_numpy(row.astype(np.int64)).to(model.device)
    states: torch.Tensor = model.base_model(input_ids=ids[None], use_cache=False).last_hidden_state[0]
    return states


AttentionInterface.register(ATTENTION, _packed_attention)
