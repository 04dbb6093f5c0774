"""The compiler process and the queue: they may die, the program may end or fork at any time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import disc_tf
from disc_tf.just_in_time import background as module
from disc_tf.just_in_time.background import Background
from disc_tf.just_in_time.child import Child, CompilerGone
from disc_tf.just_in_time.work import Request

pytestmark = pytest.mark.slow  # processes and models of their own: minutes on a busy machine

ROOT = Path(disc_tf.__file__).parents[1]


def request() -> Request:
    from disc_tf.frontend.tfproto import graph_from_text
    from disc_tf.options import Options

    graph = graph_from_text(
        """
        node { name: "x" op: "Placeholder" attr { key: "dtype" value { type: DT_FLOAT } }
               attr { key: "shape" value { shape { dim { size: -1 } dim { size: -1 } } } } }
        node { name: "e" op: "Exp" input: "x" attr { key: "T" value { type: DT_FLOAT } } }
        node { name: "t" op: "Tanh" input: "e" attr { key: "T" value { type: DT_FLOAT } } }
        """
    )
    options = Options.from_overrides(targets=("native",), use_tf_shapes=False).to_dict()
    return Request(graph.SerializeToString(), ["t:0"], options)


def test_the_process_compiles_reports_errors_and_may_be_killed(tmp_path, monkeypatch):
    (tmp_path / "json.py").write_text("raise SystemExit('a file in the working directory is no module')")
    monkeypatch.chdir(tmp_path)
    child = Child()
    try:
        done = child.compile(request())
        assert done.graph and [c.status for c in done.report.clusters] == ["compiled"]
        with pytest.raises(RuntimeError, match="GraphError"):
            child.compile(Request(b"\xff\xff", ["t:0"], {}))
        with pytest.raises(RuntimeError, match="nope"):
            child.compile(Request(request().graph, ["nope:0"], {}))
        assert child.compile(request()).graph, "errors do not end it"
        child.kill()
        with pytest.raises(CompilerGone):
            child.compile(request())
    finally:
        child.close()


def wait_for(condition: Any, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "took too long"
        time.sleep(0.01)


def test_the_queue_survives_its_process_and_ends_when_idle(monkeypatch):
    monkeypatch.setattr(module, "IDLE", 0.3)
    queue, results = Background(), []

    def job(compile_: Any) -> None:
        try:
            results.append(compile_(request()).graph)
        except Exception as e:
            results.append(e)

    def kill(compile_: Any) -> None:
        assert queue._child is not None
        os.kill(queue._child._process.pid, signal.SIGKILL)
        queue._child._process.wait()
        job(compile_)

    for work in (job, kill, job):
        queue.submit(work, "process")
    wait_for(lambda: len(results) == 3)
    assert isinstance(results[1], CompilerGone) and isinstance(results[0], bytes) and isinstance(results[2], bytes)
    wait_for(lambda: queue._thread is None and queue._child is None)
    queue.submit(job, "thread")
    wait_for(lambda: len(results) == 4)
    assert isinstance(results[3], bytes)


def test_without_a_process_it_compiles_here(monkeypatch):
    monkeypatch.setattr(sys, "executable", "")
    queue, results = Background(), []
    queue.submit(lambda compile_: results.append(compile_(request())), "process")
    wait_for(lambda: results)
    assert results[0].graph


def test_a_forked_process_has_a_queue_of_its_own():
    queue, gate, done = Background(), threading.Event(), []
    queue.submit(lambda _: gate.wait(60), "thread")
    queue.submit(lambda _: done.append(os.getpid()), "thread")
    pid = os.fork()
    if pid == 0:
        queue.after_fork()
        queue.submit(lambda _: done.append(os.getpid()), "thread")
        end = time.monotonic() + 20
        while not done and time.monotonic() < end:
            time.sleep(0.01)
        os._exit(0 if done == [os.getpid()] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    gate.set()
    wait_for(lambda: done == [os.getpid()])


def test_shutdown_forgets_what_waits():
    queue, started, done = Background(), threading.Event(), []

    def long(compile_: Any) -> None:
        started.set()
        try:
            while True:
                compile_(request())
        except Exception as e:
            done.append(e)

    queue.submit(long, "thread")
    queue.submit(lambda _: done.append("never"), "thread")
    started.wait(60)
    start = time.monotonic()
    queue.shutdown()
    assert time.monotonic() - start < module.AT_EXIT + 1
    wait_for(lambda: done)
    assert isinstance(done[0], module.Stopped) and len(done) == 1
    queue.submit(lambda _: done.append("never"), "thread")


EXIT = """
    import sys, time
    import tensorflow as tf
    import disc_tf
    def f(x):
        for i in range(60):
            x = tf.nn.softmax(x @ x + float(i)) * tf.exp(x)
        return x
    g = disc_tf.jit(f, cache_dir=None, worker=sys.argv[1])
    g(tf.ones([3, 3]))
    time.sleep(float(sys.argv[2]))
    print(g.report()[0].state, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("worker", ["process", "thread"])
@pytest.mark.parametrize("delay", ["0", "0.4", "1.5", "3"])
def test_a_program_may_end_while_it_compiles(worker, delay, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(EXIT))
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, str(script), worker, delay], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] in ("compiling", "compiled")
    assert "Traceback" not in done.stderr
