"""The values of an export, whole or damaged, in any layout."""

from __future__ import annotations

import gzip
import io
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from commands.imports.elements import MAX_ELEMENT_BYTES, elements, opened
from contracts.errors import InvalidSettings

ROWS = [{"place": place, "text": 'a"\\b{[}]\u20ac' + "x" * (place * 7)} for place in range(100)]
LINES = [json.dumps(row).encode() for row in ROWS]
PAGES = [json.dumps({"data": ROWS[start : start + 20], "meta": {"n": [{"number": 1}]}}) for start in range(0, 100, 20)]
LONG = b'{"text": "' + b"y" * (MAX_ELEMENT_BYTES + 2**20) + b'"}'
WHOLE = [(row, "") for row in ROWS]


def read(content: bytes, chunk: int = 2**20) -> list[tuple[object, str]]:
    return [(found.value, found.problem) for found in elements(io.BytesIO(content), chunk)]


@pytest.mark.parametrize("chunk", [211, 2**20])
@pytest.mark.parametrize(
    "content",
    [
        b"\n".join(LINES),
        b"[" + b",\n".join(LINES) + b"]",
        json.dumps(ROWS, indent=2).encode(),
        b"\n".join(json.dumps(row, indent=1).encode() for row in ROWS),
        b'{"object": "list", "first": 7, "data": [' + b",\n".join(LINES) + b'], "more": {"rows": [{"place": 1}]}}',
        json.dumps({"data": ROWS, "meta": {"page": [{"number": 2}]}}, indent=2).encode(),
        "\n".join(PAGES).encode(),
    ],
    ids=["lines", "array", "pretty", "values", "dump", "pretty dump", "pages"],
)
def test_every_layout_has_the_same_rows(content: bytes, chunk: int) -> None:
    assert read(content, chunk) == WHOLE


@pytest.mark.parametrize("join", [b"\n".join, lambda lines: b"[" + b",".join(lines)], ids=["lines", "array"])
def test_what_is_cut_or_too_long_is_named_and_the_rest_is_read(join: Callable[[list[bytes]], bytes]) -> None:
    assert read(join(LINES)[:-9]) == [*WHOLE[:-1], (None, "cut_off")]
    assert read(join([LINES[0], LONG, *LINES[1:]]))[:3] == [WHOLE[0], (None, "too_long"), WHOLE[1]]


def test_an_export_whose_beginning_is_missing_loses_one_line() -> None:
    assert read(b'{"text": "a\n' + b"\n".join(LINES)) == [(None, "invalid_json"), *WHOLE]
    assert read(b'end"}\n' + b"\n".join(LINES)) == [(None, "invalid_json"), *WHOLE]


def test_each_row_of_a_page_ends_at_a_place_of_its_own() -> None:
    ends = [found.end for found in elements(io.BytesIO("\n".join(PAGES).encode()))]
    assert ends == sorted(set(ends))
    assert ends[19] == len(PAGES[0]) + 1


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_other_encodings_are_read_as_they_are(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "export.jsonl"
    path.write_text('{"text": "caf\u00e9 \u20ac"}\n{"text": "2"}\n', encoding=encoding)
    with opened(str(path)) as file:
        assert [found.value for found in elements(file)] == [{"text": "caf\u00e9 \u20ac"}, {"text": "2"}]


def test_a_line_that_is_not_utf_8_is_read_as_latin_1_and_says_so() -> None:
    found = list(elements(io.BytesIO(b'{"text": "caf\xe9"}\n{"text": "2"}\n')))
    assert [(item.value, item.is_latin1) for item in found] == [({"text": "caf\u00e9"}, True), ({"text": "2"}, False)]


def test_a_missing_and_a_compressed_file_are_refused_by_name(tmp_path: Path) -> None:
    packed = tmp_path / "export.gz"
    packed.write_bytes(gzip.compress(b"{}"))
    for path, said in ((packed, "zcat"), (tmp_path / "none", "No such file")):
        with pytest.raises(InvalidSettings, match=said), opened(str(path)):
            pass


def test_a_pipe_is_read_as_a_file_is() -> None:
    reader, writer = os.pipe()
    os.write(writer, b'{"place": 1}\n{"place": 2}\n')
    os.close(writer)
    with opened(f"/dev/fd/{reader}") as file:
        for _ in range(2):
            assert [found.value for found in elements(file)] == [{"place": 1}, {"place": 2}]
    os.close(reader)
