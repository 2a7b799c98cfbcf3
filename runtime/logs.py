"""Structured logs: one JSON object per line on standard output, text in a terminal. They never contain prompts or answers."""

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
    """A text file that drops lines when the disk is full: logging must never stop the process."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> None:
        """See `TextIO`."""
        with suppress(OSError):
            self._file.write(text)

    def flush(self) -> None:
        """See `TextIO`."""
        with suppress(OSError):
            self._file.flush()


def set_up_logs(process: str) -> None:
    """Configure logging. Call it once, before anything else in a process."""
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer() if sys.stdout.isatty() else structlog.processors.JSONRenderer()
    )
    level = logging.getLevelNamesMapping().get(os.environ.get(LEVEL, "info").upper(), logging.INFO)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            lambda _logger, _method, line: {"process": process, **line},  # threads do not inherit the bound context
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", LossyFile(sys.stdout))),
    )
