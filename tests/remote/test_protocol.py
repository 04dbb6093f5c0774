"""The protocol: its declarations are what the package carries, named as the field does, and never broken.

After an addition: `python tests/remote/test_protocol.py` writes the baseline anew. What is in it may not change: clients of other versions
and languages rely on it; add a field or an RPC beside it instead.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

from disc_tf.testing.proto_lint import describe, findings

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


#: what the style asks for and clients rely on otherwise, with the reason
EXCEPTIONS = {
    "SERVICE_SUFFIX disc_tf.v1.Optimizer": "as google.longrunning.Operations, which is served beside it",
    "SERVICE_SUFFIX disc_tf.v1.ContentStore": "as the Remote Execution API's ContentAddressableStorage",
    "RPC_RESPONSE_STANDARD_NAME disc_tf.v1.Optimizer.GetCapabilities": "a Get returns the resource (AIP-131)",
    "RPC_RESPONSE_STANDARD_NAME disc_tf.v1.Optimizer.Optimize": "one kind of event for both streams: a client goes on in the other",
    "RPC_RESPONSE_STANDARD_NAME disc_tf.v1.Optimizer.Watch": "see Optimize",
    "RPC_REQUEST_RESPONSE_UNIQUE disc_tf.v1.Optimizer.Watch": "see Optimize",
    "RPC_RESPONSE_STANDARD_NAME disc_tf.v1.ContentStore.QueryWriteStatus": "what WriteBlob would answer now",
    "RPC_REQUEST_RESPONSE_UNIQUE disc_tf.v1.ContentStore.QueryWriteStatus": "see above",
    # values of enumerations inside a message need no prefix but for the zero (AIP-126)
    **{f"ENUM_VALUE_PREFIX disc_tf.v1.Diagnostic.Severity.{v}": "AIP-126" for v in ("INFO", "WARNING", "ERROR")},
    **{
        f"ENUM_VALUE_PREFIX disc_tf.v1.OptimizeMetadata.State.{v}": "AIP-126"
        for v in ("QUEUED", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED")
    },
}


def declared(root: Path, *files: str) -> list[Any]:
    pytest.importorskip("grpc_tools", reason="grpcio-tools is not here: the declarations cannot be compiled")
    from google.protobuf import duration_pb2, timestamp_pb2
    from google.rpc import status_pb2

    known: dict[str, Any] = {}

    def add(file: Any) -> None:
        for needed in file.dependencies:
            add(needed)
        if file.name not in known:
            file.CopyToProto(known.setdefault(file.name, descriptor_pb2.FileDescriptorProto()))

    for module in (duration_pb2, timestamp_pb2, status_pb2):
        add(module.DESCRIPTOR)
    return describe(root, files, list(known.values()))


def test_style_and_comments() -> None:
    files = sorted(str(p.relative_to(ROOT / "proto")) for p in DECLARED.glob("*.proto"))
    (file,) = declared(ROOT / "proto", *files)
    assert findings(file, EXCEPTIONS) == []


GOOD = """// A file.
syntax = "proto3";
package a.b.v1;
// A service.
service ThingService {
  // An RPC.
  rpc GetThing(GetThingRequest) returns (GetThingResponse);
}
// A message.
message GetThingRequest {
  // An enumeration.
  enum Kind {
    KIND_UNSPECIFIED = 0;
    KIND_LARGE = 1;
  }
  Kind kind = 1;
  map<string, string> labels = 2;  // trailing
}
// A message.
message GetThingResponse {
  // A field.
  optional string name = 1;
  GetThingRequest request = 2;
}
"""


@pytest.mark.parametrize(
    ("old", "new", "rules"),
    [
        ("", "", []),
        ("// A file.\n", "", ["COMMENT_FILE a/b/v1/thing.proto"]),
        ("package a.b.v1", "package a.c.v1", ["PACKAGE_DIRECTORY_MATCH a.c.v1"]),
        ("package a.b.v1", "package a.b", ["PACKAGE_DIRECTORY_MATCH a.b", "PACKAGE_VERSION_SUFFIX a.b"]),
        ("// A service.\n", "", ["COMMENT_SERVICE a.b.v1.ThingService"]),
        ("// An RPC.\n", "", ["COMMENT_RPC a.b.v1.ThingService.GetThing"]),
        ("// A message.\nmessage GetThingRequest", "message GetThingRequest", ["COMMENT_MESSAGE a.b.v1.GetThingRequest"]),
        ("// An enumeration.\n", "", ["COMMENT_ENUM a.b.v1.GetThingRequest.Kind"]),
        ("// trailing", "", ["COMMENT_FIELD a.b.v1.GetThingRequest.labels"]),
        ("// A field.\n", "", ["COMMENT_FIELD a.b.v1.GetThingResponse.name"]),
        ("ThingService {", "Things {", ["SERVICE_SUFFIX a.b.v1.Things"]),
        ("ThingService {", "thingService {", ["SERVICE_PASCAL_CASE a.b.v1.thingService"]),
        ("rpc GetThing(", "rpc get_thing(", ["RPC_PASCAL_CASE", "RPC_REQUEST_STANDARD_NAME", "RPC_RESPONSE_STANDARD_NAME"]),
        ("KIND_UNSPECIFIED", "KIND_NONE", ["ENUM_ZERO_VALUE_SUFFIX a.b.v1.GetThingRequest.Kind"]),
        ("KIND_LARGE", "LARGE", ["ENUM_VALUE_PREFIX a.b.v1.GetThingRequest.Kind.LARGE"]),
        ("KIND_LARGE", "KIND_Large", ["ENUM_VALUE_UPPER_SNAKE_CASE a.b.v1.GetThingRequest.Kind.KIND_Large"]),
        ("string name", "string theName", ["FIELD_LOWER_SNAKE_CASE", "ONEOF_LOWER_SNAKE_CASE"]),
        ("(GetThingResponse);", "(GetThingRequest);", ["RPC_REQUEST_RESPONSE_UNIQUE", "RPC_RESPONSE_STANDARD_NAME"]),
    ],
)
def test_the_linter_finds_it(tmp_path: Path, old: str, new: str, rules: list[str]) -> None:
    assert old in GOOD
    place = tmp_path / "a" / "b" / "v1"
    place.mkdir(parents=True)
    (place / "thing.proto").write_text(GOOD.replace(old, new) if old else GOOD)
    (file,) = declared(tmp_path, "a/b/v1/thing.proto")
    found = findings(file)
    assert len(found) == len(rules) and all(f.startswith(r) for f, r in zip(found, rules, strict=True)), found
    if found:
        assert findings(file, dict.fromkeys(found, "wanted")) == []
    assert findings(file, {**dict.fromkeys(found, ""), "COMMENT_RPC nothing": ""}) == ["UNUSED_EXCEPTION COMMENT_RPC nothing"]


def test_the_package_carries_what_is_declared() -> None:
    pytest.importorskip("grpc_tools", reason="grpcio-tools is not here: the declarations cannot be compiled")
    done = subprocess.run([sys.executable, "gen_remote_protos.py", "--check"], cwd=ROOT / "tools", check=False)
    assert done.returncode == 0, "run tools/gen_remote_protos.py"


if __name__ == "__main__":
    BASELINE.write_text(json.dumps(shape(), indent=1, sort_keys=True) + "\n")
