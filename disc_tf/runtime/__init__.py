"""The runtime side of disc_tf: artefacts, the RAL, the stand-alone runner. Needs numpy only; everything is imported on first use.

* `library_path()`: the native libraries (built on demand in a source checkout).
* `load`: a stand-alone file as a `Runner`, by the names of its inputs and outputs; runs may be staged (`Job`).
* `Executable`: runs an artefact on numpy arrays without TensorFlow.
* `record`: what runs do and when, thread by thread.
* `pack`, `unpack` and the dataclasses of an artefact: `disc_tf.runtime.artifact`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from disc_tf.runtime._build import BuildError, library_path
    from disc_tf.runtime.artifact import Artifact, ArtifactError, pack, unpack
    from disc_tf.runtime.executable import (
        DiscError,
        Executable,
        Run,
        counters,
        num_threads,
        packs_directory,
        packs_problem,
        set_num_threads,
        set_trust,
        share_packs,
        trust_file,
    )
    from disc_tf.runtime.recording import Event, Recording, record
    from disc_tf.runtime.runner import Job, Runner, Tensor, load

#: not imported here: a process that only serves optimised graphs needs none of it
_WHERE = {
    "_build": ("BuildError", "library_path"),
    "artifact": ("Artifact", "ArtifactError", "pack", "unpack"),
    "executable": (
        *("DiscError", "Executable", "Run", "counters", "num_threads"),
        *("packs_directory", "packs_problem", "set_num_threads", "set_trust", "share_packs", "trust_file"),
    ),
    "recording": ("Event", "Recording", "record"),
    "runner": ("Job", "Runner", "Tensor", "load"),
}

__all__ = [
    "Artifact",
    "ArtifactError",
    "BuildError",
    "DiscError",
    "Event",
    "Executable",
    "Job",
    "Recording",
    "Run",
    "Runner",
    "Tensor",
    "counters",
    "library_path",
    "load",
    "num_threads",
    "pack",
    "packs_directory",
    "packs_problem",
    "record",
    "set_num_threads",
    "set_trust",
    "share_packs",
    "trust_file",
    "unpack",
]


def __getattr__(name: str) -> Any:
    import importlib

    for module, names in _WHERE.items():
        if name == module or name in names:
            found = importlib.import_module(f"disc_tf.runtime.{module}")
            return found if name == module else getattr(found, name)
    raise AttributeError(f"module 'disc_tf.runtime' has no attribute {name!r}")
