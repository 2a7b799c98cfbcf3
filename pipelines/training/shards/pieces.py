"""What each of several processes writes of a checkpoint, and reads of one.

    weights-00002-of-00004.safetensors     rank 1's rows of the masters
    optimizer-00002-of-00004.safetensors   and of their moments
    written-00002.json                     both are durable, says rank 1 to rank 0, which removes it
    weights.index.json                     PieceIndex by rank 0, after all have written; then the manifest

The ranks share the folder: they are on one machine, or on one file system. Another number of ranks reads its rows out of the same files.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import TYPE_CHECKING

import msgspec
import structlog
import torch

from contracts.errors import MillraceError, Unavailable, WeightsRefused
from contracts.faults import FaultPoint, no_fault
from contracts.files import read_small
from pipelines.training.checkpoints.checkpoint_names import INDEX, MOMENTS, WEIGHTS, PieceIndex, Written, piece_name
from pipelines.training.checkpoints.tensor_files import TakenTensors, TensorFile, open_tensors, write_pieces
from weights.files import write_durably
from weights.rows import rows_of

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future
    from pathlib import Path

    from pipelines.training.learning.masters import Masters

PIECE_SECONDS = 120.0
"""How long rank 0 waits for the pieces of the others once its own is durable: theirs are as large."""
_LOOK_SECONDS = 0.02
_NOTE = "written-{:05d}.json"

log = structlog.get_logger()


class LocalRows(Mapping[str, torch.Tensor]):
    """What one of several processes holds of some tensors: its rows, and numbers whole."""

    def __init__(
        self, rank: int, world: int, shapes: Mapping[str, tuple[int, ...]], local: Callable[[str], torch.Tensor]
    ) -> None:
        """`shapes`: of the whole tensors; `local`: a name to this rank's rows."""
        self.rank, self.world, self.shapes, self._local = rank, world, shapes, local

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._local(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)

    def shape_of(self, name: str) -> tuple[int, ...]:
        """The shape of a whole tensor."""
        return self.shapes[name]

    @classmethod
    def masters(cls, rank: int, world: int, shapes: Mapping[str, tuple[int, ...]], held: Masters) -> Masters:
        """Weights and moments of a rank as its optimizer holds them. `shapes`: of the whole weights."""
        weights, moments = held
        whole = {key: shapes[key.partition("/")[2]] if tensor.ndim else () for key, tensor in moments.items()}
        return cls(rank, world, shapes, weights.__getitem__), cls(rank, world, whole, moments.__getitem__)

    @classmethod
    def read(cls, folder: Path, rank: int, world: int) -> Masters:
        """What a rank holds of a checkpoint, whatever number of ranks wrote it; read when it is asked for. Raises as `open_tensors`."""

        def rows_in_file(file: TensorFile) -> LocalRows:
            shapes = {name: file.shape_of(name) for name in file}

            def local(name: str) -> torch.Tensor:
                first, last, shape = rows_of(rank, world, shapes[name])
                return file.rows(name, first, last) if shape else file[name]

            return cls(rank, world, shapes, local)

        return rows_in_file(open_tensors(folder, WEIGHTS)), rows_in_file(open_tensors(folder, MOMENTS))

    @property
    def piece(self) -> dict[str, torch.Tensor]:
        """What this rank writes. Every rank has the same numbers: rank 0 writes them."""
        return {name: tensor for name, tensor in self.items() if self.shapes[name] or self.rank == 0}


class _Note(msgspec.Struct, frozen=True):
    """From a rank to rank 0. `problem`: why there are no files."""

    checkpoint: str
    files: dict[str, Written]
    problem: str = ""


class PieceWriter:
    """Writes what a rank other than 0 holds. One per rank, in its thread; the writing is in the executor's."""

    def __init__(self, rank: int, executor: Executor, fault: FaultPoint = no_fault) -> None:
        self._rank, self._executor, self._fault = rank, executor, fault
        self._taken: TakenTensors | None = None
        self._job: Future[None] | None = None

    def begin(self, folder: Path, held: Masters, budget: float) -> None:
        """Take what is held now, and write it. `budget`: see `TensorSnapshot`. Waits for a piece before it that is not written yet.

        What fails is told to rank 0 and to the log, and ends nothing here: the next checkpoint holds what this one would have.
        """
        if self._job is not None:
            self._job.result()
        taken = TakenTensors(files_of(held), budget)
        self._taken, self._job = taken, self._executor.submit(self._write, taken, folder)

    def keep(self) -> None:
        """Return when what is held may change."""
        if self._taken is not None:
            self._taken.keep()

    def _write(self, taken: TakenTensors, folder: Path) -> None:
        path = folder / _NOTE.format(self._rank + 1)
        try:
            try:
                note = _Note(folder.name, taken.write(folder, self._fault))
            except (OSError, MillraceError) as error:
                log.error("this rank's piece of a checkpoint is not written", folder=str(folder), reason=str(error))  # noqa: TRY400 a disk
                note = _Note(folder.name, {}, str(error))
            self._fault(f"checkpoint: before {path.name}")
            write_durably(path, [msgspec.json.encode(note)])
        except (OSError, Unavailable) as error:  # rank 0 waits, and then does without this checkpoint
            log.error("rank 0 is not told of a piece", folder=str(folder), reason=str(error))  # noqa: TRY400 a disk
        finally:
            taken.abandon()


class OtherPieces:
    """What rank 0 needs to know to wait for the pieces of the others; nothing if it holds all."""

    def __init__(self, held: Masters, seconds: float) -> None:
        """`seconds`: how long to wait."""
        self._shapes = {
            file: tensors.shapes
            for file, tensors in zip((WEIGHTS, MOMENTS), held, strict=True)
            if isinstance(tensors, LocalRows)
        }
        self._world = next((tensors.world for tensors in held if isinstance(tensors, LocalRows)), 1)
        self._seconds = seconds

    @property
    def are_any(self) -> bool:
        """True if other ranks write."""
        return self._world > 1

    def gather(self, folder: Path, fault: FaultPoint) -> dict[str, Written]:
        """Wait until all are durable, and write the index. Returns facts of all files that rank 0 has not written before.

        Raises Unavailable: a rank has not written in time, or the disk is full; FileNotFoundError: the folder was removed;
        WeightsRefused: a piece is not of this checkpoint (`other_piece`), or has other rows (`other_rows`).
        """
        written, index = dict[str, Written](), PieceIndex(shapes={}, files={})
        if not self.are_any:
            return written
        fault(f"checkpoint: before {INDEX}")
        ends = time.monotonic() + self._seconds
        for rank, (file, shapes) in product(range(self._world), self._shapes.items()):
            index.shapes.update(shapes)
            rows = {name: rows_of(rank, self._world, shape)[:2] for name, shape in shapes.items() if shape or rank == 0}
            index.files[piece_name(file, rank, self._world)] = rows
        for rank in range(1, self._world):
            note = _wait(folder, rank, ends, self._seconds)
            expected = {piece_name(file, rank, self._world) for file in self._shapes}
            if note.checkpoint != folder.name or note.files.keys() != expected:
                said = f"rank {rank} wrote {sorted(note.files)} of {note.checkpoint}, not a piece of {folder.name}"
                raise WeightsRefused("other_piece", said)
            written |= note.files
        written[INDEX] = write_pieces(folder / INDEX, [msgspec.json.encode(index)])
        for file in self._shapes:
            open_tensors(folder, file)
        return written


def files_of(held: Masters) -> dict[str, Mapping[str, torch.Tensor]]:
    """What this process writes of weights and moments, by file."""
    files = dict[str, Mapping[str, torch.Tensor]]()
    for file, tensors in zip((WEIGHTS, MOMENTS), held, strict=True):
        if isinstance(tensors, LocalRows):
            files[piece_name(file, tensors.rank, tensors.world)] = tensors.piece
        else:
            files[file] = tensors
    return files


def _wait(folder: Path, rank: int, ends: float, seconds: float) -> _Note:
    path = folder / _NOTE.format(rank + 1)
    while not path.exists():
        if not folder.is_dir():
            raise FileNotFoundError(folder)
        if time.monotonic() >= ends:
            raise Unavailable(
                f"rank {rank} wrote no piece of {folder.name} within {seconds:g} s: see its log, its disk and that it shares {folder.parent}"
            )
        time.sleep(_LOOK_SECONDS)
    try:
        note = msgspec.json.decode(read_small(path), type=_Note)
    except msgspec.MsgspecError as error:
        raise WeightsRefused("other_piece", f"{path} is damaged: {error}") from error
    if note.problem:
        raise Unavailable(f"rank {rank} cannot write its piece of {folder.name}: {note.problem}")
    path.unlink()
    return note
