"""Signing at the server and trust at the client, together: rotation, revocation, expiry, forgery; no key is ever shown."""

from __future__ import annotations

import base64
import dataclasses
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from disc_tf_server.interfaces import ServiceError
from disc_tf_server.signing import FileSigner, SigningError, add_key, main, read_keys, trust_file

from disc_tf.remote.messages import message_class, new
from disc_tf.remote.trust import TrustError, TrustPolicy

DAY = 86400.0
NOW = 1_800_000_000.0
REQUEST, CODE, VERSION, TARGETS = b"r" * 32, [b"a" * 32, b"b" * 32], "1.0", ["x86-64-v2", "x86-64-v3"]


class Keys:
    """A key file with "old" (valid from day 0 to 100) and "new" (from day 50 to 150), and the trust file of both."""

    def __init__(self, root: Path) -> None:
        self.root, self.file = root, root / "keys.toml"
        add_key(self.file, "old", NOW, 100)
        add_key(self.file, "new", NOW + 50 * DAY, 100)
        self.now = NOW

    def signer(self, lifetime: float = 10 * DAY) -> FileSigner:
        return FileSigner(self.file, lifetime, clock=lambda: self.now)

    def trust(self, change: Callable[[str], str] = lambda text: text) -> TrustPolicy:
        path = self.root / "trust.toml"
        path.write_text(change(trust_file(self.file)))
        policy = TrustPolicy.from_file(path)
        return TrustPolicy(policy.keys, clock=lambda: self.now)

    def signed(self, lifetime: float = 10 * DAY) -> Any:
        return message_class("Signature").FromString(self.signer(lifetime).sign(CODE, REQUEST, VERSION, TARGETS))


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path)


def verify(policy: TrustPolicy, signature: Any, **fields: Any) -> None:
    asked = {"request": REQUEST, "artifacts": CODE, "compiler_version": VERSION, "targets": set(TARGETS[:1]), **fields}
    policy.verify(signature, **asked)


def test_what_was_signed_is_accepted(keys: Keys) -> None:
    signature = keys.signed()
    verify(keys.trust(), signature)
    statement = message_class("Statement").FromString(signature.statement)
    assert statement.key_id == "old" and statement.not_after.ToSeconds() == int(NOW + 10 * DAY)
    assert list(statement.artifacts) == CODE and keys.signer().key_ids == ("old",)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"request": b"x" * 32}, "another request"),
        ({"artifacts": [CODE[0], b"x" * 32]}, "other code"),
        ({"artifacts": CODE[::-1]}, "other code"),
        ({"artifacts": CODE[:1]}, "other code"),
        ({"artifacts": []}, "other code"),
        ({"compiler_version": "1.1"}, "compiler '1.0', not '1.1'"),
        ({"targets": {"x86-64-v4"}}, "instruction sets"),
        ({"now": NOW + 10 * DAY + 301}, "signature has expired"),
        ({"now": NOW + 101 * DAY}, "key 'old' has expired"),
        ({"now": NOW - DAY}, "not valid yet"),
    ],
)
def test_what_was_not_signed_is_refused(keys: Keys, fields: dict[str, Any], says: str) -> None:
    with pytest.raises(TrustError, match=says):
        verify(keys.trust(), keys.signed(), **fields)


def test_no_signature_and_no_key_fail_closed(keys: Keys) -> None:
    for unsigned in (None, new("Signature"), new("Signature", statement=keys.signed().statement)):
        with pytest.raises(TrustError, match="not signed"):
            verify(keys.trust(), unsigned)
    with pytest.raises(TrustError, match="not in the trust file"):
        verify(keys.trust(lambda t: t.replace('"old"', '"other"')), keys.signed())
    with pytest.raises(TrustError, match="revoked"):
        verify(keys.trust(lambda t: t.replace('id = "old"', 'revoked = true\nid = "old"')), keys.signed())


def test_forgeries(keys: Keys, tmp_path: Path) -> None:
    good = keys.signed()
    policy = keys.trust()
    for i in range(0, len(good.signature), 7):
        bad = bytearray(good.signature)
        bad[i] ^= 1
        with pytest.raises(TrustError, match="is wrong"):
            verify(policy, new("Signature", statement=good.statement, signature=bytes(bad)))
    for i in range(0, len(good.statement)):
        bad = bytearray(good.statement)
        bad[i] ^= 1
        with pytest.raises(TrustError):
            verify(policy, new("Signature", statement=bytes(bad), signature=good.signature))
    # another's key under the same id
    (tmp_path / "other").mkdir()
    with pytest.raises(TrustError, match="is wrong"):
        verify(policy, Keys(tmp_path / "other").signed())
    # a statement of a key says that it is another's
    with pytest.raises(TrustError, match="is wrong"):
        statement = message_class("Statement").FromString(good.statement)
        statement.key_id = "new"
        keys.now = NOW + 60 * DAY
        verify(policy, new("Signature", statement=statement.SerializeToString(), signature=good.signature))
    for statement in (b"\xff" * 100, bytes(2 << 20)):
        with pytest.raises(TrustError, match="statement"):
            verify(policy, new("Signature", statement=statement, signature=b"x"))


def test_rotation(keys: Keys) -> None:
    policy, signer = keys.trust(), keys.signer()
    seen = []
    for day in (0, 49, 51, 99, 101, 149):
        keys.now = NOW + day * DAY
        verify(policy, keys.signed(), now=keys.now)
        seen += signer.key_ids
    assert seen == ["old", "old", "new", "new", "new", "new"]
    # a signature does not outlive its key
    assert message_class("Statement").FromString(keys.signed().statement).not_after.ToSeconds() == int(NOW + 150 * DAY)
    keys.now = NOW + 151 * DAY
    assert signer.key_ids == ()
    with pytest.raises(ServiceError) as e:
        keys.signed()
    assert e.value.reason == "NO_SIGNING_KEY" and e.value.retry_after
    # a new key is taken up without a restart; a broken file changes nothing
    add_key(keys.file, "newest", keys.now - DAY, 10)
    signer.reload()
    assert signer.key_ids == ("newest",)
    keys.file.write_text("broken")
    with pytest.raises(SigningError, match="TOML"):
        signer.reload()
    assert signer.key_ids == ("newest",)


def test_a_revoked_key_does_not_sign(keys: Keys) -> None:
    keys.file.write_text(keys.file.read_text().replace('id = "old"', 'id = "old"\nrevoked = true'))
    assert keys.signer().key_ids == ()
    assert "revoked = true" in trust_file(keys.file)


def test_check_takes_a_whole_result(keys: Keys) -> None:
    from disc_tf.runtime.artifact import Artifact, SegmentSpec, TargetCode, pack
    from disc_tf.runtime.identity import code_identity

    artifact = Artifact((), (), (SegmentSpec((), (), ()),), (TargetCode("x86-64-v3", (), b"image"),), compiler_version="1.0")
    result = new("CompileResult", compiler_version="1.0")
    result.clusters.add(executable=pack(artifact))
    final = new("OptimizeResult")
    with pytest.raises(TrustError, match="not signed"):
        keys.trust().check(final, result, REQUEST)
    final.signature.MergeFromString(keys.signer().sign([code_identity(artifact)], REQUEST, "1.0", ["x86-64-v3"]))
    keys.trust().check(final, result, REQUEST)
    result.clusters[0].executable = pack(dataclasses.replace(artifact, targets=(TargetCode("x86-64-v3", (), b"other"),)))
    with pytest.raises(TrustError, match="other code"):
        keys.trust().check(final, result, REQUEST)


SECRET = base64.b64encode(b"s" * 31 + b"t" * 2).decode()
BAD_FILES = {
    "not TOML": (f"private = {SECRET}", "not a TOML file"),
    "empty": ("", "no key in it"),
    "another table": ("[x]\na = 1", r"only \[\[key\]\]"),
    "no id": (f'[[key]]\nprivate = "{SECRET}"', "id: 1 to 64"),
    "short key": (f'[[key]]\nid = "a"\nprivate = "{SECRET}"', "32 bytes in base64"),
    "no key": ('[[key]]\nid = "a"', "32 bytes in base64"),
    "unknown field": (f'[[key]]\nid = "a"\nprivat = "{SECRET}"', "'privat' is not known"),
    "local time": (f'[[key]]\nid = "a"\nnot_before = 2026-01-01T00:00:00\nprivate = "{SECRET}"', "with its zone"),
    "backwards": ('[[key]]\nid = "a"\nnot_before = 2026-01-02T00:00:00Z\nnot_after = 2026-01-01T00:00:00Z', "ends before"),
    "twice": ('[[key]]\nid = "a"\n[[key]]\nid = "a"', "occurs twice"),
    "revoked when": ('[[key]]\nid = "a"\nrevoked = "yes"', "true or false"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_files_are_refused_without_showing_keys(tmp_path: Path, name: str) -> None:
    text, says = BAD_FILES[name]
    path = tmp_path / "keys"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(SigningError, match=says) as e:
        read_keys(path)
    assert SECRET not in str(e.value) and (e.value.__cause__ is None or SECRET not in str(e.value.__cause__))
    path.write_text(text.replace("privat", "public").replace("publice", "public"))
    with pytest.raises(TrustError):
        TrustPolicy.from_file(path)


def test_keys_are_not_shown(keys: Keys, capsys: pytest.CaptureFixture[str]) -> None:
    secrets = re.findall(r'private = "(.+)"', keys.file.read_text())
    assert len(secrets) == 2 and keys.file.stat().st_mode & 0o777 == 0o600
    shown = repr(read_keys(keys.file)) + repr(keys.signer().__dict__) + trust_file(keys.file)
    assert main(["new", str(keys.file), "old"]) == 2 and main(["trust", str(keys.file)]) == 0
    assert main(["new", str(keys.root / "made"), 'a"b']) == 2 and main(["new", str(keys.root / "made"), "a"]) == 0
    out = capsys.readouterr()
    assert not any(s in shown + out.out + out.err for s in secrets)
    assert "there is a key 'old' already" in out.err and 'id = "new"' in out.out
    keys.file.chmod(0o640)
    with pytest.raises(SigningError, match="chmod 600"):
        read_keys(keys.file)
    with pytest.raises(SigningError, match="No such file"):
        read_keys(keys.root / "nowhere")
    os.chmod(keys.file, 0o600)


@pytest.mark.parametrize(
    ("owner", "mode", "us", "taken"),
    [
        (1000, 0o600, 1000, True), (1000, 0o640, 1000, False), (0, 0o440, 1000, True), (0, 0o640, 1000, True), (0, 0o460, 1000, False),
        (0, 0o444, 1000, False), (0, 0o640, 0, False), (0, 0o600, 0, True),
    ],
)  # fmt: skip
def test_who_may_read_a_key(keys: Keys, monkeypatch: pytest.MonkeyPatch, owner: int, mode: int, us: int, taken: bool) -> None:
    """A secret that Kubernetes mounts is root's and readable by a group of the container's."""
    there = os.stat(keys.file)
    fields = [mode, *there[1:4], owner, *there[5:10]]
    monkeypatch.setattr("disc_tf_server.signing.os.stat", lambda _path: os.stat_result(fields))
    monkeypatch.setattr("disc_tf_server.signing.os.geteuid", lambda: us)
    if taken:
        assert read_keys(keys.file)
    else:
        with pytest.raises(SigningError, match="chmod 600"):
            read_keys(keys.file)
