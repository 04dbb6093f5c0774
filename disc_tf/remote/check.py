"""What a compile child or a server returned, taken as hostile: everything in it is checked before anything is made of it.

The same check runs in the server (on what a child returned) and in the client (on what a server returned).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError

from disc_tf.remote.image import ImageError, check_image
from disc_tf.remote.messages import message_class
from disc_tf.remote.wire import WireError, check_elements
from disc_tf.runtime.artifact import ABI_VERSION, Artifact, ArtifactError, pack, unpack
from disc_tf.runtime.cpu import ISA_FEATURES

#: kind of an argument in a CompiledCluster -> in its artefact
_KINDS = {"const": "const", "variable": "const", "host": "host", "device": "device"}
_FEATURES = frozenset(f for features in ISA_FEATURES.values() for f in features)


class CheckError(ValueError):
    """A result that is not well-formed. The message says what is wrong, never what is in it at length."""


@dataclass(frozen=True)
class ResultLimits:
    """data_bytes: of the whole; executable_bytes: of one artefact; elements: fields and list entries; name_bytes: of one name or text.

    report_bytes: of the report (JSON). dims: rank of a tensor.
    """

    data_bytes: int = 256 << 20
    executable_bytes: int = 64 << 20
    report_bytes: int = 64 << 20
    elements: int = 1_000_000
    name_bytes: int = 8 << 10
    clusters: int = 10_000


def check_result(data: bytes, limits: ResultLimits | None = None) -> Any:
    """The CompileResult in ``data``. Raises `CheckError` unless it is well-formed in all its parts.

    Well-formed: within the limits; lists that belong together are of equal length; names are unique where they name, printable and short;
    the report is a JSON object; each artefact is canonical (nothing in it that is not read), for known instruction sets, agrees with its
    entry, and its images follow the grammar of `image`.
    """
    limits = limits or ResultLimits()
    if len(data) > limits.data_bytes:
        raise CheckError(f"the result has {len(data)} bytes, at most {limits.data_bytes} are taken")
    cls = message_class("CompileResult")
    try:
        check_elements(data, cls.DESCRIPTOR, limits.elements)
        result = cls.FromString(data)
    except (WireError, DecodeError, RecursionError) as e:
        raise CheckError(f"the result is not a CompileResult: {e}") from e
    _check_report(result.report_json, limits)
    _names("compiled nodes", result.compiled, limits, unique=True)
    _names("compiler version", [result.compiler_version], limits)
    if len(result.clusters) > limits.clusters:
        raise CheckError(f"{len(result.clusters)} clusters, at most {limits.clusters} are taken")
    _names("cluster names", (c.name for c in result.clusters), limits, unique=True)
    owner: dict[str, str] = {}
    for cluster in result.clusters:
        try:
            _check_cluster(cluster, owner, limits)
        except (CheckError, ArtifactError, ImageError) as e:
            raise CheckError(f"cluster {cluster.name!r}: {e}") from e
    if both := owner.keys() & set(result.compiled):
        raise CheckError(f"node {min(both)!r} is in a cluster and said to be in none")
    return result


def _check_report(report: bytes, limits: ResultLimits) -> None:
    if len(report) > limits.report_bytes:
        raise CheckError(f"the report has {len(report)} bytes, at most {limits.report_bytes} are taken")
    if not report:
        raise CheckError("there is no report")
    try:
        content = json.loads(report)
    except (ValueError, RecursionError) as e:
        raise CheckError("the report is not JSON") from e
    if not isinstance(content, dict):
        raise CheckError("the report is not a JSON object")


def _names(what: str, names: Iterable[str], limits: ResultLimits, *, unique: bool = False) -> None:
    seen: set[str] = set()
    for name in names:
        if not name or len(name) > limits.name_bytes or not name.isprintable():
            raise CheckError(f"{what}: a name is empty, of more than {limits.name_bytes} characters or not printable")
        if unique and name in seen:
            raise CheckError(f"{what}: {name!r} occurs twice")
        seen.add(name)


def _check_cluster(c: Any, owner: dict[str, str], limits: ResultLimits) -> None:
    for field in ("nodes", "constants", "args", "results", "controls"):
        _names(field, getattr(c, field), limits, unique=field in ("nodes", "results"))
    for t in c.through:
        _names("through", (t.operand, t.source), limits)
    if not c.nodes:
        raise CheckError("it has no nodes")
    for name in c.nodes:
        if name in owner:
            raise CheckError(f"node {name!r} is in cluster {owner[name]!r} too")
        owner[name] = c.name
    if not len(c.args) == len(c.kinds) or not len(c.results) == len(c.host_results) == len(c.shapes):
        raise CheckError("its lists of arguments and kinds, or of results, host flags and shapes, differ in length")
    for kind in c.kinds:
        if kind not in _KINDS:
            raise CheckError(f"argument kind {kind[:32]!r} is not one of {', '.join(_KINDS)}")
    if list(c.host_results) != sorted(c.host_results, reverse=True):
        raise CheckError("host results do not come first")
    if len(c.executable) > limits.executable_bytes:
        raise CheckError(f"its artefact has {len(c.executable)} bytes, at most {limits.executable_bytes} are taken")
    _check_artifact(c, unpack(c.executable), limits)


def _check_artifact(c: Any, a: Artifact, limits: ResultLimits) -> None:
    if a.constants or a.signed or a.steps or pack(a) != c.executable:
        raise CheckError("its artefact holds something besides what it is read as (was it made by another version?)")
    if not a.abi_version == c.abi == ABI_VERSION:
        raise CheckError(f"its artefact has ABI {a.abi_version} (said to be {c.abi}), this version has {ABI_VERSION}")
    kinds, args = [_KINDS[kind] for kind in c.kinds], [x.kind for x in a.args]
    # DiscLaunch takes the arguments stably partitioned by kind
    if kinds != args:
        raise CheckError("its artefact has other arguments than it says")
    shapes = [(tuple(s.dims), bool(h)) for s, h in zip(c.shapes, c.host_results, strict=True)]
    if shapes != [(r.dims, r.host) for r in a.results]:
        raise CheckError("its artefact has other results than it says")
    texts = [a.name, a.compiler_version, *(x.name for x in a.args), *(r.name for r in a.results), *(p.layout for p in a.prepared)]
    texts += [*a.kernels, *(n for nodes in a.kernels.values() for n in nodes), *(x.node for x in a.checks)]
    _names("artefact", filter(None, texts), limits)
    for check in a.checks:
        if len(check.message) > limits.name_bytes:
            raise CheckError(f"the message of a check has more than {limits.name_bytes} characters")
    for target in a.targets:
        if target.isa not in ISA_FEATURES:
            raise CheckError(f"instruction set {target.isa[:32]!r} is not known")
        if not _FEATURES >= set(target.features) >= set(ISA_FEATURES[target.isa]):
            raise CheckError(f"the features of {target.isa} are not those that it needs")
        try:
            check_image(target.image, limits.executable_bytes)
        except ImageError as e:
            raise CheckError(f"the code for {target.isa}: {e}") from e
