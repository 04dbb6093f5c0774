"""`ServiceError` as a caller sees it: a google.rpc.Status with the standard details (the reasons are listed in docs/service.md)."""

from __future__ import annotations

from typing import Any

import grpc
from google.protobuf.message import DecodeError
from google.rpc import code_pb2, error_details_pb2, status_pb2

from disc_tf_server.interfaces import Reason, ServiceError

DOMAIN = "disc-tf.dev"
#: trailing metadata that carries the Status, as grpcio-status and other languages' libraries read it
STATUS_DETAILS = "grpc-status-details-bin"
#: a message that a caller sees is cut here: it travels in HTTP headers
MAX_MESSAGE = 2000

_GRPC = {code.name: code for code in grpc.StatusCode}
_CHILD = {
    Reason.CRASHED: ("UNAVAILABLE", "COMPILE_CRASHED"),
    Reason.OUT_OF_MEMORY: ("RESOURCE_EXHAUSTED", "COMPILE_OUT_OF_MEMORY"),
    Reason.OUT_OF_TIME: ("DEADLINE_EXCEEDED", "COMPILE_OUT_OF_TIME"),
    Reason.OUT_OF_CPU: ("RESOURCE_EXHAUSTED", "COMPILE_OUT_OF_CPU"),
    Reason.REFUSED: ("INVALID_ARGUMENT", "GRAPH_REFUSED"),
    Reason.DEFECT: ("INTERNAL", "COMPILER_DEFECT"),
    Reason.UNAVAILABLE: ("UNAVAILABLE", "NO_COMPILE_CHILD"),
}
#: what is worth asking again for, and after how many seconds
_AGAIN = {Reason.CRASHED: 5.0, Reason.UNAVAILABLE: 10.0}


def invalid(reason: str, message: str, field: str = "") -> ServiceError:
    """INVALID_ARGUMENT; ``field`` of the request."""
    return ServiceError("INVALID_ARGUMENT", reason, message, field=field)


def from_child(reason: Reason, message: str) -> ServiceError:
    """What is told of a compile that gave no result."""
    code, name = _CHILD[reason]
    return ServiceError(code, name, message, retry_after=_AGAIN.get(reason))


def from_exception(error: BaseException) -> ServiceError:
    """Of anything else: nothing of our inside is told."""
    if isinstance(error, ServiceError):
        return error
    if isinstance(error, MemoryError):
        return ServiceError("RESOURCE_EXHAUSTED", "OUT_OF_MEMORY", "the server is out of memory", retry_after=10.0)
    return ServiceError("INTERNAL", "INTERNAL", "a defect of the server; its log has the details under this request's id")


def status_of(error: ServiceError) -> status_pb2.Status:
    """The google.rpc.Status: ErrorInfo always; RetryInfo, BadRequest, PreconditionFailure where they say more."""
    status = status_pb2.Status(code=code_pb2.Code.Value(error.code), message=error.message[:MAX_MESSAGE])
    metadata = {k: v[:200] for k, v in error.metadata.items()}
    _pack(status, error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=metadata))
    if error.retry_after is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromNanoseconds(int(error.retry_after * 1e9))
        _pack(status, retry)
    if error.field:
        bad = error_details_pb2.BadRequest()
        bad.field_violations.add(field=error.field, description=error.message[:MAX_MESSAGE])
        _pack(status, bad)
    if error.missing:
        failure = error_details_pb2.PreconditionFailure()
        for digest in error.missing[:100]:
            failure.violations.add(type="MISSING", subject=f"blobs/{digest.hash}/{digest.size}")
        _pack(status, failure)
    return status


def _pack(status: status_pb2.Status, detail: Any) -> None:
    status.details.add().Pack(detail)


def error_of(status: bytes) -> ServiceError:
    """The other way, for code, reason and message alone."""
    try:
        message = status_pb2.Status.FromString(status)
        code = code_pb2.Code.Name(message.code)
    except (DecodeError, ValueError):
        return ServiceError("INTERNAL", "INTERNAL", "a stored error cannot be read")
    reason = "INTERNAL"
    for detail in message.details:
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info):
            reason = info.reason
    return ServiceError(code, reason, message.message)


async def abort(context: grpc.aio.ServicerContext, error: ServiceError) -> None:
    """Ends an RPC with the error (raises)."""
    status = status_of(error)
    details = status.SerializeToString()
    await context.abort(_GRPC[error.code], status.message, trailing_metadata=((STATUS_DETAILS, details),))
