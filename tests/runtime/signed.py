"""Artefacts that a service's key signed, and the trust file that goes with it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from disc_tf_server.signing import FileSigner, add_key, trust_file

from disc_tf.remote.messages import message_class
from disc_tf.runtime import set_trust
from disc_tf.runtime.artifact import Artifact, SignedStatement
from disc_tf.runtime.identity import code_identity


class Keys:
    """A key file with one key, and its trust file ``trust``."""

    def __init__(self, root: Path, id: str = "2026-11") -> None:
        self.file, self.trust = root / f"{id}.keys", root / f"{id}.toml"
        add_key(self.file, id, time.time() - 3600, 100)
        self.trust.write_text(trust_file(self.file))

    def signed(self, artifact: Artifact, *, lifetime: float = 3600.0, clock: float | None = None) -> Artifact:
        """With a statement of it, and of another cluster of the same request."""
        signer = FileSigner(self.file, lifetime, clock=lambda: time.time() if clock is None else clock)
        targets = [t.isa for t in artifact.targets]
        data = signer.sign([b"o" * 32, code_identity(artifact)], b"r" * 32, artifact.compiler_version, targets)
        message = message_class("Signature").FromString(data)
        return dataclasses.replace(artifact, signed=SignedStatement(message.statement, message.signature))


@contextmanager
def trusting(file: Path | str) -> Iterator[None]:
    """The file is in force inside the block."""
    set_trust(file)
    try:
        yield
    finally:
        set_trust(None)
