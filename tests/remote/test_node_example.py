"""The client in another language (examples/remote-node) against a real server: TLS, tokens, a cut connection, a full queue, errors."""

from __future__ import annotations

import os
import re
import shutil
import socket
import ssl
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from disc_tf.optimizer import optimize_graph_def
from disc_tf.options import Options
from disc_tf.remote import Client
from disc_tf.remote.connection import Address
from disc_tf.remote.files import reader, writer
from disc_tf.remote.messages import message_class
from tests.frontend.graphs import F32, G
from tests.remote.test_files import asked_by
from tests.server import processes
from tests.server.harness import token_of, tokens_file
from tests.server.test_access import make_certificates

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "remote-node"
SETTINGS = Options.from_overrides(targets=("x86-64-v3",), min_cluster_size=1)


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the example with its packages."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("Node.js with npm is not installed")
    version = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout
    if int(version.lstrip("v").partition(".")[0]) < 20:
        pytest.skip(f"the example wants Node.js 20, this is {version.strip()}")
    directory = tmp_path_factory.mktemp("node") / "example"
    shutil.copytree(EXAMPLE, directory, ignore=shutil.ignore_patterns("node_modules"))
    done = subprocess.run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=directory, capture_output=True, text=True)
    if done.returncode:
        if not registry_answers(directory):
            pytest.skip(f"the packages cannot be had here: {done.stderr[-300:]}")
        pytest.fail(f"npm ci: {done.stderr}")
    return directory


def registry_answers(directory: Path) -> bool:
    where = subprocess.run(["npm", "config", "get", "registry"], cwd=directory, capture_output=True, text=True).stdout.strip()
    try:
        with urllib.request.urlopen(f"{where.rstrip('/')}/@grpc%2fgrpc-js", timeout=20):
            return True
    except OSError:
        return False


class Relay:
    """Passes connections on to a port; `cut` ends those that are open."""

    def __init__(self, port: int) -> None:
        self._port, self._open = port, set[socket.socket]()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
                far = socket.create_connection(("127.0.0.1", self._port))
            except OSError:
                return
            self._open |= {near, far}
            for a, b in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=(a, b), daemon=True).start()

    def _pass(self, a: socket.socket, b: socket.socket) -> None:
        try:
            while data := a.recv(1 << 16):
                b.sendall(data)
        except OSError:
            pass
        for s in (a, b):
            s.close()
            self._open.discard(s)

    def cut(self) -> int:
        """How many ends were open."""
        ends = list(self._open)
        for s in ends:
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
        return len(ends)

    def close(self) -> None:
        self._listening.close()
        self.cut()


class Server:
    """The command with TLS and tokens, one compile at a time, one that may wait."""

    def __init__(self, directory: Path) -> None:
        certificates = make_certificates(directory, "localhost")
        self.ca, self.log = certificates["ca"][0], directory / "log"
        self.token = directory / "token"
        self.token.write_text(token_of("node") + "\n")
        pair = certificates["localhost"]
        flags = ["--queue-limit", "1", "--tls-cert", pair[0], "--tls-key", pair[1], "--tokens", tokens_file(directory, "node")]
        command = processes.command(directory / "data", *flags)
        self.process = subprocess.Popen(command, env=processes.environment(), stdout=subprocess.PIPE, stderr=self.log.open("wb"), text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert "serving on" in line, self.log.read_text()
        self.port = int(line.strip().rpartition(":")[2])
        self.relay = Relay(self.port)

    def client(self) -> Client:
        return Client(Address(f"localhost:{self.port}", ca=self.ca, token_file=str(self.token)))

    def close(self) -> None:
        self.relay.close()
        self.process.terminate()
        self.process.wait(60)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    made = Server(tmp_path_factory.mktemp("server"))
    yield made
    made.close()


def environment() -> dict[str, str]:
    """A copy of the example has no declarations beside it."""
    return {**os.environ, "DISC_TF_PROTO": str(ROOT / "proto")}


class Node:
    """The example as a process whose lines are read while it runs."""

    def __init__(self, directory: Path, server: Server, *flags: str, ca: str | None = None, token: str | None = None) -> None:
        where = ["--address", f"localhost:{server.relay.port}", "--ca", ca or server.ca, "--token-file", token or str(server.token)]
        self.lines: list[str] = []
        command = ["node", "optimize.mjs", *where, *flags]
        self.process = subprocess.Popen(
            command, cwd=directory, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._reading = threading.Thread(target=lambda: self.lines.extend(iter(self.process.stderr.readline, "")))  # type: ignore[union-attr]
        self._reading.start()

    @property
    def said(self) -> str:
        return "".join(self.lines)

    def until(self, pattern: str, seconds: float = 60) -> None:
        """Waits until it has said something that the pattern finds."""
        wait_until(lambda: re.search(pattern, self.said) is not None, seconds, lambda: f"{pattern!r} is not in: {self.said}")

    def end(self, code: int = 0) -> str:
        """Its standard output."""
        self.process.wait(120)
        self._reading.join()
        assert self.process.returncode == code, self.said
        with self.process.stdout as out, self.process.stderr:  # type: ignore[union-attr]
            return out.read()  # type: ignore[union-attr]


def wait_until(condition: Callable[[], bool], seconds: float, otherwise: Callable[[], str]) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, otherwise()
        time.sleep(0.02)


def perceptron(width: int = 3, ops: int = 1) -> G:
    g = G()
    g.placeholder("x", [None, 8])
    g.const("w", np.random.default_rng(width).standard_normal((8, width)).astype(np.float32))
    last = g.matmul("m", "x", "w")
    for i in range(ops):
        last = g.node(f"s{i}", "Softmax", [g.unary(f"t{i}", last, "Tanh")], T=("type", F32))
    g.unary("y", last, "Relu")
    return g


def request_file(path: Path, g: G) -> str:
    """The request of a graph, as `disc-tf optimize --remote-dry-run --remote-request` writes it."""
    asked: list[bytes] = []
    asked_by(writer(asked.append), g, ["y"], SETTINGS)
    path.write_bytes(asked[0])
    return str(path)


def test_the_result_is_that_of_the_python_client(example: Path, server: Server, tmp_path: Path) -> None:
    """A skeleton, and a graph of more than a message holds that is sent whole; by the stream, and by google.longrunning."""
    g, out = perceptron(), tmp_path / "answer.pb"
    node = Node(example, server, "--request", request_file(tmp_path / "request.pb", g), "-o", str(out))
    assert re.fullmatch(r"operations/[0-9a-f]{32}\n", node.end())
    with server.client() as client:
        expected = client.optimize_graph_def(g.proto, ["y"], SETTINGS)
    assert optimize_graph_def(g.proto, ["y"], SETTINGS, elsewhere=reader(str(out))).graph_def == expected.graph_def

    whole = perceptron(50_000)
    file = tmp_path / "whole.pb"
    file.write_bytes(whole.proto.SerializeToString())
    flags = ["--graph", str(file), "--outputs", "y:0", "--targets", "x86-64-v3"]
    node = Node(example, server, *flags, "--detach")
    name = node.end().strip()
    assert "uploaded 1600" in node.said, node.said
    node = Node(example, server, "--operation", name, "-o", str(out))
    node.end()
    assert f"{name}: SUCCEEDED" in node.said
    result = message_class("CompileResult").FromString(message_class("OptimizeResult").FromString(out.read_bytes()).inline)
    assert [list(c.nodes) for c in result.clusters] == [["m", "t0", "s0", "y"]]
    node = Node(example, server, *flags, "-o", str(out))
    node.end()
    assert "from the cache" in node.said and "uploaded" not in node.said


def test_a_cut_connection_and_a_full_queue(example: Path, server: Server, tmp_path: Path) -> None:
    slow = Node(example, server, "--request", request_file(tmp_path / "slow.pb", perceptron(4, 30000)), "--detach", "--timeout", "500.5")
    operation = slow.end().strip()
    with server.client() as client:
        running = message_class("OptimizeMetadata")

        def state() -> int:
            client_stub = client._channel.unary_unary("/google.longrunning.Operations/GetOperation", get.SerializeToString, op.FromString)
            return running.FromString(client_stub(get(name=operation), metadata=client.metadata).metadata.value).state

        from google.longrunning import operations_pb2

        get, op = operations_pb2.GetOperationRequest, operations_pb2.Operation
        wait_until(lambda: state() == 2, 30, lambda: f"{state()} is not RUNNING")
        first, out = perceptron(5), tmp_path / "first.pb"
        waiting = Node(example, server, "--request", request_file(tmp_path / "1.pb", first), "-o", str(out))
        waiting.until(r"\[1\] waiting")
        refused = Node(example, server, "--request", request_file(tmp_path / "2.pb", perceptron(6)), "-o", str(tmp_path / "second.pb"))
        refused.until(r"RESOURCE_EXHAUSTED, QUEUE_FULL; request .*again in \d")
        assert server.relay.cut() >= 2
        waiting.until(r"UNAVAILABLE.*again in")
        waiting.until(r"taking operations/\w+ up again after event 1")
        assert state() == 2, "the queue has not moved: what comes now comes by the second connection"
        cancel = client._channel.unary_unary("/google.longrunning.Operations/CancelOperation", get.SerializeToString, bytes)
        cancel(get(name=operation), metadata=client.metadata)
        waiting.end()
        refused.end()
        expected = client.optimize_graph_def(first.proto, ["y"], SETTINGS)
    assert optimize_graph_def(first.proto, ["y"], SETTINGS, elsewhere=reader(str(out))).graph_def == expected.graph_def
    assert (tmp_path / "second.pb").exists()
    gone = Node(example, server, "--operation", operation, "-o", str(out))
    gone.end(3)
    assert "[CANCELLED, CANCELLED]" in gone.said


def test_errors(example: Path, server: Server, tmp_path: Path) -> None:
    out, graph, wrong, odd = (tmp_path / n for n in ("out.pb", "graph.pb", "token", "odd.pb"))
    graph.write_bytes(perceptron().proto.SerializeToString())
    wrong.write_text("wrong\n")
    odd.write_bytes(b"\xff\xff")
    at_server = [
        (["--graph", str(graph), "--outputs", "no:0"], {}, 3, r"'no'.*\[INVALID_ARGUMENT, GRAPH_REFUSED; field graph; request \w+\]"),
        (["--graph", str(graph), "--outputs", "y:0"], {"token": str(wrong)}, 3, r"\[UNAUTHENTICATED, TOKEN_WANTED; request \w+\]"),
        (["--operation", "operations/" + "0" * 32], {}, 3, r"\[NOT_FOUND, OPERATION_NOT_FOUND"),
        (["--graph", str(graph), "--outputs", "y:0", "--targets", "vax"], {}, 2, "does not compile for vax; it has x86-64-v2"),
        (["--request", str(odd)], {}, 2, "not an OptimizeRequest"),
        (["--request", str(graph)], {}, 2, "not an OptimizeRequest"),
        (["--graph", str(tmp_path / "none.pb"), "--outputs", "y:0"], {}, 3, "no such file"),
        (["--graph", str(graph)], {}, 2, "--graph needs --outputs"),
        ([], {}, 2, "one of --request, --graph and --operation"),
        (["--request", "x", "--sideways"], {}, 2, "sideways"),
    ]
    for flags, where, code, message in at_server:
        node = Node(example, server, *flags, "-o", str(out), **where)
        node.end(code)
        assert re.search(message, node.said), (flags, node.said)
        assert token_of("node") not in node.said and "    at " not in node.said
    command = ["node", "optimize.mjs", "--address", "h.example:1", "--operation", "operations/1", "-o", str(out)]
    clear = subprocess.run(
        [*command, "--token-file", str(server.token)], cwd=example, env=environment(), capture_output=True, text=True
    )
    assert clear.returncode == 3 and "over TLS only" in clear.stderr
    assert not out.exists()


def test_other_authorities_are_not_believed(example: Path, server: Server, tmp_path: Path) -> None:
    other = make_certificates(tmp_path)["ca"][0]
    with pytest.raises(ssl.SSLError), socket.create_connection(("127.0.0.1", server.port)) as s:
        ssl.create_default_context(cafile=other).wrap_socket(s, server_hostname="localhost")
    node = Node(example, server, "--operation", "operations/1", "-o", str(tmp_path / "out.pb"), ca=other)
    node.end(3)
    assert len(re.findall("again in", node.said)) == 5 and "UNAVAILABLE" in node.said
