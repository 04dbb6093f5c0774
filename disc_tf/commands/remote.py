"""`disc-tf optimize --remote`: flags, the connection, and what a dry run of it prints."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from disc_tf.commands.common import BAD_INPUT, USAGE, CommandError
from disc_tf.options import Options

_FLAGS = (
    ("--remote-ca", "ca", "FILE", "certificate authority of the server (PEM); switches TLS on"),
    ("--remote-cert", "certificate", "FILE", "client certificate (PEM)"),
    ("--remote-key", "key", "FILE", "its key (PEM)"),
    ("--remote-token-file", "token_file", "FILE", "file with a bearer token; sent over TLS or to this machine only"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of a remote compilation."""
    group = parser.add_argument_group("compilation by a service (docs/service.md)")
    group.add_argument(
        "--remote",
        metavar="HOST:PORT",
        help="let a disc-tf-server compile: the graph's skeleton travels, weights stay here; the result is verified here as always",
    )
    group.add_argument("--remote-dry-run", action="store_true", help="print every value that --remote would send, and stop")
    group.add_argument("--remote-full", action="store_true", help="send the constants too")
    group.add_argument("--remote-tls", action="store_true", help="TLS with the system's certificate authorities")
    for flag, _, metavar, text in _FLAGS:
        group.add_argument(flag, metavar=metavar, default="", help=text)
    timeout = "for the compilation, waiting included (0: the server's limit)"
    group.add_argument("--remote-timeout", type=float, default=0.0, metavar="SECONDS", help=timeout)
    group.add_argument("--trust-file", metavar="FILE", default="", help="keys whose signatures are accepted; nothing else is then")


def check(args: argparse.Namespace) -> None:
    """`CommandError` for flags that need --remote."""
    if args.remote:
        if args.remote_timeout < 0:
            raise CommandError("--remote-timeout is negative", USAGE)
        return
    for flag, _, _, _ in _FLAGS:
        if getattr(args, flag.lstrip("-").replace("-", "_")):
            raise CommandError(f"{flag} goes with --remote HOST:PORT", USAGE)
    for flag in ("remote_full", "remote_tls", "remote_timeout", "trust_file"):
        if getattr(args, flag):
            raise CommandError(f"--{flag.replace('_', '-')} goes with --remote HOST:PORT", USAGE)


@contextmanager
def connected(args: argparse.Namespace) -> Iterator[Any]:
    """A `disc_tf.remote.Client`, None without --remote. `CommandError` for whatever is wrong with the connection or the answer."""
    if not args.remote:
        yield None
        return
    try:
        from disc_tf.remote.client import Client
        from disc_tf.remote.connection import Address
        from disc_tf.remote.errors import RemoteError
        from disc_tf.remote.merge import ResultError
        from disc_tf.remote.trust import TrustError, TrustPolicy
    except ImportError as e:
        raise CommandError(f"--remote needs more packages ({e.name}): pip install 'disc-tf[remote]'", USAGE) from e
    fields = {field: getattr(args, flag.lstrip("-").replace("-", "_")) for flag, field, _, _ in _FLAGS}
    try:
        trust = TrustPolicy.from_file(args.trust_file) if args.trust_file else None
        address = Address(args.remote, tls=args.remote_tls, **fields)
        client = Client(address, timeout=args.remote_timeout, full=args.remote_full, trust=trust)
    except (OSError, ValueError, TrustError) as e:
        raise CommandError(f"--remote {args.remote}: {e}", USAGE) from e
    with client:
        try:
            yield client
        except RemoteError as e:
            raise CommandError(f"{args.remote}: {e}{_advice(e)}", BAD_INPUT) from e
        except (ResultError, TrustError) as e:
            raise CommandError(f"{args.remote}: {e}", BAD_INPUT) from e


def _advice(error: Any) -> str:
    if error.code == "UNAVAILABLE":
        return "; is a disc-tf-server there? Without --remote this machine compiles itself"
    if error.code == "UNAUTHENTICATED":
        return "; give --remote-token-file, or --remote-cert and --remote-key"
    return ""


def print_request(graph_def: Any, outputs: Any, options: Options, *, full: bool) -> None:
    """Every value that would be sent, and what is sent of the rest."""
    from disc_tf.frontend.load import load
    from disc_tf.optimizer import Request
    from disc_tf.remote.merge import prepare

    loaded = load(graph_def, outputs or None, keep_control=options.keep_control)
    ready = prepare(loaded, Request(graph_def, outputs or None, options), with_contents=full)
    kinds: dict[str, int] = {}
    for node in ready.skeleton.graph_def.node:
        kinds[node.op] = kinds.get(node.op, 0) + 1
    print(f"request: {len(ready.request.graph)} bytes before compression, {len(ready.skeleton.graph_def.node)} nodes")
    print("nodes by op: " + ", ".join(f"{op} {n}" for op, n in sorted(kinds.items())))
    print(f"constants without content: {ready.skeleton.opaque} different ones")
    print(f"constants with content ({len(ready.skeleton.sent)}; names are not sent):")
    for name, text in ready.skeleton.sent:
        print(f"  {name}: {text}")
    if full:
        print("--remote-full: all other constants too")
    for text, stand_in in ready.skeleton.texts.items():
        print(f"  message {stand_in} stands for {text!r}")
    print(f"options: {str(ready.request.options).strip()}")
