"""Tensors that change while they are written, and files of tensors."""

import threading
from itertools import chain
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import WeightsRefused
from pipelines.training.checkpoints.tensor_files import TensorFile, TensorSnapshot, header_of, measured, write_pieces

TENSORS = {
    "matrix": torch.arange(35, dtype=torch.float32).view(7, 5),
    "count": torch.tensor(3.0),
    "nothing": torch.zeros(0, 3),
    "half": torch.linspace(-1, 1, 301).to(torch.bfloat16),
}


@given(st.lists(st.integers(0, 40), max_size=8), st.integers(1, 64), st.lists(st.booleans(), max_size=60))
def test_what_is_read_is_what_was_there_whenever_it_changes(
    sizes: list[int], piece_bytes: int, history: list[bool]
) -> None:
    tensors = [torch.arange(size, dtype=torch.float32) + number for number, size in enumerate(sizes)]
    expected = b"".join(tensor.numpy().tobytes() for tensor in tensors)
    snapshot = TensorSnapshot(tensors, 1.0, piece_bytes)
    pieces, found = snapshot.pieces(snapshot.num_bytes), b""
    for is_step in history:
        if is_step:
            snapshot.keep()
            for tensor in tensors:
                tensor.add_(1000.0)
        else:
            found += bytes(next(pieces, b""))
    assert found + b"".join(bytes(piece) for piece in pieces) == expected
    assert snapshot.num_copied <= len(expected)


def test_a_change_waits_until_the_unread_rest_fits_the_budget() -> None:
    tensors = [torch.zeros(100) for _ in range(10)]
    snapshot = TensorSnapshot(tensors, 0.2, 400)
    order: list[str] = []

    def change() -> None:
        snapshot.keep()
        order.append("changed")
        for tensor in tensors:
            tensor.fill_(1.0)

    pieces = snapshot.pieces(snapshot.num_bytes)
    content = [bytes(next(pieces)) for _ in range(7)]
    thread = threading.Thread(target=change)
    thread.start()
    order.append("not yet")  # three tenths are unread
    content.append(bytes(next(pieces)))
    thread.join(60)
    assert order == ["not yet", "changed"]
    assert snapshot.num_copied == 800
    assert b"".join([*content, *map(bytes, pieces)]) == bytes(4000)


def test_nobody_waits_for_a_snapshot_that_nobody_reads() -> None:
    snapshot = TensorSnapshot([torch.zeros(100)], 0.0)
    thread = threading.Thread(target=snapshot.keep)
    thread.start()
    snapshot.abandon()
    thread.join(60)
    assert not thread.is_alive()


def test_the_file_is_safetensors_in_both_directions(tmp_path: Path) -> None:
    snapshot = TensorSnapshot(TENSORS.values(), 1.0, 64)
    path = tmp_path / "ours.safetensors"
    header, num_bytes = header_of(TENSORS)
    written = write_pieces(path, chain([header], snapshot.pieces(num_bytes)))
    safetensors.torch.save_file(TENSORS, tmp_path / "theirs.safetensors")
    assert written == measured(path)
    for found in (safetensors.torch.load_file(path), TensorFile(path), TensorFile(tmp_path / "theirs.safetensors")):
        assert found.keys() == TENSORS.keys()
        assert all(torch.equal(found[name], tensor) for name, tensor in TENSORS.items())
    assert TensorFile(path).shape_of("matrix") == (7, 5)


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff" * 8, b"\x02" + bytes(7) + b"[]", b'\x44\0\0\0\0\0\0\0{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}' + bytes(20)],
)  # fmt: skip
def test_another_file_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(WeightsRefused, match=str(tmp_path / "x")) as refused:
        TensorFile(tmp_path / "x")
    assert refused.value.code in {"truncated", "not_safetensors"}


def test_a_file_that_ends_in_a_tensor_is_refused(tmp_path: Path) -> None:
    safetensors.torch.save_file(TENSORS, tmp_path / "x")
    (tmp_path / "x").write_bytes((tmp_path / "x").read_bytes()[:-1])
    with pytest.raises(WeightsRefused, match="ends before its tensor"):
        TensorFile(tmp_path / "x")
