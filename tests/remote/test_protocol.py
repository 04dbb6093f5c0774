"""The protocol: its declarations are what the package carries, named as the field does, and never broken.

After an addition: `python tests/remote/test_protocol.py` writes the baseline anew. What is in it may not change: clients of other versions
and languages rely on it; add a field or an RPC beside it instead.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

ROOT = Path(__file__).parents[2]
BASELINE = Path(__file__).parent / "data" / "v1_baseline.json"
DECLARED = ROOT / "proto" / "disc_tf" / "v1"


def shape() -> dict[str, Any]:
    """Messages, enumerations and RPCs, as plain data."""
    data = (ROOT / "disc_tf" / "remote" / "data" / "disc_tf_v1.binpb").read_bytes()
    out: dict[str, Any] = {"messages": {}, "enums": {}, "rpcs": {}}

    def message(prefix: str, m: Any) -> None:
        name = f"{prefix}.{m.name}"
        choices = [o.name for o in m.oneof_decl]  # by name: their numbers shift when one is added
        out["messages"][name] = {
            f.name: [f.number, f.type, f.label, f.type_name, choices[f.oneof_index] if f.HasField("oneof_index") else ""] for f in m.field
        }
        for e in m.enum_type:
            out["enums"][f"{name}.{e.name}"] = {v.name: v.number for v in e.value}
        for inner in m.nested_type:
            message(name, inner)

    for file in descriptor_pb2.FileDescriptorSet.FromString(data).file:
        if file.package != "disc_tf.v1":
            continue
        for m in file.message_type:
            message("disc_tf.v1", m)
        for service in file.service:
            for rpc in service.method:
                streams = [rpc.client_streaming, rpc.server_streaming]
                out["rpcs"][f"{service.name}.{rpc.name}"] = [rpc.input_type, rpc.output_type, *streams]
    return out


def broken(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """What is in ``old`` and not in ``new``, or there in another way."""
    found = []
    for kind in ("messages", "enums"):
        for name, members in old[kind].items():
            there = new[kind].get(name)
            found += [f"{name} is gone"] if there is None else [f"{name}.{m}" for m, what in members.items() if there.get(m) != what]
    return found + [name for name, what in old["rpcs"].items() if new["rpcs"].get(name) != what]


def test_nothing_is_broken() -> None:
    assert not broken(json.loads(BASELINE.read_text()), shape()), "clients rely on it: add beside it, under a new number"


def test_the_baseline_has_all_that_there_is() -> None:
    assert not broken(shape(), json.loads(BASELINE.read_text())), "an addition: run `python tests/remote/test_protocol.py`"


def test_what_counts_as_broken() -> None:
    old = shape()
    for change in (
        lambda s: s["messages"]["disc_tf.v1.Digest"].pop("hash"),
        lambda s: s["messages"]["disc_tf.v1.Digest"].update(hash=[7, 9, 1, "", ""]),
        lambda s: s["messages"].pop("disc_tf.v1.Graph"),
        lambda s: s["enums"]["disc_tf.v1.OptimizeMetadata.State"].pop("RUNNING"),
        lambda s: s["rpcs"].pop("Optimizer.Optimize"),
    ):
        new = shape()
        change(new)
        assert len(broken(old, new)) == 1
    new = shape()
    new["messages"]["disc_tf.v1.Digest"]["more"] = [3, 9, 1, "", ""]
    assert not broken(old, new)


def test_names() -> None:
    found = shape()
    for name, members in found["messages"].items():
        assert re.fullmatch(r"disc_tf\.v1(\.[A-Z][A-Za-z0-9]*)+", name)
        assert all(re.fullmatch(r"[a-z][a-z0-9_]*", m) for m in members)
    for values in found["enums"].values():
        assert [n for n, number in values.items() if number == 0] and all(re.fullmatch(r"[A-Z][A-Z0-9_]*", n) for n in values)
        assert next(n for n, number in values.items() if number == 0).endswith("_UNSPECIFIED")


def test_every_rpc_is_explained() -> None:
    lines = "\n".join(p.read_text() for p in DECLARED.glob("*.proto")).splitlines()
    for i, line in enumerate(lines):
        if line.strip().startswith("rpc ") and "FindMissingBlobs" not in line and "QueryWriteStatus" not in line and "ReadBlob" not in line:
            assert lines[i - 1].strip().startswith("//"), line


def test_the_package_carries_what_is_declared() -> None:
    pytest.importorskip("grpc_tools", reason="grpcio-tools is not here: the declarations cannot be compiled")
    done = subprocess.run([sys.executable, "gen_remote_protos.py", "--check"], cwd=ROOT / "tools", check=False)
    assert done.returncode == 0, "run tools/gen_remote_protos.py"


if __name__ == "__main__":
    BASELINE.write_text(json.dumps(shape(), indent=1, sort_keys=True) + "\n")
