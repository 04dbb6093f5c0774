"""`disc-tf serve`."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path

from disc_tf.commands.common import BAD_INPUT, INTERNAL_ERROR, OK, USAGE, CommandError, add_packs_argument, share_packs
from disc_tf.commands.signers import add_trust_argument, set_trust
from disc_tf.commands.unused import NO_BATCHES, NO_REST, refuse
from disc_tf.commands.verify import at_least, between, positive_seconds, seconds
from disc_tf.extras import needing

#: more are a mistake
_MOST_THREADS = 4096


def _batch_rows(text: str) -> int:
    """An argparse type: 0 (off), or rows of a batch."""
    rows = at_least(0)(text)
    if rows == 1:
        raise argparse.ArgumentTypeError("one row is no batch: give 2 or more, or 0 for none")
    return rows


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("base", nargs="?", help="the base path of a model: a directory of numbered version directories (or its URL)")
    parser.add_argument("--name", help="the model's name (default: the base path's last part)")
    parser.add_argument("--models-config", metavar="F", help="serve the models of a ModelServer configuration file instead")
    parser.add_argument("--versions", default="latest", metavar="P", help="which versions: latest, latest:N, all, or numbers as in 3,5")
    parser.add_argument("--label", action="append", default=[], metavar="NAME=VERSION", help="a version label")
    net = parser.add_argument_group("network")
    net.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
    net.add_argument("--port", type=between(0, 65535), default=8500, help="gRPC port (default: 8500; 0: a free one)")
    net.add_argument("--rest-port", type=between(-1, 65535), default=8501, help="REST port (default: 8501; 0: a free one; -1: no REST)")
    net.add_argument("--socket", default="", metavar="F", help="listen on this Unix socket too (gRPC)")
    net.add_argument("--tls-cert", metavar="F", help="serve over TLS: certificate chain, PEM")
    net.add_argument("--tls-key", metavar="F", help="its private key, PEM")
    net.add_argument("--tls-client-ca", default="", metavar="F", help="ask clients for a certificate signed by one of these")
    net.add_argument("--token-file", metavar="F", help="ask for the bearer token in this file")
    add_trust_argument(net, loads=True)
    limits = parser.add_argument_group("limits")
    limits.add_argument(
        "--threads", type=between(1, _MOST_THREADS), default=16, help="requests that run at once, of each protocol (default: 16)"
    )
    limits.add_argument(
        "--max-concurrent", type=at_least(1), default=2000, help="requests that may wait or run; more are refused (default: 2000)"
    )
    limits.add_argument("--max-message-mb", type=between(1, 2048), default=256, help="largest request (default: 256)")
    limits.add_argument(
        "--rest-timeout", type=positive_seconds, default=30.0, metavar="S", help="seconds that a REST request may take (default: 30)"
    )
    for flag, what in (("--intra-op", "intra-op"), ("--inter-op", "inter-op")):
        limits.add_argument(
            flag, type=between(0, _MOST_THREADS), default=0, metavar="N", help=f"TensorFlow's {what} threads (default: all CPUs)"
        )
    add_packs_argument(limits)
    limits.add_argument(
        "--packs-limit-mb", type=at_least(0), default=0, metavar="N", help="MB that all packs in --packs may take (default: 0, no limit)"
    )
    life = parser.add_argument_group("versions and life cycle")
    life.add_argument(
        "--poll", type=seconds, default=1.0, metavar="S", help="look for versions every S seconds (default: 1; 0: only at the start)"
    )
    life.add_argument(
        "--quiet-seconds", type=seconds, default=1.0, metavar="S", help="a version is complete when it has not changed for S seconds"
    )
    life.add_argument("--cache-dir", default="", metavar="DIR", help="where copies of an object store's versions are kept while loaded")
    life.add_argument(
        "--cache-mb", type=between(1, 1 << 30), default=20480, metavar="N", help="how much these copies may be in all (default: 20480)"
    )
    life.add_argument("--no-warmup", action="store_true", help="do not replay warm-up records when a version is loaded")
    life.add_argument(
        "--reload-root",
        action="append",
        default=[],
        metavar="DIR",
        help="where reload requests may load models from (default: the base paths)",
    )
    life.add_argument(
        "--allow-version-labels-for-unavailable-models", action="store_true", help="labels may name versions that are not loaded"
    )
    life.add_argument("--grace", type=seconds, default=30.0, metavar="S", help="on SIGTERM: seconds for requests that run (default: 30)")
    life.add_argument(
        "--shutdown-delay", type=seconds, default=0.0, metavar="S", help="on SIGTERM: go on answering for S seconds, not ready"
    )
    batch = parser.add_argument_group("batching (off unless --batch-rows is given)")
    batch.add_argument(
        "--batch-rows",
        type=_batch_rows,
        default=0,
        metavar="N",
        help="run requests together, up to N rows, where rows are proved independent",
    )
    batch.add_argument(
        "--batch-wait-us",
        type=between(0, 60_000_000),
        default=1000,
        metavar="US",
        help="how long a request waits for others (default: 1000)",
    )
    batch.add_argument(
        "--batch-queue", type=at_least(1), default=1024, metavar="N", help="requests that may wait for a batch (default: 1024)"
    )


def run(args: argparse.Namespace) -> int:
    with needing("serve", "serve"):
        from disc_tf.serving.batching import BatchSettings
        from disc_tf.serving.config import ConfigError, ModelSettings, VersionPolicy, is_model_name, read_models_config
        from disc_tf.serving.errors import ServingError
        from disc_tf.serving.server import ModelServer, ServerSettings, Tls, read_token

    if (args.base is None) == (args.models_config is None):
        both = "" if args.base is None else ", not both"
        raise CommandError(f"give the base path of a model, or --models-config F{both}", USAGE)
    if (args.tls_cert is None) != (args.tls_key is None) or (args.tls_client_ca and not args.tls_cert):
        raise CommandError("TLS needs both --tls-cert and --tls-key", USAGE)
    if args.batch_rows < 2:
        refuse(args, NO_BATCHES)
    if args.rest_port < 0:
        refuse(args, NO_REST)
    if args.packs_limit_mb and args.packs is None:
        raise CommandError("--packs-limit-mb goes with --packs", USAGE)
    share_packs(args.packs, args.packs_limit_mb)
    set_trust(args.trust_file)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    try:
        if args.models_config is not None:
            if args.name or args.label or args.versions != "latest":
                raise CommandError("--name, --label and --versions are for a base path; with --models-config the file says it", USAGE)
            models = read_models_config(args.models_config)
        else:
            name = args.name or Path(args.base if "://" in args.base else os.path.realpath(args.base)).name
            if not is_model_name(name):
                raise CommandError(f"{name!r} cannot be a model's name: give one without '/' and ':' (--name)", USAGE)
            models = [ModelSettings(name, args.base, VersionPolicy.parse(args.versions), _labels(args.label))]
        settings = ServerSettings(
            host=args.host,
            port=args.port,
            rest_port=None if args.rest_port < 0 else args.rest_port,
            socket=args.socket,
            tls=Tls(args.tls_cert, args.tls_key, args.tls_client_ca) if args.tls_cert else None,
            token=read_token(args.token_file) if args.token_file else None,
            poll_seconds=args.poll,
            quiet_seconds=args.quiet_seconds,
            threads=args.threads,
            tf_threads=(args.intra_op, args.inter_op),
            max_message_bytes=min(args.max_message_mb << 20, (1 << 31) - 1),
            max_concurrent=args.max_concurrent,
            rest_timeout=args.rest_timeout,
            warmup=not args.no_warmup,
            batching=BatchSettings(args.batch_rows, args.batch_wait_us / 1e6, args.batch_queue) if args.batch_rows else None,
            allow_unavailable_labels=args.allow_version_labels_for_unavailable_models,
            reload_roots=tuple(args.reload_root),
            cache_dir=args.cache_dir,
            cache_bytes=args.cache_mb << 20,
        )
        server = ModelServer(models, settings)
        if args.host not in ("127.0.0.1", "localhost", "::1") and settings.token is None and not args.tls_client_ca:
            print(f"disc-tf serve: {args.host} is open to the network and asks for no token (--token-file)", file=sys.stderr)
        server.start()
    except ConfigError as e:
        raise CommandError(str(e), BAD_INPUT) from e
    except ServingError as e:
        raise CommandError(e.message, BAD_INPUT) from e
    except OSError as e:
        raise CommandError(f"cannot start: {e}", BAD_INPUT) from e
    print(f"gRPC on {args.host}:{server.port}, REST on {args.host}:{server.rest_port}", file=sys.stderr)
    for name, versions in server.manager.models().items():
        print(f"model {name}: " + (f"versions {', '.join(map(str, versions))}" if versions else "no version yet"), file=sys.stderr)
    sys.stderr.flush()
    return OK if server.wait(args.grace, args.shutdown_delay) else INTERNAL_ERROR


def _labels(texts: list[str]) -> dict[str, int]:
    from disc_tf.serving.versions import version_number

    labels: dict[str, int] = {}
    for text in texts:
        name, sep, version = text.partition("=")
        number = version_number(version)
        if not sep or not name or number is None:
            raise CommandError(f"--label {text!r}: write it as NAME=VERSION, with a version number", USAGE)
        labels[name] = number
    return labels
