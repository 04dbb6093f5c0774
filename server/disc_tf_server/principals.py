"""Who calls: by bearer token, by client certificate, else by the address that the call comes from."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import ipaddress
import os
import re
import stat
import urllib.parse
from collections.abc import Iterable, Mapping
from pathlib import Path

from disc_tf_server.config import ConfigError
from disc_tf_server.interfaces import ServiceError

_NAME = re.compile(r"[A-Za-z0-9_.@-]{1,100}")


@dataclasses.dataclass(frozen=True)
class Principal:
    """A caller. id: what stores and quotas know it by: ``token:NAME``, ``cert:NAME`` or ``peer:ADDRESS``. space: whose results it sees:
    its own id, or that of the trusted group."""

    id: str
    space: str


GROUP = "group"


class Tokens:
    """The tokens of a file: lines ``NAME TOKEN`` or ``NAME sha256:HEX``; ``#`` begins a comment. Only their hashes are kept in memory.

    `ConfigError` for a file that cannot be read, that others than its owner and group may read, and for what it says.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._names: dict[bytes, str] = {}
        self.reload()

    def reload(self) -> None:
        """Read the file again; an error leaves the tokens as they were."""
        try:
            with open(self._path, encoding="utf-8") as f:
                mode = os.fstat(f.fileno()).st_mode
                text = f.read()
        except (OSError, UnicodeDecodeError) as e:
            raise ConfigError(f"cannot read {self._path}: {getattr(e, 'strerror', None) or e}") from e
        if mode & (stat.S_IROTH | stat.S_IWOTH):
            raise ConfigError(f"{self._path}: tokens must not be readable by everybody: chmod o-rwx {self._path}")
        self._names = self._parsed(text)

    def _parsed(self, text: str) -> dict[bytes, str]:
        found: dict[bytes, str] = {}
        for number, line in enumerate(text.splitlines(), 1):
            words = line.partition("#")[0].split()
            if not words:
                continue
            where = f"{self._path}:{number}"
            if len(words) != 2 or not _NAME.fullmatch(words[0]):
                raise ConfigError(f"{where}: `NAME TOKEN` is wanted")
            name, token = words
            if token.startswith("sha256:"):
                try:
                    digest = bytes.fromhex(token.removeprefix("sha256:"))
                except ValueError:
                    digest = b""
                if len(digest) != 32:
                    raise ConfigError(f"{where}: sha256: and 64 hexadecimal digits are wanted")
            else:
                if len(token) < 16:
                    raise ConfigError(f"{where}: the token is shorter than 16 characters")
                digest = hashlib.sha256(token.encode()).digest()
            if digest in found:
                raise ConfigError(f"{where}: the token is there twice")
            found[digest] = name
        if not found:
            raise ConfigError(f"{self._path}: no token in it")
        return found

    def name(self, token: bytes) -> str | None:
        """Whose token it is. All are compared, in constant time."""
        digest = hashlib.sha256(token).digest()
        owner = None
        for known, name in self._names.items():
            if hmac.compare_digest(known, digest):
                owner = name
        return owner


class Authenticator:
    """Tells the principal of a call. With tokens or client certificates in force nobody calls without one of them.

    tokens: path of the file, "" for none. certificates: whether client certificates are asked for and checked by the transport.
    trusted: members of the trusted group, by name with or without its kind; ``*``: all that proved who they are.
    """

    def __init__(self, tokens: str = "", certificates: bool = False, trusted: Iterable[str] = ()) -> None:
        self.tokens = Tokens(tokens) if tokens else None
        self._certificates = certificates
        self._trusted = frozenset(trusted)

    def principal(self, metadata: Mapping[str, str | bytes], auth: Mapping[str, Iterable[bytes]], peer: str) -> Principal:
        """metadata: of the call; auth: `grpc.ServicerContext.auth_context`; peer: as gRPC writes it. ServiceError UNAUTHENTICATED."""
        if self.tokens is not None:
            given = metadata.get("authorization", b"")
            given = given.encode("utf-8", "replace") if isinstance(given, str) else given
            scheme, _, token = given.partition(b" ")
            name = self.tokens.name(token.strip()) if scheme.lower() == b"bearer" and token else None
            if name is not None:
                return self._named("token", name)
            if given or not self._certificates:
                message = "a valid bearer token is needed: metadata `authorization: Bearer TOKEN`"
                raise ServiceError("UNAUTHENTICATED", "TOKEN_WANTED", message)
        if self._certificates:
            name = _certificate_name(auth)
            if name is None:
                raise ServiceError("UNAUTHENTICATED", "CERTIFICATE_WANTED", "a client certificate with a name is needed")
            return self._named("cert", name)
        id = f"peer:{peer_address(peer)}"
        return Principal(id, GROUP if id in self._trusted else id)

    def _named(self, kind: str, name: str) -> Principal:
        id = f"{kind}:{name}"
        return Principal(id, GROUP if self._trusted & {"*", id, name} else id)


def _certificate_name(auth: Mapping[str, Iterable[bytes]]) -> str | None:
    """The first subject alternative name, else the common name."""
    for key in ("x509_subject_alternative_name", "x509_common_name"):
        for value in auth.get(key, ()):
            name = value.decode("utf-8", "replace").strip()
            if name:
                return name[:200]
    return None


def peer_address(peer: str) -> str:
    """``ipv4:10.0.0.7:4312`` -> ``10.0.0.7``: the port says nothing. Of IPv6 the network (/64): hosts have many addresses."""
    kind, _, rest = urllib.parse.unquote(peer).partition(":")
    if kind == "unix":
        return "unix"
    host = rest.rpartition(":")[0].strip("[]").partition("%")[0]
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return "unknown"
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        if not address.is_loopback:
            return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)


def read_pem(path: str, what: str) -> bytes:
    """The content of a PEM file. `ConfigError`."""
    try:
        data = Path(path).read_bytes()
    except OSError as e:
        raise ConfigError(f"cannot read {path}: {e.strerror or e}") from e
    if b"-----BEGIN " not in data:
        raise ConfigError(f"{path}: not a PEM file; {what} is wanted")
    return data
