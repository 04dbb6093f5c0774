"""One model in every engine: what each is given to load, and which do not take it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.peers.environments import interpreter
from disc_tf.frontend.tfproto import graph_from_bytes, serialized
from disc_tf.runtime.artifact import ArgSpec
from disc_tf.runtime.artifact_file import read_file
from disc_tf.testing.tf_process import Child, ProcessFailed, TfError, TfProcess

#: in the order of the page's columns: TensorFlow first, ours last
ENGINES = ("tensorflow", "xla", "onnxruntime", "openvino", "iree", "disc_tf", "disc_tf alone")
OURS = ENGINES[-2:]
#: measured beside them where TensorFlow is: a graph that only takes the model's feeds, so what a call of a Session takes by itself
CALL = "call"


#: DataType of 32-bit integers in TensorFlow's protocol
DT_INT32 = 3

#: an engine does not take the model, or not this shape; its words are the message
FAILURES = (TfError, ProcessFailed)


class EngineProcess(Child):
    """A child process of an engine of `bench.peers.worker` with a model loaded; runs as a `TfProcess` does."""

    def __init__(self, engine: str, model: Path, inputs: Sequence[str], outputs: Sequence[str], threads: int, python: str) -> None:
        config = {"engine": engine, "model": str(model), "inputs": list(inputs), "outputs": list(outputs)}
        env = {"OMP_NUM_THREADS": str(threads)}
        super().__init__(config, threads=threads, python=python, env=env, module="bench.peers.worker")

    def run(self, feeds: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Outputs for the feeds, both in the model's order. Raises what `FAILURES` has."""
        return self._ask("run", list(feeds))

    def time(self, feeds: Sequence[np.ndarray], repeats: int = 5, warmup: int = 1) -> list[float]:
        """Seconds of ``repeats`` runs after ``warmup`` ones. Raises what `FAILURES` has."""
        return self._ask("time", (list(feeds), repeats, warmup))


Engine = TfProcess | EngineProcess


@dataclasses.dataclass(frozen=True)
class Compiled:
    """Both forms of our artefact. ``args``: those of the cluster that is the whole model; ``seconds``: of the two commands, reading and
    writing included, verification left out."""

    graph: Path
    alone: Path
    report: dict[str, Any]
    args: tuple[ArgSpec, ...]
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
    return Compiled(inside, alone, json.loads(report.read_text()), tuple(read_file(alone).args), seconds)


def to_onnx(graph: Path, description: Path, work: Path, environments: Path) -> Path:
    """The model as an ONNX file, converted once. `ProcessFailed` where tf2onnx does not convert it."""
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
            raise ProcessFailed(f"tf2onnx: {(ran.stderr.strip().splitlines() or ['no reason given'])[-1][:300]}")
        target.write_bytes(partial.read_bytes())
    return target


def to_iree(graph: Path, description: Path, work: Path, environments: Path) -> Path:
    """The model compiled by IREE for this machine, from its ONNX form, once. `ProcessFailed` with IREE's words where it does not."""
    target = environments / "iree-modules" / f"{graph.stem}.vmfb"
    if target.exists():
        return target
    onnx, tools = to_onnx(graph, description, work, environments), Path(interpreter("iree", environments)).parent
    imported, partial = work / f"{graph.stem}.mlir", work / target.name
    backend = ["--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu", "--iree-llvmcpu-target-cpu=host"]
    for command in (
        [tools / "iree-import-onnx", onnx, "-o", imported],
        [tools / "iree-compile", imported, *backend, "-o", partial],
    ):
        ran = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False)
        if ran.returncode:
            said = [line for line in ran.stderr.splitlines() if "error:" in line] or ran.stderr.strip().splitlines() or ["no reason given"]
            raise ProcessFailed(f"{Path(command[0]).name}: {said[0].partition('error: ')[2] or said[0]}"[:200])
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(partial.read_bytes())
    return target


def call_graph(graph: Path, inputs: Sequence[str], work: Path) -> Path:
    """A graph of the model's placeholders and nothing but the sum of their sizes, "call:0"."""
    original = graph_from_bytes(graph.read_bytes())
    names = [i.removesuffix(":0") for i in inputs]
    made = type(original)(versions=original.versions)
    for node in original.node:
        if node.name in names:
            made.node.add().CopyFrom(node)
    for i, name in enumerate(names):
        size = made.node.add(name=f"call/size{i}", op="Size", input=[name])
        size.attr["T"].type = next(n for n in made.node if n.name == name).attr["dtype"].type
        size.attr["out_type"].type = DT_INT32
    call = made.node.add(name="call", op="AddN", input=[f"call/size{i}" for i in range(len(names))])
    call.attr["T"].type, call.attr["N"].i = DT_INT32, len(names)
    path = work / f"{graph.stem}.call.pb"
    path.write_bytes(serialized(made))
    return path


def start_engines(
    graph: Path,
    description: Path,
    compiled: Compiled,
    threads: int,
    work: Path,
    environments: Path,
    wanted: tuple[str, ...],
    stack: contextlib.ExitStack,
) -> tuple[dict[str, Engine], dict[str, str]]:
    """The engines with the model loaded, closed by ``stack``; and of those that do not take it, the reasons."""
    info = json.loads(description.read_text())
    inputs, outputs = [f"{i['name']}:0" for i in info["inputs"]], list(info["outputs"])

    def engine(name: str, model: Path, python: str = sys.executable) -> Engine:
        return EngineProcess(name, model, inputs, outputs, threads, python)

    def converted(name: str) -> Engine:
        return engine(name, to_onnx(graph, description, work, environments), interpreter(name, environments))

    make: dict[str, Callable[[], Engine]] = {
        "tensorflow": lambda: TfProcess(graph, inputs, outputs, threads=threads),
        "xla": lambda: engine("xla", graph),
        "onnxruntime": lambda: converted("onnxruntime"),
        "openvino": lambda: converted("openvino"),
        "iree": lambda: engine("iree", to_iree(graph, description, work, environments), interpreter("iree", environments)),
        "disc_tf": lambda: TfProcess(compiled.graph, inputs, outputs, threads=threads, ops=True),
        "disc_tf alone": lambda: engine("disc_tf alone", compiled.alone),
        CALL: lambda: TfProcess(call_graph(graph, inputs, work), inputs, ["call:0"], threads=threads),
    }
    started: dict[str, Engine] = {}
    failed: dict[str, str] = {}
    for name in wanted:
        try:
            started[name] = stack.enter_context(make[name]())
        except (*FAILURES, RuntimeError) as e:
            failed[name] = reason(e)
    return started, failed


def reason(error: Exception) -> str:
    """The first line of what was said."""
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
