"""An artefact made here, served by the same op binary in another environment with an older TensorFlow, numpy and protobuf.

    python tests/compat/run.py --python OTHER/bin/python --models build/models

The other environment needs TensorFlow only. Checked there: the answers against that TensorFlow's own; the same bits as here where the whole
graph is compiled; the status code of a bad input; that serving imports neither a compiler nor anything else beside numpy; and, if disc_tf
is installed there without its extras, that the installed package works from outside of the checkout.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from disc_tf.frontend.tfproto import graph_from_bytes, serialized
from disc_tf.optimizer import optimize_graph_def
from disc_tf.runtime import library_path
from disc_tf.testing.compare import compare
from disc_tf.testing.inputs import InputSpec, make_feeds, specs_from_json
from disc_tf.testing.tf_process import TfError, TfProcess

#: model -> shapes beside the first and last of its trace
MODELS = {"tiny_bert": [{"B": 1, "S": 1}, {"B": 7, "S": 29}, {"B": 0, "S": 5}], "micro_chain": []}
INVALID_ARGUMENT = 3

#: what the other environment is, and what serving adds to a process with TensorFlow in it
_INFO = """
import json, sys
import google.protobuf, numpy, tensorflow as tf
before = set(sys.modules)
import disc_tf.ops
# with a file: TensorFlow's op wrappers have none
added = {m.partition(".")[0] for m in set(sys.modules) - before if getattr(sys.modules[m], "__file__", None)}
print(json.dumps({
    "python": sys.version.split()[0], "tensorflow": tf.__version__, "numpy": numpy.__version__, "protobuf": google.protobuf.__version__,
    "added": sorted(added), "package": disc_tf.__file__,
}))
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="the other environment's interpreter")
    parser.add_argument("--models", type=Path, required=True, help="directory of materialised models")
    args = parser.parse_args()
    library_path("disc_tf_op")  # built now, once, for both environments
    root = Path(__file__).resolve().parents[2]
    args.python = os.path.abspath(args.python)  # not resolved: a link into an environment says which one it is
    here, there = describe(sys.executable, root), describe(args.python, root)
    for name, info in (("made in", here), ("served in", there)):
        print(f"{name}: " + ", ".join(f"{k} {info[k]}" for k in ("python", "tensorflow", "numpy", "protobuf")))
    if here["tensorflow"] == there["tensorflow"]:
        raise SystemExit("both environments have the same TensorFlow: nothing would be shown")
    for info in (here, there):
        if unwanted := set(info["added"]) - {"disc_tf"} - set(sys.stdlib_module_names):
            raise SystemExit(f"serving imported {', '.join(sorted(unwanted))}")
    with tempfile.TemporaryDirectory() as work:
        for model, shapes in MODELS.items():
            serve(args.models / f"{model}.pb", shapes, args.python, Path(work))
        installed(args.python, Path(work) / "tiny_bert.pb")
    print("compatible")
    return 0


def describe(python: str, root: Path | None) -> dict[str, Any]:
    """Versions of an environment; the package is the one in ``root``, or the installed one."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(root) if root else ""}
    with tempfile.TemporaryDirectory() as elsewhere:
        done = subprocess.run([python, "-c", _INFO], env=environment, cwd=elsewhere, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{python}:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def serve(path: Path, shapes: list[dict[str, int]], python: str, work: Path) -> None:
    """Optimise the model here; compare here, there, and TensorFlow there."""
    specs, outputs, trace = specs_from_json(path.with_suffix(".json"))
    result = optimize_graph_def(graph_from_bytes(path.read_bytes()), outputs)
    if not result.report.compiled_clusters:
        raise SystemExit(f"{path.stem}: nothing was compiled")
    whole = result.report.coverage == 1.0
    optimized = work / path.name
    optimized.write_bytes(serialized(result.graph_def))
    names = [f"{s.name}:0" for s in specs]
    sizes = [trace[0], trace[-1], *shapes]
    with (
        TfProcess(path, names, outputs, reference=True, python=python) as reference,
        TfProcess(optimized, names, outputs, ops=True, python=python) as there,
        TfProcess(optimized, names, outputs, ops=True) as here,
    ):
        for i, size in enumerate(sizes):
            feeds = make_feeds(specs, size, seed=i)
            want, got, mine = reference.run(feeds), there.run(feeds), here.run(feeds)
            for name, w, g, m in zip(outputs, want, got, mine, strict=True):
                found = compare(w, g)
                if not found.ok:
                    raise SystemExit(f"{path.stem} {size} {name}: {found.message}")
                if whole and g.tobytes() != m.tobytes():
                    raise SystemExit(f"{path.stem} {size} {name}: other bits than in this environment")
            print(f"{path.stem} {size}: same answers" + (", same bits as here" if whole else ""))
        check_refusal(path.stem, specs, trace[0], reference, there)


def check_refusal(model: str, specs: list[InputSpec], size: dict[str, int], reference: TfProcess, there: TfProcess) -> None:
    """Inputs of shapes that do not go together: the same status code from both, if TensorFlow refuses them."""
    feeds = make_feeds(specs, size)
    if len(feeds) < 2:
        return
    feeds[1] = np.concatenate([feeds[1], feeds[1], feeds[1]], axis=-1)
    codes = []
    for process in (reference, there):
        try:
            process.run(feeds)
            codes.append(None)
        except TfError as e:
            codes.append(e.code)
    if codes != [INVALID_ARGUMENT, INVALID_ARGUMENT]:
        raise SystemExit(f"{model}: status codes {codes} for shapes that do not fit")
    print(f"{model} with shapes that do not fit: the same status code")


_INSTALLED = """
import sys
import tensorflow as tf
import disc_tf.ops
graph_def = tf.compat.v1.GraphDef.FromString(open(sys.argv[1], "rb").read())
with tf.Graph().as_default() as graph:
    tf.import_graph_def(graph_def, name="")
    feeds = {op.outputs[0]: [[1, 0, 1]] for op in graph.get_operations() if op.type == "Placeholder"}
    launch = next(op for op in graph.get_operations() if op.type == "DiscLaunch")
    with tf.compat.v1.Session() as session:
        print("ran", [x.shape for x in session.run(list(launch.outputs), feeds)])
"""


def installed(python: str, optimized: Path) -> None:
    """The package as installed there, from a directory of its own."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment.pop("PYTHONPATH", None)

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        with tempfile.TemporaryDirectory() as elsewhere:
            return subprocess.run([python, *command], env=environment, cwd=elsewhere, capture_output=True, text=True, check=False)

    if run("-c", "import disc_tf").returncode != 0:
        print("disc_tf is not installed there: the installed package was not tried")
        return
    for command in (("-c", _INSTALLED, str(optimized)), ("-m", "disc_tf.cli", "doctor"), ("-m", "disc_tf.cli", "inspect", str(optimized))):
        done = run(*command)
        if done.returncode != 0:
            raise SystemExit(f"the installed package: {' '.join(command[:3])} failed\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    print("the installed package works there")


if __name__ == "__main__":
    sys.exit(main())
