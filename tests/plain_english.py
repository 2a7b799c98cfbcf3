"""Phrases that a newcomer has to decode. `python -m tests.plain_english PATH...` lists them; it exits with 1 if there are any.

Reads comments, docstrings and other strings of Python files, and Markdown files without their code blocks.
"""

from __future__ import annotations

import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

PATTERNS = (
    r"\b(?:for|of|to|by|from|with|than|as|but|in|before|beside|at) who\b",  # for readers that ...
    r"\b(?:that|which|what|and|or|it|who) (?:is|are|was|were) none\b",  # is not a ..., there are no ...
    r"\bsuch an? one\b",
    r"\bof what\b",
    r"\b[Ww]hat (?:is|has|was|are) no(?:body|ne)?\b",  # anything that is not ...
    r"\bnobody's\b",
    r"\bhas nobody\b",
    r"\bwhose \w+ it is\b",
    r"\b[Ss]o (?:long|large|many|old|often|few|much|small) an?\b",
    r"\bin vain\b",  # without success
    r"\bfor ever\b",
    r"\bof (?:before|old)\b",  # older
    r"\bto be had\b",
    r"\bis nobody\b",
    r"\btells? of\b",
    r"\b(?:stand|lie)s? there\b",
    r"\bkin\b",
    r"\bspared\b",
    r"\bWho (?:reads|writes|asks|has|can|cannot|may|does|wants|knows|needs|sends|takes) [^?.|:;]{0,60}\b(?:is|are|has|gets|finds|waits|must|can)\b",
)
_HARD = re.compile("|".join(PATTERNS))
_CODE_BLOCK = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
ROOTS = (
    "README.md", "CONTRIBUTING.md", "docs", "clients", "commands", "contracts", "deploy", "engines", "examples", "migrations", "millrace.py",
    "pipelines", "policy", "rewards", "runtime", "services", "weights", "benchmarks", "tests",
)  # fmt: skip


def hard_phrases(path: Path) -> Iterator[tuple[int, str]]:
    """Line number and phrase, of one file."""
    text = path.read_text()
    if path.suffix == ".md":
        blank = _CODE_BLOCK.sub(lambda block: "\n" * block[0].count("\n"), text)
        pieces = [(1, blank)]
    else:
        kinds = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        pieces = [(token.start[0], token.string) for token in tokens if token.type in kinds]
    for line, piece in pieces:
        # A phrase may be broken over two lines.
        joined = re.sub(r"\n *(?:# )?", lambda gap: "\n" + " " * (len(gap[0]) - 1), piece)
        for found in _HARD.finditer(re.sub(r"\s", " ", joined)):
            yield line + joined.count("\n", 0, found.start()), re.sub(r"\s+", " ", found[0])


def files_below(paths: list[Path]) -> Iterator[Path]:
    """Python and Markdown files, without this one and its test."""
    for path in paths:
        inside = [path] if path.is_file() else sorted(path.rglob("*"))
        yield from (
            file for file in inside if file.suffix in {".py", ".md"} and not file.name.endswith("plain_english.py")
        )


def main(arguments: list[str]) -> int:
    """List the phrases below the paths."""
    found = [
        f"{file}:{line}: {phrase}"
        for file in files_below([Path(name) for name in arguments or ROOTS if Path(name).exists()])
        for line, phrase in hard_phrases(file)
    ]
    sys.stdout.writelines(f"{phrase}\n" for phrase in found)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
