"""`make models`, or `python -m bench.zoo [--only NAME ...]`: build, compile, check and time the models; write docs/models.md.

Each stage of each model is a process of its own under a time and a memory limit; one that fails is a row of the table with its reason.
What is done stays in the work directory and is not done again, unless the compiler or the code here has changed since (`--again`: always).
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.zoo.model import Model, catalogue
from bench.zoo.stages import RANDOM_SHAPES, write
from bench.zoo.table import markdown

ROOT = Path(__file__).parents[2]
#: stage -> the file that it leaves
STAGES = {"build": "graph.pb", "optimise": "optimise.json", "check": "check.json", "time": "time.json"}
#: what a stage's result depends on
SOURCES = {"build": ("bench/zoo",), **dict.fromkeys(("optimise", "check", "time"), ("bench/zoo", "disc_tf"))}


def fingerprint(folders: Sequence[str]) -> str:
    """A digest of all source files below ``folders``."""
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".cc", ".h"):
                digest.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def run_limited(command: Sequence[str], log: Path, seconds: float, memory: float) -> str:
    """Run in a process group of its own; "" or why it failed. ``memory``: gigabytes of address space for each process of it."""

    def limit() -> None:
        size = int(memory * 2**30)
        resource.setrlimit(resource.RLIMIT_AS, (size, size))

    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(ROOT)}
    with log.open("ab") as out:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment, start_new_session=True, preexec_fn=limit
        )
        try:
            code = child.wait(seconds)
        except subprocess.TimeoutExpired:
            return f"not done in {seconds:.0f} s"
        finally:
            if child.poll() is None or code:
                _end_group(child)
    if not code:
        return ""
    lines = [x for x in log.read_text(errors="replace").splitlines() if x.strip()]
    return f"ended with status {code}" + (f": {lines[-1][:200]}" if lines else "")


def _end_group(child: subprocess.Popen[bytes]) -> None:
    """The child and the TensorFlow processes that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def commands(model: Model, directory: Path, args: argparse.Namespace) -> dict[str, list[str]]:
    """The command of every stage."""
    stage = [sys.executable, "-m", "bench.zoo.stages"]
    where, threads = [model.name, str(directory)], ["--threads", str(args.threads)]
    threads += ["--points", str(args.points)] if args.points is not None else []
    out = {
        "build": [args.build_python, "-m", "bench.zoo.build", *where],
        "optimise": [*stage, "optimise", *where, *(f"--target={t}" for t in args.target)],
        "check": [*stage, "check", *where, *threads, "--random", str(args.random)],
        "time": [*stage, "time", *where, *threads, "--rounds", str(args.rounds)],
    }
    return {k: v for k, v in out.items() if not (k == "time" and args.no_timing)}


def process(model: Model, directory: Path, args: argparse.Namespace, stamps: dict[str, str]) -> None:
    """All stages of a model that are not done yet; the first failure is noted in ``failure.json`` and ends it."""
    directory.mkdir(parents=True, exist_ok=True)
    noted = directory / "stamps.json"
    done: dict[str, str] = json.loads(noted.read_text()) if noted.exists() else {}
    failure, redo = directory / "failure.json", args.again
    for stage, command in commands(model, directory, args).items():
        result = directory / STAGES[stage]
        redo = redo or not result.exists() or not (args.keep or done.get(stage) == stamps[stage])
        if not redo:
            continue
        failure.unlink(missing_ok=True)
        result.unlink(missing_ok=True)
        log = directory / f"{stage}.log"
        log.unlink(missing_ok=True)
        start = time.perf_counter()
        print(f"{model.name}: {stage} ...", end="", flush=True)
        why = run_limited(command, log, args.time_limit, args.memory_limit)
        if not why and not result.exists():
            why = "no result"
        print(f" {time.perf_counter() - start:.0f} s{': ' + why if why else ''}", flush=True)
        if why:
            write(failure, {"stage": stage, "why": why})
            return
        done[stage] = stamps[stage]
        write(noted, done)


def collect(directory: Path) -> dict[str, Any]:
    """What the stages of a model left, by file stem."""
    names = ("graph", "optimise", "check", "time", "failure")
    return {n: json.loads(p.read_text()) for n in names if (p := directory / f"{n}.json").exists()}


def main(argv: Sequence[str] | None = None) -> int:
    models = catalogue()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "zoo", help="where graphs and results are kept")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", choices=sorted(models), help="repeatable")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--points", type=int, default=None, metavar="N", help="at most N of each model's points")
    parser.add_argument("--random", type=int, default=RANDOM_SHAPES, metavar="N", help="random shapes of a check")
    parser.add_argument("--target", action="append", default=[], help="instruction sets (default: those of a written file, all)")
    parser.add_argument("--time-limit", type=float, default=1200.0, metavar="S", help="seconds for a stage of a model")
    parser.add_argument("--memory-limit", type=float, default=24.0, metavar="GB", help="address space of each process")
    parser.add_argument("--build-python", default=sys.executable, help="the interpreter that has KerasHub")
    parser.add_argument("--no-timing", action="store_true")
    parser.add_argument("--again", action="store_true", help="do everything again")
    parser.add_argument("--keep", action="store_true", help="keep what is there even if the code has changed since")
    parser.add_argument("--markdown", type=Path, help="write the table of all models in the work directory")
    args = parser.parse_args(argv)
    stamps = {stage: fingerprint(folders) for stage, folders in SOURCES.items()}
    for name in args.only or models:
        process(models[name], args.work / name, args, stamps)
    rows = [(m, collect(args.work / m.name)) for m in models.values() if (args.work / m.name).is_dir()]
    text = markdown(rows, args.threads)
    print(text)
    if args.markdown:
        args.markdown.write_text(text)
    wanted = [found for m, found in rows if m.name in (args.only or models)]
    return int(any("failure" in f or not f.get("check", {}).get("ok") for f in wanted))


if __name__ == "__main__":
    sys.exit(main())
