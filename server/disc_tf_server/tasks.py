"""Tasks that several parts of the front end wait for in the same way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def unless(stop: Awaitable[object], waited: Awaitable[T]) -> T | None:
    """What ``waited`` gives; None if ``stop`` comes first, which cancels it."""
    task, stopped = asyncio.ensure_future(waited), asyncio.ensure_future(stop)
    try:
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        task.cancel()
        stopped.cancel()


class Background:
    """Tasks that go on after whoever began them has gone."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begins one."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Waits for what was begun."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
