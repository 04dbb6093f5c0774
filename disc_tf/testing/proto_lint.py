"""A linter of protocol declarations: the rules of buf's STANDARD and COMMENTS sets that make sense here, on descriptors with source info.

Each finding is ``RULE symbol``. What a declaration may not be changed for any more stands in a table of exceptions, with the reason
(tests/remote/test_protocol.py); an exception that nothing needs is a finding, too.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2

_PASCAL = re.compile(r"[A-Z][A-Za-z0-9]*")
_SNAKE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_UPPER = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)*")
_VERSIONED = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*\.v\d+((alpha|beta)\d+)?")
# numbers of fields in descriptor.proto, of which paths in source information are made
_MESSAGE, _ENUM, _SERVICE, _NESTED, _INNER_ENUM, _FIELD, _METHOD = 4, 5, 6, 3, 4, 2, 2
_SYNTAX = 12


def describe(root: Path, files: Sequence[str], imports: Sequence[Any]) -> list[Any]:
    """FileDescriptorProtos of declarations below ``root``, with source information. ``imports``: those of what they import. RuntimeError
    for declarations that do not compile, or without grpcio-tools. In a process of its own: beside TensorFlow's protobuf, protoc crashes."""
    with tempfile.TemporaryDirectory() as scratch:
        known, made = Path(scratch, "known.binpb"), Path(scratch, "made.binpb")
        known.write_bytes(descriptor_pb2.FileDescriptorSet(file=imports).SerializeToString())
        arguments = [f"--descriptor_set_in={known}", f"--proto_path={root}", f"--descriptor_set_out={made}", "--include_source_info"]
        command = [sys.executable, "-m", "grpc_tools.protoc", *arguments, *files]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{', '.join(files)}: protoc refuses it: {done.stderr.strip()}")
        return list(descriptor_pb2.FileDescriptorSet.FromString(made.read_bytes()).file)


def findings(file: Any, exceptions: Mapping[str, str] | None = None) -> list[str]:
    """What is wrong with a FileDescriptorProto, and which of the exceptions it does not need, sorted."""
    found, excepted = set(_Linter(file).all()), set(exceptions or ())
    return sorted(found - excepted) + [f"UNUSED_EXCEPTION {e}" for e in sorted(excepted - found)]


def snake(name: str) -> str:
    """``OptimizeResult`` -> ``optimize_result``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


class _Linter:
    def __init__(self, file: Any) -> None:
        self.file = file
        self.explained = {
            tuple(place.path) for place in file.source_code_info.location if (place.leading_comments + place.trailing_comments).strip()
        }

    def all(self) -> Iterator[str]:
        file = self.file
        directory, _, base = file.name.rpartition("/")
        if directory != file.package.replace(".", "/"):
            yield f"PACKAGE_DIRECTORY_MATCH {file.package}"
        if not _VERSIONED.fullmatch(file.package):
            yield f"PACKAGE_VERSION_SUFFIX {file.package}"
        if not _SNAKE.fullmatch(base.removesuffix(".proto")):
            yield f"FILE_LOWER_SNAKE_CASE {file.name}"
        if file.syntax != "proto3" or (_SYNTAX,) not in self.explained:
            yield f"COMMENT_FILE {file.name}"
        if file.public_dependency or file.weak_dependency:
            yield f"IMPORT_NO_PUBLIC {file.name}"
        for i, message in enumerate(file.message_type):
            yield from self._message(message, file.package, (_MESSAGE, i))
        for i, enum in enumerate(file.enum_type):
            yield from self._enum(enum, file.package, (_ENUM, i))
        for i, service in enumerate(file.service):
            yield from self._service(service, (_SERVICE, i))
        yield from self._once()

    def _comment(self, kind: str, symbol: str, path: tuple[int, ...]) -> Iterator[str]:
        if path not in self.explained:
            yield f"COMMENT_{kind} {symbol}"

    def _message(self, message: Any, prefix: str, path: tuple[int, ...]) -> Iterator[str]:
        name = f"{prefix}.{message.name}"
        if message.options.map_entry:
            return
        if not _PASCAL.fullmatch(message.name):
            yield f"MESSAGE_PASCAL_CASE {name}"
        yield from self._comment("MESSAGE", name, path)
        for i, field in enumerate(message.field):
            symbol = f"{name}.{field.name}"
            if not _SNAKE.fullmatch(field.name):
                yield f"FIELD_LOWER_SNAKE_CASE {symbol}"
            if not _obvious(field):
                yield from self._comment("FIELD", symbol, (*path, _FIELD, i))
        for oneof in message.oneof_decl:
            if not _SNAKE.fullmatch(oneof.name.lstrip("_")):  # of an optional field: its name with "_" in front
                yield f"ONEOF_LOWER_SNAKE_CASE {name}.{oneof.name}"
        for i, inner in enumerate(message.nested_type):
            yield from self._message(inner, name, (*path, _NESTED, i))
        for i, enum in enumerate(message.enum_type):
            yield from self._enum(enum, name, (*path, _INNER_ENUM, i))

    def _enum(self, enum: Any, prefix: str, path: tuple[int, ...]) -> Iterator[str]:
        name, start = f"{prefix}.{enum.name}", f"{snake(enum.name).upper()}_"
        if not _PASCAL.fullmatch(enum.name):
            yield f"ENUM_PASCAL_CASE {name}"
        if enum.options.allow_alias:
            yield f"ENUM_NO_ALLOW_ALIAS {name}"
        if enum.value[0].number != 0 or enum.value[0].name != f"{start}UNSPECIFIED":
            yield f"ENUM_ZERO_VALUE_SUFFIX {name}"
        yield from self._comment("ENUM", name, path)
        for value in enum.value:
            if not _UPPER.fullmatch(value.name):
                yield f"ENUM_VALUE_UPPER_SNAKE_CASE {name}.{value.name}"
            if not value.name.startswith(start):
                yield f"ENUM_VALUE_PREFIX {name}.{value.name}"

    def _service(self, service: Any, path: tuple[int, ...]) -> Iterator[str]:
        name = f"{self.file.package}.{service.name}"
        if not _PASCAL.fullmatch(service.name):
            yield f"SERVICE_PASCAL_CASE {name}"
        if not service.name.endswith("Service"):
            yield f"SERVICE_SUFFIX {name}"
        yield from self._comment("SERVICE", name, path)
        for i, rpc in enumerate(service.method):
            symbol = f"{name}.{rpc.name}"
            if not _PASCAL.fullmatch(rpc.name):
                yield f"RPC_PASCAL_CASE {symbol}"
            yield from self._comment("RPC", symbol, (*path, _METHOD, i))
            for rule, type_name, end in (("REQUEST", rpc.input_type, "Request"), ("RESPONSE", rpc.output_type, "Response")):
                if type_name.rpartition(".")[2] not in (f"{rpc.name}{end}", f"{service.name}{rpc.name}{end}"):
                    yield f"RPC_{rule}_STANDARD_NAME {symbol}"

    def _once(self) -> Iterator[str]:
        """A message is of one RPC and one direction: another RPC's can then change by itself."""
        uses: dict[str, list[str]] = {}
        for service in self.file.service:
            for rpc in service.method:
                for type_name in (rpc.input_type, rpc.output_type):
                    uses.setdefault(type_name, []).append(f"{self.file.package}.{service.name}.{rpc.name}")
        for rpcs in uses.values():
            yield from (f"RPC_REQUEST_RESPONSE_UNIQUE {rpc}" for rpc in rpcs[1:])


def _obvious(field: Any) -> bool:
    """A field that is named as its type is, which has the comment."""
    return bool(field.type_name) and snake(field.type_name.rpartition(".")[2]).endswith(field.name)
