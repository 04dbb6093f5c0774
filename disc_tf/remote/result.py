"""CompileResult messages: written from launches, names replaced in them, read back."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

from disc_tf.frontend.recipe import ClusterPlan
from disc_tf.frontend.rewrite import Launch
from disc_tf.remote.messages import message_class, new
from disc_tf.runtime.artifact import Artifact, pack, unpack

#: fields of a CompiledCluster that are lists of names
_NAMES = ("nodes", "constants", "args", "results", "controls")
#: fields that are lists in a `ClusterPlan`, too
_LISTS = (*_NAMES, "kinds", "host_results")


def add_launch(result: Any, launch: Launch) -> None:
    """Append a launch to a CompileResult."""
    plan = launch.plan
    entry = result.clusters.add(name=plan.name, executable=launch.executable, abi=launch.abi)
    for field in _LISTS:
        getattr(entry, field).extend(getattr(plan, field))
    for operand, source in plan.through:
        entry.through.add(operand=operand, source=source)
    for dims in launch.shapes:
        entry.shapes.add(dims=dims)


def plan_of(entry: Any) -> ClusterPlan:
    """The plan of a CompiledCluster message."""
    lists = {field: list(getattr(entry, field)) for field in _LISTS}
    return ClusterPlan(name=entry.name, through=[[t.operand, t.source] for t in entry.through], **lists)


def rename_result(result: Any, rename: Callable[[str], str]) -> Any:
    """A new CompileResult with every name in it replaced: ``rename`` takes a text and replaces the names that it knows in it.

    `ArtifactError` for artefacts that are none, ValueError for a report that is none.
    """
    out = new("CompileResult", compiler_version=result.compiler_version)
    out.compiled.extend(rename(name) for name in result.compiled)
    if result.report_json:
        out.report_json = json.dumps(_renamed(json.loads(result.report_json), rename)).encode()
    for old in result.clusters:
        entry = out.clusters.add()
        entry.CopyFrom(old)
        for field in _NAMES:
            values = [rename(name) for name in getattr(old, field)]
            del getattr(entry, field)[:]
            getattr(entry, field).extend(values)
        for t in entry.through:
            t.operand, t.source = rename(t.operand), rename(t.source)
        entry.executable = pack(rename_artifact(unpack(old.executable), rename))
    return out


def rename_artifact(artifact: Artifact, rename: Callable[[str], str]) -> Artifact:
    """An artefact with the names of arguments, results and nodes replaced. `disc_tf.runtime.identity.code_identity` stays the same."""
    return dataclasses.replace(
        artifact,
        args=tuple(dataclasses.replace(a, name=rename(a.name)) for a in artifact.args),
        results=tuple(dataclasses.replace(r, name=rename(r.name)) for r in artifact.results),
        checks=tuple(dataclasses.replace(c, node=rename(c.node), message=rename(c.message)) for c in artifact.checks),
        kernels={symbol: tuple(rename(n) for n in nodes) for symbol, nodes in artifact.kernels.items()},
    )


def _renamed(value: Any, rename: Callable[[str], str]) -> Any:
    """Plain data with all texts replaced."""
    if isinstance(value, str):
        return rename(value)
    if isinstance(value, list):
        return [_renamed(v, rename) for v in value]
    if isinstance(value, dict):
        return {rename(k): _renamed(v, rename) for k, v in value.items()}
    return value


def parse_result(data: bytes) -> Any:
    """A CompileResult from bytes; google.protobuf's DecodeError for others. Nothing is checked: see `check`."""
    return message_class("CompileResult").FromString(data)
