"""One rank signature of a jitted function: TensorFlow's trace with relaxed dims, then, once it is there, the compiled function."""

from __future__ import annotations

import threading
import time
from typing import Any

from disc_tf.just_in_time.background import Compile, background
from disc_tf.just_in_time.cache import CacheError, DiskCache, cache_key
from disc_tf.just_in_time.canonical import Canonical, canonical, restore_gradients
from disc_tf.just_in_time.program import Program, ProgramError, build, export
from disc_tf.just_in_time.reports import SignatureReport
from disc_tf.just_in_time.settings import JitOptions
from disc_tf.just_in_time.work import Request, Result, compile_request, failures, why_nothing
from disc_tf.report import Report

TRACED, COMPILING, COMPILED, FAILED = "traced", "compiling", "compiled", "failed"


class Version:
    """``concrete``: TensorFlow's function of the flat tensors; ``compiled``: ours, None until the switch, which is one assignment.

    Any thread may call it at any time. ``why`` says what failed; `take_warning` gives it once.
    """

    def __init__(self, text: str, concrete: Any, n_tensors: int, settings: JitOptions) -> None:
        self.text = text
        self.concrete = concrete
        self.compiled: Any = None
        self.settings = settings
        self.state = TRACED
        self.why = ""
        self.report: Report | None = None
        self.from_cache = False
        self.seconds = 0.0
        self._n = n_tensors
        self._custom_gradient = False
        self._warned = False
        self._answers = {"compiled": 0, "tensorflow": 0}
        self.reset_locks()

    def reset_locks(self) -> None:
        """Also in a forked process, where the thread that compiled is gone: it is asked for again by the next call."""
        self._lock = threading.Lock()
        self.done = threading.Event()
        if self.state == COMPILING:
            self.state = TRACED
        if self.state in (COMPILED, FAILED):
            self.done.set()

    def __call__(self, tensors: list[Any]) -> Any:
        compiled = self.compiled
        if compiled is None or (self._custom_gradient and _recording()):
            self.count("tensorflow")
            return self.concrete(*tensors)
        self.count("compiled")
        return compiled(*tensors)

    def count(self, who: str) -> None:
        """A call that "compiled" or "tensorflow" answers."""
        with self._lock:
            self._answers[who] += 1

    def start(self) -> None:
        """Compile in the background, unless that was done or asked for."""
        with self._lock:
            if self.state != TRACED:
                return
            self.state = COMPILING
        background().submit(self._work, self.settings.worker)

    def finish(self) -> None:
        """Compile here, or wait for another thread to have done it. What fails is in ``state``; raises only what interrupts the program."""
        while True:
            with self._lock:
                if self.state in (COMPILED, FAILED):
                    return
                mine, done = self.state == TRACED, self.done
                if mine:
                    self.state = COMPILING
            if mine:
                self._work(compile_request)
            else:
                done.wait()

    def wait(self, timeout: float | None) -> bool:
        """Wait until this is not being compiled, at most ``timeout`` seconds; whether that is so."""
        with self._lock:
            idle, done = self.state != COMPILING, self.done
        return idle or done.wait(timeout)

    def take_warning(self) -> str:
        """What to warn of, once; empty if there is nothing."""
        if self._warned or not self.why:
            return ""
        with self._lock:
            first, self._warned = not self._warned, True
        return self.why if first else ""

    def describe(self) -> SignatureReport:
        with self._lock:
            return SignatureReport(self.text, self.state, self.why, self.report, self.from_cache, self.seconds, dict(self._answers))

    # ---- the work -----------------------------------------------------------------------------------------------

    def _work(self, compile_: Compile) -> None:
        start = time.perf_counter()
        why = None
        try:
            why = self._compile(compile_)
        except Exception as e:  # whatever it is: TensorFlow goes on answering
            why = str(e) if isinstance(e, (ProgramError, RuntimeError)) and str(e) else f"{type(e).__name__}: {e}"
        finally:
            with self._lock:
                done = self.done
                self.seconds = time.perf_counter() - start
                if why is None and self.compiled is None:  # interrupted (Ctrl-C): the next that asks begins anew
                    self.state, self.done = TRACED, threading.Event()
                else:
                    self.why = why or ""
                    self.state = FAILED if self.compiled is None else COMPILED
            done.set()

    def _compile(self, compile_: Compile) -> str:
        """Sets ``compiled``; the reason if it stays None, or what of it failed."""
        from disc_tf.runtime import trust_file

        if policy := trust_file():  # its kernels would be refused at the call
            return f"the trust file {policy} is in force, and nobody signs what is compiled here"
        program, content, request = self.request()
        result, self.from_cache, note = self._result(request, content, compile_)
        self.report = result.report
        if note:
            result.report.warnings.append(note)
        if not result.graph:
            return why_nothing(result.report)
        from disc_tf.frontend.tfproto import graph_from_bytes

        optimized = graph_from_bytes(result.graph)
        self._custom_gradient = program.custom_gradient
        if not self._custom_gradient:  # else no gradient is taken of it
            restore_gradients(optimized, content.gradients)
        self.compiled = build(program, optimized)
        failed = failures(result.report)
        return f"in part, {failed}" if failed else ""

    def request(self) -> tuple[Program, Canonical, Request]:
        """What is compiled. `ProgramError` if the trace cannot be."""
        program = export(self.concrete, self._n)
        content = canonical(program.graph_def)
        graph = program.graph_def.SerializeToString()
        options = self.settings.compiler.to_dict()
        return program, content, Request(graph, program.fetches, options, self.settings.any_size)

    def _result(self, request: Request, content: Canonical, compile_: Compile) -> tuple[Result, bool, str]:
        """The result, whether it is from the cache, and what is wrong with the cache."""
        if self.settings.cache_dir is None or self.settings.compiler.dump_dir:
            return compile_(request), False, ""
        cache = DiskCache(self.settings.cache_dir, self.settings.cache_bytes)
        try:
            cache.prepare()
        except CacheError as e:
            return compile_(request), False, str(e)
        key = cache_key(content.digest, request)
        found = cache.get(key, content.graph_def)
        if found is not None:
            return found, True, ""
        result = compile_(request)
        if all(c.status == "compiled" for c in result.report.clusters):  # another time it may not be out of time, or memory
            cache.put(key, result)
        return result, False, ""


def _recording() -> bool:
    """Whether a gradient may be asked of what is called now."""
    import tensorflow as tf
    from tensorflow.python.eager import record

    return not tf.executing_eagerly() or bool(record.could_possibly_record())
