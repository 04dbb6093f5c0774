"""Errors that a client sees: a status code, as gRPC and TensorFlow number them, and a message."""

from __future__ import annotations

from typing import Any

CODES: dict[str, int] = {
    "OK": 0,
    "CANCELLED": 1,
    "UNKNOWN": 2,
    "INVALID_ARGUMENT": 3,
    "DEADLINE_EXCEEDED": 4,
    "NOT_FOUND": 5,
    "ALREADY_EXISTS": 6,
    "PERMISSION_DENIED": 7,
    "RESOURCE_EXHAUSTED": 8,
    "FAILED_PRECONDITION": 9,
    "ABORTED": 10,
    "OUT_OF_RANGE": 11,
    "UNIMPLEMENTED": 12,
    "INTERNAL": 13,
    "UNAVAILABLE": 14,
    "DATA_LOSS": 15,
    "UNAUTHENTICATED": 16,
}
NAMES = {number: name for name, number in CODES.items()}

#: code -> HTTP status of ModelServer's REST API
HTTP_STATUS: dict[str, int] = {
    "OK": 200,
    "CANCELLED": 499,
    "UNKNOWN": 500,
    "INVALID_ARGUMENT": 400,
    "DEADLINE_EXCEEDED": 504,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "PERMISSION_DENIED": 403,
    "RESOURCE_EXHAUSTED": 503,
    "FAILED_PRECONDITION": 412,
    "ABORTED": 409,
    "OUT_OF_RANGE": 400,
    "UNIMPLEMENTED": 501,
    "INTERNAL": 500,
    "UNAVAILABLE": 503,
    "DATA_LOSS": 500,
    "UNAUTHENTICATED": 401,
}


class ServingError(Exception):
    """A request that fails. ``code``: one of `CODES`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def invalid(message: str) -> ServingError:
    """INVALID_ARGUMENT."""
    return ServingError("INVALID_ARGUMENT", message)


def from_exception(error: BaseException) -> ServingError:
    """What a client is told of any exception: TensorFlow's own status, else INTERNAL without internals."""
    if isinstance(error, ServingError):
        return error
    code: Any = getattr(error, "error_code", None)
    message: Any = getattr(error, "message", None)
    if isinstance(code, int) and code in NAMES and isinstance(message, str):
        return ServingError(NAMES[code], message)
    if isinstance(error, MemoryError):
        return ServingError("RESOURCE_EXHAUSTED", "out of memory")
    return ServingError("INTERNAL", f"{type(error).__name__}: {error}")
