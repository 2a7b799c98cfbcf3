"""Rows of different lengths in one forward pass: without padding, and with a prefix that rows share computed once.

A *node* is a run of tokens that some rows have in common, or the rest of one row. A row is the tokens of a node after those of the
node's ancestors. All layers but attention work on single tokens, so they see one row with the tokens of all nodes. In attention,
the tokens of a node see its ancestors and, causally, themselves. The gradient of a shared prefix is the sum over its rows without
further work.

On the CPU `tree_attention` does this without copies. Elsewhere, and with sliding windows, attention computes groups of nodes.

Shapes: N tokens of all nodes; a group has G nodes with the same P tokens of ancestors and similar lengths, padded to L tokens.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from policy.load import is_paged
from policy.tree_attention import can_compute, tree_attention

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from policy.tree_attention import Range

ATTENTION = "millrace_packed"
"""The name under which transformers finds the attention below."""
LEAST_SHARED = 16
"""A shorter common prefix is computed by each row: sharing it would cost more."""
_WASTE = 1.25
"""Within attention, nodes are padded by at most this factor."""
_MOST_MASK = 2**24
"""Elements of a mask; a node that would need a larger one is cut into pieces, each the parent of the next."""


class _Node(NamedTuple):
    token_ids: np.ndarray
    depth: int
    """Tokens of its ancestors."""
    parent: int | None
    rows: list[int]
    """Rows that end with this node."""


class _Group(NamedTuple):
    """Places of nodes [G, L], padding repeats the last one; places of their ancestors [P]; which of G * L are tokens."""

    nodes_GL: torch.Tensor
    ancestors_P: torch.Tensor
    real_GL: torch.Tensor


class Packing(NamedTuple):
    """Packed rows. `places[i]` are the places of row i's tokens among the N; shared places occur in several rows."""

    ids_N: torch.Tensor
    positions_N: torch.Tensor
    places: tuple[np.ndarray, ...]
    ranges: tuple[Range, ...]
    """Of all nodes, for attention over the tree; or none, then `groups` cover them."""
    groups: tuple[_Group, ...]
    order_N: torch.Tensor
    """Where the groups, one after the other, have each token."""


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
        expected = [_states(model, row) for row in rows]
        model.config._attn_implementation = ATTENTION  # noqa: SLF001 as above
        packing = pack(rows, windowed=has_windows(model), device=model.device)
        try:
            found = packed_states(model, packing).last_hidden_state[0]
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
    grouped: bool | None = None,
) -> Packing:
    """Pack rows of token ids.

    Args:
        rows: at least one, each with at least one token.
        share: compute common prefixes once.
        windowed: the model has layers with a sliding window, whose masks limit the length of every node.
        device: of the tensors.
        grouped: attention computes groups of nodes; by default with windows, and on devices other than the CPU.
    """
    grouped = windowed or torch.device(device).type != "cpu" if grouped is None else grouped
    nodes = _tree(rows) if share else [_Node(row, 0, None, [i]) for i, row in enumerate(rows)]
    nodes = list(_cut(nodes, windowed)) if grouped else nodes
    ends = np.cumsum([len(node.token_ids) for node in nodes])
    own = [np.arange(end - len(node.token_ids), end) for node, end in zip(nodes, ends, strict=True)]
    ancestors: list[np.ndarray] = []
    for node in nodes:  # a parent comes before its children
        parent = node.parent
        ancestors.append(own[0][:0] if parent is None else np.concatenate([ancestors[parent], own[parent]]))
    places = {row: np.concatenate([ancestors[i], own[i]]) for i, node in enumerate(nodes) for row in node.rows}
    alike = _alike(nodes) if grouped else []
    groups = [[own[i] for i in members] for members in alike]
    together = np.concatenate([own[0][:0], *(places_ for group in groups for places_ in group)])
    order = np.empty_like(together)
    order[together] = np.arange(len(together))
    positions = [node.depth + np.arange(len(node.token_ids)) for node in nodes]
    return Packing(
        ids_N=torch.from_numpy(np.concatenate([node.token_ids for node in nodes]).astype(np.int64)).to(device),
        positions_N=torch.from_numpy(np.concatenate(positions)).to(device),
        places=tuple(places[i] for i in range(len(rows))),
        ranges=() if grouped else _ranges(nodes, ends),
        groups=tuple(_group(group, ancestors[i], device) for group, (i, *_) in zip(groups, alike, strict=True)),
        order_N=torch.from_numpy(order).to(device),
    )


def _ranges(nodes: list[_Node], ends: np.ndarray) -> tuple[Range, ...]:
    """The nodes' tokens and their last descendants': children follow their parent."""
    last = ends.tolist()
    for index in reversed(range(len(nodes))):
        if (parent := nodes[index].parent) is not None:
            last[parent] = max(last[parent], last[index])
    starts = (ends - [len(node.token_ids) for node in nodes]).tolist()
    return tuple(zip(starts, ends.tolist(), last, strict=True))


def _tree(rows: Sequence[np.ndarray]) -> list[_Node]:
    """The nodes of the rows' prefix tree, parents first."""
    order = sorted(range(len(rows)), key=lambda i: rows[i].astype(">i8").tobytes())
    nodes: list[_Node] = []
    waiting: list[tuple[list[int], int, int | None]] = [(order, 0, None)]
    while waiting:
        members, depth, parent = waiting.pop()
        common = common_prefix(rows[members[0]], rows[members[-1]], depth)
        # Sorted, so the rows that end here are the first.
        over = [i for i in members if len(rows[i]) == common]
        if len(members) == 1 or common - depth >= LEAST_SHARED:
            nodes.append(_Node(rows[members[0]][depth:common], depth, parent, over))
            depth, parent = common, len(nodes) - 1
        else:
            nodes += [_Node(rows[i][depth:], depth, parent, [i]) for i in over]
        rest = members[len(over) :]
        waiting += [(list(same), depth, parent) for _, same in groupby(rest, key=lambda i: int(rows[i][common]))]
    return nodes


def common_prefix(first: np.ndarray, last: np.ndarray, depth: int = 0) -> int:
    """The number of tokens at the beginning that two rows share; they are known to be equal up to `depth`."""
    length = min(len(first), len(last))
    differ = np.flatnonzero(first[depth:length] != last[depth:length])
    return depth + int(differ[0]) if len(differ) else length


def _cut(nodes: list[_Node], windowed: bool) -> Iterator[_Node]:
    """The nodes, those that would need too large a mask in pieces."""
    number, moved = 0, dict[int, int]()
    for index, node in enumerate(nodes):
        parent = None if node.parent is None else moved[node.parent]
        length, total = len(node.token_ids), node.depth + len(node.token_ids)
        needs_mask = windowed or parent is not None
        size = max(_MOST_MASK // total, 1) if needs_mask and length * total > _MOST_MASK else length
        for start in range(0, length, size):
            is_last = start + size >= length
            yield _Node(node.token_ids[start : start + size], node.depth + start, parent, node.rows if is_last else [])
            parent, number = number, number + 1
        moved[index] = number - 1


def _alike(nodes: list[_Node]) -> list[list[int]]:
    """Indices of nodes that attention computes at once: of one parent, and of similar lengths."""
    found: list[list[int]] = []
    kinds = [(-1 if node.parent is None else node.parent, -len(node.token_ids)) for node in nodes]
    for index in sorted(range(len(nodes)), key=kinds.__getitem__):
        parent, length = kinds[index]
        longest = kinds[found[-1][0]] if found else None
        if longest is not None and longest[0] == parent and longest[1] >= _WASTE * length:
            found[-1].append(index)
        else:
            found.append([index])
    return found


def _group(nodes: list[np.ndarray], ancestors_P: np.ndarray, device: torch.device | str) -> _Group:
    longest = max(map(len, nodes))
    padded = np.stack([np.pad(places, (0, longest - len(places)), mode="edge") for places in nodes])
    real = np.arange(longest) < np.array([len(places) for places in nodes])[:, None]
    return _Group(*(torch.from_numpy(each).to(device) for each in (padded, ancestors_P, real)))


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
    if packing.ranges:
        if sliding_window is not None or not can_compute(query, key, value):
            raise ValueError("these states need a packing in groups")
        scale = options.get("scaling") or query.shape[-1] ** -0.5
        return tree_attention(query, key, value, packing.ranges, scale).transpose(1, 2), None
    found = []
    for group in packing.groups:
        before = group.ancestors_P if sliding_window is None else group.ancestors_P[-sliding_window:]
        nodes = [_nodes_of(each, group.nodes_GL) for each in (query, key, value)]
        if len(before):
            shared = [each[:, :, before].expand(len(group.nodes_GL), -1, -1, -1) for each in (key, value)]
            nodes[1:] = [torch.cat(both, dim=2) for both in zip(shared, nodes[1:], strict=True)]
        mask = _mask(len(before), group.nodes_GL.shape[1], sliding_window, query.device)
        states, _ = sdpa_attention_forward(module, *nodes, mask, **options)
        found.append(states[group.real_GL])
    return torch.cat(found)[packing.order_N][None], None


def _nodes_of(states: torch.Tensor, nodes_GL: torch.Tensor) -> torch.Tensor:
    """[1, heads, N, D] of all tokens to [G, heads, L, D] of nodes."""
    heads, _, width = states.shape[1:]
    return states[0].index_select(1, nodes_GL.flatten()).view(heads, *nodes_GL.shape, width).transpose(0, 1)


def _mask(num_before: int, length: int, window: int | None, device: torch.device) -> torch.Tensor | None:
    """True where a token may look, [1, 1, L, P + L]; None: at everything before it in its node."""
    if not num_before and (window is None or length <= window):
        return None
    query_L = torch.arange(num_before, num_before + length, device=device)[:, None]
    key_K = torch.arange(num_before + length, device=device)
    allowed = key_K <= query_L
    if window is not None:
        allowed &= query_L - key_K < window
    return allowed[None, None]


def _states(model: Any, row: np.ndarray) -> torch.Tensor:
    ids = torch.from_numpy(row.astype(np.int64)).to(model.device)
    states: torch.Tensor = model.base_model(input_ids=ids[None], use_cache=False).last_hidden_state[0]
    return states


AttentionInterface.register(ATTENTION, _packed_attention)
