"""Environments that lack packages: what works with numpy alone, and what the rest says. Packages are hidden from processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from disc_tf import extras
from disc_tf.standalone import compile_graph_def
from tests.frontend.graphs import G

ROOT = Path(__file__).parents[2]
#: what hides modules, in children of the process too
_HIDE = """
import os, sys
class Hidden:
    names = set(os.environ["HIDDEN"].split())
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hidden())
"""
#: top modules of everything that is not installed with us
ALL = {m.partition(".")[0] for m in (extras._MODULES.get(p, p) for named in extras.EXTRAS.values() for p in named)} | {"keras"}


def hint(extra: str) -> str:
    """How an extra is installed in processes of these tests: from this checkout, which is not their working directory."""
    return f"pip install -e '{ROOT}[{extra}]'"


def without(hidden: set[str], directory: Path, *command: object) -> subprocess.CompletedProcess[str]:
    """Runs ``python COMMAND`` where the modules are not."""
    (directory / "hide").mkdir(exist_ok=True)
    (directory / "hide" / "sitecustomize.py").write_text(_HIDE)
    path = os.pathsep.join(map(str, (directory / "hide", ROOT, ROOT / "server")))
    env = {**os.environ, "PYTHONPATH": path, "HIDDEN": " ".join(hidden)}
    full = [sys.executable, *map(str, command)]
    return subprocess.run(full, capture_output=True, text=True, env=env, timeout=120, check=False, cwd=directory)


def cli(hidden: set[str], directory: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    done = without(hidden, directory, "-m", "disc_tf.cli", *arguments)
    assert "Traceback" not in done.stderr, done.stderr
    return done


@pytest.fixture(scope="module")
def graph() -> G:
    g = G()
    g.unary("y", g.placeholder("x", [None, 4]), "Tanh")
    return g


def test_the_table_is_that_of_the_package() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra, packages in extras.EXTRAS.items():
        names = [line.split(">")[0] for line in declared[extra]]
        inner = declared["remote"] if "disc-tf[remote]" in names else []
        assert {n for n in names if "[" not in n} | {line.split(">")[0] for line in inner} == set(packages), extra


def test_numpy_is_enough_to_run_a_stand_alone_file(graph: G, tmp_path: Path) -> None:
    compile_graph_def(graph.proto, ["y"], tmp_path / "m.disc", targets="native")
    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    np.save(tmp_path / "x.npy", x)
    done = cli(ALL, tmp_path, "run", "m.disc", "--input", "x=x.npy", "--json")
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(json.loads(done.stdout)["y"]["values"], np.tanh(x), rtol=1e-5)


@pytest.mark.parametrize("profile", [False, True])
def test_numpy_is_enough_to_trace_one(graph: G, tmp_path: Path, profile: bool) -> None:
    compile_graph_def(graph.proto, ["y"], tmp_path / "m.disc", targets="native", profile=profile)
    done = cli(ALL, tmp_path, "trace", "m.disc", "-o", "t.json", "--shape", "x/0=9", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["clusters"]["m"]["run_us"] > 0
    kernels = [e for e in json.loads((tmp_path / "t.json").read_text())["traceEvents"] if e.get("cat") == "kernel"]
    assert all(k["args"]["makes"] == ["f32[9,4]"] for k in kernels) and bool(kernels) == profile


@pytest.mark.parametrize("arguments", [["--version"], ["optimize", "--help"], ["completion", "bash"]])
def test_numpy_is_enough_to_ask(arguments: list[str], tmp_path: Path) -> None:
    done = cli(ALL, tmp_path, *arguments)
    assert done.returncode == 0 and "disc-tf" in done.stdout


def test_numpy_is_enough_for_the_doctor(tmp_path: Path) -> None:
    done = cli(ALL, tmp_path, "doctor", "--json")
    told = json.loads(done.stdout)
    rows = {row["what"]: row for row in told["checks"]}
    assert done.returncode == 0 and told["ok"] and not told["can_compile"]
    assert "stand-alone files run here" in rows["op library"]["detail"]
    for extra, package in (("compiler", "compiler"), ("serve", "aiohttp"), ("remote", "zstandard"), ("server", "prometheus-client")):
        detail = rows[extra]["detail"]
        assert extra in told["missing"] and not rows[extra]["ok"]
        assert rows[extra]["status"] == "missing" and package in detail and hint(extra) in detail


@pytest.mark.parametrize(
    ("hidden", "need", "code", "missing"),
    [
        ({"aiohttp"}, [], 0, {"serve"}),
        ({"aiohttp"}, ["serve"], 1, {"serve"}),
        ({"aiohttp"}, ["remote"], 0, {"serve"}),
        ({"tensorflow"}, ["tensorflow"], 1, {"compiler", "op library"}),
        ({"llvmlite"}, ["compiler"], 1, {"compiler", "server"}),
    ],
    ids=["serve", "serve needed", "another needed", "tensorflow", "compiler"],  # of a set the order changes with the process
)
def test_the_doctor_marks_what_is_missing(hidden: set[str], need: list[str], code: int, missing: set[str], tmp_path: Path) -> None:
    hidden = hidden | {"tensorflow"}  # which takes seconds to import
    missing = missing | {"compiler", "op library"}
    flags = [f for n in need for f in ("--need", n)]
    done = cli(hidden, tmp_path, "doctor", *flags)
    rows = {line.split(": ")[0] for line in done.stdout.splitlines() if line.startswith("missing")}
    assert done.returncode == code and {r.removeprefix("missing ").strip() for r in rows} == missing, done.stdout


@pytest.mark.parametrize(
    ("files", "there", "command"),
    [
        (["lib/disc_tf/extras.py"], "", "pip install 'disc-tf[serve]' tensorflow"),
        (["src/disc_tf/extras.py", "src/pyproject.toml"], "", "pip install -e {root}/src[serve] tensorflow"),
        (["src/disc_tf/extras.py", "src/pyproject.toml"], "src", "pip install -e '.[serve]' tensorflow"),
    ],
    ids=["wheel", "checkout", "in the checkout"],
)
def test_hints_match_the_installation(
    files: list[str], there: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path / there)
    found = extras.advice("serve", package=(tmp_path / files[0]).parent)
    assert found.replace("'", "") == command.format(root=tmp_path).replace("'", "") and "'" in found


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["optimize", "{graph}", "-o", "out.pb"], "compiler"),
        (["optimize", "{graph}", "-o", "out.pb", "--remote", "localhost:1"], "remote"),
        (["inspect", "{graph}"], "compiler"),
        (["serve", "."], "serve"),
        (["serving", "prepare", ".", "--to", "to"], "compiler,serve"),
        (["run", "{graph}"], "compiler"),
        (["trace", "{graph}", "-o", "out.pb"], "compiler"),
    ],
)
def test_others_say_what_to_install(arguments: list[str], extra: str, graph: G, tmp_path: Path) -> None:
    (tmp_path / "g.pb").write_bytes(graph.proto.SerializeToString())
    done = cli(ALL, tmp_path, *(a.format(graph=tmp_path / "g.pb") for a in arguments))
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "needs more packages (" in done.stderr and "protobuf" in done.stderr and hint(extra) in done.stderr
    assert not (tmp_path / "out.pb").exists() and not (tmp_path / "to").exists()


def test_a_missing_remote_client_has_the_same_code(graph: G, tmp_path: Path) -> None:
    (tmp_path / "g.pb").write_bytes(graph.proto.SerializeToString())
    done = cli({"grpc"}, tmp_path, "optimize", "g.pb", "-o", "out.pb", "--remote", "localhost:1", "--no-verify")
    assert done.returncode == 1 and "--remote needs more packages (grpcio" in done.stderr


def test_a_package_that_is_asked_for_late_is_of_the_right_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    from disc_tf.cli import _lacking, build_parser

    late = ModuleNotFoundError("No module named 'zstandard'", name="zstandard")
    told = _lacking(build_parser().parse_args(["optimize", "g.pb", "--remote-dry-run"]), late)
    assert str(told) == f"optimize needs more packages (zstandard): {hint('remote')}"
    late = ModuleNotFoundError("No module named 'tensorflow.python'", name="tensorflow.python")
    assert f"{hint('serve')} tensorflow" in str(_lacking(build_parser().parse_args(["serve", "models"]), late))
    assert _lacking(build_parser().parse_args(["doctor"]), ModuleNotFoundError("No module named 'ours'", name="ours")) is None


def test_a_server_without_its_packages_has_the_same_code(tmp_path: Path) -> None:
    program = "import sys; from disc_tf_server.cli import main; sys.exit(main(sys.argv[1:]))"
    done = without({"grpc"}, tmp_path, "-c", program, "--data-dir", tmp_path / "data")
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert "the server needs more packages (grpcio" in done.stderr and hint("server") in done.stderr


def test_the_python_api_says_what_to_install(graph: G, tmp_path: Path) -> None:
    (tmp_path / "g.pb").write_bytes(graph.proto.SerializeToString())
    program = """
import disc_tf
from disc_tf.frontend.tfproto import graph_from_bytes
from disc_tf.just_in_time.work import Request, compile_request
data = open("g.pb", "rb").read()
for call in (
    lambda: disc_tf.optimize_graph_def(graph_from_bytes(data)),
    lambda: disc_tf.optimize_saved_model("in", "out"),
    lambda: disc_tf.compile_graph_def(graph_from_bytes(data), None, "m.disc"),
    lambda: disc_tf.compile_saved_model("in", "m.disc"),
    lambda: compile_request(Request(data, ["y:0"], {})),  # what `jit` asks its compiler
):
    try:
        call()
    except ModuleNotFoundError as e:
        print(e)
"""
    done = without({"llvmlite"}, tmp_path, "-c", program)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines == [f"compiling needs more packages (llvmlite): {hint('compiler')}"] * 5
    assert not (tmp_path / "m.disc").exists() and not (tmp_path / "out").exists()


def test_a_missing_package_is_no_verdict_on_a_model(tmp_path: Path) -> None:
    """Neither before the work nor where a package goes while it runs: nothing is published, nothing is remembered."""
    version = tmp_path / "in" / "1"
    version.mkdir(parents=True)
    (version / "saved_model.pb").write_bytes(b"\x08\x01")
    arguments = ("serving", "prepare", tmp_path / "in", "--to", tmp_path / "out", "--quiet-seconds", "0")
    done = cli({"llvmlite"}, tmp_path, *arguments)
    assert done.returncode == 1 and f"serving needs more packages (llvmlite): {hint('compiler,serve')}" in done.stderr
    assert not (tmp_path / "out").exists()
    program = """
import os, sys
from disc_tf.cli import main
os.environ["HIDDEN"] = "llvmlite"  # of children only
sys.exit(main(sys.argv[1:]))
"""
    done = without({"nothing"}, tmp_path, "-c", program, *arguments)
    assert done.returncode == 3 and "optimize needs more packages (llvmlite)" in done.stderr, done.stderr
    assert not (tmp_path / "out" / "1").exists()
