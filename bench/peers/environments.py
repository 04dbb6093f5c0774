"""The interpreters of engines that have packages of their own, made where they are missing."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

#: name -> packages
PACKAGES: dict[str, tuple[str, ...]] = {
    "onnxruntime": ("onnxruntime>=1.20", "numpy"),
    "openvino": ("openvino>=2025", "numpy"),
    "iree": ("iree-base-compiler>=3.10", "iree-base-runtime>=3.10", "onnx", "numpy"),
    "convert": ("tensorflow", "tf2onnx>=1.17", "onnx"),
}


def interpreter(name: str, directory: Path) -> str:
    """The interpreter with the packages of ``name``, in ``directory``. `RuntimeError` with pip's words where they do not install."""
    home = directory / name
    python = home / "bin" / "python"
    done = home / ".installed"
    if done.exists():
        return str(python)
    own = importlib.metadata.version("tensorflow")
    packages = [f"{p}=={own}" if p == "tensorflow" else p for p in PACKAGES[name]]
    for command in ([sys.executable, "-m", "venv", str(home)], [str(python), "-m", "pip", "install", "--quiet", *packages]):
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if ran.returncode:
            raise RuntimeError(f"{' '.join(packages)} do not install: {ran.stderr.strip()[-500:]}")
    done.touch()
    return str(python)


_SHOWN = ("onnxruntime", "openvino", "iree-base-runtime", "tf2onnx", "tensorflow")


def versions(python: str, names: tuple[str, ...] = _SHOWN) -> dict[str, str]:
    """Versions of those packages that an interpreter has."""
    code = "import importlib.metadata as m,sys\nfor n in sys.argv[1:]:\n try: print(n, m.version(n))\n except m.PackageNotFoundError: pass"
    ran = subprocess.run([python, "-c", code, *names], capture_output=True, text=True, check=True)
    return dict(line.split() for line in ran.stdout.splitlines())
