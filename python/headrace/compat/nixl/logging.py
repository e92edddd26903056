# SPDX-License-Identifier: Apache-2.0
"""The loggers of this package. As in NIXL they are below "nixl", write to stdout, and have the level of
NIXL_LOG_LEVEL."""

from __future__ import annotations

import logging
import logging.config
import os
from typing import Any

import headrace

LOGGING_CONFIG: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "line": {
            "format": "%(asctime)s headrace.compat.nixl %(levelname)s %(message)s",
            "datefmt": "%Y-%m-%d %H:%M:%S",
        }
    },
    "handlers": {
        "console": {"class": "logging.StreamHandler", "formatter": "line", "stream": "ext://sys.stdout"}
    },
    "loggers": {"nixl": {"level": "INFO", "handlers": ["console"], "propagate": False}},
}

LEVELS = {
    "TRACE": logging.DEBUG,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}

HEADRACE_LEVELS = {
    logging.DEBUG: "debug",
    logging.INFO: "info",
    logging.WARNING: "warn",
    logging.ERROR: "error",
    logging.CRITICAL: "error",
}

_configured = False


def set_log_level_by_env(nixl_logger: logging.Logger) -> None:
    """Sets the level that NIXL_LOG_LEVEL names, also of Headrace's own log. An unknown word gives a warning
    and changes nothing."""
    word = os.environ.get("NIXL_LOG_LEVEL", "")
    if not word:
        return
    level = LEVELS.get(word.upper())
    if level is None:
        nixl_logger.warning(
            "NIXL_LOG_LEVEL must be one of %s, and is %r: the level does not change", ", ".join(LEVELS), word
        )
        return
    nixl_logger.setLevel(level)
    if "HEADRACE_LOG" not in os.environ:
        headrace.set_log_level(HEADRACE_LEVELS[level])


def setup_logging() -> None:
    """Configures the loggers, once."""
    global _configured
    if _configured:
        return
    _configured = True
    logging.config.dictConfig(LOGGING_CONFIG)
    set_log_level_by_env(logging.getLogger("nixl"))


def get_logger(name: str) -> logging.Logger:
    """Returns the logger of that name, below "nixl"."""
    setup_logging()
    return logging.getLogger(f"nixl.{name.lstrip('_')}")
