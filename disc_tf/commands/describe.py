"""What `disc-tf inspect` says of what is optimised already. No code is loaded."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from disc_tf.commands.common import OK
from disc_tf.commands.signers import ORIGIN, UNSIGNED, Signers


def describe(args: argparse.Namespace, message: Any) -> int:
    """Print what an optimised GraphDef or SavedModel message holds, and who signed it. `CommandError` for code that ``--trust-file`` does
    not cover."""
    from disc_tf.optimizer import describe_optimized

    described = describe_optimized(message)
    signers = Signers(args.trust_file)
    found = signers.of(message)
    for entry in described["clusters"]:
        one = found[entry["node"]]
        entry |= {"signature": one["signature"], "trusted": one["trusted"]}
    signatures = {name: signers.text(one) for name, one in found.items()}
    print(json.dumps(described, indent=2) if args.json else _describe_text(described, signatures))
    signers.require(args.input, found)
    return OK


def _describe_text(described: dict[str, Any], signatures: Mapping[str, str]) -> str:
    lines = ["an optimised graph: it contains native code, load it only if you trust where it comes from"]
    for c in described["clusters"]:
        if "error" in c:
            lines.append(f"  {c['node']}: its code cannot be read: {c['error']}")
            continue
        lines.append(
            f"  {c['node']}: {c['nodes']} original nodes, {c['arguments']} arguments, {c['results']} results, "
            f"targets {', '.join(c['targets'])}, {c['bytes'] / 1024:.0f} KiB, made by disc_tf {c['compiler_version']}; "
            f"{signatures[c['node']]}"
        )
    if any(c["signature"] != UNSIGNED for c in described["clusters"]):
        lines.append(ORIGIN)
    return "\n".join(lines)
