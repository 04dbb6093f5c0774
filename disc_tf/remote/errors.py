"""What a caller of the service is told: `RemoteError`, made from a gRPC status with google.rpc details."""

from __future__ import annotations

import dataclasses
from typing import Any

import grpc

#: statuses that may go away by themselves
_RETRIABLE = frozenset({"UNAVAILABLE"})


@dataclasses.dataclass
class RemoteError(RuntimeError):
    """``code``: name of a gRPC status code; ``reason``: of ErrorInfo (docs/service.md), empty if the server gave none; ``retry_after``:
    seconds, None if trying again later does not help as far as the server says; ``missing``: blobs ("hash/size") that it wants."""

    code: str
    reason: str
    message: str
    retry_after: float | None = None
    missing: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.message} [{self.code}{', ' + self.reason if self.reason else ''}]"

    @property
    def retriable(self) -> bool:
        """Whether the same call may succeed later: the server is not reached, or it names a time to wait."""
        return self.code in _RETRIABLE or (self.code == "RESOURCE_EXHAUSTED" and self.retry_after is not None)


def from_rpc(error: grpc.RpcError) -> RemoteError:
    """The error of a failed call."""
    code = getattr(error, "code", lambda: None)()
    name = code.name if code is not None else "UNKNOWN"
    details = getattr(error, "details", lambda: "")() or str(error)
    trailing = getattr(error, "trailing_metadata", lambda: ())() or ()
    for key, value in trailing:
        if key == "grpc-status-details-bin":
            return from_status(value, name, details)
    return RemoteError(name, "", details)


def from_status(data: bytes, code: str = "", message: str = "") -> RemoteError:
    """The error of a serialized google.rpc.Status."""
    from google.protobuf.message import DecodeError
    from google.rpc import code_pb2, error_details_pb2, status_pb2

    try:
        status = status_pb2.Status.FromString(data)
    except DecodeError:
        return RemoteError(code or "UNKNOWN", "", message or "the server's error cannot be read")
    if not code:
        code = code_pb2.Code.Name(status.code) if status.code in code_pb2.Code.values() else "UNKNOWN"
    found = RemoteError(code, "", status.message or message)
    for detail in status.details:
        _add(found, detail, error_details_pb2)
    return found


def _add(found: RemoteError, detail: Any, kinds: Any) -> None:
    info, retry, wanted = kinds.ErrorInfo(), kinds.RetryInfo(), kinds.PreconditionFailure()
    try:
        if detail.Unpack(info):
            found.reason = info.reason
        elif detail.Unpack(retry):
            found.retry_after = retry.retry_delay.ToTimedelta().total_seconds()
        elif detail.Unpack(wanted):
            found.missing = tuple(v.subject.removeprefix("blobs/") for v in wanted.violations if v.type == "MISSING")
    except Exception:  # a detail that cannot be read says nothing
        return
