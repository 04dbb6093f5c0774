"""A request that is written to a file, and its answer that is read from one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from disc_tf.cli import main
from disc_tf.optimizer import optimize_graph_def
from disc_tf.options import Options
from disc_tf.remote.compile import compile_skeleton
from disc_tf.remote.files import SeveralRequests, reader, writer
from disc_tf.remote.merge import ResultError
from disc_tf.remote.messages import message_class, new
from disc_tf.remote.trust import TrustError, TrustPolicy
from tests.frontend.graphs import G
from tests.remote.test_compile import SETTINGS, launch_of, mlp, remotely


def answer_to(request: bytes, *, inline: bool = True) -> bytes:
    message = message_class("OptimizeRequest").FromString(request)
    data = compile_skeleton(message.graph.inline, message.graph.outputs, message.graph.feeds, message.options).SerializeToString()
    content: dict[str, Any] = {"inline": data} if inline else {"blob": new("Digest", hash="0" * 64, size_bytes=7)}
    return new("OptimizeResult", **content).SerializeToString()


def test_by_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph, request, answer, out = (str(tmp_path / n) for n in ("in.pb", "request.pb", "answer.pb", "out.pb"))
    Path(graph).write_bytes(mlp().proto.SerializeToString())
    flags = ["--outputs", "y", "--target", "x86-64-v3", "--min-cluster-size", "1"]
    assert main(["optimize", graph, *flags, "--remote-dry-run", "--remote-request", request]) == 0
    assert "constants without content" in capsys.readouterr().out
    Path(answer).write_bytes(answer_to(Path(request).read_bytes()))
    assert main(["optimize", graph, *flags, "-o", out, "--remote-result", answer, "--no-timing"]) == 0
    assert launch_of(message_of(out)) and "verified" in capsys.readouterr().out
    for given, message in (
        (["--remote-request", request], "--remote-request goes with --remote-dry-run"),
        (["--remote-result", answer, "--remote-dry-run"], "--remote-dry-run does not go with --remote-result"),
        (["--remote-result", answer, "--remote", "h:1"], "--remote does not go with --remote-result"),
        (["--remote-result", str(tmp_path / "none")], "cannot read"),
        (["--remote-result", graph], "in.pb: "),
    ):
        assert main(["optimize", graph, *flags, "-o", out, *given]) in (2, 3)
        assert message in capsys.readouterr().err


def message_of(path: str) -> Any:
    from disc_tf.frontend.tfproto import graph_from_bytes

    return graph_from_bytes(Path(path).read_bytes())


def test_the_answer_is_taken_as_from_a_connection(tmp_path: Path) -> None:
    asked: list[bytes] = []
    put = writer(asked.append)

    def ask(loaded: Any, request: Any) -> Any:
        put(loaded, request)
        file = tmp_path / "answer"
        file.write_bytes(answer_to(asked[-1]))
        return reader(str(file))(loaded, request)

    made = optimize_graph_def(mlp().proto, ["y"], SETTINGS, elsewhere=ask)
    assert made.graph_def == remotely(mlp().proto, ["y"]).graph_def


def small() -> G:
    g = G()
    g.placeholder("x", [None, 2])
    g.unary("y", "x", "Relu")
    g.unary("z", "y", "Tanh")
    return g


def asked_by(put: Any, g: G, outputs: list[str], settings: Options = SETTINGS) -> None:
    """Gives ``put`` what is asked for a graph, and stops there."""

    def keep(loaded: Any, request: Any) -> Any:
        put(loaded, request)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        optimize_graph_def(g.proto, outputs, settings, elsewhere=keep)


def test_answers_that_are_not_taken(tmp_path: Path) -> None:
    asked: list[bytes] = []
    asked_by(writer(asked.append), mlp(), ["y"])
    file, trust = tmp_path / "answer", tmp_path / "trust.toml"
    trust.write_text(f'[[key]]\nid = "a"\npublic = "{"A" * 43}="\n')
    whole = answer_to(asked[0])
    for content, policy, error, text in (
        (b"\xff", None, ResultError, "not an OptimizeResult"),
        (b"", None, ResultError, "the content is not in the file"),
        (answer_to(asked[0], inline=False), None, ResultError, "ReadBlob"),
        (whole, TrustPolicy.from_file(trust), TrustError, "not signed"),
    ):
        file.write_bytes(content)
        with pytest.raises(error, match=text):
            optimize_graph_def(mlp().proto, ["y"], SETTINGS, elsewhere=reader(str(file), trust=policy))
    file.write_bytes(whole)
    with pytest.raises(ResultError, match=r"does not fit|cannot be read|is of"):
        optimize_graph_def(small().proto, ["z"], SETTINGS, elsewhere=reader(str(file)))


def test_one_file_is_one_request() -> None:
    put = writer(lambda _data: None)
    asked_by(put, mlp(), ["y"])
    asked_by(put, mlp(), ["y"])
    with pytest.raises(SeveralRequests, match="--remote HOST:PORT"):
        optimize_graph_def(small().proto, ["z"], SETTINGS, elsewhere=lambda x, r: put(x, r))  # type: ignore[arg-type,return-value]
