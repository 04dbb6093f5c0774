"""A server that signs, the command that asks it, TensorFlow that loads what came back under the server's trust file."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from disc_tf_server.signing import main as signing
from disc_tf_server.signing import trust_file

from disc_tf.cli import main
from disc_tf.frontend.tfproto import graph_from_bytes, serialized
from disc_tf.remote.trust import TrustPolicy
from disc_tf.runtime.artifact import unpack
from disc_tf.runtime.executable import Executable
from disc_tf.testing.tf_case import tensorflow
from tests.runtime.signed import trusting
from tests.server.harness import run
from tests.server.processes import product, server


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with keys.toml, trust.toml, and what a server with these keys made: model.pb of in.pb, narrow-out.pb of narrow.pb."""
    root = tmp_path_factory.mktemp("signed")
    assert signing(["new", str(root / "keys.toml"), "2026-11"]) == 0
    (root / "in.pb").write_bytes(product())
    (root / "narrow.pb").write_bytes(product(dtype=14))
    (root / "trust.toml").write_text(trust_file(root / "keys.toml"))

    async def check() -> None:
        async with server(root / "data", "--signing-key", str(root / "keys.toml")) as (process, client):
            for source, to in (("in.pb", "model.pb"), ("narrow.pb", "narrow-out.pb")):
                command = ["optimize", str(root / source), "-o", str(root / to), "--remote", client.address, "--no-verify", "-q"]
                code = await asyncio.to_thread(main, [*command, "--min-cluster-size", "1", "--trust-file", str(root / "trust.toml")])
                assert code == 0
            process.send_signal(signal.SIGTERM)
            await asyncio.wait_for(process.wait(), 30)

    run(check(), 200)
    return root


def launch(graph: Any) -> Any:
    (node,) = [n for n in graph.node if n.op == "DiscLaunch"]
    return node


def answer(graph_def: bytes) -> Any:
    """softmax(relu(a @ b)) by TensorFlow."""
    tf = tensorflow()
    import disc_tf

    disc_tf.load_op_library()
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        proto = tf.compat.v1.GraphDef.FromString(graph_def)
        (y,) = tf.import_graph_def(proto, return_elements=["y:0"], name="")
        return session.run(y, {"a:0": a, "b:0": a.T})


def test_signed_tampered_and_restored(made: Path, tmp_path: Path) -> None:
    tf = tensorflow()
    good = (made / "model.pb").read_bytes()
    graph = graph_from_bytes(good)
    node = launch(graph)
    assert unpack(node.attr["executable"].s).signed is not None
    want = answer(product())
    with trusting(made / "trust.toml"):
        np.testing.assert_allclose(answer(good), want, rtol=1e-6)
        # one bit of the code, with the checksums that fit: whoever changed it knows the format
        from tests.runtime.test_artifact import resealed

        data = bytearray(node.attr["executable"].s)
        data[data.index(unpack(bytes(data)).targets[0].image) + 2000] ^= 1
        node.attr["executable"].s = resealed(data)
        with pytest.raises(tf.errors.PermissionDeniedError, match="the signature of key '2026-11' is for other code"):
            answer(serialized(graph))
        (tmp_path / "bad.pb").write_bytes(serialized(graph))
        # the way out: the original has no native code
        assert main(["restore", str(tmp_path / "bad.pb"), "-o", str(tmp_path / "back.pb")]) == 0
        np.testing.assert_array_equal(answer((tmp_path / "back.pb").read_bytes()), want)


def test_code_for_an_extension_is_signed_with_its_target(made: Path) -> None:
    """Nobody asks for extensions of a target by name: what is signed for the target is signed for them."""
    data = launch(graph_from_bytes((made / "narrow-out.pb").read_bytes())).attr["executable"].s
    artifact = unpack(data)
    assert "x86-64-v4-vnni-bf16" in [t.isa for t in artifact.targets]
    TrustPolicy.from_file(made / "trust.toml").check_code(artifact)
    with trusting(made / "trust.toml"), Executable.from_bytes(data) as executable:
        assert executable.isa in [t.isa for t in artifact.targets]


def test_commands_say_who_signed(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    model, trust = str(made / "model.pb"), str(made / "trust.toml")
    assert main(["inspect", model]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"signed with key '2026-11' until 20\S+Z \(not checked: give --trust-file\)", shown)
    assert "not that it is safe" in shown and "native code" in shown
    assert main(["inspect", model, "--trust-file", trust]) == 0
    assert f"Z, by {trust}" in capsys.readouterr().out
    assert main(["inspect", model, "--trust-file", trust, "--json"]) == 0
    (cluster,) = json.loads(capsys.readouterr().out)["clusters"]
    assert cluster["trusted"] is True and "2026-11" in cluster["signature"] and "signature_text" not in cluster
    revoked = tmp_path / "revoked.toml"
    revoked.write_text(Path(trust).read_text() + "revoked = true\n")
    assert main(["inspect", model, "--trust-file", str(revoked)]) == 5
    shown = capsys.readouterr()
    assert "NOT TRUSTED: signed with key '2026-11', which is revoked" in shown.out and "is not trusted" in shown.err
    assert main(["verify", str(made / "in.pb"), model, "--trust-file", str(revoked)]) == 5
    assert "is revoked" in capsys.readouterr().err
    assert main(["inspect", str(made / "in.pb"), "--trust-file", trust]) == 2
    assert "is for optimised graphs" in capsys.readouterr().err
    assert main(["inspect", model, "--trust-file", str(tmp_path / "nowhere")]) == 2
    # what this machine compiles nobody signs
    monkeypatch.setitem(os.environ, "DISC_TF_TRUST", trust)
    assert main(["optimize", str(made / "in.pb"), "-o", str(tmp_path / "out.pb")]) == 2
    assert "nobody signs what is compiled here" in capsys.readouterr().err and not (tmp_path / "out.pb").exists()


@pytest.mark.slow
def test_verify_shows_who_signed(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["verify", str(made / "in.pb"), str(made / "model.pb"), "--points", "2", "--outputs", "y:0"]
    assert main([*command, "--trust-file", str(made / "trust.toml")]) == 0
    assert "native code of 1 launches: signed with key '2026-11'" in capsys.readouterr().out
