"""The signatures of a SavedModel as something that can be run: names, and values that the graph accepts."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from disc_tf.frontend.errors import GraphError
from disc_tf.frontend.functions import called_functions
from disc_tf.frontend.graph import parse_tensor
from disc_tf.frontend.saved_model import (
    SavedModelError,
    choose_meta_graph,
    is_tf2,
    reached_nodes,
    read_saved_model,
    signature_names,
    signature_tensors,
)
from disc_tf.frontend.state import changes_state
from disc_tf.testing.inputs import InputSpec, make_spec, share_dims, why_not
from disc_tf.testing.random_outputs import draws_random
from disc_tf.testing.same_signatures import same_signatures
from disc_tf.testing.strings import can_be_made
from disc_tf.testing.value_flow import Flow
from disc_tf.testing.value_ranges import learn

_STRING = 7


@dataclasses.dataclass(frozen=True)
class SignaturePlan:
    """inputs, outputs: names, sorted. specs: of the inputs, in that order; empty with a reason ``why_not`` where values cannot be made up.
    random: the signature draws random numbers, so that TensorFlow's own answers may differ from run to run. stateful: a run may change what
    later ones give. functions: of the library that it may run."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    specs: tuple[InputSpec, ...]
    why_not: str = ""
    random: bool = False
    stateful: bool = False
    functions: frozenset[str] = frozenset()

    def running(self, ops: Collection[str], functions: Collection[str]) -> SignaturePlan:
        """The plan with what these op types and functions mean for it."""
        random = draws_random(ops)
        stateful = random or any(changes_state(op) for op in ops)
        return dataclasses.replace(self, random=random, stateful=stateful, functions=frozenset(functions))


@dataclasses.dataclass(frozen=True)
class ModelPlan:
    """The graph to load and its signatures by name. loader: see `SavedModelProcess`. same: signature -> an earlier one that is the same
    computation, see `same_signatures`."""

    directory: Path
    tags: tuple[str, ...]
    loader: str
    signatures: dict[str, SignaturePlan]
    same: dict[str, str] = dataclasses.field(default_factory=dict)


def plan_model(
    directory: str | Path,
    *,
    tags: Sequence[str] | None = None,
    signatures: Sequence[str] | None = None,
    functions: Collection[str] = (),
    loader: str = "auto",
    message: Any = None,
) -> ModelPlan:
    """Read a SavedModel and how its signatures (None: all) can be run, and, where no signature runs one of ``functions``, a method that
    does (``__call__#0``). message: the SavedModel, if it was read already. `SavedModelError` for what cannot be read or is not there."""
    message = message if message is not None else read_saved_model(directory)
    meta = choose_meta_graph(message, tags)
    there = signature_names(meta)
    wanted = list(signatures) if signatures is not None else there
    if unknown := [name for name in wanted if name not in there]:
        raise SavedModelError(f"{directory} has no signature {', '.join(unknown)}; there are: {', '.join(there) or '(none)'}")
    flow = Flow(meta.graph_def, _assets(meta, Path(directory)))
    plans = {}
    for name in wanted:
        plan = _plan(name, meta.signature_def[name], flow)
        plans[name] = plan.running(*reached(meta, name))
    # TensorFlow 2's loader takes files with several MetaGraphs for TensorFlow 1's: signatures without methods
    whole = is_tf2(meta) and len(message.meta_graphs) == 1
    missed = set(functions).difference(*(p.functions for p in plans.values()))
    if missed and whole:
        from disc_tf.testing.methods import plan_methods

        plans |= plan_methods(meta, missed)
    chosen = loader if loader != "auto" else "tf2" if whole else "session"
    return ModelPlan(Path(directory), tuple(sorted(meta.meta_info_def.tags)), chosen, plans, same_signatures(meta, wanted))


def _assets(meta: Any, directory: Path) -> dict[str, Path]:
    """Constant that holds an asset's name -> the asset."""
    found = {}
    for asset in meta.asset_file_def:
        try:
            found[parse_tensor(asset.tensor_info.name)[0]] = directory / "assets" / asset.filename
        except GraphError:
            continue
    return found


def _plan(name: str, signature: Any, flow: Flow) -> SignaturePlan:
    inputs, outputs = tuple(sorted(signature.inputs)), tuple(sorted(signature.outputs))
    specs: list[InputSpec] = []
    for key in inputs:
        info = signature.inputs[key]
        if info.WhichOneof("encoding") != "name":
            return SignaturePlan(name, inputs, outputs, (), f"input {key} is a sparse or composite tensor")
        node, port = parse_tensor(info.name)
        shape = _shape(info, flow, node, port)
        if not can_be_made(info.dtype) or shape is None:
            return SignaturePlan(name, inputs, outputs, (), f"input {key}: {why_not(info.dtype, info.tensor_shape)}")
        specs.append(make_spec(key, info.dtype, shape, learn(flow, flow.root, (node, port))))
    return SignaturePlan(name, inputs, outputs, tuple(share_dims(specs)))


def _shape(info: Any, flow: Flow, node: str, port: int) -> list[int] | None:
    """The declared dims; strings of unknown rank are taken to be a list of them."""
    if not info.tensor_shape.unknown_rank:
        return [int(d.size) for d in info.tensor_shape.dim]
    found = flow.shape(flow.root, (node, port))
    return [-1] if found is None and info.dtype == _STRING else found


def reached(meta: Any, signature: str) -> tuple[set[str], set[str]]:
    """(op types, function names) that what the signature's outputs need is made of, function bodies included."""
    library = {f.signature.name: f for f in meta.graph_def.library.function}
    return reached_from(reached_nodes(meta, signature_tensors(meta.signature_def[signature], "outputs").values()), library)


def reached_from(nodes: Sequence[Any], library: Mapping[str, Any]) -> tuple[set[str], set[str]]:
    """(op types, function names) of nodes and of the bodies that they mention."""
    called = called_functions(nodes, library)
    return {n.op for n in chain(nodes, *(library[name].node_def for name in called))}, set(called)
