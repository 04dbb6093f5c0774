"""Log lines as text or JSON, each with the id of the request that it belongs to. What is logged is named by the caller: no metadata of
calls, so no token, and nothing of a graph."""

from __future__ import annotations

import contextvars
import datetime
import json
import logging
import re
import sys
import uuid
from typing import Any

#: of the request that the running task works for; "-" outside of one
request_id: contextvars.ContextVar[str] = contextvars.ContextVar("request_id", default="-")
_ID = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


def clean_id(given: object) -> str:
    """The id that a client gave (metadata ``x-request-id``) if it is one, else a new one."""
    text = given.decode("utf-8", "replace") if isinstance(given, bytes) else given
    return text if isinstance(text, str) and _ID.fullmatch(text) else uuid.uuid4().hex


def event(log: logging.Logger, level: int, message: str, /, **fields: Any) -> None:
    """Logs a message with named values."""
    if log.isEnabledFor(level):
        log.log(level, message, extra={"fields": fields})


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        time = datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(timespec="milliseconds")
        line = {"time": time, "level": record.levelname, "logger": record.name, "message": record.getMessage()}
        line["request"] = request_id.get()
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        time = datetime.datetime.fromtimestamp(record.created).isoformat(sep=" ", timespec="milliseconds")
        fields = "".join(f" {k}={_word(v)}" for k, v in getattr(record, "fields", {}).items())
        line = f"{time} {record.levelname.lower()} [{request_id.get()}] {_word(record.getMessage(), ' ')}{fields}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _word(value: object, allowed: str = "") -> str:
    """A value on one line that cannot be taken for another field."""
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if all(c.isprintable() and (not c.isspace() or c in allowed) and c != '"' for c in text) and text else json.dumps(text)


def configure(form: str, level: str) -> None:
    """Log to standard error. form: ``text`` or ``json``."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if form == "json" else _Text())
    logger = logging.getLogger("disc_tf_server")
    logger.handlers[:] = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False
