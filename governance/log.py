"""Structured log lines: JSON on stderr with tenant, run and step wherever they are known."""

from __future__ import annotations

import logging
import sys
from contextlib import AbstractContextManager
from typing import Any

import structlog


def configure(level: str, process: str) -> None:
    """Once per process, before anything logs."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    structlog.contextvars.bind_contextvars(process=process)


def about(**known: Any) -> AbstractContextManager[None]:
    """Every line inside carries these: tenant, run, step."""
    return structlog.contextvars.bound_contextvars(**{name: value for name, value in known.items() if value != ""})


def get(room: str) -> Any:
    """The logger of one room."""
    return structlog.get_logger(room=room)
