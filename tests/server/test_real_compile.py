"""The real compiler in a child: one start for all of it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from disc_tf_server.children import ForkedChildPool
from disc_tf_server.interfaces import ChildFailed, Job, Reason

from disc_tf.remote.messages import message_class, new

MODELS = Path(__file__).parents[2] / "bench" / "models"


def modules_of(pid: int) -> str:
    return Path(f"/proc/{pid}/maps").read_text()


def test_a_graph_is_compiled_in_the_sandbox() -> None:
    graph = (MODELS / "micro_chain.pb").read_bytes()
    outputs = tuple(json.loads((MODELS / "micro_chain.json").read_text())["outputs"])
    options = new("CompileOptions", targets=["x86-64-v3"])

    async def scenario() -> None:
        pool = ForkedChildPool(1)
        await pool.start()
        try:
            template = pool._template
            assert template is not None and template._process is not None
            # it can be forked safely, and TensorFlow is not in it
            assert len(list(Path(f"/proc/{template._process.pid}/task").iterdir())) == 1
            assert "llvmlite" in modules_of(template._process.pid) and "tensorflow" not in modules_of(template._process.pid)
            phases: list[str] = []
            job = Job(graph, outputs, (), options.SerializeToString(), memory_bytes=1 << 30)
            result = message_class("CompileResult").FromString(await pool.run(job, lambda *p: phases.append(p[0])))
            assert len(result.clusters) == 1 and result.clusters[0].executable and "fusion" in phases
            dry = Job(graph, outputs, (), options.SerializeToString(), dry_run=True, memory_bytes=1 << 30)
            result = message_class("CompileResult").FromString(await pool.run(dry))
            assert not result.clusters and json.loads(result.report_json)
            for wrong in (Job(b"\xff" * 100, outputs, (), b""), Job(graph, ("nowhere",), (), b"")):
                with pytest.raises(ChildFailed) as e:
                    await pool.run(wrong)
                assert e.value.reason is Reason.REFUSED and e.value.message
        finally:
            await pool.close()

    asyncio.run(scenario())
