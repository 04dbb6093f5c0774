"""A trust file in force: the runtime's verdict is the client's, whatever was changed in an artefact."""

from __future__ import annotations

import dataclasses
import json
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from disc_tf.remote.compile import compile_skeleton
from disc_tf.remote.messages import new
from disc_tf.remote.trust import TrustError, TrustPolicy
from disc_tf.runtime import DiscError, Executable, _capi, counters, load, set_trust, trust_file
from disc_tf.runtime.artifact import (
    ENTRY,
    HEADER,
    Artifact,
    ArtifactError,
    SignedStatement,
    pack,
    tensor_digest,
    unpack,
)
from disc_tf.runtime.artifact_file import write_file
from disc_tf.runtime.executable import last_error
from tests.runtime import toy
from tests.runtime.signed import Keys, trusting
from tests.runtime.test_artifact import resealed
from tests.runtime.test_identity import FILLED_IN, SIGNED, change

MODELS = Path(__file__).parents[2] / "bench" / "models"


@pytest.fixture(scope="module")
def real() -> Artifact:
    """micro_chain, compiled for two instruction sets."""
    outputs = json.loads((MODELS / "micro_chain.json").read_text())["outputs"]
    options = new("CompileOptions", targets=["x86-64-v2", "x86-64-v3"])
    result = compile_skeleton((MODELS / "micro_chain.pb").read_bytes(), outputs, (), options)
    return unpack(result.clusters[0].executable)


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path)


def refusal(artifact: Artifact | bytes) -> str:
    """Why the runtime does not load it; "" if it does."""
    data, lib = artifact if isinstance(artifact, bytes) else pack(artifact), _capi.library()
    handle = lib.disc_load(data, len(data))
    if not handle:
        return str(last_error())
    lib.disc_close(handle)
    return ""


def verdict(policy: TrustPolicy, artifact: Artifact) -> bool:
    """The client's."""
    try:
        policy.check_code(artifact)
    except TrustError:
        return False
    return True


def test_without_a_policy_nothing_is_looked_at(keys: Keys) -> None:
    before = counters()
    nonsense = dataclasses.replace(toy.artifact(), signed=SignedStatement(b"nonsense", b"x"))
    assert trust_file() == ""
    assert [refusal(a) for a in (toy.artifact(), keys.signed(toy.artifact()), nonsense)] == ["", "", ""]
    after = counters()
    assert all(after[f"signatures_{k}"] == before[f"signatures_{k}"] for k in ("accepted", "refused"))


def test_signed_code_loads_and_runs(keys: Keys, real: Artifact) -> None:
    with trusting(keys.trust):
        assert trust_file() == str(keys.trust)
        assert refusal(keys.signed(real)) == ""
        exe = Executable.from_artifact(keys.signed(toy.artifact()))
        w, x, n = np.ones(4, np.float32), np.ones((2, 4), np.float32), np.int64(3)
        np.testing.assert_array_equal(exe.run([w, x, np.asarray(n)])[0], toy.expected(w, x, 3)[0])
        assert "PERMISSION_DENIED" in refusal(toy.artifact()) and "the code is not signed" in refusal(real)


def test_a_stand_alone_file(keys: Keys, tmp_path: Path) -> None:
    w = np.arange(4, dtype=np.float32)
    base = toy.artifact(w)
    artifact = change("args.0", dataclasses.replace(base.args[0], dims=(4,), digest=tensor_digest(w, "f32")), base)
    for name, a in {"signed": keys.signed(artifact), "unsigned": artifact}.items():
        write_file(tmp_path / f"{name}.disc", a, {0: w})
    with trusting(keys.trust):
        x = np.ones((2, 4), np.float32)
        assert load(tmp_path / "signed.disc").run({"x": x, "n": np.asarray(1)})["y"].tolist() == (x * 2 * w).tolist()
        with pytest.raises(DiscError, match=r"unsigned.disc: toy: the code is not signed, but the trust file"):
            load(tmp_path / "unsigned.disc")


@pytest.mark.parametrize("of", ["real", "toy"])
def test_whatever_runs_is_in_the_signature(keys: Keys, real: Artifact, of: str) -> None:
    """The tables of test_identity, by both readers."""
    artifact = real if of == "real" else toy.artifact(np.ones(3, np.float32))
    good, policy = keys.signed(artifact), TrustPolicy.from_file(keys.trust)
    seen = []
    with trusting(keys.trust):
        for tables in (FILLED_IN, SIGNED):
            for path, value in tables.items():
                try:
                    bad = change(path, value, good)
                    data = pack(bad)
                except (ArtifactError, IndexError):
                    continue
                if bad == good:
                    continue
                why = refusal(data)
                same = tables is FILLED_IN and path != "signed"
                assert verdict(policy, bad) == same == (not why), (path, why)
                seen.append(same)
    assert seen.count(True) > 3 and seen.count(False) > 5


def test_flipped_bits(keys: Keys, real: Artifact) -> None:
    """A flipped bit anywhere, with right checksums: both readers say the same, and code or structure that changed never loads."""
    policy, rng = TrustPolicy.from_file(keys.trust), random.Random(7)
    loaded = refused = 0
    with trusting(keys.trust):
        for artifact in (real, toy.artifact(np.ones(3, np.float32), features=("sse4_2",))):
            good = pack(keys.signed(artifact))
            meta = ENTRY.unpack_from(good, HEADER.size)
            for i in range(700):
                bad = bytearray(good)
                # every other one in META, which is small against the code
                at = rng.randrange(meta[2], meta[2] + meta[3]) if i % 2 else rng.randrange(HEADER.size + ENTRY.size * 2, len(good))
                bad[at] ^= 1 << rng.randrange(8)
                data = resealed(bad)
                try:
                    expected = verdict(policy, unpack(data))
                except ArtifactError:
                    expected = False
                got = not refusal(data)
                # names that are no UTF-8, and the table of kernels, are not the RAL's business
                beside = "UTF-8" in _why(data) or "KMAP" in _why(data)
                assert got == expected or (got and beside), (at, got, expected)
                loaded, refused = loaded + got, refused + (not got)
    assert loaded > 30 and refused > 600


def _why(data: bytes) -> str:
    try:
        unpack(data)
    except ArtifactError as e:
        return str(e)
    return ""


def test_every_reason(keys: Keys, tmp_path: Path) -> None:
    artifact, other = toy.artifact(), Keys(tmp_path, "other")
    with trusting(keys.trust):
        assert "signed with key 'other', which is not in the trust file" in refusal(other.signed(artifact))
        assert "the signature of key '2026-11' has expired" in refusal(keys.signed(artifact, clock=time.time() - 1800, lifetime=60))
        assert refusal(keys.signed(artifact, clock=time.time() - 1800, lifetime=1800 - 290)) == ""  # clocks may differ by five minutes
        cut = dataclasses.replace(artifact, signed=SignedStatement(b"\xff" * 20, b"x" * 64))
        assert "the statement of its signature cannot be read" in refusal(cut)
        text = keys.trust.read_text()
        # rotation and revocation need no restart
        keys.trust.write_text(text + "\n" + other.trust.read_text())
        assert refusal(other.signed(artifact)) == refusal(keys.signed(artifact)) == ""
        keys.trust.write_text(text + "revoked = true   # stolen\n")
        assert "is revoked: compile again" in refusal(keys.signed(artifact))
        assert TrustPolicy.from_file(keys.trust).keys["2026-11"].revoked
        keys.trust.write_text(text.replace("not_after", "not_alter"))
        assert "line 5: only [[key]], id, public" in refusal(keys.signed(artifact))
        keys.trust.unlink()
        assert f"FAILED_PRECONDITION: toy: trust file {keys.trust}: No such file" in refusal(keys.signed(artifact))


def test_a_policy_that_cannot_be_asked_is_in_force(keys: Keys, tmp_path: Path) -> None:
    try:
        with pytest.raises(DiscError, match="No such file"):
            set_trust(tmp_path / "nowhere")
        assert "nowhere: No such file" in refusal(keys.signed(toy.artifact()))
        set_trust("")
        assert refusal(toy.artifact()) == ""
    finally:
        set_trust(None)


def test_what_the_server_prints_is_read_by_both(keys: Keys) -> None:
    """And what only TOML says is refused by the runtime, never read otherwise."""
    text = keys.trust.read_text()
    first = text.replace("[[key]]", "[[key]]  # the first")
    ours = [text, text.replace("\n", "\r\n"), "# ours\n\n" + first, text.replace("Z\n", "+00:00\n")]
    toml = [text.replace('"', "'"), text.replace("[[key]]", "[[ key ]]"), text.replace("id =", '"id" ='), "key = []\n"]
    for i, content in enumerate([*ours, *toml]):
        keys.trust.write_text(content)
        if i < len(ours):
            set_trust(keys.trust)
            TrustPolicy.from_file(keys.trust)
        else:
            with pytest.raises(DiscError, match="trust file"):
                set_trust(keys.trust)
        set_trust(None)


def test_threads(keys: Keys) -> None:
    good, bad = pack(keys.signed(toy.artifact())), pack(toy.artifact())
    found: list[Any] = []

    def work() -> None:
        found.extend((refusal(good), refusal(bad)) for _ in range(50))

    with trusting(keys.trust):
        threads = [threading.Thread(target=work) for _ in range(3)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert len(found) == 150 and all(g == "" and "not signed" in b for g, b in found)


_CHILD = """
import sys
from disc_tf.runtime import DiscError, Executable, trust_file
data = open(sys.argv[1], "rb").read()
try:
    Executable.from_bytes(data)
    print("loaded", trust_file())
except DiscError as e:
    print(e)
"""


def test_by_the_environment(keys: Keys, tmp_path: Path) -> None:
    (tmp_path / "good").write_bytes(pack(keys.signed(toy.artifact())))
    (tmp_path / "bad").write_bytes(pack(toy.artifact()))

    def child(name: str, **env: str) -> str:
        command = [sys.executable, "-c", _CHILD, str(tmp_path / name)]
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, cwd=tmp_path,
            env={"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": "/usr/bin:/bin", **env},
        )  # fmt: skip
        return done.stdout.strip()

    assert child("bad") == "loaded" and child("bad", DISC_TF_TRUST="") == "loaded"
    assert child("good", DISC_TF_TRUST=keys.trust.name) == f"loaded {keys.trust}"  # against the directory that the process began in
    assert "the code is not signed" in child("bad", DISC_TF_TRUST=str(keys.trust))
    assert "trust file /nowhere: No such file" in child("good", DISC_TF_TRUST="/nowhere")


def test_doctor_and_metrics_show_the_policy(keys: Keys, tmp_path: Path) -> None:
    from disc_tf.commands.doctor import _trust
    from disc_tf.serving.metrics import _Runtime

    ((_, good, text),) = _trust()
    assert good and text.startswith("none") and not list(_Runtime().collect())
    with trusting(keys.trust):
        before = {s.labels["result"]: s.value for f in _Runtime().collect() for s in f.samples}
        assert refusal(toy.artifact()) and not refusal(keys.signed(toy.artifact()))
        after = {s.labels["result"]: s.value for f in _Runtime().collect() for s in f.samples}
        assert {k: after[k] - before[k] for k in after} == {"accepted": 1, "refused": 1}
        ((_, good, text),) = _trust()
        assert good and text.endswith("; keys: 2026-11")
        keys.trust.write_text(keys.trust.read_text() + "revoked = true\n")
        assert _trust()[0][2].endswith("2026-11 (revoked)")
        keys.trust.unlink()
        ((_, good, text),) = _trust()
        assert not good and "No such file" in text
