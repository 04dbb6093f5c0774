"""Every option of `disc_tf.jit`, once. Options of the compiler (`disc_tf.Options`) are taken beside them."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

from disc_tf.options import OptionError, Options, unknown_option

WORKERS = ("process", "thread")


def default_cache_dir() -> str:
    """``$XDG_CACHE_HOME/disc_tf``, or ``~/.cache/disc_tf``. The only place that asks the environment."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if os.path.isabs(base) else Path("~/.cache").expanduser()
    return str(root / "disc_tf")


@dataclasses.dataclass(frozen=True)
class JitOptions:
    """Options of one jitted function.

    background: compile beside the program while TensorFlow answers; False: the first call of a rank signature compiles and then answers.
    worker: where the background compiles: a "process" of its own (started once, ends when idle) or a "thread" of this one.
    cache_dir: directory of the disk cache; None: no disk cache. cache_bytes: what it may hold; the least recently used goes first.
    max_signatures: rank signatures of this function beyond this many are left to TensorFlow.
    nested: inside another graph (a `tf.function` that is traced) use what is compiled by then; False: TensorFlow's own function.
    autograph: as in `tf.function`; for Python functions only.
    compiler: options of the compiler.
    """

    background: bool = True
    worker: str = "process"
    cache_dir: str | None = dataclasses.field(default_factory=default_cache_dir)
    cache_bytes: int = 1 << 30
    max_signatures: int = 64
    nested: bool = False
    autograph: bool = True
    #: the compiler's smallest cluster was not asked for: a function that is smaller is compiled all the same
    any_size: bool = True
    compiler: Options = dataclasses.field(default_factory=Options)

    @staticmethod
    def from_overrides(**overrides: Any) -> JitOptions:
        """From option names of this class and of `disc_tf.Options`. Raises `OptionError` for unknown names and wrong types."""
        own = {f.name: f for f in dataclasses.fields(JitOptions) if f.name not in ("compiler", "any_size")}
        mine = {k: v for k, v in overrides.items() if k in own}
        rest = {k: v for k, v in overrides.items() if k not in own}
        for name, value in mine.items():
            _check(name, value)
        if mine.get("cache_dir") is not None:
            mine["cache_dir"] = os.path.abspath(os.path.expanduser(os.fspath(mine["cache_dir"])))
        known = {f.name for f in dataclasses.fields(Options)}
        for name in rest:
            if name not in known:
                raise unknown_option(name, [*own, *known])
        # a trace has all shapes that TensorFlow infers; what runs here is compiled for this machine
        compiler = Options.from_overrides({"targets": ("native",), "use_tf_shapes": False, **rest})
        return JitOptions(**mine, any_size="min_cluster_size" not in rest, compiler=compiler)


def _check(name: str, value: Any) -> None:
    if name == "cache_dir":
        if value is not None and not isinstance(value, (str, os.PathLike)):
            raise OptionError(f"option 'cache_dir' is a directory or None, not {value!r}")
    elif name == "worker":
        if value not in WORKERS:
            raise OptionError(f"option 'worker' is one of {', '.join(WORKERS)}, not {value!r}")
    elif name in ("cache_bytes", "max_signatures"):
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise OptionError(f"option {name!r} takes a number of at least 0, not {value!r}")
    elif not isinstance(value, bool):
        raise OptionError(f"option {name!r} is true or false, not {value!r}")
