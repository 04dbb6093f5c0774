"""google.longrunning.Operations over the store, and an operation's events as a stream."""

from __future__ import annotations

import asyncio
import collections
import logging
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any

from google.longrunning import operations_pb2
from google.protobuf import empty_pb2

from disc_tf.remote.messages import message_class, new
from disc_tf_server import errors
from disc_tf_server.delivery import Delivery
from disc_tf_server.errors import invalid
from disc_tf_server.interfaces import Event, Operation, OperationStore, ServiceError, State
from disc_tf_server.rpc import Call, Method
from disc_tf_server.tasks import Background, unless

SERVICE = "google.longrunning.Operations"
log = logging.getLogger("disc_tf_server.operations")
#: how long one look at the store may last (seconds): of a request that waits its position is told as often
_QUEUED_LOOK, _RUNNING_LOOK = 2.0, 20.0
MAX_PAGE = 1000
_NAME = re.compile(r"operations/([0-9a-f]{32})")
_TYPE = "type.googleapis.com/"


def cancelled_status() -> bytes:
    """The error that a cancelled operation ends with."""
    return errors.status_of(ServiceError("CANCELLED", "CANCELLED", "the operation was cancelled")).SerializeToString()


def operation_id(name: str) -> str:
    """The id in ``operations/{id}``. NOT_FOUND for any other name: there is no such operation."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise not_found(name)
    return match[1]


def not_found(name: str) -> ServiceError:
    """As for an operation that never was."""
    return ServiceError("NOT_FOUND", "OPERATION_NOT_FOUND", f"there is no operation {name[:100]!r}")


class Drain:
    """How far the end of this front end has come. 0: not begun; 1: what does not run here is not waited for; 2: nothing is."""

    def __init__(self) -> None:
        self.level = 0
        self._changed = asyncio.Event()

    def advance(self, level: int) -> None:
        """Wakes all that wait."""
        self.level = max(self.level, level)
        self._changed.set()
        self._changed = asyncio.Event()

    async def beyond(self, level: int) -> None:
        """Returns once it has come further than ``level``."""
        while self.level <= level:
            await self._changed.wait()


class Connections:
    """Which operations have somebody connected who waits for them, at this front end: by (principal, request_id)."""

    def __init__(self) -> None:
        self._open: collections.Counter[tuple[str, str]] = collections.Counter()

    def enter(self, principal: str, request_id: str) -> None:
        self._open[principal, request_id] += 1

    def leave(self, principal: str, request_id: str) -> bool:
        """Whether nobody is left."""
        key = (principal, request_id)
        self._open[key] -= 1
        if self._open[key] > 0:
            return False
        del self._open[key]
        return True

    def anybody(self, principal: str, request_id: str) -> bool:
        """Whether somebody is connected."""
        return (principal, request_id) in self._open


class Operations:
    """The Operations RPCs, `follow` for streams, and the rule of cancel_on_disconnect.

    on_cancel: told the id of a work that one fewer waits for. runs_here: whether a work runs at this front end: its events are still worth
    waiting for while it drains.
    """

    def __init__(
        self, store: OperationStore, delivery: Delivery, drain: Drain, on_cancel: Callable[[str], None], runs_here: Callable[[str], bool]
    ) -> None:
        self._store, self._delivery, self.drain, self._on_cancel, self._runs_here = store, delivery, drain, on_cancel, runs_here
        self._connections = Connections()
        self._background = Background()

    def methods(self) -> list[Method]:
        """The table of the service."""
        return [
            Method("GetOperation", operations_pb2.GetOperationRequest, self.get),
            Method("ListOperations", operations_pb2.ListOperationsRequest, self.list),
            Method("WaitOperation", operations_pb2.WaitOperationRequest, self.wait),
            Method("CancelOperation", operations_pb2.CancelOperationRequest, self.cancel),
            Method("DeleteOperation", operations_pb2.DeleteOperationRequest, self.delete),
        ]

    # ---- RPCs

    async def get(self, call: Call, request: Any) -> Any:
        return await self.message(await self._store.get(call.principal.id, operation_id(request.name)))

    async def list(self, call: Call, request: Any) -> Any:
        if request.name not in ("", "operations"):
            raise invalid("BAD_NAME", "operations are listed by the name `operations`", "name")
        if request.filter:
            raise invalid("BAD_FILTER", "filters are not supported: leave it empty", "filter")
        if request.page_size < 0:
            raise invalid("BAD_PAGE", "page_size is negative", "page_size")
        limit = min(request.page_size or 100, MAX_PAGE)
        found, page = await self._store.list(call.principal.id, limit, request.page_token)
        response = operations_pb2.ListOperationsResponse(next_page_token=page)
        for operation in found:
            response.operations.append(await self.message(operation, with_result=False))
        return response

    async def wait(self, call: Call, request: Any) -> Any:
        operation = await self._store.get(call.principal.id, operation_id(request.name))
        await call.release()
        seconds = call.time_left(3600.0)
        if request.HasField("timeout"):
            seconds = min(seconds, max(0.0, request.timeout.ToTimedelta().total_seconds()))
        # answered before the caller's own deadline, so that it gets the state rather than an error
        end = time.monotonic() + max(0.0, seconds - min(0.5, seconds / 10))
        async with self.connected(operation.principal, operation.request_id, operation.cancel_on_disconnect, operation.id):
            while not operation.state.ended and (left := end - time.monotonic()) > 0:
                self._check_draining(operation)
                _, operation = await self._look(operation, operation.last_sequence, min(left, _RUNNING_LOOK))
        return await self.message(operation)

    async def cancel(self, call: Call, request: Any) -> Any:
        await self._cancel(call.principal.id, operation_id(request.name))
        return empty_pb2.Empty()

    async def delete(self, call: Call, request: Any) -> Any:
        await self._store.delete(call.principal.id, operation_id(request.name))
        return empty_pb2.Empty()

    async def _cancel(self, principal: str, id: str) -> None:
        operation = await self._store.cancel(principal, id, cancelled_status())
        if operation.work_id:
            self._on_cancel(operation.work_id)

    # ---- streams

    async def follow(self, operation: Operation, after: int, write: Callable[[Any], Awaitable[None]]) -> None:
        """Writes the events after a sequence number, the last of them result or error, then returns. ServiceError."""
        if after > operation.last_sequence:
            message = f"after_sequence is {after}; the last event of the operation is {operation.last_sequence}"
            raise ServiceError("OUT_OF_RANGE", "SEQUENCE_AHEAD", message, field="after_sequence")
        position, events, seen = -1, [], after
        while True:
            for event in events:
                await write(logged_event(event, operation.id))
                seen = event.sequence
            if operation.state.ended:
                if seen < operation.last_sequence or seen == 0:
                    await write(await self._last_event(operation))
                return
            self._check_draining(operation)
            if operation.state == State.QUEUED:
                now = await self._store.position(operation.principal, operation.id)
                if now and now != position:
                    position = now
                    await write(queued_event(operation.id, seen, now))
            look = _QUEUED_LOOK if operation.state == State.QUEUED else _RUNNING_LOOK
            events, operation = await self._look(operation, seen, look)

    async def _look(self, operation: Operation, after: int, seconds: float) -> tuple[list[Event], Operation]:
        """What the store has next; at once when this front end begins to drain."""
        watch = self._store.watch(operation.principal, operation.id, after, seconds)
        return await unless(self.drain.beyond(self.drain.level), watch) or ([], operation)

    def _check_draining(self, operation: Operation) -> None:
        if self.drain.level > 1 or (self.drain.level and not self._runs_here(operation.work_id)):
            raise draining()

    async def _last_event(self, operation: Operation) -> Any:
        event = _event(operation.id, max(operation.last_sequence, 1), operation.ended or time.time())
        result, error = await self._delivery.outcome(operation)
        if result is not None:
            event.result.CopyFrom(result)
        else:
            event.error.MergeFromString(error)
        return event

    def connected(self, principal: str, request_id: str, cancel: bool, id: str | None = None) -> _Connected:
        """A block in which somebody waits for an operation; `_Connected.id` may be set later. cancel: the last to leave cancels it."""
        return _Connected(self, principal, request_id, cancel, id)

    def left_alone(self, principal: str, request_id: str, id: str) -> None:
        """The last connection to an operation has ended, and it wants to end with it."""
        self._background.start(self._end(principal, request_id, id))

    async def _end(self, principal: str, request_id: str, id: str) -> None:
        try:
            if not self._connections.anybody(principal, request_id):
                await self._cancel(principal, id)
        except ServiceError as e:
            if e.code != "NOT_FOUND":
                log.warning("an operation that nobody waits for could not be cancelled: %s", e.message)
        except Exception:
            log.exception("an operation that nobody waits for could not be cancelled")

    async def close(self) -> None:
        """Waits for what was begun."""
        await self._background.close()

    # ---- messages

    async def message(self, operation: Operation, with_result: bool = True) -> Any:
        """A google.longrunning.Operation. In lists the results are left out: an OptimizeResult without content stands there."""
        message = operations_pb2.Operation(name=f"operations/{operation.id}", done=operation.state.ended)
        _pack(message.metadata, metadata_of(operation))
        if operation.state == State.SUCCEEDED and not with_result:
            _pack(message.response, new("OptimizeResult"))
        elif operation.state.ended:
            result, error = await self._delivery.outcome(operation)
            if result is not None:
                _pack(message.response, result)
            else:
                message.error.MergeFromString(error)
        return message


class _Connected:
    def __init__(self, operations: Operations, principal: str, request_id: str, cancel: bool, id: str | None) -> None:
        self._operations, self._principal, self._request_id, self._cancel = operations, principal, request_id, cancel
        self.id = id

    async def __aenter__(self) -> _Connected:
        self._operations._connections.enter(self._principal, self._request_id)
        return self

    async def __aexit__(self, kind: Any, error: Any, _: Any) -> None:
        operations = self._operations
        alone = operations._connections.leave(self._principal, self._request_id)
        # whoever was told to come back is no lost connection, nor are those that this server cuts when it ends
        back = error is None or operations.drain.level or (isinstance(error, ServiceError) and error.code == "UNAVAILABLE")
        if alone and self._cancel and self.id is not None and not back:
            operations.left_alone(self._principal, self._request_id, self.id)


def draining() -> ServiceError:
    """UNAVAILABLE: this front end ends; another one, or the next one here, goes on."""
    message = "this server is shutting down; go on at another one, or here in a moment (Watch, or the same request_id)"
    return ServiceError("UNAVAILABLE", "DRAINING", message, retry_after=2.0)


def metadata_of(operation: Operation) -> Any:
    """The OptimizeMetadata."""
    enum = message_class("OptimizeMetadata").DESCRIPTOR.enum_types_by_name["State"]
    message = new("OptimizeMetadata", request_id=operation.request_id, last_sequence=operation.last_sequence)
    message.state = enum.values_by_name[operation.state.value].number
    times = (("create_time", operation.created), ("start_time", operation.started), ("end_time", operation.ended))
    for name, value in (*times, ("expire_time", operation.expires)):
        if value is not None:
            getattr(message, name).FromNanoseconds(int(value * 1e9))
    return message


def _event(id: str, sequence: int, when: float) -> Any:
    event = new("OptimizeEvent", sequence=sequence, operation=f"operations/{id}")
    event.time.FromNanoseconds(int(when * 1e9))
    return event


def logged_event(event: Event, id: str) -> Any:
    """An entry of the log: its data is the OptimizeEvent without what the operation adds."""
    message = _event(id, event.sequence, event.time)
    message.MergeFromString(event.data)
    return message


def queued_event(id: str, after: int, position: int) -> Any:
    """A position in the queue: not logged, so it has the sequence number of the event before it."""
    event = _event(id, after, time.time())
    event.queued.position = position
    return event


def _pack(any_message: Any, message: Any) -> None:
    """Into an Any of another descriptor pool."""
    any_message.type_url = _TYPE + message.DESCRIPTOR.full_name
    any_message.value = message.SerializeToString()
