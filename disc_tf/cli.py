"""The command `disc-tf`. Flags of `optimize` come from `disc_tf.options`; the verbs live in `disc_tf.commands`."""

from __future__ import annotations

import argparse
import io
import os
import select
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from disc_tf.commands import (
    completion,
    config,
    doctor,
    inspect,
    optimize,
    replay,
    reproduce,
    restore,
    run,
    serve,
    serving,
    trace,
    tune,
    verify,
)
from disc_tf.commands.common import BAD_INPUT, INTERNAL_ERROR, MISSING_PACKAGES, CommandError
from disc_tf.commands.kinds import is_standalone
from disc_tf.commands.parser import Parser
from disc_tf.extras import COMPILING, GRAPHS, MissingPackages, missing_packages, package_of, require
from disc_tf.quiet import LEVEL, quiet_tensorflow
from disc_tf.testing.tf_process import ProcessFailed, TfError

_EXIT_CODES = """exit codes:
  0 done   1 internal error, or packages are missing   2 usage   3 bad input   4 not compiled (--strict)   5 verification failed
  6 not built yet"""

@dataclass(frozen=True)
class Verb:
    """A subcommand: its help, its flags, what runs it."""

    help: str
    add_arguments: Callable[[argparse.ArgumentParser], object]
    run: Callable[[argparse.Namespace], int]
    epilog: str = ""


VERBS: dict[str, Verb] = {
    "optimize": Verb(
        "compile the clusters of a graph; check and time the result against TensorFlow",
        optimize.add_arguments,
        optimize.run,
        "examples:\n  disc-tf optimize graph.pb -o optimized.pb\n"
        "  disc-tf optimize graph.pb -o out.pb --target native --shape B=2,S=37 --report report.json",
    ),
    "inspect": Verb(
        "what would be compiled, and why not the rest",
        inspect.add_arguments,
        inspect.run,
        "examples:\n  disc-tf inspect graph.pb --report clusters.html\n"
        "  disc-tf inspect graph.pb --explain encoder/layer_0/Softmax\n  disc-tf inspect graph.pb --draw clusters.svg\n"
        "  disc-tf inspect graph.pb --kernels --shape B=4,S=61 --threads 1",
    ),
    "verify": Verb(
        "run two graphs on the same inputs and compare",
        verify.add_verify_arguments,
        verify.run_verify,
        "examples:\n  disc-tf verify graph.pb optimized.pb\n  disc-tf verify graph.pb optimized.pb --shape B=1,S=7 --report verified.html",
    ),
    "bench": Verb(
        "time two graphs side by side, per shape",
        verify.add_bench_arguments,
        verify.run_bench,
        "examples:\n  disc-tf bench graph.pb optimized.pb --threads 4\n"
        "  disc-tf bench graph.pb optimized.pb --shape B=1,S=7 --shape B=8,S=48 --csv times.csv --cold 3",
    ),
    "restore": Verb(
        "give the original of an optimised graph back",
        restore.add_arguments,
        restore.run,
        "examples:\n  disc-tf restore optimized.pb -o original.pb",
    ),
    "run": Verb(
        "run a model on arrays: a stand-alone file (no TensorFlow needed), a SavedModel, or a GraphDef",
        run.add_arguments,
        run.run,
        "examples:\n  disc-tf run model.disc --input ids=ids.npy -o out.npz\n  disc-tf run saved_model/ --inputs inputs.npz --json",
    ),
    "trace": Verb(
        "record where the time of a run goes: every kernel launch on a time axis, thread by thread",
        trace.add_arguments,
        trace.run,
        "examples:\n  disc-tf trace graph.pb -o trace.json --shape B=8,S=128\n  disc-tf trace model.disc -o trace.json --inputs inputs.npz",
    ),
    "tune": Verb(
        "measure schedules of products and convolutions on this machine, and write a table of those that win",
        tune.add_arguments,
        tune.run,
        "examples:\n  disc-tf tune -o table.json --seconds 600\n  disc-tf tune -o table.json --model graph.pb\n"
        "  disc-tf optimize graph.pb -o out.pb --target native --tuning table.json",
    ),
    "replay": Verb(
        "run a captured cluster in TensorFlow, in the interpreter and natively, and say where they differ",
        replay.add_arguments,
        replay.run,
        "examples:\n  disc-tf optimize graph.pb -o out.pb --capture faults\n  disc-tf replay faults/disc_cluster_0.replay --values",
    ),
    "reproduce": Verb(
        "write small graphs that show internal errors of the compiler, for a report",
        reproduce.add_arguments,
        reproduce.run,
        "examples:\n  disc-tf reproduce graph.pb -o defects/",
    ),
    "doctor": Verb("check this environment", doctor.add_arguments, doctor.run, "examples:\n  disc-tf doctor\n  disc-tf doctor --json"),
    "completion": Verb(
        "print a completion script for a shell",
        completion.add_arguments,
        completion.run,
        "examples:\n  eval \"$(disc-tf completion bash)\"\n"
        "  disc-tf completion zsh > ~/.zfunc/_disc-tf\n  disc-tf completion fish > ~/.config/fish/completions/disc-tf.fish",
    ),
    "serving": Verb(
        "prepare models for TensorFlow Serving",
        serving.add_arguments,
        serving.run,
        "examples:\n  disc-tf serving prepare /models/bert --to /optimized/bert\n  disc-tf serving prepare --help",
    ),
    "serve": Verb(
        "serve SavedModels over TensorFlow Serving's gRPC and REST protocols",
        serve.add_arguments,
        serve.run,
        "examples:\n  disc-tf serve models/mnist --name mnist\n"
        "  disc-tf serve --models-config models.config --host 0.0.0.0 --tls-cert c.pem --tls-key k.pem --token-file token",
    ),
}

_WITHOUT_TENSORFLOW = ("completion", "restore", "tune")


def build_parser() -> Parser:
    parser = Parser(
        prog="disc-tf",
        description="A dynamic-shape compiler for TensorFlow graphs.",
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("-V", "--version", action="store_true", help="print the version and exit")
    sub = parser.add_subparsers(dest="verb", metavar="VERB")
    for name, verb in VERBS.items():
        p = sub.add_parser(
            name,
            help=verb.help,
            description=verb.help[0].upper() + verb.help[1:] + ".",
            epilog=verb.epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        verb.add_arguments(p)
        if name not in _WITHOUT_TENSORFLOW:
            p.add_argument("-v", "--verbose", action="store_true", help="show TensorFlow's own log lines")
        if name in config.VERBS:
            config.add_arguments(p)
    return parser


def _given(verb: str, argv: Sequence[str]) -> set[str]:
    """The names of the flags that stand on the command line, whatever their values."""
    parser = build_parser()
    sub = parser.inner()[verb]
    config.without_positionals(sub)
    for action in sub._actions:
        action.default = argparse.SUPPRESS
    return set(vars(parser.parse_known_args(argv)[0]))


def _configured(parser: Parser, argv: Sequence[str]) -> tuple[argparse.Namespace, list[str], bool]:
    """The arguments with a configuration file's, those that are not known, and whether the configuration was only asked for."""
    verbs = parser.inner()
    verb = next((a for a in argv if a in verbs), "")
    if verb not in config.VERBS:
        return *parser.parse_known_args(argv), False
    sub = verbs[verb]
    asked = "--print-config" in argv
    if asked:
        config.without_positionals(sub)
    args, unknown = parser.parse_known_args(argv)
    if not unknown and args.config:
        config.apply(sub, args, args.config, _given(verb, argv))
    if asked and not unknown:
        print(config.to_toml(sub, args, verb), end="")
    return args, unknown, asked


def _extra(args: argparse.Namespace) -> str:
    """The extra that has what a verb needs."""
    if args.verb == "serve":
        return "serve"
    elsewhere = args.verb == "optimize" and (args.remote or args.remote_dry_run or args.remote_result)
    return "remote" if elsewhere else "compiler"


def _packages(args: argparse.Namespace) -> tuple[str, ...]:
    """Packages that a verb cannot do without. `run`, `doctor` and `completion` need none; serve and serving ask."""
    if args.verb == "optimize":
        elsewhere = args.dry_run or _extra(args) == "remote"
        runs = not (args.no_verify or args.dry_run or args.remote_dry_run)
        return (GRAPHS if elsewhere else COMPILING) + (("tensorflow",) if runs else ())
    if args.verb == "trace":
        return () if is_standalone(args.model) else (*COMPILING, "tensorflow")
    if args.verb == "tune":
        return COMPILING if args.model else ("llvmlite", "ml_dtypes")
    table = {"inspect": GRAPHS, "restore": GRAPHS, "verify": (*GRAPHS, "tensorflow"), "bench": (*GRAPHS, "tensorflow")}
    return table.get(args.verb, (*COMPILING, "tensorflow") if args.verb == "replay" else COMPILING if args.verb == "reproduce" else ())


def _lacking(args: argparse.Namespace, e: ModuleNotFoundError) -> MissingPackages | None:
    """The message for a package that was asked for late; None if it is none of ours."""
    package = package_of(e.name or "")
    return None if package is None else missing_packages(args.verb, _extra(args), [package])


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    try:
        code = _main(argv)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        if not _unread():
            raise
        return INTERNAL_ERROR


def _main(argv: Sequence[str] | None) -> int:
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files may be no text
    parser = build_parser()
    try:
        args, unknown, done = _configured(parser, list(sys.argv[1:] if argv is None else argv))
    except CommandError as e:
        print(f"disc-tf: {e}", file=sys.stderr)
        return e.code
    if unknown:
        parser.refuse_unknown(unknown, [name for name in (args.verb, getattr(args, "action", None)) if name])
    if args.version:
        from disc_tf.version import __version__

        print(f"disc-tf {__version__}")
        return 0
    if args.verb is None:
        parser.print_help()
        return 2
    if done:
        return 0
    try:
        require(args.verb, _extra(args), _packages(args))
        if getattr(args, "verbose", False):
            os.environ[LEVEL] = "0"
        with quiet_tensorflow():
            return VERBS[args.verb].run(args)
    except CommandError as e:
        print(f"disc-tf: {e}", file=sys.stderr)
        return e.code
    except ProcessFailed as e:
        print(f"disc-tf: {e}", file=sys.stderr)
        return INTERNAL_ERROR
    except TfError as e:
        print(f"disc-tf: TensorFlow raises code {e.code}: {e}", file=sys.stderr)
        return BAD_INPUT
    except ModuleNotFoundError as e:
        told = e if isinstance(e, MissingPackages) else _lacking(args, e)
        if told is None:
            raise
        print(f"disc-tf: {told}", file=sys.stderr)
        return MISSING_PACKAGES
    except MemoryError as e:
        print(f"disc-tf: {e or 'not enough memory'}: take smaller shapes (--shape)", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("disc-tf: interrupted", file=sys.stderr)
        return INTERNAL_ERROR


def _unread() -> bool:
    """Whether nobody reads what is printed any more (`disc-tf ... | head`); the interpreter then has nothing left to write when it ends."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    if not poll.poll(0):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return True


if __name__ == "__main__":
    sys.exit(main())
