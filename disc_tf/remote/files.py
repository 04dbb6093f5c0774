"""A request written to a file and the answer read from one: clients in other languages carry them (examples/remote-node)."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

from google.protobuf.message import DecodeError

from disc_tf.frontend.load import Loaded
from disc_tf.optimizer import Elsewhere, Request
from disc_tf.remote.canonical import Canonical
from disc_tf.remote.merge import Answer, ResultError, compile_remotely, prepare
from disc_tf.remote.messages import message_class, new
from disc_tf.remote.trust import TrustPolicy
from disc_tf.version import __version__

_MAX_ANSWER = 1 << 30


class SeveralRequests(ValueError):
    """The model takes more than one request: several graphs, or loops of TensorFlow 1 that are first tried whole."""

    def __init__(self) -> None:
        super().__init__("this model takes more than one request, and a file holds one: use --remote HOST:PORT")


def writer(write: Callable[[bytes], None], *, full: bool = False) -> Callable[[Loaded, Request], None]:
    """Gives the serialized OptimizeRequest of one graph to ``write``. `SeveralRequests` for a second one."""
    asked = []

    def put(loaded: Loaded, request: Request) -> None:
        form = prepare(loaded, request, with_contents=full).request
        if asked and asked[0] != form.digest:
            raise SeveralRequests
        asked.append(form.digest)
        message = new("OptimizeRequest", request_id=str(uuid.uuid4()), options=form.options, client_version=__version__)
        message.graph.inline = form.graph
        message.graph.outputs.extend(form.outputs)
        message.graph.feeds.extend(form.feeds)
        write(message.SerializeToString(deterministic=True))

    return put


def reader(path: str, *, full: bool = False, trust: TrustPolicy | None = None) -> Elsewhere:
    """Takes the answer to one graph's request from a file: a serialized OptimizeResult with its content inside.

    What it gives raises OSError, `ResultError` and `CheckError` for what is in the file, `TrustError`, and `SeveralRequests`.
    """
    answer = _Answer(path, trust)
    return lambda loaded, request: compile_remotely(loaded, request, answer, with_contents=full)


class _Answer:
    def __init__(self, path: str, trust: TrustPolicy | None) -> None:
        self._path, self._trust = path, trust
        self._digest = b""

    def compile(self, request: Canonical, *, dry_run: bool, progress: Callable[[str], None]) -> Answer:
        """`disc_tf.remote.merge.Transport`."""
        if self._digest and self._digest != request.digest:
            raise SeveralRequests
        self._digest = request.digest
        if Path(self._path).stat().st_size > _MAX_ANSWER:
            raise ResultError(f"more than {_MAX_ANSWER} bytes are no answer")
        try:
            final = message_class("OptimizeResult").FromString(Path(self._path).read_bytes())
        except DecodeError as e:
            raise ResultError(f"not an OptimizeResult: {e}") from e
        if final.WhichOneof("content") != "inline":
            raise ResultError("the content is not in the file: the client that got it must read the blob, too (ReadBlob)")
        return Answer.accept(final, final.inline, request, self._trust)
