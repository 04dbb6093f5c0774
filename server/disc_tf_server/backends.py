"""The stores, children and keys of a server as its settings say."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Any

from disc_tf.remote.canonical import canonical
from disc_tf.remote.check import check_result
from disc_tf.runtime.artifact import unpack
from disc_tf.runtime.identity import code_identity
from disc_tf_server import logs
from disc_tf_server.app import Backends, rename_texts
from disc_tf_server.blob_index import BlobLimits
from disc_tf_server.children import ForkedChildPool
from disc_tf_server.config import ConfigError, ServerConfig
from disc_tf_server.content import ContentLimits, ContentService
from disc_tf_server.content_rpcs import SERVICE as CONTENT
from disc_tf_server.content_rpcs import content_methods
from disc_tf_server.fingerprint import fingerprint
from disc_tf_server.interfaces import Signer
from disc_tf_server.operation_tables import OperationLimits
from disc_tf_server.signing import FileSigner, SigningError
from disc_tf_server.stores import open_stores
from disc_tf_server.tracing import tracing

log = logging.getLogger("disc_tf_server")


def pool_of(config: ServerConfig) -> Any:
    """The pool of compile children. `ConfigError` for an executor that there is not."""
    size = config.children or len(os.sched_getaffinity(0))
    if config.executor.startswith("ray://"):
        from disc_tf_server.ray_pool import RayChildPool

        try:
            return RayChildPool(config.executor, size, require_sandbox=config.require_sandbox)
        except ValueError as e:
            raise ConfigError(f"executor: {e}") from e
    if config.executor != "local":
        raise ConfigError(f"executor {config.executor!r}: `local` or ray://HOST:PORT is wanted")
    try:
        pool = ForkedChildPool(size, require_sandbox=config.require_sandbox)
    except ValueError as e:
        raise ConfigError(f"require_sandbox: {e}") from e
    level = logging.INFO if pool.sandbox.whole else logging.WARNING
    logs.event(log, level, "sandbox of the compile children", seccomp=pool.sandbox.seccomp, landlock=pool.sandbox.landlock)
    return pool


def identity(executable: bytes) -> bytes:
    """What a signature says of a cluster's artefact (it was checked when the child returned it)."""
    return code_identity(unpack(executable))


def signer_of(config: ServerConfig) -> Signer | None:
    """Who signs results. `ConfigError`, also where no key is valid now: clients that want signatures would refuse every result."""
    if not config.signing_key:
        return None
    try:
        signer = FileSigner(config.signing_key, config.signature_lifetime)
    except SigningError as e:
        raise ConfigError(str(e)) from e
    if not signer.key_ids:
        raise ConfigError(f"{config.signing_key}: no key in it is valid now")
    return signer


async def open_backends(config: ServerConfig) -> Backends:
    """Opens all of it. `ConfigError`, OSError, ServiceError for stores that do not answer."""
    pool, traces, signer = pool_of(config), tracing(config.trace_endpoint), signer_of(config)
    blob_limits = BlobLimits(
        max_blob_bytes=config.max_blob_bytes,
        quota_bytes=config.blob_bytes_per_principal,
        total_bytes=config.blob_bytes,
        max_uploads=config.max_uploads,
        retention_s=config.blob_retention,
    )
    operation_limits = OperationLimits(
        max_queue=config.queue_limit, max_operations=config.max_operations, retention_s=config.operation_retention, lease_s=config.lease
    )
    try:
        stores = await open_stores(
            config.directory(), operations=config.operations, blobs=config.blobs, blob_limits=blob_limits, operation_limits=operation_limits
        )
    except ValueError as e:
        raise ConfigError(str(e)) from e
    content = ContentService(stores.blobs, ContentLimits(max_digests=config.max_digests, max_streams=config.max_calls))
    return Backends(
        database=stores.database,
        store=stores.operations,
        blobs=stores.blobs,
        pool=pool,
        canonicalize=canonical,
        rename=rename_texts,
        check=check_result,
        identify=identity,
        signer=signer,
        fingerprint=await asyncio.to_thread(fingerprint),
        content={CONTENT: content_methods(content)},
        tracing=traces,
    )
