"""What `disc-tf inspect` says of what is optimised already. No code is loaded."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from typing import Any

from disc_tf.commands.common import OK, CommandError
from disc_tf.commands.signers import ORIGIN, UNSIGNED, Signers
from disc_tf.frontend.saved_model import describe_signatures, signature_lines
from disc_tf.report import counted


def describe(args: argparse.Namespace, message: Any) -> int:
    """Print what an optimised GraphDef or SavedModel message holds, and who signed it. `CommandError` for code that ``--trust-file`` does
    not cover."""
    from disc_tf.optimizer import describe_optimized

    described = describe_optimized(message)
    if hasattr(message, "meta_graphs"):
        described["interface"] = describe_signatures(message)
    signers = Signers(args.trust_file)
    found = signers.of(message)
    for entry in described["clusters"]:
        one = found[entry["node"]]
        entry |= {"signature": one["signature"], "trusted": one["trusted"]}
    signatures = {name: signers.text(one) for name, one in found.items()}
    print(json.dumps(described, indent=2) if args.json else _describe_text(described, signatures))
    signers.require(args.input, found)
    return OK


def describe_file(args: argparse.Namespace) -> int:
    """Print what a stand-alone file takes and gives, and for which machines. `CommandError` for a damaged one, and for code that
    ``--trust-file`` does not cover."""
    from disc_tf.runtime.artifact import ArtifactError
    from disc_tf.runtime.artifact_file import read_file
    from disc_tf.runtime.runner import Tensor, segment_names

    try:
        artifact = read_file(args.input)
        size = os.path.getsize(args.input)
    except (ArtifactError, OSError) as e:
        raise CommandError(f"{args.input}: {e}" if args.input not in str(e) else str(e)) from e
    bound = {c.arg for c in artifact.constants}
    inputs = [Tensor.of(x) for i, x in enumerate(artifact.args) if i not in bound]
    outputs = [Tensor.of(x) for x in artifact.results]
    signers = Signers(args.trust_file)
    found = signers.describe_artifact(artifact)
    described = {
        "inputs": {t.name: {"dtype": t.dtype, "shape": list(t.shape)} for t in inputs},
        "outputs": {t.name: {"dtype": t.dtype, "shape": list(t.shape)} for t in outputs},
        "unused_inputs": list(artifact.unused),
        "segments": [{"waits_for": needs, "makes": makes} for needs, makes in segment_names(artifact)],
        "targets": [t.isa for t in artifact.targets],
        "compiler_version": artifact.compiler_version,
        "bytes": size,
        "weight_bytes": sum(c.size for c in artifact.constants),
        "signature": found["signature"],
        "trusted": found["trusted"],
    }
    print(json.dumps(described, indent=2) if args.json else _file_text(described, signers.text(found)))
    signers.require(args.input, {"its code": found})
    return OK


def _file_text(described: dict[str, Any], signature: str) -> str:
    def tensors(found: Mapping[str, dict[str, Any]]) -> list[str]:
        return [f"    {name} {t['dtype']}[{', '.join('?' if d is None else str(d) for d in t['shape'])}]" for name, t in found.items()]

    lines = [
        "a stand-alone file: it contains native code, run it (disc-tf run) only if you trust where it comes from",
        f"  {described['bytes'] / 1e6:.1f} MB, {described['weight_bytes'] / 1e6:.1f} MB of weights, "
        f"targets {', '.join(described['targets'])}, made by disc_tf {described['compiler_version']}; {signature}",
        "  inputs:" + ("" if described["inputs"] else " none"), *tensors(described["inputs"]),
        *([f"  inputs that nothing reads: {', '.join(described['unused_inputs'])}"] if described["unused_inputs"] else []),
        "  outputs:", *tensors(described["outputs"]),
    ]  # fmt: skip
    if len(described["segments"]) > 1:
        for s in described["segments"]:
            lines.append(f"  after {', '.join(s['waits_for']) or 'nothing'}: {', '.join(s['makes']) or 'intermediate results'}")
    return "\n".join(lines) + (f"\n{ORIGIN}" if described["signature"] != UNSIGNED else "")


def _describe_text(described: dict[str, Any], signatures: Mapping[str, str]) -> str:
    lines = ["an optimised graph: it contains native code, load it only if you trust where it comes from"]
    for c in described["clusters"]:
        if "error" in c:
            lines.append(f"  {c['node']}: its code cannot be read: {c['error']}")
            continue
        lines.append(
            f"  {c['node']}: {counted(c['nodes'], 'original node')}, {counted(c['arguments'], 'argument')}, "
            f"{counted(c['results'], 'result')}, "
            f"targets {', '.join(c['targets'])}, {c['bytes'] / 1024:.0f} KiB, made by disc_tf {c['compiler_version']}; "
            f"{signatures[c['node']]}"
        )
    lines += signature_lines(described.get("interface", {}))
    if any(c["signature"] != UNSIGNED for c in described["clusters"]):
        lines.append(ORIGIN)
    return "\n".join(lines)
