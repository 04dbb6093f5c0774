"""`jit`: a function whose calls TensorFlow answers until compiled code for their rank signature is there."""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Hashable
from typing import Any, TypeVar, overload

from disc_tf.just_in_time.identity import ByIdentity
from disc_tf.just_in_time.lowered import Lowered, lower
from disc_tf.just_in_time.reports import JitReport, JitWarning
from disc_tf.just_in_time.settings import JitOptions
from disc_tf.just_in_time.settled import settled
from disc_tf.just_in_time.signature import LEVELS, Binder, Call, NotKeyed, describe, statics
from disc_tf.just_in_time.version import COMPILED, Version
from disc_tf.report import counted
from disc_tf.runtime.forks import reset_when_forked

F = TypeVar("F", bound=Callable[..., Any])


@overload
def jit(fn: None = None, **options: Any) -> Callable[[Callable[..., Any]], JitFunction]: ...
@overload
def jit(fn: Callable[..., Any], **options: Any) -> JitFunction: ...
def jit(fn: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Compile a function while the program runs: ``@disc_tf.jit``, ``@disc_tf.jit(background=False)`` or ``disc_tf.jit(fn, ...)``.

    fn: a Python function or method, a `tf.function`, or a callable object (`tf.Module`, Keras layer or model).
    options: of `JitOptions` and of `disc_tf.Options`. Raises `OptionError` for unknown ones, TypeError if fn is not callable.
    """
    settings = JitOptions.from_overrides(**options)
    if fn is None:
        return lambda f: JitFunction(f, settings)
    return JitFunction(fn, settings)


class JitFunction:
    """Called as the function is. Any number of threads may call it.

    The first call of each rank signature (nesting, dtypes, ranks, Python values) traces with all dims unknown; calls at other shapes
    trace and compile nothing. Inside another graph that is being traced, under `tf.config.run_functions_eagerly` and in a distribution
    strategy it is the TensorFlow function (option ``nested``: inside a graph what is compiled by then).
    """

    def __init__(self, fn: Callable[..., Any], settings: JitOptions) -> None:
        import tensorflow as tf

        if isinstance(fn, JitFunction):
            fn = fn.__wrapped__
        if not callable(fn):
            raise TypeError(f"disc_tf.jit takes a function, a tf.function or a callable object, not {type(fn).__name__}")
        self._tf = tf
        self._options = settings
        functools.update_wrapper(self, fn, updated=())
        python = getattr(fn, "python_function", fn)
        self.__name__ = getattr(python, "__name__", None) or type(fn).__name__
        self.__wrapped__ = fn
        self._function = fn if python is not fn and hasattr(fn, "get_concrete_function") else _as_tf_function(fn, settings)
        signature = getattr(self._function, "input_signature", None)
        fixed = None if signature is None else [s for s in tf.nest.flatten(signature, expand_composites=True) if s is not None]
        self._binder = Binder(getattr(self._function, "python_function", fn), fixed)
        self._versions: dict[Hashable, Version] = {}
        self._levels: dict[Hashable, int] = {}
        #: keys that cannot be traced; reasons why calls were left to TensorFlow
        self._refused: dict[Hashable, None] = {}
        self._notes: dict[str, None] = {}
        #: variables and layers are made, as far as they are made on a first call
        self._settled = fixed is not None
        self._bound: ByIdentity[JitFunction] = ByIdentity()
        self.reset_locks()
        reset_when_forked(self)

    def reset_locks(self) -> None:
        """In a forked process no lock is held by a thread that is there."""
        self._lock = threading.RLock()
        for version in list(self._versions.values()):
            version.reset_locks()

    # ---- calls --------------------------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self._takes_over():
            return self._function(*args, **kwargs)
        try:
            call = self._binder.call(args, kwargs)
        except NotKeyed as e:
            self._note(str(e))
            return self._function(*args, **kwargs)
        version, answer = self._find(call), []
        if version is None:
            version, answer = self._first(call, args, kwargs)
            if version is None:
                return answer[0] if answer else self._function(*args, **kwargs)
        if version.compiled is None and not version.done.is_set():
            if self._options.background:
                version.start()
            else:
                version.finish()
        self._warn(version)
        if answer:
            version.count("tensorflow")
            return answer[0]
        return version(call.tensors)

    def _takes_over(self) -> bool:
        tf = self._tf
        if tf.config.functions_run_eagerly() or tf.distribute.has_strategy():
            return False
        return tf.executing_eagerly() or self._options.nested

    def _find(self, call: Call) -> Version | None:
        return self._versions.get((call.key, statics(call.tensors, self._levels.get(call.key, 0))))

    def _first(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Version | None, list[Any]]:
        """The version of a call that has none yet (None: it is TensorFlow's), and TensorFlow's answer if that was needed on the way."""
        answer: list[Any] = []
        if not self._tf.executing_eagerly():  # in a graph nothing new is traced
            return None, answer
        # The function never runs under the lock: what it starts on other threads (`tf.py_function`) may call it again.
        if not self._settled and self._find(call) is None and self._may_trace(call) and not settled(self.__wrapped__):
            answer.append(self._function(*args, **kwargs))
        why = ""
        for level in range(self._levels.get(call.key, 0), 1 if self._binder.fixed is not None else LEVELS):
            with self._lock:
                version = self._find(call)
                if version is not None or not self._may_trace(call):
                    return version, answer
                self._settled = True
                if level < self._levels.get(call.key, 0):
                    continue
                try:
                    return self._keep(call, level, self._trace(call, level)), answer
                except Exception as e:
                    why = why or f"{type(e).__name__}: {e}"
            if not answer:
                answer.append(self._function(*args, **kwargs))  # an error in it is the caller's
        with self._lock:
            self._refused[call.key] = None
            self._note(f"{describe(call, 0)} cannot be traced with unknown dims: {_short(why)}")
        return None, answer

    def _may_trace(self, call: Call) -> bool:
        """Whether a version may be made for a call that has none."""
        if call.key in self._refused:
            return False
        limit = self._options.max_signatures
        if len(self._versions) + len(self._refused) < limit:
            return True
        self._note(f"more than {limit} rank signatures (max_signatures)")
        return False

    def _keep(self, call: Call, level: int, version: Version) -> Version:
        self._levels[call.key] = level
        self._versions[(call.key, statics(call.tensors, level))] = version
        return version

    def _trace(self, call: Call, level: int) -> Version:
        tf, binder, function = self._tf, self._binder, self._function
        skeleton, specs = binder.skeleton(call, level)

        def flat(*tensors: Any) -> Any:
            args, kwargs = binder.rebuild(skeleton, tensors)
            return function(*args, **kwargs)

        with tf.init_scope():
            concrete = tf.function(flat, autograph=False).get_concrete_function(*specs)
        return Version(describe(call, level), concrete, len(specs), self._options)

    def _note(self, why: str) -> None:
        """Warn once of a kind of call that stays in TensorFlow."""
        if why not in self._notes:
            self._notes[why] = None
            _warn(f"disc_tf.jit: {self.__name__} is left to TensorFlow: {why}")

    def _warn(self, version: Version) -> None:
        why = version.take_warning()
        if why:
            what = "is compiled" if version.compiled is not None else "was not compiled and stays in TensorFlow:"
            _warn(f"disc_tf.jit: {self.__name__}{version.text} {what} {why}")

    # ---- asking -------------------------------------------------------------------------------------------------

    def compile(self, *args: Any, **kwargs: Any) -> JitFunction:
        """Trace and compile the rank signature of these arguments (tensors or `tf.TensorSpec`s, whose dims do not matter), and wait for it.

        Nothing is run. Returns this function. What fails is a warning, as with a call.
        """
        version = self._version_of(args, kwargs)
        version.finish()
        self._warn(version)
        return self

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until nothing of this function is being compiled; whether that is so after ``timeout`` seconds. Warns of what failed."""
        end = None if timeout is None else time.monotonic() + timeout
        for version in list(self._versions.values()):
            if not version.wait(None if end is None else max(end - time.monotonic(), 0)):
                return False
            self._warn(version)
        return True

    def report(self) -> JitReport:
        """The state of every rank signature; never waits."""
        versions = list(self._versions.values())
        return JitReport(self.__name__, [v.describe() for v in versions], list(self._notes))

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """The clusters of these arguments' rank signature as HLO. Nothing is run or compiled."""
        version = self._version_of(args, kwargs)
        program, _, request = version.request()
        modules, left_out = lower(program, request)

        def compile_it() -> JitFunction:
            version.finish()
            if version.state != COMPILED:
                raise RuntimeError(f"{self.__name__}{version.text} was not compiled: {version.why}")
            return self

        return Lowered(version.text, modules, left_out, compile_it)

    def get_concrete_function(self, *args: Any, **kwargs: Any) -> Any:
        """TensorFlow's own concrete function: what is saved and exported has no code of ours."""
        return self._function.get_concrete_function(*args, **kwargs)

    def _version_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Version:
        """TypeError if the arguments have no rank signature, or TensorFlow's error if they cannot be traced."""
        tf = self._tf

        def example(value: Any) -> Any:
            if isinstance(value, tf.TensorSpec):
                if value.shape.rank is None:
                    raise TypeError(f"{value} has no rank: a rank signature needs one")
                # Content does not matter and no dim is kept unless tracing needs it; then a dim that is not given counts as 1.
                return tf.zeros([1 if d is None else d for d in value.shape], value.dtype)
            return value

        given = args, kwargs
        args, kwargs = tf.nest.map_structure(example, given)
        call = self._binder.call(args, kwargs)
        with self._lock:
            version = self._find(call)
            if version is not None:
                return version
            if not self._settled and not settled(self.__wrapped__):
                self._function.get_concrete_function(*given[0], **given[1])
            self._settled = True
            for level in range(self._levels.get(call.key, 0), LEVELS):
                try:
                    version = self._trace(call, level)
                except Exception:
                    if level == LEVELS - 1 or self._binder.fixed is not None:
                        raise
                    continue
                return self._keep(call, level, version)
        raise AssertionError("a trace succeeds or raises")

    # ---- methods ------------------------------------------------------------------------------------------------

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """As a method: one jitted function for each object, which it does not keep alive."""
        if instance is None:
            return self
        found = self._bound.get(instance)
        if found is None:
            with self._lock:
                found = self._bound.get(instance)
                if found is None:
                    found = self._bound.put(instance, JitFunction(_method(self.__wrapped__, weakref.ref(instance)), self._options))
        return BoundJitFunction(instance, found)

    def __repr__(self) -> str:
        return f"<disc_tf.jit {self.__name__}: {counted(len(self._versions), 'rank signature')}>"


class BoundJitFunction:
    """A jitted method of an object: keeps the object, is otherwise the jitted function."""

    def __init__(self, instance: Any, function: JitFunction) -> None:
        self.__self__ = instance
        self._function = function
        self.__wrapped__ = function.__wrapped__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)

    def __repr__(self) -> str:
        return f"<bound {self._function!r}>"


def _method(fn: Callable[..., Any], instance: weakref.ref[Any]) -> Callable[..., Any]:
    function = getattr(fn, "python_function", fn)

    @functools.wraps(function)
    def method(*args: Any, **kwargs: Any) -> Any:
        return fn.__get__(instance())(*args, **kwargs)  # type: ignore[attr-defined]

    # the object is no argument
    import inspect

    parameters = list(inspect.signature(function).parameters.values())
    del method.__wrapped__
    method.__signature__ = inspect.Signature(parameters[1:])  # type: ignore[attr-defined]
    return method


def _as_tf_function(fn: Callable[..., Any], settings: JitOptions) -> Any:
    import tensorflow as tf

    if hasattr(fn, "__name__"):
        return tf.function(fn, autograph=settings.autograph)
    # Keras layers and modules: the object itself is called, with its own wrappers

    @functools.wraps(type(fn).__call__)
    def call(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    import inspect

    try:
        call.__signature__ = inspect.signature(fn)  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        del call.__wrapped__
    return tf.function(call, autograph=settings.autograph)


def _warn(text: str) -> None:
    """At the line of the program's own call."""
    level, frame = 1, sys._getframe()
    here = os.path.dirname(__file__)
    while frame.f_back is not None and os.path.dirname(frame.f_code.co_filename) == here:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, JitWarning, stacklevel=level)


def _short(text: str) -> str:
    first = text.strip().splitlines()
    # an error in converted code ends with what went wrong
    shown = first[-1].strip() if first and "in user code" in text else (first[0] if first else "")
    return shown if len(shown) <= 300 else shown[:297] + "..."


__all__ = ["BoundJitFunction", "JitFunction", "jit"]
