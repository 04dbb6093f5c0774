"""Fixtures of the service's tests."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def postgres(postgres_server: str) -> str:
    """URL of an empty PostgreSQL database; skips where no server is installed."""
    import psycopg

    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
    return postgres_server


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """URL of a PostgreSQL server of this test run; skips where none is installed."""
    pytest.importorskip("psycopg")
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    initdb = str(programs[-1]) if programs else shutil.which("initdb")
    if initdb is None:
        pytest.skip("no PostgreSQL server is installed")
    server = str(Path(initdb).with_name("postgres"))
    # it does not run as root
    root = Path("/tmp", f"disc-tf-postgres-{os.getpid()}")
    root.mkdir(mode=0o700)
    as_user: dict[str, str] = {}
    if os.geteuid() == 0:
        as_user = {"user": "postgres", "group": "postgres"}
        shutil.chown(root, "postgres", "postgres")
    try:
        data = root / "data"
        command = [initdb, "-D", str(data), "-U", "test", "--auth=trust", "--no-sync", "-E", "UTF8", "--locale=C"]
        subprocess.run(command, check=True, capture_output=True, cwd=root, **as_user)  # type: ignore[call-overload]
        settings = ["-c", "listen_addresses=", "-c", f"unix_socket_directories={root}", "-c", "fsync=off", "-c", "max_connections=50"]
        with open(root / "log", "w") as log:
            process = subprocess.Popen([server, "-D", str(data), *settings], stdout=log, stderr=log, cwd=root, **as_user)  # type: ignore[call-overload]
        try:
            end = time.monotonic() + 30
            while not _answers(root / ".s.PGSQL.5432"):
                if process.poll() is not None or time.monotonic() > end:
                    pytest.fail(f"PostgreSQL did not start: {(root / 'log').read_text()[-2000:]}")
                time.sleep(0.05)
            yield f"postgresql://test@/postgres?host={root}"
        finally:
            process.terminate()
            process.wait(20)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _answers(path: Path) -> bool:
    try:
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(str(path))
        import psycopg

        psycopg.connect(f"postgresql://test@/postgres?host={path.parent}").close()
    except Exception:
        return False
    return True
