"""Load `disc-tf serve` with many clients at mixed shapes: the optimised model against the original on the same server.

    python -m bench.serving --models build/models --model tiny_bert --clients 200 --seconds 20 [--json F]

Each client waits for its answer before it asks again, so latency at saturation is clients / throughput. In the middle of each run a second
version is published and taken over; a request that fails is counted, and must not happen.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]


@dataclasses.dataclass
class Result:
    """One run. Latencies in ms; cpu_ms: processor time of the server for each answer; versions: answers by version."""

    name: str
    requests: int
    failures: int
    seconds: float
    p50: float
    p90: float
    p99: float
    cpu_ms: float
    versions: dict[int, int]

    def line(self) -> str:
        rate = self.requests / self.seconds
        return (
            f"{self.name:<12} {rate:8.1f} requests/s   p50 {self.p50:8.1f} ms   p90 {self.p90:8.1f} ms   p99 {self.p99:8.1f} ms   "
            f"cpu {self.cpu_ms:7.1f} ms/request   {self.failures} failed   answers by version {self.versions}"
        )


def saved_model_of(graph: Path, description: Path, target: Path) -> None:
    """A SavedModel (TensorFlow 1) of a frozen graph, with one signature: inputs and outputs of the description."""
    import tensorflow as tf

    v1 = tf.compat.v1
    meta = json.loads(description.read_text())
    definition = v1.GraphDef.FromString(graph.read_bytes())
    with tf.Graph().as_default(), v1.Session() as session:
        tf.import_graph_def(definition, name="")
        info = v1.saved_model.utils.build_tensor_info
        inputs = {i["name"]: info(session.graph.get_tensor_by_name(f"{i['name']}:0")) for i in meta["inputs"]}
        outputs = {f"output_{n}": info(session.graph.get_tensor_by_name(name)) for n, name in enumerate(meta["outputs"])}
        signature = v1.saved_model.build_signature_def(inputs, outputs, "tensorflow/serving/predict")
        builder = v1.saved_model.Builder(str(target))
        builder.add_meta_graph_and_variables(session, ["serve"], {"serving_default": signature})
        builder.save()


def requests_of(description: Path, model: str, count: int, seed: int = 0) -> list[bytes]:
    """Serialized PredictRequests at the shapes of the description's trace, in turn."""
    from disc_tf.serving.protos import serving
    from disc_tf.serving.tensors import to_proto
    from disc_tf.testing.inputs import make_feeds, specs_from_json

    specs, _, trace = specs_from_json(description)
    found = []
    for i in range(count):
        request = serving("PredictRequest")
        request.model_spec.name = model
        feeds = make_feeds(specs, trace[i % len(trace)], seed + i)
        for spec, value in zip(specs, feeds, strict=True):
            to_proto(value, request.inputs[spec.name])
        found.append(request.SerializeToString())
    return found


@contextlib.contextmanager
def server(base: Path, name: str, *flags: str) -> Iterator[tuple[int, int]]:
    """`disc-tf serve` in a process of its own, once it answers; its gRPC port and process id."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    command = [sys.executable, "-m", "disc_tf.cli", "serve", str(base), "--name", name, "--port", str(port), "--rest-port", "-1"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    with tempfile.TemporaryFile() as log:
        child = subprocess.Popen([*command, "--poll", "0.2", "--quiet-seconds", "0.3", *flags], env=environment, stderr=log)
        try:
            _wait_ready(port, child, log)
            yield port, child.pid
            child.send_signal(signal.SIGTERM)
            if child.wait(120):
                raise RuntimeError("the server did not end in order")
        finally:
            child.kill()
            child.wait()


def _cpu_seconds(pid: int) -> float:
    """Processor time of a process so far: user and system (proc(5))."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _wait_ready(port: int, child: subprocess.Popen[bytes], log: Any) -> None:
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    end = time.monotonic() + 300
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        while time.monotonic() < end:
            with contextlib.suppress(grpc.RpcError):
                if stub.Check(health_pb2.HealthCheckRequest(), timeout=5).status == health_pb2.HealthCheckResponse.SERVING:
                    return
            if child.poll() is not None:
                break
            time.sleep(0.2)
    log.seek(0)
    raise RuntimeError(f"the server did not start:\n{log.read().decode(errors='replace')[-2000:]}")


async def load(
    port: int, requests: Sequence[bytes], clients: int, seconds: float, middle: Any = None
) -> tuple[list[float], int, dict[int, int], float]:
    """(latencies in s, failures, answers by version, duration). ``middle``: called half way, in a thread."""
    import grpc.aio

    from disc_tf.serving.protos import message_class

    response = message_class("serving.PredictResponse")
    latencies: list[float] = []
    versions: dict[int, int] = {}
    failures = 0
    start = time.perf_counter()

    async def client(number: int, channel: Any) -> None:
        nonlocal failures
        call = channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
        at = number
        while time.perf_counter() - start < seconds:
            begun = time.perf_counter()
            try:
                answer = await call(requests[at % len(requests)], timeout=120)
                version = response.FromString(answer).model_spec.version.value
                versions[version] = versions.get(version, 0) + 1
                latencies.append(time.perf_counter() - begun)
            except grpc.aio.AioRpcError as e:
                failures += 1
                print(f"failed: {e.code().name}: {e.details()}", file=sys.stderr)
            at += clients + 1

    channels = [
        grpc.aio.insecure_channel(f"127.0.0.1:{port}", [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)])
        for _ in range(min(8, clients))
    ]
    tasks = [asyncio.create_task(client(i, channels[i % len(channels)])) for i in range(clients)]
    if middle is not None:
        await asyncio.sleep(seconds / 2)
        await asyncio.to_thread(middle)
    await asyncio.gather(*tasks)
    for channel in channels:
        await channel.close()
    return latencies, failures, versions, time.perf_counter() - start


def run(name: str, base: Path, model: str, requests: Sequence[bytes], clients: int, seconds: float, *flags: str) -> Result:
    """Serve version 1 of ``base`` under load, publish version 2 (a copy) half way."""
    later = base.with_name(f"{base.name}.later")
    shutil.copytree(base / "1", later)
    with server(base, model, *flags) as (port, pid):
        asyncio.run(load(port, requests, min(clients, 8), 2.0))  # first runs
        before = _cpu_seconds(pid)
        latencies, failures, versions, took = asyncio.run(load(port, requests, clients, seconds, lambda: later.rename(base / "2")))
        cpu_ms = (_cpu_seconds(pid) - before) * 1e3 / max(1, len(latencies))
    ms = np.sort(np.array(latencies)) * 1e3
    p50, p90, p99 = (float(np.percentile(ms, p)) if len(ms) else float("nan") for p in (50, 90, 99))
    return Result(name, len(latencies), failures, took, p50, p90, p99, cpu_ms, versions)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, default=ROOT / "build" / "models", help="directory of materialised models")
    parser.add_argument("--model", default="tiny_bert")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each run")
    parser.add_argument("--batch-rows", type=int, default=0, help="a third run, with batching")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    import disc_tf

    description = ROOT / "bench" / "models" / f"{args.model}.json"
    with tempfile.TemporaryDirectory(prefix="disc_tf_bench.") as scratch:
        original, optimized = Path(scratch, "original"), Path(scratch, "optimized")
        original.mkdir()
        optimized.mkdir()
        saved_model_of(args.models / f"{args.model}.pb", description, original / "1")
        disc_tf.optimize_saved_model(original / "1", optimized / "1", timing=False)
        if args.batch_rows:
            shutil.copytree(optimized, Path(scratch, "batched"))
        requests = requests_of(description, args.model, 64)
        results = [
            run(n, b, args.model, requests, args.clients, args.seconds) for n, b in (("original", original), ("optimized", optimized))
        ]
        if args.batch_rows:
            flags = ("--batch-rows", str(args.batch_rows), "--threads", "64")
            results.append(run("batched", Path(scratch, "batched"), args.model, requests, args.clients, args.seconds, *flags))
    for result in results:
        print(result.line())
    if args.json:
        args.json.write_text(json.dumps([dataclasses.asdict(r) for r in results], indent=1) + "\n")
    return 1 if any(r.failures for r in results) else 0


if __name__ == "__main__":
    sys.exit(main())
