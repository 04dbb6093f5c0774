"""The optimization service from a client's side (`Client`, `AsyncClient`), and what both sides share: see docs/service.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from disc_tf.remote.aio import AsyncClient
    from disc_tf.remote.client import Client
    from disc_tf.remote.connection import Address
    from disc_tf.remote.errors import RemoteError

_WHERE = {
    "Client": "disc_tf.remote.client",
    "AsyncClient": "disc_tf.remote.aio",
    "Address": "disc_tf.remote.connection",
    "RemoteError": "disc_tf.remote.errors",
}

__all__ = ["Address", "AsyncClient", "Client", "RemoteError"]


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        import importlib

        return getattr(importlib.import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'disc_tf.remote' has no attribute {name!r}")
