"""The client for asyncio programs: the same calls, awaited. Making a skeleton and putting clusters into a graph is work of seconds, so all
of it runs in threads of the client's own: those of the loop are few, and a call that waits in the server's queue would hold up whatever
else the program does with them. A cancelled task ends its calls to the server."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from disc_tf.optimizer import OptimizeResult
from disc_tf.options import Options
from disc_tf.remote.client import Client
from disc_tf.remote.connection import Address


class AsyncClient:
    """`disc_tf.remote.Client` for asyncio; the same arguments. calls: that run at a time, more wait."""

    def __init__(self, address: str | Address, *, calls: int = 256, **arguments: Any) -> None:
        self._client = Client(address, **arguments)
        self._threads = ThreadPoolExecutor(calls, thread_name_prefix="disc-tf-remote")

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the connection; calls that run fail with CANCELLED."""
        await asyncio.to_thread(self._client.close)
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def capabilities(self) -> Any:
        """The server's Capabilities message. `RemoteError`."""
        return await self._run(lambda client: client.capabilities())

    async def optimize_graph_def(
        self,
        graph_def: Any,
        outputs: Sequence[str] | None = None,
        options: Options | Mapping[str, Any] | None = None,
        *,
        feeds: Sequence[str] = (),
        dry_run: bool = False,
        progress: Callable[[str], None] = lambda _text: None,
        **overrides: Any,
    ) -> OptimizeResult:
        """See `Client.optimize_graph_def`. ``progress`` is called in the event loop's thread."""
        loop = asyncio.get_running_loop()

        def say(text: str) -> None:
            loop.call_soon_threadsafe(progress, text)

        return await self._run(
            lambda client: client.optimize_graph_def(
                graph_def, outputs, options, feeds=feeds, dry_run=dry_run, progress=say, **overrides
            )
        )

    async def _run(self, call: Callable[[Client], Any]) -> Any:
        session = self._client.session()
        context = contextvars.copy_context()
        task = asyncio.get_running_loop().run_in_executor(self._threads, lambda: context.run(call, session))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            session.cancel()
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # the error of a cancelled call is nobody's
            raise
