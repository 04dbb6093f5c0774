"""From a request to what equal requests have in common: checked, read, in canonical form. Pure work runs in a few threads, in turn for each
principal; what was seen lately is remembered, so that an equal request is not read twice."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import math
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from disc_tf.frontend.errors import GraphError
from disc_tf.frontend.tfproto import graph_from_bytes, message_class, serialized
from disc_tf.options import TARGETS, OptionError
from disc_tf.remote.messages import new
from disc_tf.remote.wire import WireError, check_elements
from disc_tf_server.config import ServerConfig
from disc_tf_server.errors import invalid
from disc_tf_server.gate import FairGate
from disc_tf_server.interfaces import BlobStore, Digest, ServiceError
from disc_tf_server.lru import Lru
from disc_tf_server.principals import Principal

T = TypeVar("T")
#: (graph, outputs, feeds, options) -> `disc_tf.remote.canonical.Canonical`
Canonicalize = Callable[[Any, list[str], list[str], Any], Any]
_MEMO_BYTES = 64 << 20
#: fields, messages and list elements of a graph, for each node that it may have
_ELEMENTS = 60


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A request that can be compiled. request: the canonical form, serialized (an OptimizeRequest with graph and options alone); digest: of
    it (32 bytes); key: of the result, before the space that it is seen in; names: canonical name -> the request's; space: whose results;
    targets: sorted."""

    request: bytes
    digest: bytes
    key: bytes
    names: dict[str, str]
    space: str
    targets: tuple[str, ...]


class Threads:
    """A few threads for work that would hold up the event loop."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="disc-tf-work")

    async def run(self, f: Callable[..., T], *args: Any) -> T:
        """``f(*args)`` in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, f, *args)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


class Intake:
    """fingerprint: of the compiler (`fingerprint.fingerprint`), part of every key."""

    def __init__(self, config: ServerConfig, blobs: BlobStore, canonicalize: Canonicalize, fingerprint: bytes, threads: Threads) -> None:
        self._config, self._blobs, self._canonicalize, self._fingerprint, self._threads = config, blobs, canonicalize, fingerprint, threads
        self._gate = FairGate(threads.workers, config.graph_memory, config.max_calls, share=threads.workers - 1)
        self._memo: Lru[bytes, Prepared] = Lru(_MEMO_BYTES)

    async def prepare(self, principal: Principal, graph: Any, options: Any) -> Prepared:
        """graph: a Graph message; options: CompileOptions.

        ServiceError INVALID_ARGUMENT for what is wrong with them, FAILED_PRECONDITION for a blob that is not there.
        """
        source = self._source(graph)
        options = checked_options(options)
        outputs, feeds = _names(graph.outputs, "graph.outputs", True), _names(graph.feeds, "graph.feeds", False)
        digest = source if isinstance(source, Digest) else Digest.of(source)
        # whoever has not the content cannot learn from its digest what was made of it
        if isinstance(source, Digest) and await self._blobs.missing(principal.id, [source]):
            raise missing_blob(source)
        asked = _asked(principal.space, digest, outputs, feeds, options)
        if known := self._memo.get(asked):
            return known
        async with self._content(principal, source) as data:
            prepared = await self._threads.run(self._prepared, data, outputs, feeds, options, principal.space)
        self._memo.put(asked, prepared, len(prepared.request) + 100 * len(prepared.names))
        return prepared

    def _source(self, graph: Any) -> bytes | Digest:
        kind = graph.WhichOneof("content")
        if kind is None:
            raise invalid("GRAPH_WANTED", "the request has no graph", "graph")
        limit = self._config.max_inline_bytes if kind == "inline" else self._config.max_graph_bytes
        source = graph.inline if kind == "inline" else Digest(graph.blob.hash, graph.blob.size_bytes)
        size = len(source) if isinstance(source, bytes) else source.size
        if size > limit:
            way = "give it as a blob" if kind == "inline" else "leave out the weights, or raise the server's max_graph_bytes"
            raise ServiceError(
                "INVALID_ARGUMENT",
                "GRAPH_TOO_LARGE",
                f"the graph has {size} bytes, the limit is {limit}: {way}",
                metadata={"limit": str(limit), "size": str(size)},
                field=f"graph.{kind}",
            )
        return source

    @contextlib.asynccontextmanager
    async def _content(self, principal: Principal, source: bytes | Digest) -> AsyncIterator[bytes]:
        size = source.size if isinstance(source, Digest) else len(source)
        async with self._gate.enter(principal.id, size):
            if isinstance(source, bytes):
                yield source
                return
            try:
                data = await self._blobs.get(principal.id, source)
            except ServiceError as e:
                if e.code == "NOT_FOUND":
                    raise missing_blob(source) from e
                raise
            yield data

    def _prepared(self, data: bytes, outputs: list[str], feeds: list[str], options: Any, space: str) -> Prepared:
        limits = self._config
        try:
            check_elements(data, message_class("GraphDef").DESCRIPTOR, _ELEMENTS * limits.max_nodes)
            graph_def = graph_from_bytes(data)
            functions = len(graph_def.library.function)
            if functions > limits.max_functions:
                raise _too_many("functions", functions, limits.max_functions)
            nodes = len(graph_def.node) + sum(len(f.node_def) for f in graph_def.library.function)
            if nodes > limits.max_nodes:
                raise _too_many("nodes", nodes, limits.max_nodes)
            canonical = self._canonicalize(graph_def, outputs, feeds, options)
        except WireError as e:
            raise invalid("GRAPH_REFUSED", f"not a GraphDef that this server takes: {e}", "graph") from e
        except (GraphError, OptionError) as e:
            raise invalid("GRAPH_REFUSED", str(e), "graph") from e
        request = new("OptimizeRequest")
        request.graph.inline = canonical.graph
        request.graph.outputs.extend(canonical.outputs)
        request.graph.feeds.extend(canonical.feeds)
        request.options.CopyFrom(canonical.options)
        key = result_key(canonical.digest, self._fingerprint)
        return Prepared(serialized(request), canonical.digest, key, dict(canonical.names), space, tuple(canonical.options.targets))


def result_key(request: bytes, fingerprint: bytes) -> bytes:
    """What a result is found again by: of the canonical request's digest and the compiler's."""
    return hashlib.sha256(b"disc_tf result 1" + request + fingerprint).digest()


def missing_blob(digest: Digest) -> ServiceError:
    """FAILED_PRECONDITION: upload it first."""
    message = f"the blob {digest} is not there: upload it with WriteBlob, then ask again"
    return ServiceError("FAILED_PRECONDITION", "BLOB_MISSING", message, missing=[digest])


def checked_options(options: Any) -> Any:
    """A copy with the server's defaults filled in. ServiceError INVALID_ARGUMENT."""
    checked = new("CompileOptions")
    checked.CopyFrom(options)
    wrong = sorted(set(checked.targets) - set(TARGETS))
    if wrong:
        message = f"unknown target {wrong[0]!r}; this server has {', '.join(TARGETS)}"
        raise invalid("UNKNOWN_TARGET", message, "options.targets")
    if not checked.targets:
        checked.targets.extend(TARGETS)
    if checked.min_cluster_size < 0:
        raise invalid("BAD_OPTION", "options.min_cluster_size is negative", "options.min_cluster_size")
    if checked.HasField("fuel") and checked.fuel < 0:
        raise invalid("BAD_OPTION", "options.fuel is negative: leave it out to compile all clusters", "options.fuel")
    if not (math.isfinite(checked.time_budget) and checked.time_budget >= 0):
        raise invalid("BAD_OPTION", "options.time_budget is not a number of seconds", "options.time_budget")
    return checked


def _names(names: Any, field: str, needed: bool) -> list[str]:
    found = list(names)
    if needed and not found:
        raise invalid("OUTPUTS_WANTED", "the request names no output", field)
    if not all(found):
        raise invalid("BAD_NAME", f"{field}: a name is empty", field)
    return found


def _asked(space: str, graph: Digest, outputs: list[str], feeds: list[str], options: Any) -> bytes:
    total = hashlib.sha256()
    for part in (space, str(graph), *outputs, "\1", *feeds):
        data = part.encode()
        total.update(len(data).to_bytes(8, "little") + data)
    total.update(serialized(options))
    return total.digest()


def _too_many(what: str, count: int, limit: int) -> ServiceError:
    metadata = {"limit": str(limit), what: str(count)}
    message = f"the graph has {count} {what}, the limit is {limit}"
    return ServiceError("INVALID_ARGUMENT", "GRAPH_TOO_LARGE", message, metadata=metadata, field="graph")
