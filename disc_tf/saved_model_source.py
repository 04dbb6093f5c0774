"""Whatever a user calls a model, as the directory of a SavedModel."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from disc_tf.frontend.saved_model import SavedModelError
from disc_tf.scratch import scratch


@contextlib.contextmanager
def as_directory(src: Any, *, progress: Callable[[str], None] = lambda _text: None) -> Iterator[Path]:
    """The directory of ``src``: its own, or a temporary one for objects, `.keras` and `.h5` files.

    Objects: Keras models (`export`), `tf.Module`s and other trackables (`tf.saved_model.save`), `tf.function`s with an input signature
    and concrete functions. `SavedModelError` for anything else, or with what TensorFlow says.
    """
    with contextlib.ExitStack() as stack:

        def temporary(name: str) -> Path:
            return Path(stack.enter_context(scratch())) / name

        if isinstance(src, str | Path):
            directory = Path(src)
            if directory.suffix in (".keras", ".h5", ".hdf5") and not directory.is_dir():
                progress(f"loading {directory}")
                directory = _saved(_load_keras(directory), temporary("model"))
        else:
            progress(f"saving a {type(src).__name__}")
            directory = _saved(src, temporary("model"))
        yield directory


@contextlib.contextmanager
def frozen(
    directory: Path,
    *,
    signatures: Sequence[str] | None = None,
    tags: Sequence[str] | None = None,
    progress: Callable[[str], None] = lambda _text: None,
) -> Iterator[Path]:
    """A temporary directory with the model frozen. `SavedModelError` if it cannot be."""
    from disc_tf.saved_model_freeze import freeze_saved_model

    with scratch() as temporary:
        progress("freezing")
        target = Path(temporary) / "frozen"
        freeze_saved_model(directory, target, signatures=signatures, tags=tags)
        yield target


def _load_keras(path: Path) -> Any:
    if not path.is_file():
        raise SavedModelError(f"cannot read {path}: there is no such file")
    import keras

    try:
        with _not_on_stdout():
            return keras.models.load_model(path, compile=False)
    except Exception as e:  # whatever Keras does not like about a file
        with contextlib.suppress(ImportError):
            import tf_keras

            with contextlib.suppress(Exception), _not_on_stdout():
                return tf_keras.models.load_model(path, compile=False)
        why = f"{_first_line(e)}; give the live model, or a SavedModel made where it loads"
        raise SavedModelError(f"Keras cannot load {path}: {why}") from e


def _not_on_stdout() -> contextlib.redirect_stdout[Any]:
    """What Keras tells goes to standard error: standard output may be a program's, or the command's one JSON object."""
    return contextlib.redirect_stdout(sys.stderr)


def _first_line(e: Exception) -> str:
    return (str(e).strip().splitlines() or [type(e).__name__])[0]


def _saved(model: Any, directory: Path) -> Path:
    import tensorflow as tf

    try:
        if hasattr(model, "get_concrete_function") or hasattr(model, "structured_input_signature"):
            _save_function(tf, model, directory)
        elif hasattr(model, "export") and hasattr(model, "layers"):
            with _not_on_stdout():
                model.export(str(directory))
        elif isinstance(model, tf.__internal__.tracking.Trackable):
            tf.saved_model.save(model, str(directory))
        else:
            raise SavedModelError(
                f"a {type(model).__name__} is no model: give a SavedModel's directory, a .keras or .h5 file, a Keras model, a tf.Module,"
                " a tf.function with an input signature or a concrete function"
            )
    except SavedModelError:
        raise
    except Exception as e:  # TensorFlow's and Keras's reasons are many
        raise SavedModelError(f"TensorFlow cannot save this {type(model).__name__}: {_first_line(e)}") from e
    return directory


def _save_function(tf: Any, function: Any, directory: Path) -> None:
    """A function alone: a module that owns what it captures."""
    if hasattr(function, "structured_input_signature"):
        concrete = function
    elif getattr(function, "input_signature", None) is not None:
        concrete = function.get_concrete_function()
    else:
        raise SavedModelError(
            "this tf.function has no input signature: give function.get_concrete_function(tf.TensorSpec(...), ...), with None for every"
            " dimension that changes"
        )
    module = tf.Module()
    module.variables_of_function = list(concrete.graph.variables)
    module.function = function if concrete is not function else None
    module.captured = [t for t, _ in concrete.graph.captures if isinstance(t, tf.__internal__.tracking.Trackable)]
    tf.saved_model.save(module, str(directory), signatures={"serving_default": concrete})
