"""One model in every engine: what each is given to load, and which do not take it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.peers import Peer, PeerFailed
from bench.peers.environments import interpreter

#: in the order of the page's columns: TensorFlow first, ours last
ENGINES = ("tensorflow", "xla", "onnxruntime", "openvino", "disc_tf", "disc_tf alone")
OURS = ENGINES[-2:]


@dataclasses.dataclass(frozen=True)
class Compiled:
    """Both forms of our artefact. ``seconds``: of the two commands, reading and writing included, verification left out."""

    graph: Path
    alone: Path
    report: dict[str, Any]
    seconds: dict[str, float]


def compile_model(graph: Path, work: Path) -> Compiled:
    """By the command, for all instruction sets, as users do."""
    inside, alone, report = work / f"{graph.stem}.pb", work / f"{graph.stem}.disc", work / f"{graph.stem}.report.json"
    seconds = {}
    for target in (inside, alone):
        start = time.perf_counter()
        command = [sys.executable, "-m", "disc_tf.cli", "optimize", graph, "-o", target, "--no-verify", "-q"]
        if target is inside:
            command += ["--report", report]
        subprocess.run([str(c) for c in command], check=True)
        seconds[target.suffix] = time.perf_counter() - start
    return Compiled(inside, alone, json.loads(report.read_text()), seconds)


def to_onnx(graph: Path, description: Path, work: Path, environments: Path) -> Path:
    """The model as an ONNX file, converted once. `PeerFailed` where tf2onnx does not convert it."""
    target = environments / "onnx" / f"{graph.stem}.onnx"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = work / target.name
        script = Path(__file__).with_name("peers") / "convert.py"
        ran = subprocess.run(
            [interpreter("convert", environments), str(script), str(graph), str(description), str(partial)],
            capture_output=True,
            text=True,
            check=False,
        )
        if ran.returncode:
            raise PeerFailed(f"tf2onnx: {(ran.stderr.strip().splitlines() or ['no reason given'])[-1][:300]}")
        target.write_bytes(partial.read_bytes())
    return target


def start_engines(
    graph: Path,
    description: Path,
    compiled: Compiled,
    threads: int,
    work: Path,
    environments: Path,
    wanted: tuple[str, ...],
    stack: contextlib.ExitStack,
) -> tuple[dict[str, Peer], dict[str, str]]:
    """The engines with the model loaded, closed by ``stack``; and of those that do not take it, the reasons."""

    def onnx() -> Path:
        return to_onnx(graph, description, work, environments)

    own = sys.executable
    sources: dict[str, tuple[Callable[[], Path], Callable[[], str]]] = {
        "tensorflow": (lambda: graph, lambda: own),
        "xla": (lambda: graph, lambda: own),
        "onnxruntime": (onnx, lambda: interpreter("onnxruntime", environments)),
        "openvino": (onnx, lambda: interpreter("openvino", environments)),
        "disc_tf": (lambda: compiled.graph, lambda: own),
        "disc_tf alone": (lambda: compiled.alone, lambda: own),
    }
    peers: dict[str, Peer] = {}
    failed: dict[str, str] = {}
    for engine in wanted:
        model, python = sources[engine]
        try:
            peers[engine] = stack.enter_context(Peer(engine, model(), description, threads, python()))
        except (PeerFailed, RuntimeError) as e:
            failed[engine] = str(e).splitlines()[0][:300]
    return peers, failed
