"""Each half of the sandbox by itself, as on kernels that have only one of them."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from disc_tf_server import sandbox

ROOT = Path(__file__).parents[2]
FILES_FOR_WRITING = {"write", "append", "unlink", "mkdir", "link"}
PROCESSES = {"tcp", "udp", "unix", "fork", "exec", "exec_self", "kill", "memfd"}

CODE = """
import sys, stand_in
from disc_tf_server import sandbox
there = sandbox.available()
seccomp, landlock = there.seccomp and sys.argv[2] == "seccomp", there.landlock if sys.argv[2] == "landlock" else 0
sandbox.available = lambda: sandbox.Facts(seccomp, landlock)
sandbox.limit_resources(5, 1 << 30)
facts = sandbox.enter(sandbox.code_roots([stand_in]))
assert (facts.seccomp, facts.landlock) == (seccomp, landlock)
tries = stand_in.forbidden(sys.argv[1], only=sys.argv[3].split(","))
print(tries)
"""


@pytest.mark.parametrize(
    ("half", "has", "denied", "allowed"),
    [
        ("seccomp", sandbox.available().seccomp, FILES_FOR_WRITING | PROCESSES, {"read", "list"}),
        ("landlock", sandbox.available().landlock > 0, {*FILES_FOR_WRITING, "read", "list"}, set()),
    ],
)
def test_halves(half: str, has: bool, denied: set[str], allowed: set[str], tmp_path: Path) -> None:
    if not has:
        pytest.skip(f"this kernel has no {half}")
    (tmp_path / "secret").write_text("key")
    environment = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "server"), str(Path(__file__).parent)])}
    command = [sys.executable, "-c", CODE, str(tmp_path), half, ",".join([*denied, *allowed])]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    tried = ast.literal_eval(done.stdout)
    assert {name for name, how in tried.items() if how == "done"} == allowed
    assert [p.name for p in tmp_path.iterdir()] == ["secret"]


def test_a_pool_can_insist_on_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    from disc_tf_server.children import ForkedChildPool

    monkeypatch.setattr(sandbox, "available", lambda: sandbox.Facts(True, 0))
    with pytest.raises(ValueError, match="Landlock: 0"):
        ForkedChildPool(1, require_sandbox=True)
    assert not ForkedChildPool(1).sandbox.whole
