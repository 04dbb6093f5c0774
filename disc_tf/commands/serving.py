"""`disc-tf serving prepare`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from disc_tf.commands.common import BAD_INPUT, OK, USAGE, VERIFY_FAILED, CommandError, check_output, write_atomically
from disc_tf.commands.optimize import add_option_flags, options_from
from disc_tf.commands.signers import refuse_local_code
from disc_tf.commands.unused import NO_WARMUP, NOT_WATCHED, ONE_SEGMENT, ROLLBACK, WATCHED, refuse
from disc_tf.commands.verify import at_least, seconds
from disc_tf.extras import COMPILING, GRAPHS, require
from disc_tf.options import Options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    p = actions.add_parser(
        "prepare",
        help="optimise the versions below a base path into another",
        description="Optimise the versions below a base path, and publish them under the same numbers below another.",
        epilog="examples:\n  disc-tf serving prepare models/mnist --to fast/mnist --watch\n"
        "  disc-tf serving prepare --models-config models.config --to fast --write-config fast.config\n"
        "  disc-tf serving prepare models/mnist --to fast/mnist --rollback 7",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    p.add_argument("base", nargs="?", help="the base path of a model: a directory of numbered versions, or an fsspec URL")
    p.add_argument(
        "--to", required=True, metavar="BASE", help="where the optimised versions go; with --models-config: BASE/NAME of each model"
    )
    p.add_argument("--name", help="the model's name in messages and warm-up records (default: the base path's last part)")
    p.add_argument("--models-config", metavar="F", help="prepare the models of a ModelServer configuration, by its policies and labels")
    p.add_argument("--write-config", metavar="F", help="write the edited configuration there (default: print it)")
    p.add_argument("--versions", default="latest", metavar="P", help="which versions: latest, latest:N, all, or numbers as in 3,5")
    p.add_argument("--version-scheme", metavar="S", help="offset:N adds N to version numbers: needed if both base paths are one")
    p.add_argument("--watch", action="store_true", help="go on looking for new versions until a signal")
    p.add_argument("--poll", type=seconds, default=10.0, metavar="S", help="with --watch: look every S seconds (default: 10)")
    p.add_argument(
        "--quiet-seconds", type=seconds, default=5.0, metavar="S", help="a version is complete when it has not changed for S seconds"
    )
    p.add_argument(
        "--wait",
        type=seconds,
        default=60.0,
        metavar="S",
        help="without --watch: wait so long for versions being written (default: 60)",
    )
    p.add_argument(
        "--keep", type=at_least(0), default=0, metavar="N", help="keep only the newest N versions that were made here (default: all)"
    )
    p.add_argument("--keep-removed", action="store_true", help="keep versions that are gone from the source")
    p.add_argument("--retry", action="store_true", help="optimise again what could not be")
    p.add_argument(
        "--rollback", type=at_least(0), metavar="V", help="publish the original of version V in place of the optimised one, for good"
    )
    p.add_argument("--no-warmup", action="store_true", help="write no warm-up records where there are none")
    p.add_argument(
        "--warmup-shapes", type=at_least(1), default=6, metavar="N", help="shapes of each signature in warm-up records (default: 6)"
    )
    p.add_argument(
        "--timeout", type=seconds, default=0.0, metavar="S", help="publish the original if optimising takes longer (default: no limit)"
    )
    p.add_argument("--no-verify", action="store_true", help="do not run the result against TensorFlow before publishing it")
    p.add_argument("--no-timing", action="store_true", help="verify, but do not time")
    p.add_argument("--freeze", action="store_true", help="bake the variables' values in")
    p.add_argument("--json", action="store_true", help="print one JSON object a version")
    add_option_flags(p)


def run(args: argparse.Namespace) -> int:
    if args.rollback is None:
        # before anything is looked at: what this environment lacks says nothing of a model
        unverified = args.no_verify and not args.freeze and args.no_warmup
        require("serving", "compiler,serve", (*COMPILING, *(() if unverified else ("tensorflow",))))
    else:
        require("serving", "compiler,serve", GRAPHS)
    from disc_tf.serving.config import ConfigError
    from disc_tf.serving.stores import StoreError

    if (args.base is None) == (args.models_config is None):
        raise CommandError("give the base path of a model, or --models-config F", USAGE)
    if args.models_config is not None and (args.name or args.versions != "latest" or args.rollback is not None):
        raise CommandError("--name, --versions and --rollback are for a base path; a configuration has its own", USAGE)
    if args.write_config and args.models_config is None:
        raise CommandError("--write-config needs --models-config", USAGE)
    refuse(args, ONE_SEGMENT)
    if args.rollback is not None:
        refuse(args, ROLLBACK)
    refuse(args, WATCHED if args.watch else NOT_WATCHED)
    if args.no_warmup:
        refuse(args, NO_WARMUP)
    if args.rollback is None:
        refuse_local_code()
    flags = option_flags(args)
    try:
        return _prepare(args, flags)
    except (ConfigError, StoreError) as e:
        raise CommandError(str(e), BAD_INPUT) from e


def option_flags(args: argparse.Namespace) -> list[str]:
    """The flags of `disc-tf optimize` among those given. `CommandError` (usage) for a value that an option refuses."""
    options_from(args)
    flags = [f"--{name.replace('_', '-')}" for name in ("no_verify", "no_timing", "freeze") if getattr(args, name)]
    for field in dataclasses.fields(Options):
        value, flag = getattr(args, field.name, None), field.metadata["flag"]
        if value is None or not flag:
            continue
        if isinstance(value, bool):
            flags.append(flag if value else flag.replace("--", "--no-", 1))
        else:
            flags += [f"{flag}={v}" for v in (value if isinstance(value, list) else [value])]
    return flags


def _prepare(args: argparse.Namespace, flags: list[str]) -> int:
    from disc_tf.serving.children import Children
    from disc_tf.serving.config import ModelSettings as Model
    from disc_tf.serving.config import Move, VersionPolicy, edited, read_models_config
    from disc_tf.serving.prepare import FAULTS, Outcome, Preparer, watch
    from disc_tf.serving.stores import open_store, same_place
    from disc_tf.serving.versions import Settled

    offset = _offset(args.version_scheme)
    if args.models_config is not None:
        models = read_models_config(args.models_config)
        targets = {m.name: f"{args.to.rstrip('/')}/{m.name}" for m in models}
    else:
        name = args.name or _absolute(args.base).rstrip("/").rsplit("/", 1)[-1] or "model"
        if name in (".", ".."):
            raise CommandError(f"{name!r} is no name of a model: give another --name", USAGE)
        models = [Model(name, args.base, VersionPolicy.parse(args.versions))]
        targets = {name: args.to}
    if args.write_config:
        check_output(args.write_config)
    preparers, children = [], []
    for model in models:
        source, target = open_store(model.base_path), open_store(targets[model.name])
        if same_place(source, target) and not offset:
            raise CommandError(f"{target} is the source itself: give another base path, or --version-scheme offset:N", USAGE)
        child = Children(flags, timeout=args.timeout, model=model.name, shapes=args.warmup_shapes)
        children.append(child)
        made = Preparer(
            model, source, target, child.optimize, offset=offset, keep=args.keep, mirror=not args.keep_removed, retry=args.retry
        )
        made.settled = Settled(args.quiet_seconds)
        made.progress = lambda text: print(text, file=sys.stderr, flush=True)
        if not args.no_warmup:
            made.warm_up = child.warm_up
        preparers.append(made)

    def say(outcome: Outcome) -> None:
        print(json.dumps(dataclasses.asdict(outcome)) if args.json else outcome.line(), flush=True)

    if args.rollback is not None:
        say(preparers[0].rollback(args.rollback))
        return OK
    if args.models_config is not None:
        moves = {m.name: Move(_absolute(targets[m.name]), lambda v: v + offset) for m in models}
        _say_config(args, edited(Path(args.models_config).read_text(), moves, args.models_config))
    if args.watch:
        stop = threading.Event()

        def end(*_: Any) -> None:
            stop.set()
            for child in children:
                child.stop()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, end)
        watch(preparers, args.poll, stop.wait, say, lambda text: print(f"disc-tf: {text}", file=sys.stderr, flush=True))
        return OK
    worst = OK
    for made in preparers:
        outcomes = made.run(wait=args.wait)
        if not outcomes:
            print(f"disc-tf: {made.settings.name}: no version to prepare below {made.source}", file=sys.stderr)
            worst = BAD_INPUT
        for outcome in outcomes:
            say(outcome)
            if outcome.result in FAULTS:
                worst = VERIFY_FAILED if outcome.code == VERIFY_FAILED and worst in (OK, VERIFY_FAILED) else BAD_INPUT
    return worst


def _absolute(path: str) -> str:
    return path if "://" in path else os.path.abspath(path)


def _say_config(args: argparse.Namespace, text: str) -> None:
    if args.write_config:
        write_atomically(args.write_config, text.encode())
    else:
        print(text, file=sys.stderr if args.json else sys.stdout, flush=True)


def _offset(scheme: str | None) -> int:
    if scheme is None:
        return 0
    kind, _, number = scheme.partition(":")
    if kind != "offset" or not number.isdigit() or not int(number):
        raise CommandError(f"--version-scheme {scheme!r}: write it as offset:N, N above every version number of the source", USAGE)
    return int(number)
