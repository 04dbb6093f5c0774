"""The command under real load: two hundred clients with real models on real, sandboxed compiles, for SOAK_SECONDS (600)."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import os
import random
import signal
import sqlite3
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from disc_tf_server.stores import open_stores

from disc_tf.frontend.tfproto import message_class as graph_message
from disc_tf.frontend.tfproto import serialized
from disc_tf.optimizer import optimize_graph_def
from disc_tf.remote import AsyncClient, Client, RemoteError
from disc_tf.remote.connection import Address, Retries
from disc_tf.remote.errors import from_status
from disc_tf.remote.merge import compile_remotely
from disc_tf.remote.messages import message_class
from disc_tf.remote.result import rename_artifact
from disc_tf.runtime.artifact import unpack
from tests.server.harness import Client as Stubs
from tests.server.harness import connect, failure_of, request, run, token_of, tokens_file, until
from tests.server.processes import alive, descendants, long_work, server, stat
from tests.server.real_models import KINDS, Model, differences, model

pytestmark = pytest.mark.slow

#: principal -> its clients. The flood asks without a pause for structures that are evicted before they are asked for again
CLIENTS = {"flood": 120, "modest": 6, "one": 30, "two": 30, "hostile": 14}
#: structures of each kind: those that most ask for again and again, and those of the flood
HOT, COLD = 2, 6
#: seconds in which every request is answered
PATIENCE = 900.0


class Recorded(Client):
    """A client that remembers what the server answered, in the canonical names of the request: equal requests, equal bytes."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.answers: list[tuple[Any, bytes, float, bool]] = []
        self._cached = False

    def _follow(self, *arguments: Any) -> Any:
        final = super()._follow(*arguments)
        self._cached = final.cached
        return final

    def compile(self, request: Any, **arguments: Any) -> Any:
        start = time.perf_counter()
        answer = super().compile(request, **arguments)
        seconds = time.perf_counter() - start
        plain = type(answer.result)()
        plain.CopyFrom(answer.result)
        plain.report_json = b""  # it tells how long things took
        self.answers.append((request, hashlib.sha256(serialized(plain)).digest(), seconds, self._cached))
        return answer


def recorded(address: str, principal: str, **arguments: Any) -> AsyncClient:
    client = AsyncClient(address)
    client._client.close()
    client._client = Recorded(Address(address, token=token_of(principal)), retries=Retries(attempts=10), **arguments)
    return client


# ---- what must fail


def recursive() -> bytes:
    """A function that calls itself."""
    graph = graph_message("GraphDef")()
    function = graph.library.function.add()
    function.signature.name = "again"
    function.signature.input_arg.add(name="a", type=1)
    function.signature.output_arg.add(name="b", type=1)
    function.node_def.add(name="n", op="again", input=["a"])
    function.ret["b"] = "n:b:0"
    graph.node.add(name="x", op="Placeholder").attr["dtype"].type = 1
    graph.node.add(name="y", op="again", input=["x"])
    return serialized(graph)


def dangling() -> bytes:
    graph = graph_message("GraphDef")()
    graph.node.add(name="y", op="Relu", input=["nobody"]).attr["T"].type = 1
    return serialized(graph)


#: what is sent -> (fields of the request, the reasons that it may end with)
HOSTILE: dict[str, tuple[Callable[[], bytes], dict[str, Any], set[str]]] = {
    "no graph": (lambda: bytes(range(200, 256)) * 50, {}, {"GRAPH_REFUSED"}),
    "dangling": (dangling, {}, {"GRAPH_REFUSED"}),
    "recursive": (recursive, {}, {"nothing compiled"}),
    "no time": (lambda: long_work(40), {"timeout": 0.05}, {"DEADLINE_EXCEEDED"}),
    "too much work": (lambda: long_work(1500), {}, {"COMPILE_OUT_OF_CPU"}),
}


async def refused(client: Stubs, what: str) -> str:
    """The reason that a hostile request ends with, or what it gave."""
    make, fields, _ = HOSTILE[what]
    try:
        last = (await client.events("Optimize", request(make(), **fields), timeout=300))[-1]
    except grpc.aio.AioRpcError as e:
        return failure_of(e).reason
    if last.WhichOneof("event") == "error":
        return from_status(last.error.SerializeToString()).reason
    return "compiled" if message_class("CompileResult").FromString(last.result.inline).clusters else "nothing compiled"


# ---- what is counted


@dataclass
class Tally:
    """What came of the requests. seconds: (principal, kind, compiled or cached) -> times; kept: one result of each structure, weights and
    principal; forms: what a result is but for names; answers: to the flood; made: canonical request -> digests of the server's answers."""

    outcomes: Counter[str] = field(default_factory=Counter)
    seconds: dict[tuple[str, str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    kept: dict[tuple[str, int, int, str], tuple[Model, Any]] = field(default_factory=dict)
    forms: dict[tuple[str, int, int], str] = field(default_factory=dict)
    answers: dict[tuple[str, int], Any] = field(default_factory=dict)
    made: dict[bytes, set[bytes]] = field(default_factory=lambda: defaultdict(set))
    wrong: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)


def form(graph: Any, prefix: str) -> str:
    """What a result is but for the names of its client: equal for equal structures and weights."""

    def rename(text: str) -> str:
        return text.replace(prefix, "")

    lines = []
    for node in sorted(graph.node, key=lambda n: rename(n.name)):
        lines.append(f"{rename(node.name)} {node.op} {[rename(i) for i in node.input]}")
        if node.op == "DiscLaunch":
            lines.append(repr(rename_artifact(unpack(node.attr["executable"].s), rename)))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def settings(cold: bool) -> dict[str, Any]:
    """Of a request: the flood's are compiled for one instruction set, the others' for all."""
    return {"min_cluster_size": 1, **({"targets": ["x86-64-v3"]} if cold else {})}


@dataclass
class Kept:
    """A transport without a server: takes what would travel, gives an answer that was kept."""

    answer: Any = None
    asked: Any = None

    def compile(self, request: Any, **_: Any) -> Any:
        self.asked = request
        if self.answer is None:
            raise RemoteError("CANCELLED", "", "nothing was sent")
        return self.answer

    def through(self, kind: str, variant: int) -> Any:
        """The optimised graph of one of the flood's models."""
        m = model(kind, variant)
        merged = optimize_graph_def(m.graph, m.outputs, settings(True), elsewhere=lambda graph, r: compile_remotely(graph, r, self))
        return merged.graph_def


@functools.cache
def travels(kind: str, variant: int) -> Any:
    """The request for one of the flood's models, in the form that travels."""
    kept = Kept()
    with pytest.raises(RemoteError):
        kept.through(kind, variant)
    return kept.asked


async def optimized(client: AsyncClient, principal: str, rng: random.Random, tally: Tally) -> None:
    """One request under names that nobody else has."""
    kind = rng.choice(list(KINDS))
    cold = principal == "flood" or (principal == "modest" and rng.random() < 0.5)
    variant = HOT + rng.randrange(COLD) if cold else rng.randrange(HOT)
    seed = 0 if cold else rng.randrange(2)
    prefix = f"c{rng.randrange(10**9)}_"
    patience = rng.uniform(0.05, 3.0) if rng.random() < 0.03 else PATIENCE
    start = time.perf_counter()
    try:
        if principal == "flood":  # the client's own work was done before: it would hold back the flood
            async with asyncio.timeout(patience):
                asked = travels(kind, variant)
                tally.answers[kind, variant] = await client._run(lambda c: c.compile(asked, dry_run=False, progress=lambda _text: None))
            count(client, (principal, kind), time.perf_counter() - start, tally)
            return
        mine = model(kind, variant, seed).under(prefix)
        async with asyncio.timeout(patience):
            result = await client.optimize_graph_def(mine.graph, mine.outputs, settings(cold))
    except TimeoutError:
        if patience < PATIENCE:
            tally.outcomes["left"] += 1  # it did not want to wait: the server ends the work, or others have it
            return
        raise
    seconds = time.perf_counter() - start
    launches = sum(n.op == "DiscLaunch" for n in result.graph_def.node)
    if launches != (2 if kind == "strings" else 1):
        tally.wrong.append(f"{kind} {variant}: {launches} clusters")
    if any(not n.name.startswith(prefix) and "cluster" not in n.name for n in result.graph_def.node):
        tally.wrong.append(f"{kind} {variant}: names of somebody else")
    found = await asyncio.to_thread(form, result.graph_def, prefix)
    if tally.forms.setdefault((kind, variant, seed), found) != found:
        tally.wrong.append(f"{kind} {variant}: another result than that of somebody else")
    count(client, (principal, kind), seconds, tally)
    tally.kept[kind, variant, seed, principal] = mine, result.graph_def


def count(client: AsyncClient, what: tuple[str, str], seconds: float, tally: Tally) -> None:
    how = "cached" if client._client.answers[-1][3] else "compiled"  # type: ignore[attr-defined]
    tally.seconds[(*what, how)].append(seconds)
    tally.outcomes["results"] += 1


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def sockets(pid: int) -> int:
    found = 0
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            found += os.readlink(entry).startswith("socket:")
    return found


def percentiles(times: list[float]) -> str:
    return f"{len(times):5d} p50 {np.percentile(times, 50):7.3f} s, p99 {np.percentile(times, 99):7.3f} s"


@contextlib.asynccontextmanager
async def clients_of(address: str) -> AsyncIterator[dict[str, list[AsyncClient]]]:
    """All clients, by principal."""
    made = {p: [recorded(address, p, cancel_on_disconnect=True) for _ in range(n)] for p, n in CLIENTS.items() if p != "hostile"}
    try:
        yield made
    finally:
        await asyncio.gather(*(c.close() for each in made.values() for c in each))


async def load(process: Any, stubs: Stubs, seconds: float, tally: Tally) -> None:
    """The load, until its time is over and everything that was asked is answered."""
    rng, end = random.Random(3), time.monotonic() + seconds
    address = stubs.address

    async def session(client: AsyncClient, principal: str, own: random.Random) -> None:
        if principal != "flood":
            await asyncio.sleep(seconds / 6)  # the flood is there first
        while time.monotonic() < end:
            await optimized(client, principal, own, tally)
            if principal in ("one", "two"):
                await asyncio.sleep(own.expovariate(1 / 10))

    async def hostile(number: int, own: random.Random) -> None:
        client = connect(address, authorization=f"Bearer {token_of('hostile')}")
        names = list(HOSTILE)
        try:
            while time.monotonic() < end:
                what = names[number] if number < len(names) else own.choice(names[:3])
                start = time.perf_counter()
                reason = await refused(client, what)
                tally.seconds["hostile", what, "refused"].append(time.perf_counter() - start)
                tally.outcomes["refused"] += 1
                if reason not in HOSTILE[what][2]:
                    tally.wrong.append(f"{what}: {reason}")
                await asyncio.sleep(own.expovariate(1.0))
        finally:
            await client.channel.close()

    async def measure() -> None:
        while time.monotonic() < end:
            tally.sizes.append(resident(process.pid))
            await asyncio.sleep(seconds / 80)

    async with clients_of(address) as clients:
        work = [session(c, p, random.Random(rng.random())) for p, each in clients.items() for c in each]
        work += [hostile(i, random.Random(rng.random())) for i in range(CLIENTS["hostile"])]
        await asyncio.gather(measure(), *work)
        for each in clients.values():
            for client in each:
                for asked, answered, _, _ in client._client.answers:  # type: ignore[attr-defined]
                    tally.made[asked.digest].add(answered)


def processor_seconds(pid: int) -> float:
    user, system = stat(pid)[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def free_share() -> float:
    """How much of a processor is there for whoever wants one: less than all of it where the machine has other work."""
    wall, used = time.perf_counter(), time.thread_time()
    while time.perf_counter() < wall + 1.0:
        pass
    return (time.thread_time() - used) / (time.perf_counter() - wall)


async def cached_alone(address: str) -> tuple[list[float], list[float]]:
    """Seconds of requests that the cache answers, with nothing else to do: (the request, all that the client does)."""
    whole = []
    async with recorded(address, "one") as client:
        for i in range(105):
            kind = list(KINDS)[i % len(KINDS)]
            asked = model(kind, 0).under(f"alone{i}_")
            start = time.perf_counter()
            await client.optimize_graph_def(asked.graph, asked.outputs, settings(False))
            whole.append(time.perf_counter() - start)
        return [s for _, _, s, _ in client._client.answers][7:], whole[7:]  # type: ignore[attr-defined]


def report(tally: Tally, seconds: float) -> Iterator[str]:
    total = sum(len(t) for t in tally.seconds.values())
    yield f"{total} requests of {sum(CLIENTS.values())} clients in {seconds:.0f} s, {total / seconds:.1f} a second: {dict(tally.outcomes)}"
    for what in ("compiled", "cached"):
        for kind in KINDS:
            if times := [s for (_, k, w), t in tally.seconds.items() if (k, w) == (kind, what) for s in t]:
                yield f"  {what:9} {kind:13} {percentiles(times)}"
        for principal in CLIENTS:
            if times := [s for (p, _, w), t in tally.seconds.items() if (p, w) == (principal, what) for s in t]:
                yield f"  {what:9} for {principal:9} {percentiles(times)}"
    for (_, kind, what), times in tally.seconds.items():
        if what == "refused":
            yield f"  {what:9} {kind:13} {percentiles(times)}"


def test_two_hundred_clients_and_real_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import disc_tf

    seconds = float(os.environ.get("SOAK_SECONDS", "600"))
    disc_tf.load_op_library()
    for kind in KINDS:
        for variant in range(HOT + COLD):
            if variant < HOT:
                model(kind, variant, 1)
                model(kind, variant)
            else:
                travels(kind, variant)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    # small caches, so that things are evicted and compiled again
    flags = ["--children", "2", "--tokens", tokens_file(tmp_path, *CLIENTS), "--cache-bytes", "4M", "--cache-memory", "2M"]
    flags += ["--child-cpu", "8s", "--trusted-group", "one", "--trusted-group", "two"]
    tally = Tally()

    async def check() -> None:
        async with server(tmp_path / "data", *flags) as (process, stubs):
            await recorded(stubs.address, "one").close()
            before = sockets(process.pid)
            start = time.monotonic()
            await load(process, stubs, seconds, tally)
            for line in report(tally, time.monotonic() - start):
                print(line)
            quarter = statistics.median(tally.sizes[len(tally.sizes) // 4 : len(tally.sizes) // 4 + 8])
            ended = statistics.median(tally.sizes[-8:])
            memory = [int(size) >> 20 for size in (tally.sizes[0], quarter, ended)]
            print("memory of the front end: {} MiB at first, {} after a quarter, {} at the end".format(*memory))
            assert not tally.wrong, tally.wrong[:20]
            assert ended < quarter + (64 << 20)
            assert all(len(answers) == 1 for answers in tally.made.values()), "equal requests, different results"
            await until(lambda: sockets(process.pid) <= before + 4, 30)  # children that wait have one each
            assert len(list(descendants(process.pid))) <= 1 + 2  # the template and two that wait
            share, used = free_share(), processor_seconds(process.pid)
            requests, whole = await cached_alone(stubs.address)
            share, used = min(share, free_share()), (processor_seconds(process.pid) - used) / 105
            alone, in_all = (1e3 * statistics.median(times) for times in (requests, whole))
            print(f"cached, alone: p50 {alone:.1f} ms, with all that the client does {in_all:.1f} ms")
            print(f"  of the front end's processor {1e3 * used:.1f} ms; {100 * share:.0f} % of a processor were free")
            assert used < 0.02
            assert share < 0.8 or alone < 20  # where the machine has other work it is the other work that is measured
            below = list(descendants(process.pid))
            process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(process.wait(), 60) == 0
            await until(lambda: not any(alive(pid) for pid in below), 10)
        log = (tmp_path / "data.log").read_text()
        assert "Traceback" not in log, log[log.index("Traceback") - 500 :][:3000]
        assert not list(temporary.iterdir())
        assert not [f for f in (tmp_path / "data" / "blobs" / "uploads").rglob("*") if f.is_file()]
        fair(tmp_path / "data" / "operations.sqlite3", "modest", "flood")
        stores = await open_stores(tmp_path / "data")
        queue = await stores.operations.queue()
        assert not queue.waiting and not queue.running and not queue.operations
        await stores.close()

    run(check(), seconds + 1200)
    assert len(tally.kept) >= len(KINDS) * HOT
    start = time.monotonic()
    done: set[tuple[str, int, int]] = set()
    for (kind, variant), answer in tally.answers.items():
        tally.kept[kind, variant, 0, "flood"] = model(kind, variant), Kept(answer).through(kind, variant)
    for (kind, variant, seed, _), (asked, graph) in tally.kept.items():
        if (kind, variant, seed) not in done or random.random() < 0.1:
            assert not (found := differences(asked, graph)), (kind, variant, seed, found)
            done.add((kind, variant, seed))
    print(f"{len(done)} models run in TensorFlow at 3 sizes, {time.monotonic() - start:.0f} s")


def fair(database: Path, modest: str, flood: str) -> None:
    """While a work of the one principal waited, no more of the other's were begun than of its own, but for what a child each had before: so
    it was not the flood's turn first because the flood came first."""
    with contextlib.closing(sqlite3.connect(database)) as connection:
        rows = connection.execute("SELECT principal, created, started FROM works WHERE started IS NOT NULL").fetchall()
    times = {p: [(created, started) for of, created, started in rows if of == f"token:{p}"] for p in (modest, flood)}
    overtaken = 0
    for created, started in times[modest]:
        begun = {p: sum(created < s < started for _, s in each) for p, each in times.items()}
        assert begun[flood] <= begun[modest] + 4, f"{begun} were begun while one of {modest} waited for {started - created:.1f} s"
        overtaken += sum(c < created and s > started for c, s in times[flood])
    waits = {p: statistics.median(s - c for c, s in each) for p, each in times.items()}
    print(f"waits for a child, p50: {waits}; works: { {p: len(each) for p, each in times.items()} }; overtaken {overtaken} times")
    assert overtaken > 5, "there was no flood"
