"""`disc-tf optimize --remote`: flags, the connection, and what a dry run of it prints."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from disc_tf.commands.common import BAD_INPUT, STANDALONE_SUFFIX, USAGE, CommandError, write_atomically
from disc_tf.commands.signers import VARIABLE
from disc_tf.commands.unused import refuse
from disc_tf.extras import needing

if TYPE_CHECKING:
    from disc_tf.optimizer import Elsewhere
    from disc_tf.remote.trust import TrustPolicy

_FLAGS = (
    ("--remote-ca", "ca", "FILE", "certificate authority of the server (PEM); switches TLS on"),
    ("--remote-cert", "certificate", "FILE", "client certificate (PEM)"),
    ("--remote-key", "key", "FILE", "its key (PEM)"),
    ("--remote-token-file", "token_file", "FILE", "file with a bearer token; sent over TLS or to this machine only"),
)


def _dest(flag: str) -> str:
    """The argument of a flag."""
    return flag.lstrip("-").replace("-", "_")


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
    group.add_argument(
        "--remote-request", metavar="FILE", default="", help="with --remote-dry-run: write the request, for a client in another language"
    )
    group.add_argument(
        "--remote-result", metavar="FILE", default="", help="take the clusters from the answer (an OptimizeResult) that such a client got"
    )
    timeout = "for the compilation, waiting included (0: the server's limit)"
    group.add_argument("--remote-timeout", type=float, default=0.0, metavar="SECONDS", help=timeout)
    what = f"keys whose signatures are accepted; nothing else is then (default: {VARIABLE})"
    group.add_argument("--trust-file", metavar="FILE", default="", help=what)


#: without --remote
NOT_REMOTE = dict.fromkeys((*(_dest(flag) for flag, *_ in _FLAGS), "remote_tls", "remote_timeout"), "goes with --remote HOST:PORT")
#: with -o NAME.disc
NO_DISC = dict.fromkeys(("remote", "remote_dry_run", "remote_result"), "is for graphs and SavedModels: a stand-alone file is made here")


def check(args: argparse.Namespace) -> None:
    """`CommandError` for flags that do not go together."""
    if not args.remote_dry_run:
        refuse(args, ["remote_request"], "goes with --remote-dry-run")
    if args.remote_result:
        refuse(args, ["remote", "remote_dry_run", "dry_run"], "does not go with --remote-result, whose answer is there already")
    if args.output and args.output.endswith(STANDALONE_SUFFIX):
        refuse(args, NO_DISC)
    if args.remote or args.remote_dry_run or args.remote_result:
        refuse(args, ["profile", "tuning"], "is for code that is compiled here: leave out --remote and its kin")
    if not args.remote:
        refuse(args, NOT_REMOTE)
        if not args.remote_result:
            refuse(args, ["trust_file"], "goes with --remote HOST:PORT, or with --remote-result")
            if not args.remote_dry_run:
                refuse(args, ["remote_full"], "goes with --remote HOST:PORT, or with --remote-dry-run")
    elif args.remote_timeout < 0:
        raise CommandError("--remote-timeout is negative: give seconds, 0 for the server's limit", USAGE)


@contextmanager
def compiling(args: argparse.Namespace, say: Callable[[str], None]) -> Iterator[Elsewhere | None]:
    """Who compiles: None, this process; with --remote the server; with --remote-result somebody did; with --remote-dry-run nobody, and what
    would be sent is printed.

    `CommandError` for whatever is wrong with the connection or the answer.
    """
    if args.remote_dry_run:
        from disc_tf.remote.dry_run import printer

        show = printer(print, full=args.remote_full)
        yield _writer(args, show, say) if args.remote_request else show
        return
    if args.remote_result:
        with _answered(args) as elsewhere:
            yield elsewhere
        return
    if not args.remote:
        yield None
        return
    with needing("--remote", "remote"):
        from disc_tf.remote.check import CheckError
        from disc_tf.remote.client import Client
        from disc_tf.remote.connection import Address
        from disc_tf.remote.errors import RemoteError
        from disc_tf.remote.merge import ResultError
        from disc_tf.remote.trust import TrustError

    fields = {field: getattr(args, _dest(flag)) for flag, field, _, _ in _FLAGS}
    try:
        trust = _policy(args)
        address = Address(args.remote, tls=args.remote_tls, **fields)
        client = Client(address, timeout=args.remote_timeout, full=args.remote_full, trust=trust)
    except (OSError, ValueError, TrustError) as e:
        raise CommandError(f"--remote {args.remote}: {e}", USAGE) from e
    with client:
        try:
            yield client.compile_graph
        except RemoteError as e:
            raise CommandError(f"{args.remote}: {e}{_advice(e)}", BAD_INPUT) from e
        except (ResultError, TrustError, CheckError) as e:
            raise CommandError(f"{args.remote}: {e}", BAD_INPUT) from e
        say(f"{args.remote}: {client.sent} bytes sent, {client.received} received")


def _policy(args: argparse.Namespace) -> TrustPolicy | None:
    """What is loaded later under the policy of the environment need not be taken first. `TrustError`."""
    from disc_tf.remote.trust import TrustPolicy

    file = args.trust_file or os.environ.get(VARIABLE)
    return TrustPolicy.from_file(file) if file else None


def _writer(args: argparse.Namespace, show: Elsewhere, say: Callable[[str], None]) -> Elsewhere:
    from disc_tf.remote.files import SeveralRequests, writer

    def written(loaded: Any, request: Any) -> Any:
        try:
            content(loaded, request)
        except SeveralRequests as e:
            raise CommandError(f"--remote-request: {e}", BAD_INPUT) from e
        say(f"wrote {args.remote_request}")
        return show(loaded, request)

    content = writer(lambda data: write_atomically(args.remote_request, data), full=args.remote_full)
    return written


@contextmanager
def _answered(args: argparse.Namespace) -> Iterator[Elsewhere]:
    with needing("--remote-result", "remote"):
        from disc_tf.remote.check import CheckError
        from disc_tf.remote.files import SeveralRequests, reader
        from disc_tf.remote.merge import ResultError
        from disc_tf.remote.trust import TrustError

    try:
        trust = _policy(args)
    except TrustError as e:
        raise CommandError(str(e), USAGE) from e
    try:
        yield reader(args.remote_result, full=args.remote_full, trust=trust)
    except OSError as e:
        raise CommandError(f"cannot read {args.remote_result}: {e.strerror or e}", BAD_INPUT) from e
    except (ResultError, TrustError, CheckError, SeveralRequests) as e:
        raise CommandError(f"{args.remote_result}: {e}", BAD_INPUT) from e


def _advice(error: Any) -> str:
    if error.code == "UNAVAILABLE":
        return "; is a disc-tf-server there? Without --remote this machine compiles itself"
    if error.code == "UNAUTHENTICATED":
        return "; give --remote-token-file, or --remote-cert and --remote-key"
    return ""
