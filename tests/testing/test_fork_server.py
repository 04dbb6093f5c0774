"""Children of one TensorFlow import: each answers, has an environment of its own, and ends with a status that says why."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from disc_tf.testing.fork_server import Server, ServerFailed
from disc_tf.testing.tf_process import Hosts, ProcessFailed, TfProcess
from disc_tf.testing.tf_worker import read_message, write_message


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory):
    """With an empty module in TensorFlow's place: its import is not what is tested here."""
    modules = tmp_path_factory.mktemp("modules")
    (modules / "tensorflow.py").write_text("")
    with Server({"PYTHONPATH": f"{modules}:{Path(__file__).parents[2]}"}) as made:
        yield made


def test_a_child_answers(server: Server, tmp_path: Path) -> None:
    with open(tmp_path / "errors", "wb") as errors:
        child = server.start({"NAME": "value"}, errors.fileno())
        write_message(child.stdin, ("memory", None))
        status, value = read_message(child.stdout)
        assert status == "ok" and value["rss"] > 0
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(timeout=0.05)
        child.stdin.close()
        assert child.wait(timeout=10) == 0 and child.wait() == 0


def test_children_are_independent(server: Server, tmp_path: Path) -> None:
    with open(tmp_path / "errors", "wb") as errors:
        first, second = server.start({}, errors.fileno()), server.start({}, errors.fileno())
        first.kill()
        assert first.wait(timeout=10) == -signal.SIGKILL
        first.kill()  # nothing is there any more
        write_message(second.stdin, ("memory", None))
        assert read_message(second.stdout)[0] == "ok"
        second.stdin.close()
        assert second.wait(timeout=10) == 0


def test_a_server_that_cannot_import_says_why(tmp_path: Path) -> None:
    (tmp_path / "tensorflow.py").write_text("raise ImportError('no such library')")
    with Server({"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"}) as server, open(tmp_path / "errors", "wb") as errors:
        said = pytest.raises(ServerFailed, match=r"status 1[\s\S]*no such library")
        with said:
            server.start({}, errors.fileno())


def test_children_end_with_their_server(tmp_path: Path) -> None:
    (tmp_path / "tensorflow.py").write_text("")
    with Server({"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"}) as server, open(tmp_path / "errors", "wb") as errors:
        child = server.start({}, errors.fileno())
    assert child.wait(timeout=5) == -signal.SIGKILL
    assert not child.stdout.read()  # nobody has the other end open any more


def test_another_interpreter_is_not_forked(tmp_path: Path) -> None:
    with Hosts() as hosts:
        with pytest.raises(ProcessFailed, match="status 1"):
            TfProcess("none.pb", [], [], hosts=hosts, python="/bin/false")
        assert not hosts._servers
