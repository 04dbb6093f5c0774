"""How many compile children a load needs: a queueing model, and what a real server does beside what the model says.

    python -m bench.sizing --rate 2 --hits 0.8 --mean 3.4 --scv 1.5 --wait 10
    python -m bench.sizing --measure [--models DIR] [--json FILE]

Misses of the cache are an M/G/k queue: requests that come independently, ``k`` children, compile times of any distribution. The mean wait
is that of Allen and Cunneen: of M/M/k (Erlang's C), times (1 + scv) / 2, scv being the squared coefficient of variation of the compile
times (variance / mean^2). The wait of those who wait is taken as exponential, which gives percentiles. Hits, and requests that
share a compile, never wait for a child. Times in seconds, memory in GiB.

--measure drives a front end over gRPC with Poisson arrivals, every request a miss. First with children that sleep for a drawn time, so that
the queue is measured and not the machine; then with real compiles (`disc-tf-server` as a process, one child). Three numbers stand side by
side: what the model says of the rate and the run's own compile times, what an ideal queue does with the run's own arrivals and compile
times in their order (no chance in it), and what the server did (start_time - create_time of each operation).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import statistics
import sys
import tempfile
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
#: compiles of each model with nothing else to do
_ALONE = 5
MODELS = ("micro_chain", "ctr_din", "tiny_bert")


# ---- the model


def erlang_c(k: int, load: float) -> float:
    """The probability that a request waits: k servers, ``load`` = rate * mean < k."""
    blocked = 1.0
    for n in range(1, k + 1):
        blocked = load * blocked / (n + load * blocked)
    return blocked / (1 - load / k * (1 - blocked))


@dataclass(frozen=True)
class Forecast:
    """Of misses. utilisation: of the children; waits: probability to wait; mean, p95: seconds of waiting."""

    children: int
    utilisation: float
    waits: float
    mean: float
    p95: float


def forecast(k: int, rate: float, mean: float, scv: float) -> Forecast:
    """``rate``: misses a second. ValueError where the children cannot keep up: the queue has no end."""
    load = rate * mean
    if load >= k:
        raise ValueError(f"{k} children do {k / mean:.3g} compiles a second and {rate:.3g} are asked for")
    waits = erlang_c(k, load)
    average = waits * mean / (k - load) * (1 + scv) / 2
    late = average / waits if waits else 0.0  # of those who wait
    return Forecast(k, load / k, waits, average, max(0.0, late * math.log(waits / 0.05)) if waits else 0.0)


def enough(rate: float, mean: float, scv: float, wait: float, most: float = 0.85) -> Forecast:
    """The fewest children whose p95 of waiting is at most ``wait``, and which are busy at most that share of the time."""
    k = max(1, math.ceil(rate * mean / most))
    while (found := forecast(k, rate, mean, scv)).p95 > wait or found.utilisation > most:
        k += 1
    return found


def ideal(k: int, arrivals: Sequence[float], services: Sequence[float]) -> list[float]:
    """Waits of a first-come queue with k servers, for these arrivals (in order) and times."""
    free = [0.0] * k
    waits = []
    for at, time in zip(arrivals, services, strict=True):
        i = min(range(k), key=free.__getitem__)
        start = max(at, free[i])
        waits.append(start - at)
        free[i] = start + time
    return waits


def p95(values: Sequence[float]) -> float:
    """By the nearest rank."""
    return sorted(values)[math.ceil(0.95 * len(values)) - 1]


# ---- a run


@dataclass(frozen=True)
class Run:
    """What one load did. All in seconds but ``requests``, ``children``, ``utilisation``, ``scv``."""

    what: str
    children: int
    requests: int
    utilisation: float
    mean_service: float
    scv: float
    predicted_mean: float
    predicted_p95: float
    ideal_mean: float
    ideal_p95: float
    measured_mean: float
    measured_p95: float


def summary(what: str, k: int, rate: float, seen: Sequence[tuple[float, float, float]]) -> Run:
    """``seen``: (created, started, ended) of each operation. The model gets the rate that was aimed at and the run's own times. ValueError
    where they say that the children could not keep up."""
    seen = sorted(seen)
    services = [end - start for _, start, end in seen]
    waits = [start - created for created, start, _ in seen]
    mean = statistics.fmean(services)
    scv = statistics.pvariance(services) / mean**2
    said = forecast(k, rate, mean, scv)
    best = ideal(k, [created for created, _, _ in seen], services)
    means, ends = (statistics.fmean(best), statistics.fmean(waits)), (p95(best), p95(waits))
    return Run(what, k, len(seen), said.utilisation, mean, scv, said.mean, said.p95, means[0], ends[0], means[1], ends[1])


async def drive(address: str, requests: Sequence[Any], rate: float, rng: random.Random) -> list[tuple[float, float, float]]:
    """Sends the requests as a Poisson stream; (created, started, ended) of each as the server says. RuntimeError for one that fails."""
    import grpc
    from google.longrunning import operations_pb2

    from disc_tf.remote.connection import method, options
    from disc_tf.remote.messages import message_class

    metadata = message_class("OptimizeMetadata")
    async with grpc.aio.insecure_channel(address, options()) as channel:
        optimize = channel.unary_stream(*method("Optimize"))
        get = channel.unary_unary("/google.longrunning.Operations/GetOperation", None, operations_pb2.Operation.FromString)

        async def one(message: Any) -> tuple[float, float, float]:
            events = [e async for e in optimize(message)]
            last = events[-1]
            if last.WhichOneof("event") != "result":
                raise RuntimeError(f"a request failed: {last}")
            found = await get(operations_pb2.GetOperationRequest(name=last.operation).SerializeToString())
            state = metadata.FromString(found.metadata.value)
            if last.result.cached:
                raise RuntimeError("a request was answered from the cache: it measures nothing")
            return tuple(t.ToNanoseconds() / 1e9 for t in (state.create_time, state.start_time, state.end_time))  # type: ignore[return-value]

        loop = asyncio.get_running_loop()
        tasks, at = [], loop.time()
        for message in requests:
            at += rng.expovariate(rate)
            await asyncio.sleep(max(0.0, at - loop.time()))
            tasks.append(asyncio.ensure_future(one(message)))
        return await asyncio.gather(*tasks)


def unlike(message: Any, number: int) -> Any:
    """The same work under another key of the cache: a bound on clusters that no graph comes to."""
    other = type(message)()
    other.CopyFrom(message)
    other.request_id, other.options.fuel = str(uuid.uuid4()), 1_000_000 + number
    return other


def chain() -> Any:
    """The request that sleeping children are asked."""
    from disc_tf.frontend.tfproto import message_class as graph_message
    from disc_tf.frontend.tfproto import serialized
    from disc_tf.remote.messages import new

    graph = graph_message("GraphDef")()
    graph.node.add(name="x", op="Placeholder").attr["dtype"].type = 1
    graph.node.add(name="y", op="Relu", input=["x"]).attr["T"].type = 1
    message = new("OptimizeRequest")
    message.graph.inline = serialized(graph)
    message.graph.outputs.append("y:0")
    message.options.targets.append("x86-64-v3")
    return message


def skeleton(models: Path, name: str) -> Any:
    """The request that `disc-tf optimize --remote` would send for a model."""
    from disc_tf.frontend.load import load
    from disc_tf.frontend.tfproto import graph_from_bytes
    from disc_tf.optimizer import Request
    from disc_tf.options import Options
    from disc_tf.remote.files import writer
    from disc_tf.remote.messages import message_class

    graph = graph_from_bytes((models / f"{name}.pb").read_bytes())
    outputs = json.loads((ROOT / "bench" / "models" / f"{name}.json").read_text())["outputs"]
    written: list[bytes] = []
    writer(written.append)(load(graph, outputs), Request(graph, outputs, Options.from_overrides(targets=("x86-64-v3",))))
    return message_class("OptimizeRequest").FromString(written[0])


# ---- servers


class SleepingPool:
    """Children that take a drawn time and give an empty result."""

    def __init__(self, size: int, times: Any) -> None:
        self.size, self._times = size, times

    async def start(self) -> None:
        return None

    async def close(self) -> None:
        return None

    async def run(self, job: Any, on_progress: Any = None) -> bytes:
        from disc_tf.remote.messages import new

        await asyncio.sleep(next(self._times))
        return new("CompileResult", report_json=b'{"clusters": []}').SerializeToString()


async def queue_alone(k: int, utilisation: float, count: int, mean: float, scv: float, rng: random.Random) -> Run:
    """A real front end with real stores in this process, children that sleep: log-normal times."""
    import dataclasses

    from disc_tf_server.app import Service
    from disc_tf_server.backends import open_backends
    from disc_tf_server.config import ServerConfig

    from disc_tf.remote.messages import message_class

    sigma = math.sqrt(math.log(1 + scv))
    times = iter(lambda: rng.lognormvariate(math.log(mean) - sigma**2 / 2, sigma), None)
    with tempfile.TemporaryDirectory() as directory:
        config = ServerConfig(address=("127.0.0.1:0",), data_dir=directory, children=1, log_level="error")
        parse = message_class("CompileResult").FromString
        backends = dataclasses.replace(await open_backends(config), pool=SleepingPool(k, times), check=parse)
        service = Service(config, backends)
        await service.start()
        try:
            requests = [unlike(chain(), i) for i in range(count)]
            rate = utilisation * k / mean
            seen = await drive(service.addresses[0], requests, rate, rng)
        finally:
            await service.end(0.0)
    return summary("sleeping", k, rate, seen)


async def compiles(models: Path, utilisations: Sequence[float], count: int, rng: random.Random) -> list[Run]:
    """The command as a process with one child; a mix of models, the time of each measured alone at first."""
    mix = [skeleton(models, name) for name in MODELS]
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "disc_tf_server", "--address", "127.0.0.1:0", "--data-dir", directory, "--children", "1"]
        process = await asyncio.create_subprocess_exec(*command, "--log-level", "error", stdout=asyncio.subprocess.PIPE)
        try:
            assert process.stdout is not None
            address = (await process.stdout.readline()).decode().strip().rpartition(" ")[2]
            number, found = 0, list[Run]()
            alone: list[float] = []
            for name, message in zip(MODELS, mix, strict=True):
                own = []
                for _ in range(_ALONE):
                    number += 1
                    ((_, start, end),) = await drive(address, [unlike(message, number)], 1e9, rng)
                    own.append(end - start)
                alone += own
                print(f"{name}: {statistics.median(own):.3f} s alone ({min(own):.3f} to {max(own):.3f})", flush=True)
            for utilisation in utilisations:
                requests = [unlike(rng.choice(mix), number + 1 + i) for i in range(count)]
                number += count
                rate = utilisation / statistics.fmean(alone)
                found.append(summary("compiling", 1, rate, await drive(address, requests, rate, rng)))
                print(line(found[-1]), flush=True)
        finally:
            process.terminate()
            await process.wait()
    return found


# ---- the command

HEAD = (
    "| children | requests | busy | compile, mean (scv) | wait, mean: model / ideal / measured | wait, p95: model / ideal / measured |\n"
    "| --- | --- | --- | --- | --- | --- |"
)


def line(r: Run) -> str:
    """A row of the table."""
    means = f"{r.predicted_mean:.3f} / {r.ideal_mean:.3f} / {r.measured_mean:.3f}"
    ends = f"{r.predicted_p95:.3f} / {r.ideal_p95:.3f} / {r.measured_p95:.3f}"
    return f"| {r.children} ({r.what}) | {r.requests} | {r.utilisation:.0%} | {r.mean_service:.3f} s ({r.scv:.2f}) | {means} | {ends} |"


def measure(args: argparse.Namespace) -> list[Run]:
    """Runs of both kinds, printed as they end."""
    rng = random.Random(args.seed)
    print(HEAD)
    runs = []
    for k, utilisation in ((4, 0.5), (4, 0.7), (4, 0.85)):
        runs.append(asyncio.run(queue_alone(k, utilisation, args.requests, args.sleep, 2.0, rng)))
        print(line(runs[-1]), flush=True)
    if args.models:
        runs += asyncio.run(compiles(Path(args.models), (0.4, 0.7), args.compiles, rng))
    return runs


def table(args: argparse.Namespace) -> None:
    """The answer for a load."""
    misses = args.rate * (1 - args.hits)
    found = enough(misses, args.mean, args.scv, args.wait)
    print(f"{args.rate:g} requests a second, {args.hits:.0%} of them hits: {misses:.3g} compiles a second of {args.mean:g} s each")
    print("| children | busy | wait, mean | wait, p95 | memory |\n| --- | --- | --- | --- | --- |")
    for k in range(max(1, found.children - 2), found.children + 3):
        memory = f"{k * args.child_memory + args.front_memory:.1f} GiB"
        try:
            f = forecast(k, misses, args.mean, args.scv)
        except ValueError:
            print(f"| {k} | cannot keep up | | | {memory} |")
            continue
        mark = " (enough)" if k == found.children else ""
        print(f"| {k}{mark} | {f.utilisation:.0%} | {f.mean:.2f} s | {f.p95:.2f} s | {memory} |")


def main(argv: Sequence[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m bench.sizing", description="How many compile children a load needs.")
    parser.add_argument("--rate", type=float, default=1.0, help="requests a second, at the busiest")
    parser.add_argument("--hits", type=float, default=0.0, help="share of them that the cache answers, or that share a compile")
    parser.add_argument("--mean", type=float, default=3.0, help="seconds of a compile (disc_server_compile_seconds: sum / count)")
    parser.add_argument("--scv", type=float, default=1.0, help="variance of these times / mean^2: 1 is a good guess")
    parser.add_argument("--wait", type=float, default=10.0, help="seconds that 95 of 100 misses may wait for a child at most")
    parser.add_argument("--child-memory", type=float, default=4.0, help="GiB of a child (--child-memory of the server, or what was seen)")
    parser.add_argument("--front-memory", type=float, default=2.0, help="GiB of the front end")
    parser.add_argument("--measure", action="store_true", help="drive a server on this machine and compare")
    parser.add_argument("--models", default="", help="with --measure: directory of the models of real compiles")
    parser.add_argument("--requests", type=int, default=400, help="with --measure: of each run with sleeping children")
    parser.add_argument("--compiles", type=int, default=100, help="with --measure: of each run with real compiles")
    parser.add_argument("--sleep", type=float, default=0.25, help="with --measure: mean seconds of a sleeping child")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", metavar="FILE", help="with --measure: write the runs")
    args = parser.parse_args(argv)
    if not (args.rate > 0 and 0 <= args.hits < 1 and args.mean > 0 and args.scv >= 0 and args.wait >= 0):
        parser.error("--rate, --mean: positive; --hits: 0 to less than 1; --scv, --wait: not negative")
    if not args.measure:
        table(args)
        return 0
    runs = measure(args)
    if args.json:
        Path(args.json).write_text(json.dumps([asdict(r) for r in runs], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
