"""disc_tf: a dynamic-shape compiler for TensorFlow graphs. The public API; everything is imported on first use.

    r = disc_tf.optimize_graph_def(graph_def, outputs=["logits:0"])   # r.graph_def, r.report
    r = disc_tf.optimize_saved_model("models/in", "models/out")       # r.path, r.report
    disc_tf.load_op_library()                                         # registers DiscLaunch; `import disc_tf.ops` does it too
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from disc_tf.version import __version__

if TYPE_CHECKING:
    from disc_tf.just_in_time import jit
    from disc_tf.ops import load_op_library
    from disc_tf.optimizer import OptimizeResult, optimize_graph_def
    from disc_tf.options import Options
    from disc_tf.report import Report
    from disc_tf.saved_model import SavedModelResult, optimize_saved_model, restore_saved_model
    from disc_tf.standalone import Standalone, compile_graph_def
    from disc_tf.standalone_model import compile_saved_model

_WHERE = {
    "jit": "disc_tf.just_in_time",
    "load_op_library": "disc_tf.ops",
    "optimize_graph_def": "disc_tf.optimizer",
    "OptimizeResult": "disc_tf.optimizer",
    "Options": "disc_tf.options",
    "Report": "disc_tf.report",
    "Standalone": "disc_tf.standalone",
    "compile_graph_def": "disc_tf.standalone",
    "compile_saved_model": "disc_tf.standalone_model",
    "SavedModelResult": "disc_tf.saved_model",
    "optimize_saved_model": "disc_tf.saved_model",
    "restore_saved_model": "disc_tf.saved_model",
}
#: part of the announced interface, not built yet
_NOT_BUILT = ("Quantizer",)

__all__ = [
    "OptimizeResult",
    "Options",
    "Report",
    "SavedModelResult",
    "Standalone",
    "__version__",
    "compile_graph_def",
    "compile_saved_model",
    "jit",
    "load_op_library",
    "optimize_graph_def",
    "optimize_saved_model",
    "restore_saved_model",
]


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        import importlib

        return getattr(importlib.import_module(_WHERE[name]), name)
    if name in _NOT_BUILT:
        raise AttributeError(f"disc_tf.{name} is not built yet; freeze the model and use optimize_graph_def")
    raise AttributeError(f"module 'disc_tf' has no attribute {name!r}")


def __dir__() -> list[str]:
    """With the names that are imported on first use: for completion, and for whoever looks around."""
    return sorted({*globals(), *__all__} - {"Any", "TYPE_CHECKING", "annotations"})
