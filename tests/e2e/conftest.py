"""Real models, materialised once per machine under build/models, and their optimised forms, once per session."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from disc_tf.frontend.tfproto import graph_from_bytes, serialized
from disc_tf.optimizer import optimize_graph_def
from disc_tf.report import Report
from disc_tf.testing.inputs import InputSpec, specs_from_json

ROOT = Path(__file__).parents[2]


@dataclasses.dataclass
class Model:
    """A model on disk, its description, and what the optimiser made of it."""

    name: str
    path: Path
    optimized: Path
    specs: list[InputSpec]
    outputs: list[str]
    trace: list[dict[str, int]]
    graph_def: Any
    result: Any
    report: Report

    @property
    def feeds(self) -> list[str]:
        return [f"{s.name}:0" for s in self.specs]


def materialise(name: str) -> Path:
    target = ROOT / "build" / "models" / f"{name}.pb"
    if not target.exists():
        script = ROOT / "bench" / "models" / "materialize.py"
        subprocess.run([sys.executable, str(script), str(target.parent), name], check=True, capture_output=True)
    return target


def load_model(name: str, directory: Path) -> Model:
    path = materialise(name)
    specs, outputs, trace = specs_from_json(ROOT / "bench" / "models" / f"{name}.json")
    graph_def = graph_from_bytes(path.read_bytes())
    # verify_passes: valid IR between all passes, and every hit of the kernel cache emitted again and compared
    result = optimize_graph_def(graph_def, outputs, verify_passes=name == "tiny_bert")
    optimized = directory / f"{name}.optimized.pb"
    optimized.write_bytes(serialized(result.graph_def))
    return Model(name, path, optimized, specs, outputs, trace, graph_def, result.graph_def, result.report)


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load_model("tiny_bert", tmp_path_factory.mktemp("tiny_bert"))


@pytest.fixture(scope="session")
def bert_base(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load_model("bert_base", tmp_path_factory.mktemp("bert_base"))


@pytest.fixture(scope="session")
def rnn_tagger(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load_model("rnn_tagger", tmp_path_factory.mktemp("rnn_tagger"))
