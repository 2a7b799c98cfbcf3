"""Structured logs: one JSON object a line on standard output, except where a person watches.

What a line is about is bound by whoever knows it: process, request, key, version. Prompts and answers never stand there.
"""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress
from typing import TextIO, cast

import structlog

LEVEL = "MILLRACE_LOG"
"""debug (every request), info, warning or error; info if absent."""


class LossyFile:
    """A text file that drops what a full disk cannot take: a line of a log must not end what it tells of."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> None:
        """As of a file."""
        with suppress(OSError):
            self._file.write(text)

    def flush(self) -> None:
        """As of a file."""
        with suppress(OSError):
            self._file.flush()


def set_up_logs(process: str) -> None:
    """Call once, first thing in a process."""
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer() if sys.stdout.isatty() else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            lambda _logger, _method, line: {"process": process, **line},  # other threads have no bound context
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_level()),
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", LossyFile(sys.stdout))),
    )


def _level() -> int:
    return logging.getLevelNamesMapping().get(os.environ.get(LEVEL, "info").upper(), logging.INFO)
