"""Which signatures of a service are accepted: the trust file, and the check of a result against it.

A trust file is TOML, one table a key::

    [[key]]
    id = "2026-11"
    public = "<32 bytes in base64>"
    not_before = 2026-11-01T00:00:00Z     # optional
    not_after = 2027-05-01T00:00:00Z      # optional
    revoked = false                       # optional; true: nothing that it signed is accepted any more

Keys may overlap: a new one is put in before the service signs with it. A signature says where code comes from, not that it is safe.

The runtime has a check of its own, in C++, of artefacts that are loaded (`disc_tf.runtime.set_trust`); it takes such a file only in the
form above, line by line.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from disc_tf.extras import advice
from disc_tf.remote.messages import message_class
from disc_tf.runtime.artifact import Artifact, SignedStatement, unpack
from disc_tf.runtime.identity import code_identity

#: seconds that the clocks of two machines may differ
CLOCK_SKEW = 300.0
MAX_FILE_BYTES = 1 << 20
_MAX_STATEMENT = 1 << 20
_FIELDS = {"id", "public", "not_before", "not_after", "revoked"}


class TrustError(RuntimeError):
    """A result is not trusted, or a file of keys cannot be used. The message says why and what to do; no key is quoted in it."""


@dataclass(frozen=True)
class TrustedKey:
    """not_before, not_after: seconds since 1970; None: without that end."""

    id: str
    public: bytes
    not_before: float | None = None
    not_after: float | None = None
    revoked: bool = False


def read_tables(path: str | Path, fields: set[str]) -> list[dict[str, Any]]:
    """The ``[[key]]`` tables of a file, with ids and times checked (times as seconds since 1970). `TrustError`; values are never quoted."""
    try:
        data = Path(path).read_bytes()
        if len(data) > MAX_FILE_BYTES:
            raise TrustError(f"{path}: {len(data)} bytes are too many for a file of keys")
        content = tomllib.loads(data.decode())
    except OSError as e:
        raise TrustError(f"{path}: {e.strerror or e}") from e
    except (ValueError, RecursionError):
        raise TrustError(f"{path}: not a TOML file (see docs/service.md, signing)") from None
    tables = content.pop("key", [])
    if content or not isinstance(tables, list) or not all(isinstance(t, dict) for t in tables):
        raise TrustError(f"{path}: only [[key]] tables are wanted")
    if not tables:
        raise TrustError(f"{path}: there is no key in it")
    seen: set[str] = set()
    for i, table in enumerate(tables):
        where = f"{path}: key {i + 1}"
        if unknown := sorted(table.keys() - fields):
            raise TrustError(f"{where}: {unknown[0]!r} is not known; there are {', '.join(sorted(fields))}")
        id = table.get("id")
        if not isinstance(id, str) or not 0 < len(id) <= 64 or not id.isprintable():
            raise TrustError(f"{where}: id: 1 to 64 characters are wanted")
        if id in seen:
            raise TrustError(f"{where}: id {id!r} occurs twice")
        seen.add(id)
        for name in ("not_before", "not_after"):
            table[name] = _seconds(table.get(name), f"{where}: {name}")
        if not isinstance(table.setdefault("revoked", False), bool):
            raise TrustError(f"{where}: revoked: true or false is wanted")
        if table["not_before"] is not None and table["not_after"] is not None and table["not_before"] >= table["not_after"]:
            raise TrustError(f"{where}: it ends before it begins")
    return tables


def _seconds(value: Any, where: str) -> float | None:
    if value is None:
        return None
    if not isinstance(value, datetime.datetime) or value.tzinfo is None:
        raise TrustError(f"{where}: a date and time with its zone is wanted, such as 2026-11-01T00:00:00Z")
    return value.timestamp()


def key_bytes(value: Any, where: str) -> bytes:
    """32 bytes in base64. `TrustError`; the value is not quoted."""
    try:
        data = base64.b64decode(value, validate=True) if isinstance(value, str) else b""
    except (binascii.Error, ValueError):
        data = b""
    if len(data) != 32:
        raise TrustError(f"{where}: 32 bytes in base64 are wanted")
    return data


@dataclass(frozen=True)
class TrustPolicy:
    """The keys whose signatures are accepted, by id. Without a valid signature of one of them nothing is."""

    keys: Mapping[str, TrustedKey]
    clock: Callable[[], float] = time.time

    @staticmethod
    def from_file(path: str | Path) -> TrustPolicy:
        """Reads a trust file. `TrustError`."""
        keys = {}
        for i, t in enumerate(read_tables(path, _FIELDS)):
            public = key_bytes(t.get("public"), f"{path}: key {i + 1}: public")
            keys[t["id"]] = TrustedKey(t["id"], public, t["not_before"], t["not_after"], t["revoked"])
        return TrustPolicy(keys)

    def check(self, final: Any, result: Any, request: bytes) -> None:
        """Raises `TrustError` unless the OptimizeResult ``final`` has a valid signature for this CompileResult and the request's digest."""
        artifacts = [unpack(c.executable) for c in result.clusters]
        targets = {t.isa for a in artifacts for t in a.targets}
        signature = final.signature if final.HasField("signature") else None
        self.verify(signature, request, [code_identity(a) for a in artifacts], result.compiler_version, targets=targets)

    def verify(
        self,
        signature: Any,
        request: bytes,
        artifacts: Sequence[bytes],
        compiler_version: str,
        now: float | None = None,
        targets: set[str] | None = None,
    ) -> None:
        """Raises `TrustError` unless the Signature message (None: there is none) is a valid one of a trusted key for all of this.

        request: SHA-256 of the canonical request, computed here and not by the server. artifacts: `code_identity` of each cluster's
        artefact, in order. targets: instruction sets in the artefacts. now: seconds since 1970, the clock if None.
        """
        if signature is None or not signature.signature:
            raise TrustError("the result is not signed, but a trust file is given: ask for a service that signs, or leave the file out")
        statement = self._said(signature, now)
        if statement.request != request:
            raise TrustError("the signature is for another request")
        if list(statement.artifacts) != list(artifacts):
            raise TrustError("the signature is for other code")
        _check_maker(statement, compiler_version, targets or set())

    def check_code(self, artifact: Artifact, now: float | None = None) -> None:
        """Raises `TrustError` unless the artefact carries a valid signature of a trusted key for its code: what the runtime checks at load.

        Whose request it answers cannot be seen from it.
        """
        if artifact.signed is None:
            raise TrustError("the code is not signed: have a service that signs compile it (disc-tf optimize --remote)")
        statement = self._said(artifact.signed, now)
        if code_identity(artifact) not in statement.artifacts:
            raise TrustError("the signature is for other code: this code was changed after it was signed")
        _check_maker(statement, artifact.compiler_version, {t.isa for t in artifact.targets})

    def _said(self, signature: Any, now: float | None) -> Any:
        """The Statement of a Signature message or a `SignedStatement`, once a trusted key has signed it and it has not expired."""
        now = self.clock() if now is None else now
        statement = _statement(signature.statement)
        key = self.keys.get(statement.key_id)
        if key is None:
            known = ", ".join(sorted(self.keys))
            raise TrustError(f"signed with a key that is not in the trust file ({statement.key_id[:64]!r}; there are {known})")
        if key.revoked:
            raise TrustError(f"signed with key {key.id!r}, which is revoked")
        if key.not_before is not None and now < key.not_before - CLOCK_SKEW:
            raise TrustError(f"key {key.id!r} is not valid yet (is this machine's clock right?)")
        if key.not_after is not None and now > key.not_after + CLOCK_SKEW:
            raise TrustError(f"key {key.id!r} has expired: get a newer trust file")
        _verify_bytes(key, signature)
        # from here on the statement is the service's
        if not statement.HasField("not_after") or now > statement.not_after.ToNanoseconds() / 1e9 + CLOCK_SKEW:
            raise TrustError("the signature has expired: ask again, or look at this machine's clock")
        return statement


def _check_maker(statement: Any, compiler_version: str, targets: set[str]) -> None:
    if statement.compiler_version != compiler_version:
        raise TrustError(f"the signature is for compiler {statement.compiler_version[:64]!r}, not {compiler_version[:64]!r}")
    if not targets <= set(statement.targets):
        raise TrustError("the signature is for other instruction sets")


def signed_by(final: Any) -> SignedStatement | None:
    """What an OptimizeResult carries of a signature, as artefacts keep it, checked or not; None if there is none. `TrustError` if it
    is too long."""
    if not final.HasField("signature") or not final.signature.statement or not final.signature.signature:
        return None
    if len(final.signature.statement) > _MAX_STATEMENT or len(final.signature.signature) > 64:
        raise TrustError("the signature's statement is too long")
    return SignedStatement(final.signature.statement, final.signature.signature)


def describe_signature(signed: SignedStatement) -> str:
    """Who says to have signed, and until when; nothing is checked."""
    try:
        statement = _statement(signed.statement)
    except TrustError as e:
        return str(e)
    end = f" until {statement.not_after.ToJsonString()}" if statement.HasField("not_after") else ""
    return f"signed with key {statement.key_id[:64]!r}{end}"


def _statement(data: bytes) -> Any:
    if len(data) > _MAX_STATEMENT:
        raise TrustError("the signature's statement is too long")
    try:
        return message_class("Statement").FromString(data)
    except DecodeError:
        raise TrustError("the signature's statement cannot be read") from None


def _verify_bytes(key: TrustedKey, signature: Any) -> None:
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ImportError as e:
        raise TrustError(f"checking signatures needs the package cryptography: {advice('remote')}") from e
    try:
        Ed25519PublicKey.from_public_bytes(key.public).verify(signature.signature, signature.statement)
    except (InvalidSignature, ValueError):
        raise TrustError(f"the signature of key {key.id!r} is wrong: the result was changed on its way, or made by somebody else") from None
