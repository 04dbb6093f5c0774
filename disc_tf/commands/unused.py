"""Flags that a way of running a verb has no use for: refused with the way out, where they would be ignored without a word."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from disc_tf.commands.common import USAGE, CommandError
from disc_tf.options import Options

POINTS = 6
#: flags whose default is neither nothing, nor false, nor zero
_DEFAULTS: dict[str, Any] = {f.name: f.default for f in dataclasses.fields(Options)} | {
    "points": POINTS, "rest_timeout": 30.0, "batch_wait_us": 1000, "batch_queue": 1024, "poll": 10.0, "wait": 60.0, "warmup_shapes": 6,
}  # fmt: skip
_SPELLED = {f.name: f.metadata["flag"] for f in dataclasses.fields(Options)}


def is_set(args: argparse.Namespace, name: str) -> bool:
    """Whether a flag, or a configuration file, gives ``name`` another value than the default."""
    value, default = getattr(args, name, None), _DEFAULTS.get(name)
    if value is None:
        return False
    if isinstance(value, list | tuple):
        return tuple(value) != tuple(default or ())
    return value != default if default is not None else bool(value)


def refuse(args: argparse.Namespace, flags: Iterable[str] | Mapping[str, str], why: str = "") -> None:
    """`CommandError` (usage) for the first of ``flags`` that is set: its name, and ``why`` (or its own text in a mapping)."""
    for name in flags:
        if is_set(args, name):
            reason = flags[name] if isinstance(flags, Mapping) else why
            raise CommandError(f"{_SPELLED.get(name) or '--' + name.replace('_', '-')} {reason}", USAGE)


#: `optimize` of a GraphDef
FOR_MODELS = {
    "signature": "is for SavedModels: name a graph's outputs (--outputs)",
    "tag": "is for SavedModels: a GraphDef is one graph",
    "all_functions": "is for SavedModels: a GraphDef has no methods",
    "freeze": "is for SavedModels: give a GraphDef whose variables are constants",
    "overwrite": "is for SavedModels: the file of a GraphDef is replaced if it is there",
}
#: `optimize` of a SavedModel
FOR_GRAPHS = {
    "outputs": "is for GraphDefs: a SavedModel has signatures (--signature)",
    "external_weights": "is for GraphDefs: a SavedModel has its weights in files already",
    "inputs_json": "is for GraphDefs: a SavedModel has signatures (--signature)",
    "capture": "is for GraphDefs: freeze a signature to a graph for replay files",
    "profile": "is for GraphDefs and .disc files: `disc-tf trace` compiles a signature for its trace by itself",
}
#: anything but a `.disc` file
ONE_SEGMENT = {"segments": "is for stand-alone files (-o NAME.disc): a cluster in TensorFlow starts when all its inputs are there"}
#: with --no-verify
NOT_RUN = {name: "says how the result is run, which --no-verify leaves out: give one of the two" for name in ("shape", "points", "threads")}
#: a `.disc` file
STANDALONE = {
    "allow": "does not go with a .disc file, of which every node must be compiled: leave it out",
    "deny": "does not go with a .disc file, of which every node must be compiled: leave it out",
    "fuel": "does not go with a .disc file, of which every node must be compiled: leave it out",
    "min_cluster_size": "does not go with a .disc file, which is compiled whole at any size: leave it out",
    "keep_control": "does not go with a .disc file, which has nothing but its outputs: leave it out",
    "external_weights": "is for graphs: a .disc file is mapped as it is",
    "all_functions": "does not go with a .disc file, which is made of one signature (--signature): leave it out",
    "freeze": "does not go with a .disc file, which always has the variables' values: leave it out",
    "overwrite": "does not go with a .disc file, which is replaced if it is there: leave it out",
    "capture": "is for clusters in graphs: optimise to a graph (-o NAME.pb) for replay files",
    "no_timing": "does not go with a .disc file, which is not timed: leave it out",
}
#: `serve` without batches, and without REST
NO_BATCHES = {name: "says how requests wait for a batch: give --batch-rows too" for name in ("batch_wait_us", "batch_queue")}
NO_REST = {"rest_timeout": "is of REST requests, which --rest-port -1 switches off: leave it out"}
#: `serving prepare` once, again and again, without warm-up records, and to take a version back
NOT_WATCHED = {"poll": "is for --watch: give it too"}
WATCHED = {"wait": "is for one look, without --watch: leave it out"}
NO_WARMUP = {"warmup_shapes": "is of warm-up records, which --no-warmup leaves out: give one of the two"}
ROLLBACK = {
    name: "does not go with --rollback, which only publishes an original again: leave it out"
    for name in ("watch", "retry", "no_verify", "no_timing", "freeze", "no_warmup", "warmup_shapes", "timeout", "keep", "wait", *_SPELLED)
}
#: `inspect`
NOT_COMPILED = {
    name: "is for `disc-tf optimize`: inspect compiles nothing"
    for name in ("dump_dir", "verify_passes", "time_budget", "segments", "tuning")
}
