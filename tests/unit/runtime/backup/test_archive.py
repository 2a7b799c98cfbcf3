import random
import tarfile
import tracemalloc
from pathlib import Path
from typing import Any

import msgspec
import pytest

from contracts.errors import Conflict, Damaged, InvalidSettings, Unavailable
from runtime.backup.archive import CONTENTS, FORMAT, HEADER, BackupHeader, read_header, unpack, writing
from tests.worlds.hostile_files import SPARSE_BYTES

OURS = BackupHeader(
    format=FORMAT, release="Millrace 1", schema="s1", policy="p", run="r", home="/h", taken_at=1.0, database="sqlite",
    log="home", weights="home", ends={}, days=(),
)  # fmt: skip
BIG = random.Random(1).randbytes(9_000_000)


def write(path: Path, **changed: Any) -> Path:
    with writing(path) as writer:
        writer.add_bytes(HEADER, msgspec.json.encode(msgspec.structs.replace(OURS, **changed)))
        writer.add_bytes("home/log/big", BIG)
        writer.add_bytes("home/empty", b"")
    return path


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_was_written_is_unpacked(tmp_path: Path) -> None:
    path = write(tmp_path / "b")
    assert read_header(path, "s1", "Millrace 1") == OURS
    unpack(path, tmp_path / "to")
    assert contents(tmp_path / "to" / "home") == {"log/big": BIG, "empty": b""}
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_backup_overwrites_nothing_and_one_that_fails_leaves_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "b")
    with pytest.raises(Conflict, match="a backup overwrites nothing"):
        write(path)
    with pytest.raises(Unavailable, match="became shorter"), writing(tmp_path / "c") as writer, path.open("rb") as file:
        writer.add("home/x", file, path.stat().st_size + 1)
    assert [item.name for item in tmp_path.iterdir()] == ["b"]


def test_another_format_and_another_release_are_named(tmp_path: Path) -> None:
    write(tmp_path / "later", format=FORMAT + 1, release="Millrace 9")
    says = f"format {FORMAT + 1}, written by Millrace 9; Millrace 1 reads format {FORMAT}: restore it with"
    with pytest.raises(InvalidSettings, match=says):
        read_header(tmp_path / "later", "s1", "Millrace 1")
    write(tmp_path / "other", schema="s0", release="Millrace 0")
    says = "a backup of Millrace 0 with schema s0; Millrace 1 has schema s1: restore it with"
    with pytest.raises(InvalidSettings, match=says):
        read_header(tmp_path / "other", "s1", "Millrace 1")


@pytest.mark.parametrize("content", [b"", b"notes", b"x" * 20_000])
def test_a_file_that_is_no_backup_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "b").write_bytes(content)
    with pytest.raises(InvalidSettings, match="is not a backup of Millrace"):
        read_header(tmp_path / "b", "s1", "r")
    with pytest.raises(InvalidSettings, match="does not exist"):
        read_header(tmp_path / "none", "s1", "r")


def test_every_flipped_bit_is_found_or_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "b"
    with writing(path) as writer:
        writer.add_bytes(HEADER, msgspec.json.encode(OURS))
        writer.add_bytes("home/a", BIG[:3000])
        writer.add_bytes("home/b", BIG[:700])
    whole, draw, found = path.read_bytes(), random.Random(2), 0
    for number in range(400):
        place = draw.randrange(len(whole))
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << draw.randrange(8)]) + whole[place + 1 :])
        to = tmp_path / f"to{number}"
        try:
            header = read_header(path, "s1", "Millrace 1")
            unpack(path, to)
        except (Damaged, InvalidSettings):
            found += 1
        else:
            assert header == OURS, place
            assert contents(to / "home") == {"a": BIG[:3000], "b": BIG[:700]}, place
    assert found > 100


def test_a_file_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "b")
    whole = path.read_bytes()
    for share in (0.3, 0.9, 0.999):
        path.write_bytes(whole[: int(len(whole) * share)])
        with pytest.raises(Damaged, match="Nothing was changed"):
            unpack(path, tmp_path / f"to{share}")


@pytest.mark.parametrize("name", ["home/../../out", "/tmp/out", "other/out", "."])  # noqa: S108 a name inside an archive
def test_names_that_lead_elsewhere_are_refused(tmp_path: Path, name: str) -> None:
    with tarfile.open(tmp_path / "b", "w") as archive:
        archive.addfile(tarfile.TarInfo(name))
    with pytest.raises(Damaged, match="no file of a backup"):
        unpack(tmp_path / "b", tmp_path / "to" / "to")
    assert [path.name for path in tmp_path.rglob("out")] == []


def sparse_of_gnu(name: str) -> bytes:
    """A header that claims a file of 3 GB, and that all but a byte of it are holes."""
    info = tarfile.TarInfo(name)
    info.type, info.size = tarfile.GNUTYPE_SPARSE, 1
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    header[386:410] = f"{SPARSE_BYTES - 1:011o}\0{1:011o}\0".encode()
    header[483:495] = f"{SPARSE_BYTES:011o}\0".encode()
    header[148:156] = f"{sum(header[:148]) + 8 * 32 + sum(header[156:]):06o}\0 ".encode()
    return bytes(header) + b"x".ljust(tarfile.BLOCKSIZE, b"\0")


def sparse_of_pax(name: str, version: str) -> bytes:
    """The same in the three forms of pax."""
    pairs = f"{SPARSE_BYTES - 1},1"
    heads = {
        "0.0": {"GNU.sparse.size": str(SPARSE_BYTES), "GNU.sparse.numblocks": "1", "GNU.sparse.offset": str(SPARSE_BYTES - 1), "GNU.sparse.numbytes": "1"},
        "0.1": {"GNU.sparse.size": str(SPARSE_BYTES), "GNU.sparse.numblocks": "1", "GNU.sparse.map": pairs},
        "1.0": {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(SPARSE_BYTES), "GNU.sparse.name": name},
    }  # fmt: skip
    content = b"x".ljust(tarfile.BLOCKSIZE, b"\0")
    if version == "1.0":
        content = f"1\n{SPARSE_BYTES - 1}\n1\n".encode().ljust(tarfile.BLOCKSIZE, b"\0") + content
    info = tarfile.TarInfo(name)
    info.size, info.pax_headers = len(content), heads[version]
    return info.tobuf(tarfile.PAX_FORMAT) + content


@pytest.mark.parametrize("kind", ["gnu", "0.0", "0.1", "1.0"])
@pytest.mark.parametrize("name", [HEADER, CONTENTS, "home/log/big"])
def test_a_sparse_member_is_refused_before_it_is_read_or_written(kind: str, name: str, tmp_path: Path) -> None:
    member = sparse_of_gnu(name) if kind == "gnu" else sparse_of_pax(name, kind)
    (tmp_path / "b").write_bytes(member + bytes(2 * tarfile.BLOCKSIZE))
    with tarfile.open(tmp_path / "b") as archive:
        assert archive.getmembers()[0].size == SPARSE_BYTES
    tracemalloc.start()
    with pytest.raises(Damaged, match=r"no file of a backup|no plain file"):
        unpack(tmp_path / "b", tmp_path / "to")
    if name == HEADER:
        with pytest.raises(Damaged, match="no plain file"):
            read_header(tmp_path / "b", "s1", "r")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50_000_000
    assert not any(path.is_file() for path in (tmp_path / "to").rglob("*"))


def test_a_long_header_is_refused(tmp_path: Path) -> None:
    with writing(tmp_path / "b") as writer:
        writer.add_bytes(HEADER, b" " * (2**20 + 1))
    with pytest.raises(Damaged, match=f"{HEADER} is no plain file of at most"):
        read_header(tmp_path / "b", "s1", "r")
