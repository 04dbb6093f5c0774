"""Opens the stores of a server: one database for operations and the index of blobs, and a place for the bytes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from disc_tf_server.blob_index import BlobLimits
from disc_tf_server.blobs import IndexedBlobStore, open_blobs
from disc_tf_server.database import Database, open_database
from disc_tf_server.operation_tables import OperationLimits
from disc_tf_server.operations_store import SqlOperationStore


@dataclass(frozen=True)
class Stores:
    """A server's stores. `close` them in the end; what they hold stays."""

    blobs: IndexedBlobStore
    operations: SqlOperationStore
    database: Database

    async def close(self) -> None:
        await self.operations.close()
        await self.blobs.close()
        await self.database.close()


async def open_stores(
    data_dir: Path,
    *,
    operations: str = "",
    blobs: str = "",
    blob_limits: BlobLimits | None = None,
    operation_limits: OperationLimits | None = None,
) -> Stores:
    """operations: ``postgresql://...``, ``sqlite:PATH`` or a path; "": a file in ``data_dir``. blobs: a directory or an fsspec URL; "": in
    ``data_dir``. The directory is made, for this user only.

    ValueError for a URL that is not known, OSError for a directory, ServiceError for a database that does not answer or is of another
    version.
    """
    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    database = open_database(operations or str(data_dir / "operations.sqlite3"))
    made: IndexedBlobStore | None = None
    try:
        made = open_blobs(blobs or str(data_dir / "blobs"), database, data_dir / "blobs", blob_limits or BlobLimits())
        await made.prepare()
        store = SqlOperationStore(database, operation_limits)
        await store.prepare()
    except BaseException:
        if made is not None:
            await made.close()
        await database.close()
        raise
    return Stores(made, store, database)
