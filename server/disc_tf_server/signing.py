"""Signing of results at the front end, and the file of its keys. Children never see a key.

A key file is TOML, readable by the server's user only, one table a key (times as in a trust file)::

    [[key]]
    id = "2026-11"
    private = "<32 bytes in base64>"
    not_before = 2026-11-01T00:00:00Z
    not_after = 2027-05-01T00:00:00Z

Of the keys that are valid now the one that began last signs. To rotate: add a key that begins later (``python -m disc_tf_server.signing new
FILE ID``), give out the new trust file (``... trust FILE``), and remove the old key when its signatures have expired.
"""

from __future__ import annotations

import argparse
import base64
import datetime
import os
import stat
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from disc_tf.remote.messages import new
from disc_tf.remote.trust import TrustError, key_bytes, read_tables
from disc_tf_server.interfaces import ServiceError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_FIELDS = {"id", "private", "not_before", "not_after", "revoked"}


class SigningError(ValueError):
    """A key file that cannot be used. No key is quoted in the message."""


@dataclass(frozen=True)
class SigningKey:
    """A private key. Its representation does not show it."""

    id: str
    private: Ed25519PrivateKey = field(repr=False)
    not_before: float | None
    not_after: float | None
    revoked: bool

    def valid(self, now: float) -> bool:
        """Whether it signs at this time."""
        return not self.revoked and (self.not_before or 0) <= now <= (self.not_after or now)


def read_keys(path: str | Path) -> list[SigningKey]:
    """The keys of a file. SigningError for its content, and where others than its owner can read it (or, of root's, its group)."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    try:
        there = os.stat(path)
        # a key that root gives to a group of ours, as Kubernetes mounts secrets, is as private as root
        others = 0o037 if there.st_uid == 0 and os.geteuid() != 0 else 0o077
        if stat.S_IMODE(there.st_mode) & others:
            raise SigningError(f"{path}: others than its owner can read it: chmod 600 {path}")
        keys = []
        for i, t in enumerate(read_tables(path, _FIELDS)):
            private = Ed25519PrivateKey.from_private_bytes(key_bytes(t.get("private"), f"{path}: key {i + 1}: private"))
            keys.append(SigningKey(t["id"], private, t["not_before"], t["not_after"], t["revoked"]))
    except OSError as e:
        raise SigningError(f"{path}: {e.strerror or e}") from e
    except TrustError as e:
        raise SigningError(str(e)) from None
    return keys


class FileSigner:
    """A `Signer` with the keys of a file. lifetime: seconds that a signature is valid (at most as long as its key)."""

    def __init__(self, path: str | Path, lifetime: float = 90 * 86400.0, clock: Callable[[], float] = time.time) -> None:
        self._path, self._lifetime, self._clock = path, lifetime, clock
        self._keys = read_keys(path)

    def reload(self) -> None:
        """Reads the file again. SigningError: the keys of before stay in force."""
        self._keys = read_keys(self._path)

    def _current(self) -> SigningKey | None:
        now = self._clock()
        return max((k for k in self._keys if k.valid(now)), key=lambda k: (k.not_before or 0, k.id), default=None)

    @property
    def key_ids(self) -> tuple[str, ...]:
        key = self._current()
        return (key.id,) if key is not None else ()

    def sign(self, artifacts: Sequence[bytes], request: bytes, compiler_version: str, targets: Sequence[str]) -> bytes:
        """See `Signer`. ServiceError UNAVAILABLE (NO_SIGNING_KEY) while no key is valid."""
        key, now = self._current(), self._clock()
        if key is None:
            raise ServiceError("UNAVAILABLE", "NO_SIGNING_KEY", "the server has no valid key to sign results with", retry_after=60.0)
        end = min(now + self._lifetime, key.not_after or now + self._lifetime)
        statement = new(
            "Statement", artifacts=artifacts, request=request, compiler_version=compiler_version, targets=targets, key_id=key.id
        )  # fmt: skip
        statement.not_after.FromNanoseconds(int(end * 1e9))
        data = statement.SerializeToString(deterministic=True)
        return new("Signature", statement=data, signature=key.private.sign(data)).SerializeToString()


# ---- the file ----


def _time(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(int(seconds), datetime.UTC).isoformat().replace("+00:00", "Z")


def add_key(path: Path, id: str, begins: float, days: float) -> None:
    """Makes a key and adds it to a file (made for this user only). SigningError for an id that is there."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from disc_tf.atomic import replacing

    if not 0 < len(id) <= 64 or not id.isprintable() or any(c in id for c in '"\\'):
        raise SigningError("a key's id has 1 to 64 characters, no quotes and no backslashes")
    before = path.read_text() if path.exists() else ""
    if before and id in {k.id for k in read_keys(path)}:
        raise SigningError(f"{path}: there is a key {id!r} already")
    private = base64.b64encode(Ed25519PrivateKey.generate().private_bytes_raw()).decode()
    lines = [f'id = "{id}"', f'private = "{private}"', f"not_before = {_time(begins)}", f"not_after = {_time(begins + days * 86400)}"]
    with replacing(path, mode=0o600) as file:
        file.write((before + "\n" * bool(before) + "\n".join(["[[key]]", *lines]) + "\n").encode())


def trust_file(path: Path) -> str:
    """The trust file for clients: the public halves of a key file's keys."""
    parts = []
    for key in read_keys(path):
        public = base64.b64encode(key.private.public_key().public_bytes_raw()).decode()
        lines = ["[[key]]", f'id = "{key.id}"', f'public = "{public}"']
        lines += [f"{n} = {_time(t)}" for n, t in (("not_before", key.not_before), ("not_after", key.not_after)) if t is not None]
        parts.append("\n".join([*lines, *(["revoked = true"] if key.revoked else [])]))
    return "\n\n".join(parts) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """``new FILE ID [--days N] [--begins-in-days N]`` and ``trust FILE``."""
    parser = argparse.ArgumentParser(prog="python -m disc_tf_server.signing", description="Keys that results are signed with.")
    verbs: Any = parser.add_subparsers(dest="verb", required=True)
    made = verbs.add_parser("new", help="make a key and add it to a file")
    made.add_argument("file", type=Path)
    made.add_argument("id")
    made.add_argument("--days", type=float, default=180, help="how long it is valid")
    made.add_argument("--begins-in-days", type=float, default=0, help="when it begins: give clients the new trust file before")
    verbs.add_parser("trust", help="print the trust file for clients").add_argument("file", type=Path)
    args = parser.parse_args(argv)
    try:
        if args.verb == "new":
            add_key(args.file, args.id, time.time() + args.begins_in_days * 86400, args.days)
        else:
            print(trust_file(args.file), end="")
    except (SigningError, OSError) as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
