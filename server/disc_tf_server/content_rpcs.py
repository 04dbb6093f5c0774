"""The RPCs of ContentStore, carried to `content.ContentService`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from disc_tf.remote.messages import message_class
from disc_tf_server.content import ContentService
from disc_tf_server.rpc import Call, Method

SERVICE = "disc_tf.v1.ContentStore"


def content_methods(content: ContentService) -> list[Method]:
    """The table of the service."""

    async def find(call: Call, request: Any) -> Any:
        return await content.find_missing(call.principal.id, request)

    async def status(call: Call, request: Any) -> Any:
        return await content.query_write_status(call.principal.id, request)

    async def write(call: Call, requests: AsyncIterator[Any]) -> Any:
        return await content.write(call.principal.id, requests)

    async def read(call: Call, request: Any) -> None:
        await call.release()
        async for part in content.read(call.principal.id, request):
            await call.write(part)

    return [
        Method("FindMissingBlobs", message_class("FindMissingBlobsRequest"), find),
        Method("QueryWriteStatus", message_class("QueryWriteStatusRequest"), status),
        Method("WriteBlob", message_class("WriteBlobRequest"), write, client_stream=True),
        Method("ReadBlob", message_class("ReadBlobRequest"), read, server_stream=True),
    ]
