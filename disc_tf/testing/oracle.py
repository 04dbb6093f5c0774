"""JAX as the oracle of what IR means: a module is exported to static StableHLO and run by XLA on the CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from disc_tf.ir.core import Function, Module, Op
from disc_tf.ir.interp import CheckFailed, EvaluationError, bind_dims
from disc_tf.ir.stablehlo import to_stablehlo


def run_with_jax(
    target: Module | Function, inputs: Sequence[np.ndarray], symbols: Mapping[str, int] | None = None
) -> list[np.ndarray]:
    """Run a function (of a module: `main`) through XLA at the shapes of `inputs`.

    `symbols` gives the values of symbols that data decides (`disc.bind_dim`). Top-level checks are evaluated: the first that is
    false raises CheckFailed. Raises EvaluationError for inputs that do not fit, StableHLOError if there is no static form.
    """
    fn = target.main if isinstance(target, Module) else target
    values = dict(symbols or {})
    if len(inputs) != len(fn.params):
        raise EvaluationError(f"{fn.name} takes {len(fn.params)} arguments, not {len(inputs)}")
    for param, array in [*zip(fn.params, inputs, strict=True)] * 2:
        bind_dims(values, param.tensor, np.shape(array), f"argument {param!r}")
    single = Function("main", fn.body, fn.args)
    outputs = execute(to_stablehlo(single, values, checks="results"), inputs)
    checks: list[Op] = [op for op in fn.body.ops if op.name == "disc.check"]
    results = outputs[: len(outputs) - len(checks)]
    for op, ok in zip(checks, outputs[len(results) :], strict=True):
        if not bool(ok):
            raise CheckFailed(op.attrs["code"], op.attrs["message"], op.attrs.get("node", ""))
    return results


def execute(text: str, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Compile a static StableHLO module for the CPU and run its `main`."""
    import jax
    from jaxlib import xla_client

    device = jax.devices("cpu")[0]
    client: Any = device.client
    options = xla_client.CompileOptions()
    # Run once: compile time is all that counts.
    options.executable_build_options.debug_options.xla_backend_optimization_level = 0
    options.executable_build_options.debug_options.xla_llvm_disable_expensive_passes = True
    executable = client.compile_and_load(text, xla_client.DeviceList((device,)), options)
    with jax.enable_x64(True):  # or 64-bit arrays are narrowed on the way
        buffers = [jax.device_put(np.array(x, order="C"), device) for x in inputs]
        outputs = executable.execute_sharded(buffers).disassemble_into_single_device_arrays()
        return [np.asarray(parts[0]) for parts in outputs]


__all__ = ["CheckFailed", "execute", "run_with_jax"]
