"""A server that somebody else runs."""

from __future__ import annotations


class GivenServer:
    """It is neither started nor ended."""

    def __init__(self, url: str) -> None:
        self.address: tuple[str, str] | None = (url, "given")

    def start(self) -> None:
        """Does nothing."""

    def renew(self) -> None:
        """Does nothing."""

    def end(self) -> None:
        """Does nothing."""
