"""What a process writes to standard error: log lines, text or JSON.

`configure` is called once in each process, and again after a library was imported that installs
handlers of its own (LitServe, torch, transformers): it takes them away. Knows nothing of HTTP.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

from server.config import LogSection

LIBRARIES = ("httpx", "huggingface_hub", "litserve", "timm", "torch", "transformers", "uvicorn")
# Loggers below those of LIBRARIES that are given handlers of their own.
CHILDREN = ("uvicorn.access", "uvicorn.error")
STANDARD_FIELDS = {*vars(logging.makeLogRecord({})), "message", "asctime", "color_message"}


def configure(section: LogSection, process: str) -> None:
    """Everything that is logged or warned in this process goes to stderr, in one format."""
    handler = StderrHandler()
    handler.setFormatter(JsonLines(process) if section.format == "json" else TextLines(process))
    level = logging.getLevelNamesMapping()[section.level.upper()]
    logging.basicConfig(handlers=[handler], level=level, force=True)
    logging.captureWarnings(True)
    for name in (*LIBRARIES, *CHILDREN):
        library = logging.getLogger(name)
        library.handlers.clear()
        library.propagate = True
        # What a library tells of its ordinary work is for who debugs it.
        library.setLevel(max(level, logging.WARNING) if level > logging.DEBUG else level)


class StderrHandler(logging.Handler):
    """Writes to what `sys.stderr` is at that moment: a live display puts itself there."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
        except Exception:  # the contract of Handler.emit: a log call never raises
            self.handleError(record)


class TextLines(logging.Formatter):
    """`2026-11-30 12:00:00.123 INFO    worker  message  key=value`."""

    def __init__(self, process: str) -> None:
        line = f"%(asctime)s.%(msecs)03d %(levelname)-7s {process:<6}  %(message)s"
        super().__init__(line, "%Y-%m-%d %H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:
        fields = "".join(f"  {key}={value}" for key, value in _extra(record).items())
        return super().formatMessage(record).rstrip() + fields


class JsonLines(logging.Formatter):
    """One JSON object a line; what a call passed as `extra` stands beside the usual fields."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        stamp = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        entry = {
            **_extra(record),
            "ts": stamp.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "process": self._process,
            "logger": record.name,
            "message": record.getMessage().rstrip(),
        }
        if record.exc_info:
            entry["exc_info"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    return {key: value for key, value in vars(record).items() if key not in STANDARD_FIELDS}
