"""The op in programs that are not Python: preloaded, and linked in as `serving/bazel/BUILD` does it, with TensorFlow's C++ libraries."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from disc_tf.runtime import library_path

ROOT = Path(__file__).parents[2]
RUNTIME = ROOT / "disc_tf" / "runtime"
#: ends with 0 if TensorFlow has a kernel of DiscLaunch
PROGRAM = """
#include <stddef.h>
typedef struct { const void* data; size_t length; void* release; } TF_Buffer;
extern void* TF_NewStatus(void);
extern TF_Buffer* TF_GetRegisteredKernelsForOp(const char*, void*);
int main() { TF_Buffer* found = TF_GetRegisteredKernelsForOp("DiscLaunch", TF_NewStatus()); return !(found && found->length); }
"""


def tensorflow_libraries() -> list[str]:
    from importlib.util import find_spec

    spec = find_spec("tensorflow")
    assert spec is not None and spec.origin is not None
    directory = Path(spec.origin).parent
    found = [str(directory / name) for name in ("libtensorflow_framework.so.2", "libtensorflow_cc.so.2")]
    if not all(os.path.exists(f) for f in found):
        pytest.skip("this TensorFlow has no C++ libraries")
    return [*found, f"-Wl,-rpath,{directory}", "-Wl,--allow-shlib-undefined"]


def build(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


def test_tensorflow_exports_what_the_op_looks_up() -> None:
    script = str(ROOT / "serving" / "check_symbols.py")
    framework = tensorflow_libraries()[0]
    done = subprocess.run([sys.executable, script, framework], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    missing = subprocess.run([sys.executable, script, str(library_path("disc_ral"))], capture_output=True, text=True)
    assert missing.returncode == 1 and "missing: TF_NewKernelBuilder" in missing.stdout


@pytest.mark.slow
def test_preloaded_and_linked_in(tmp_path: Path) -> None:
    gcc, gxx = shutil.which("gcc"), shutil.which("g++")
    if gcc is None or gxx is None:
        pytest.skip("needs gcc")
    libraries = tensorflow_libraries()
    (tmp_path / "main.c").write_text(PROGRAM)
    build([gcc, "-c", str(tmp_path / "main.c"), "-o", str(tmp_path / "main.o")])
    build([gcc, str(tmp_path / "main.o"), "-o", str(tmp_path / "plain"), *libraries])
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    assert subprocess.run([tmp_path / "plain"], env=environment).returncode == 1
    preload = {**environment, "LD_PRELOAD": str(library_path("disc_tf_op"))}
    assert subprocess.run([tmp_path / "plain"], env=preload).returncode == 0

    sources = sorted(map(str, [*(RUNTIME / "ral" / "src").glob("*.cc"), *(RUNTIME / "tf_op").glob("*.cc")]))
    sources.append(str(ROOT / "serving" / "bazel" / "references.cc"))
    includes = [f"-I{RUNTIME / part}" for part in ("ral/include", "ral/src", "tf_op")]
    flags = ["-std=c++17", "-O0", "-fvisibility=hidden", *includes]
    build([gxx, *flags, str(tmp_path / "main.o"), *sources, "-o", str(tmp_path / "linked"), *libraries, "-lpthread", "-ldl"])
    assert subprocess.run([tmp_path / "linked"], env=environment).returncode == 0
