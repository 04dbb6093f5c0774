"""Cold start and memory of several replicas of a model on one host, with and without a directory of shared packs.

    python -m bench.replicas MODEL [--replicas 4] [--rounds 3] [--packs DIR] [--at-once] [--shape 1,32] [--json FILE]

MODEL is a stand-alone file (.disc) or an optimised GraphDef (.pb, run in TensorFlow), all of whose inputs are integers of rank 2. Each
replica is a process: its time goes from the end of its imports to the first answer (load, pack or map, run). They are started one after
another (`--at-once`: together) and stay; then their memory is added up (PSS: a page that n processes share counts 1/n in each). A round
starts replicas without packs, then with a fresh directory.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

RUNS = 20


@dataclass(frozen=True)
class Replica:
    """What one process reported; seconds, bytes."""

    first: float
    steady: float
    built: int
    loaded: int
    problem: str
    answer: int
    pss: int
    private: int


def _standalone(path: str, shape: tuple[int, int]) -> Callable[[], list[np.ndarray]]:
    from disc_tf.runtime import load

    model = load(path)
    values = {name: np.ones(shape, np.int32) for name in model.inputs}
    return lambda: list(model.run(values).values())


def _in_tensorflow(path: str, shape: tuple[int, int]) -> Callable[[], list[np.ndarray]]:
    import tensorflow as tf

    graph_def = tf.compat.v1.GraphDef()
    graph_def.ParseFromString(Path(path).read_bytes())
    read = {name.split(":")[0].lstrip("^") for node in graph_def.node for name in node.input}
    feeds = {f"{n.name}:0": np.ones(shape, np.int32) for n in graph_def.node if n.op == "Placeholder"}
    fetches = [f"{n.name}:0" for n in graph_def.node if n.name not in read and n.op not in ("Placeholder", "NoOp", "Const")]
    graph = tf.Graph()
    with graph.as_default():
        tf.import_graph_def(graph_def, name="")
    del graph_def
    session = tf.compat.v1.Session(graph=graph)
    return lambda: session.run(fetches, feeds)


def child(path: str, shape: tuple[int, int]) -> None:
    """One replica: answers once, reports, times further answers, reports its memory when asked, ends with its input."""
    from disc_tf.runtime import counters, packs_problem

    standalone = path.endswith(".disc")
    if not standalone:
        import disc_tf.ops

        disc_tf.ops.load_op_library()
    start = time.perf_counter()
    run = (_standalone if standalone else _in_tensorflow)(path, shape)
    answer = run()
    first = time.perf_counter() - start
    times = []
    for _ in range(RUNS):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    now = counters()
    said = {
        "first": first,
        "steady": statistics.median(times),
        "built": now["prepared_built"],
        "loaded": now["packs_loaded"],
        "problem": packs_problem(),
        "answer": hash(tuple(a.tobytes() for a in answer)),
    }
    print(json.dumps(said), flush=True)
    sys.stdin.read()


def _memory(pid: int) -> tuple[int, int]:
    """PSS and private bytes."""
    fields = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, value = line.split(":")
        fields[name] = int(value.split()[0]) * 1024
    return fields["Pss"], fields["Private_Clean"] + fields["Private_Dirty"]


def replicas(model: str, shape: str, count: int, packs: str, at_once: bool) -> list[Replica]:
    """Starts them, waits for their answers, measures their memory, ends them."""
    environment = {**os.environ, "DISC_TF_PACKS": packs, "PYTHONHASHSEED": "0", "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-m", "bench.replicas", model, "--shape", shape, "--child"]
    running: list[subprocess.Popen[str]] = []
    said: list[dict[str, Any]] = []
    with tempfile.TemporaryFile("w+") as words:
        try:
            for _ in range(count):
                pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": words}
                running.append(subprocess.Popen(command, text=True, env=environment, **pipes))
                if not at_once:
                    said.append(_listen(running[-1], words))
            if at_once:
                said = [_listen(p, words) for p in running]
            memory = [_memory(p.pid) for p in running]
        finally:
            for p in running:
                p.communicate()
    return [Replica(**s, pss=m[0], private=m[1]) for s, m in zip(said, memory, strict=True)]


def _listen(process: subprocess.Popen[str], words: IO[str]) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        words.seek(0)
        raise SystemExit(f"a replica ended before it answered:\n{words.read()[-4000:]}")
    return json.loads(line)


def summary(name: str, rounds: list[list[Replica]]) -> str:
    """A row of the table: the first replica's first answer, that of the others, steady time, memory."""
    firsts = [r[0].first for r in rounds]
    others = [x.first for r in rounds for x in r[1:]] or firsts
    steady = statistics.median(x.steady for r in rounds for x in r)
    total = statistics.median(sum(x.pss for x in r) for r in rounds)
    built = statistics.median(x.built for r in rounds for x in r[1:] or r)
    return (
        f"| {name} | {statistics.median(firsts):.2f} s | {statistics.median(others):.2f} s ({min(others):.2f}-{max(others):.2f}) | "
        f"{1000 * steady:.0f} ms | {total / 1e9:.2f} GB | {built:.0f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("model")
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--packs", metavar="DIR", help="where the directories of packs are made (default: the temporary directory)")
    parser.add_argument("--at-once", action="store_true", help="start all replicas at the same time")
    parser.add_argument("--shape", default="1,32", help="extents of every input (default: 1,32)")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    rows, columns = (int(x) for x in args.shape.split(","))
    if args.child:
        child(args.model, (rows, columns))
        return
    model = str(Path(args.model).resolve())
    found: dict[str, list[list[Replica]]] = {"alone": [], "shared": []}
    for _ in range(args.rounds):
        for kind in found:
            place = tempfile.mkdtemp(prefix="packs-", dir=args.packs and os.path.abspath(args.packs))
            try:
                found[kind].append(replicas(model, args.shape, args.replicas, place if kind == "shared" else "", args.at_once))
            finally:
                shutil.rmtree(place)
    everything = [r for rounds in found.values() for replica in rounds for r in replica]
    if len({r.answer for r in everything}) != 1:
        raise SystemExit("the replicas' answers differ")
    print("| packs | first answer of the first replica | of the others | steady | memory of all (PSS) | packed by the others |")
    print("| --- | --- | --- | --- | --- | --- |")
    for kind, rounds in found.items():
        print(summary(kind, rounds))
    for problem in sorted({r.problem for r in everything if r.problem}):
        print(f"not shared: {problem}")
    if args.json:
        data = {kind: [[vars(r) for r in one] for one in rounds] for kind, rounds in found.items()}
        Path(args.json).write_text(json.dumps(data, indent=1))


if __name__ == "__main__":
    main()
