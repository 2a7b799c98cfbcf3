"""Attention over a tree of token runs where no kernel computes it whole: groups of nodes, padded, by the attention of torch.

Shapes: N tokens of all nodes; a group has G nodes with the same P tokens of ancestors and similar lengths, padded to L tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


_WASTE = 1.25
"""Within attention, nodes are padded by at most this factor."""
_MOST_MASK = 2**24
"""Elements of a mask; a node that would need a larger one is cut into pieces, each the parent of the next."""


class Node(NamedTuple):
    """A run of tokens."""

    token_ids: np.ndarray
    depth: int
    """Tokens of its ancestors."""
    parent: int | None
    rows: list[int]
    """Rows that end with this node."""


class NodeGroup(NamedTuple):
    """Places of nodes [G, L], padding repeats the last one; places of their ancestors [P]."""

    nodes_GL: torch.Tensor
    ancestors_P: torch.Tensor


class NodeGroups(NamedTuple):
    """Groups that cover all nodes, and where the groups, padded and one after the other, have each token."""

    groups: tuple[NodeGroup, ...]
    order_N: torch.Tensor


def grouped(nodes: Sequence[Node], *, windowed: bool, device: torch.device | str) -> NodeGroups:
    """The nodes of a tree in groups, parents first. `windowed`: masks limit the length of every node."""
    pieces = list(_cut(nodes, windowed))
    ends = np.cumsum([len(piece.token_ids) for piece in pieces])
    own = [np.arange(end - len(piece.token_ids), end) for piece, end in zip(pieces, ends, strict=True)]
    ancestors: list[np.ndarray] = []
    for piece in pieces:
        parent = piece.parent
        ancestors.append(own[0][:0] if parent is None else np.concatenate([ancestors[parent], own[parent]]))
    order, place, groups = np.empty(ends[-1], np.int64), 0, []
    for members in _alike(pieces):
        longest = max(len(own[i]) for i in members)
        padded = np.stack([np.pad(own[i], (0, longest - len(own[i])), mode="edge") for i in members])
        for number, i in enumerate(members):
            order[own[i]] = place + number * longest + np.arange(len(own[i]))
        place += padded.size
        groups.append(NodeGroup(*(torch.from_numpy(each).to(device) for each in (padded, ancestors[members[0]]))))
    return NodeGroups(tuple(groups), torch.from_numpy(order).to(device))


def _cut(nodes: Sequence[Node], windowed: bool) -> Iterator[Node]:
    """The nodes, those that would need too large a mask in pieces."""
    number, moved = 0, dict[int, int]()
    for index, node in enumerate(nodes):
        parent = None if node.parent is None else moved[node.parent]
        length, total = len(node.token_ids), node.depth + len(node.token_ids)
        needs_mask = windowed or parent is not None
        size = max(_MOST_MASK // total, 1) if needs_mask and length * total > _MOST_MASK else length
        for start in range(0, length, size):
            part = node.token_ids[start : start + size]
            yield node._replace(token_ids=part, depth=node.depth + start, parent=parent)
            parent, number = number, number + 1
        moved[index] = number - 1


def _alike(nodes: list[Node]) -> list[list[int]]:
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


@torch.compiler.disable  # type: ignore[untyped-decorator]  # the number of groups differs from batch to batch
def grouped_attention(
    module: Any,
    states: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    groups: NodeGroups,
    sliding_window: int | None,
    **options: Any,
) -> torch.Tensor:
    """Attention as transformers calls it: `states` are query, key and value [1, heads, N, D]. Returns [1, N, heads, D]."""
    found = []
    for group in groups.groups:
        before = group.ancestors_P if sliding_window is None else group.ancestors_P[-sliding_window:]
        nodes = [_nodes_of(each, group.nodes_GL) for each in states]
        if len(before):
            shared = [each[:, :, before].expand(len(group.nodes_GL), -1, -1, -1) for each in states[1:]]
            nodes[1:] = [torch.cat(both, dim=2) for both in zip(shared, nodes[1:], strict=True)]
        mask = _mask(len(before), group.nodes_GL.shape[1], sliding_window, states[0].device)
        seen, _ = sdpa_attention_forward(module, *nodes, mask, **options)
        found.append(seen.flatten(0, 1))
    return torch.cat(found).index_select(0, groups.order_N)[None]


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
