"""Who calls."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from disc_tf_server.config import ConfigError
from disc_tf_server.interfaces import ServiceError
from disc_tf_server.principals import Authenticator, Tokens, peer_address

TOKEN = "a-token-of-sixteen-letters"


def tokens(tmp_path: Path, text: str, mode: int = 0o600) -> str:
    file = tmp_path / "tokens"
    file.write_text(text)
    file.chmod(mode)
    return str(file)


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:10.0.0.7:4312", "10.0.0.7"),
        ("ipv6:%5B2001:db8:1:2:3:4:5:6%5D:4312", "2001:db8:1:2::/64"),
        ("ipv6:[::1]:4312", "::1"),
        ("ipv6:%5B::ffff:10.0.0.7%5D:1", "10.0.0.7"),
        ("ipv6:[fe80::1%25eth0]:1", "fe80::/64"),
        ("unix:", "unix"),
        ("unix:/run/x", "unix"),
        ("", "unknown"),
        ("odd:stuff", "unknown"),
    ],
)
def test_peers(peer: str, address: str) -> None:
    assert peer_address(peer) == address
    assert Authenticator().principal({}, {}, peer).id == f"peer:{address}"


def test_tokens(tmp_path: Path) -> None:
    hashed = hashlib.sha256(b"another-token-0123").hexdigest()
    known = Authenticator(tokens(tmp_path, f"# who\nci {TOKEN}\n\nalice sha256:{hashed}  # hers\n"))
    assert known.principal({"authorization": f"Bearer {TOKEN}"}, {}, "ipv4:1.2.3.4:5").id == "token:ci"
    assert known.principal({"authorization": b"bearer another-token-0123"}, {}, "").id == "token:alice"
    for given in (
        {},
        {"authorization": ""},
        {"authorization": TOKEN},
        {"authorization": f"Basic {TOKEN}"},
        {"authorization": f"Bearer {TOKEN}x"},
    ):
        with pytest.raises(ServiceError) as caught:
            known.principal(given, {}, "ipv4:1.2.3.4:5")
        assert (caught.value.code, caught.value.reason) == ("UNAUTHENTICATED", "TOKEN_WANTED")


def test_certificates(tmp_path: Path) -> None:
    only = Authenticator(certificates=True)
    assert only.principal({}, {"x509_common_name": [b"svc"]}, "").id == "cert:svc"
    assert (
        only.principal({}, {"x509_common_name": [b"svc"], "x509_subject_alternative_name": [b"svc.example"]}, "").id == "cert:svc.example"
    )
    with pytest.raises(ServiceError, match="certificate"):
        only.principal({}, {}, "ipv4:1.2.3.4:5")
    both = Authenticator(tokens(tmp_path, f"ci {TOKEN}\n"), certificates=True)
    assert both.principal({}, {"x509_common_name": [b"svc"]}, "").id == "cert:svc"
    assert both.principal({"authorization": f"Bearer {TOKEN}"}, {"x509_common_name": [b"svc"]}, "").id == "token:ci"
    with pytest.raises(ServiceError):  # a wrong token is no caller without one
        both.principal({"authorization": "Bearer nonsense"}, {"x509_common_name": [b"svc"]}, "")


@pytest.mark.parametrize(
    ("trusted", "space"),
    [((), "token:ci"), (("ci",), "group"), (("token:ci",), "group"), (("*",), "group"), (("other", "cert:ci"), "token:ci")],
)
def test_the_trusted_group(tmp_path: Path, trusted: tuple[str, ...], space: str) -> None:
    known = Authenticator(tokens(tmp_path, f"ci {TOKEN}\n"), trusted=trusted)
    assert known.principal({"authorization": f"Bearer {TOKEN}"}, {}, "").space == space


def test_a_peer_is_trusted_by_its_address_only() -> None:
    assert Authenticator(trusted=("*", "10.0.0.7")).principal({}, {}, "ipv4:10.0.0.7:1").space == "peer:10.0.0.7"
    assert Authenticator(trusted=("peer:10.0.0.7",)).principal({}, {}, "ipv4:10.0.0.7:1").space == "group"


@pytest.mark.parametrize(
    ("text", "mode", "message"),
    [
        (f"ci {TOKEN}\n", 0o644, "chmod o-rwx"),
        ("", 0o600, "no token in it"),
        ("ci short\n", 0o600, "shorter than 16"),
        ("ci\n", 0o600, ":1: `NAME TOKEN`"),
        (f"a {TOKEN}\nb/c {TOKEN}1\n", 0o600, ":2: `NAME TOKEN`"),
        ("ci sha256:00\n", 0o600, "64 hexadecimal"),
        (f"a {TOKEN}\nb {TOKEN}\n", 0o600, "twice"),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, text: str, mode: int, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Tokens(tokens(tmp_path, text, mode))
    assert message in str(caught.value) and TOKEN not in str(caught.value)


def test_reload_keeps_the_old_tokens_when_the_file_is_wrong(tmp_path: Path) -> None:
    file = tokens(tmp_path, f"ci {TOKEN}\n")
    known = Tokens(file)
    tokens(tmp_path, "broken\n")
    with pytest.raises(ConfigError):
        known.reload()
    assert known.name(TOKEN.encode()) == "ci"
    tokens(tmp_path, f"new {TOKEN}\n")
    known.reload()
    assert known.name(TOKEN.encode()) == "new"
