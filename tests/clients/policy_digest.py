"""Which policy `trained/` holds: a digest of everything that decides how it comes out. Without torch."""

from __future__ import annotations

import hashlib
from pathlib import Path

HERE = Path(__file__).parent
POLICY = HERE / "trained"
MARK = POLICY / "made-from"
BASE = HERE.parent.parent / "examples" / "reservations" / "base"
SOURCES = (
    HERE / "policy.py",
    HERE / "lessons.py",
    HERE / "chat_template.jinja",
    BASE / "tokenizer.json",
    BASE.parent / "fitting.py",
)


def digest() -> str:
    """It changes when the policy has to be made again."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in SOURCES)).hexdigest()
