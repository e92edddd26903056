# SPDX-License-Identifier: Apache-2.0
"""pplx_garden.utils.logging_utils: a log in colours on stderr."""

from __future__ import annotations

import logging
import os
import warnings

TIME = "%Y-%m-%d %H:%M:%S"
PLAIN = "[%(asctime)s.%(msecs)03d] %(process)d %(levelname)-8s %(name)s %(message)s"
RED, GREEN, CYAN, END = "\x1b[31m", "\x1b[32m", "\x1b[36;1m", "\x1b[0m"
LEVELS = {
    logging.DEBUG: "\x1b[40;1m",
    logging.INFO: "\x1b[34;1m",
    logging.WARNING: "\x1b[33;1m",
    logging.ERROR: RED,
    logging.CRITICAL: "\x1b[41m",
}

_is_set_up = False


class LoggerFormatter(logging.Formatter):
    """Lines with the colour of their level; tracebacks are red."""

    def __init__(self) -> None:
        super().__init__(datefmt=TIME)
        self._layouts = {level: logging.PercentStyle(_coloured(colour)) for level, colour in LEVELS.items()}

    def formatMessage(self, record: logging.LogRecord) -> str:
        layout = self._layouts.get(record.levelno, self._layouts[logging.DEBUG])
        return layout.format(record)

    def formatException(self, ei: object) -> str:
        return f"{RED}{super().formatException(ei)}{END}"  # type: ignore[arg-type]

    def format(self, record: logging.LogRecord) -> str:
        cached, record.exc_text = record.exc_text, None  # another handler's has no colours
        try:
            return super().format(record)
        finally:
            record.exc_text = cached

    def usesTime(self) -> bool:
        return True


def _coloured(colour: str) -> str:
    return (
        f"{CYAN}[%(asctime)s.%(msecs)03d]{END} %(process)d {colour}%(levelname)-8s{END} "
        f"{GREEN}%(name)s{END} %(message)s"
    )


def setup(*, handler: logging.Handler | None = None, level: str | int | None = None) -> None:
    """Gives the root logger one handler, and drops UserWarning and FutureWarning. Only the first call counts.

    handler: default: stderr. Its lines have colours, but where the environment has DD_ENV.
    level: default: INFO.
    """
    global _is_set_up
    if _is_set_up:
        return
    _is_set_up = True

    handler = handler or logging.StreamHandler()
    handler.setFormatter(logging.Formatter(PLAIN, TIME) if os.environ.get("DD_ENV") else LoggerFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level or logging.INFO)
    for category in (UserWarning, FutureWarning):
        warnings.filterwarnings("ignore", category=category)


def get_logger(path: str) -> logging.Logger:
    return logging.getLogger(path)
