"""Clusters become `DiscLaunch` nodes; `restore` and `put_back` take that back.

The rewritten graph holds what still runs: nodes outside of clusters as they were (with the inputs that changed), one launch per cluster,
and a node of the old name for each fetched tensor. Its library holds the original functions that are still called, one function
``disc_original_<hash>`` per cluster (valid on its own: `gradient` and fallbacks call it), and one function ``disc_restore_<hash>`` whose
only node is a string constant, the *recipe*: see `recipe`. Weights are in the graph once.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from disc_tf.frontend import recipe
from disc_tf.frontend.cluster import Cluster, Clustering, effective_preds, restored_clustering
from disc_tf.frontend.errors import GraphError
from disc_tf.frontend.functions import called_functions
from disc_tf.frontend.graph import Graph, TensorRef, parse_tensor, tensor_name
from disc_tf.frontend.importer import Imported
from disc_tf.frontend.load import constants_out, expand
from disc_tf.frontend.opdefs import op_info
from disc_tf.frontend.tfproto import serialized

LAUNCH_OP = "DiscLaunch"
ORIGINAL_PREFIX = "disc_original_"
RESTORE_PREFIX = "disc_restore_"
RECIPE_ATTR = "_disc_restore"


@dataclasses.dataclass
class Launch:
    """What the compiler made of a cluster. ``args`` and ``results`` are tensors of the graph in the executable's order.

    ``kinds``: of each argument, ``const``, ``variable``, ``host`` or ``device``, in this order (const and variable first);
    ``host_results``: of each result, host ones first.
    """

    cluster: Cluster
    executable: bytes
    args: list[TensorRef]
    kinds: list[str]
    results: list[TensorRef]
    host_results: list[bool]
    #: of each result, -1 for unknown
    shapes: list[tuple[int, ...]]
    abi: int = 1

    @staticmethod
    def of(imported: Imported, executable: bytes, abi: int = 1) -> Launch:
        """The launch of an imported cluster whose executable takes and gives what `imported` says."""
        kinds = [a.kind for a in imported.main.args]
        shapes = [tuple(int(d) if d.is_static else -1 for d in v.dims) for v in imported.main.results[: len(imported.results)]]
        return Launch(imported.cluster, executable, imported.args, kinds, imported.results, imported.host_results, shapes, abi)

    @property
    def plan(self) -> recipe.ClusterPlan:
        """By names: what `from_plan` makes the launch of again."""
        cluster = self.cluster
        return recipe.ClusterPlan(
            cluster.name,
            cluster.node_names,
            list(cluster.constants),
            [tensor_name(r) for r in self.args],
            list(self.kinds),
            [tensor_name(r) for r in self.results],
            [bool(h) for h in self.host_results],
            list(cluster.controls),
            [[tensor_name(a), tensor_name(b)] for a, b in cluster.through.items()],
        )

    @staticmethod
    def from_plan(graph: Graph, plan: recipe.ClusterPlan, executable: bytes, shapes: list[tuple[int, ...]], abi: int) -> Launch:
        """The launch of a planned cluster of ``graph``. ``GraphError`` for nodes that it does not have."""
        args, results = [parse_tensor(t) for t in plan.args], [parse_tensor(t) for t in plan.results]
        through = {parse_tensor(a): parse_tensor(b) for a, b in plan.through}
        nodes = [graph[name] for name in plan.nodes]
        cluster = Cluster(plan.name, nodes, plan.constants, list(args), list(results), plan.controls, through)
        return Launch(cluster, executable, args, plan.kinds, results, plan.host_results, shapes, abi)


#: what is said of such a graph or model where an original is wanted, behind its name
OPTIMIZED = "was optimised by disc_tf: give the original, which `disc-tf restore` gives back"


def launch_nodes(message: Any) -> Iterator[tuple[str, Any]]:
    """Each DiscLaunch of a GraphDef or SavedModel message with a name of its own: ``function:node`` inside of a function, after the number
    of its MetaGraph where there are several."""
    graphs = [m.graph_def for m in message.meta_graphs] if hasattr(message, "meta_graphs") else [message]
    for i, graph in enumerate(graphs):
        number = f"graph {i}: " if len(graphs) > 1 else ""
        functions = ((f"{f.signature.name}:", f.node_def) for f in graph.library.function)
        for prefix, nodes in (("", graph.node), *functions):
            yield from ((f"{number}{prefix}{node.name}", node) for node in nodes if node.op == LAUNCH_OP)


def rewrite(original: Any, clustering: Clustering, launches: Sequence[Launch], *, with_recipe: bool = True) -> Any:
    """The graph with each launch's cluster replaced; clusters without a launch stay in TensorFlow.

    ``original``: the GraphDef that the user gave (before inlining); `restore` gives it back bit for bit if it is written ``with_recipe``.
    Returns a new message of its class, or ``original`` itself if there is nothing to launch. ``GraphError`` if a launch does not fit
    its cluster.
    """
    if not launches:
        return original
    return _Rewrite(original, clustering, launches).run(with_recipe)


class _Rewrite:
    def __init__(self, original: Any, clustering: Clustering, launches: Sequence[Launch]) -> None:
        self.original = original
        self.clustering = clustering
        self.graph: Graph = clustering.graph
        self.launches = list(launches)
        self.owner = {node.name: launch.cluster for launch in launches for node in launch.cluster.nodes}
        #: tensor of a cluster -> the launch's output
        self.moved: dict[TensorRef, TensorRef] = {}
        for launch in launches:
            _check_launch(launch)
            for i, ref in enumerate(launch.results):
                self.moved[ref] = (launch.cluster.name, i)
        self.out: Any = type(original)()

    def run(self, with_recipe: bool) -> Any:
        out, source = self.out, self.graph.graph_def
        out.versions.CopyFrom(self.original.versions)
        functions = [self._original_function(launch) for launch in self.launches]
        placed: set[str] = set()
        first: dict[str, Launch] = {launch.cluster.nodes[0].name: launch for launch in self.launches}
        live = {node.name for node in self.clustering.order}
        constants = self._constants_outside(live)
        for proto in source.node:  # file order, launches where their first node stood
            name = proto.name
            if name in first:
                self._launch(first[name], functions[self.launches.index(first[name])].signature.name)
            if name in self.owner:
                self._alias(name)
            elif (name in live and (proto.op != "Const" or name in constants)) or proto.op == "Placeholder":
                self._keep(proto, name)
                placed.add(name)
        library = source.library
        # what an original calls (bodies of loops and branches) stays too: its gradient is made of them
        nodes = [*out.node, *(n for f in functions for n in f.node_def)]
        called = set(called_functions(nodes, {f.signature.name: f for f in library.function}, library.gradient))
        for f in library.function:
            if f.signature.name in called:
                out.library.function.add().CopyFrom(f)
        for g in library.gradient:
            if g.function_name in called or g.gradient_func in called:
                out.library.gradient.add().CopyFrom(g)
        out.library.function.extend(functions)
        _drop_colocations(out)
        if with_recipe:
            self._recipe()
        return out

    # ---- nodes outside ------------------------------------------------------------------------------------------

    def _constants_outside(self, live: set[str]) -> set[str]:
        """Const nodes that somebody outside of the clusters still reads, or that are fetched."""
        wanted = {name for name, _ in self.clustering.fetches} | set(self.clustering.targets)
        for launch in self.launches:
            wanted |= {name for name, _ in launch.args}
            wanted |= {name for name in launch.cluster.controls}
        for node in self.clustering.order:
            if node.name not in self.owner:
                wanted |= {name for name, _ in self._inputs(node.name)}
                wanted |= set(self._controls_of(node.name))
        return wanted & live

    def _controls_of(self, name: str) -> list[str]:
        """Control inputs of a node outside: edges as they were, or the hard nodes that they stand for."""
        node = self.graph[name]
        data = {source for source, _ in node.inputs}
        preds = effective_preds(node, self.clustering.compiled, self.clustering.hard)
        controls = [p for p in preds if p not in data or p in node.controls]
        return list(dict.fromkeys(self.owner[p].name if p in self.owner else p for p in controls))

    def _inputs(self, name: str) -> list[TensorRef]:
        """What a node outside reads: one that takes constants of its bodies only in order to be compiled is as it was."""
        inputs = self.graph[name].inputs
        before = self.graph.before_hoisting.get(name)
        return inputs if before is None else inputs[: sum(not t.startswith("^") for t in before.input)]

    def _keep(self, proto: Any, name: str) -> None:
        proto = self.graph.before_hoisting.get(name, proto)
        node = self.out.node.add()
        node.CopyFrom(proto)
        if not proto.input:
            return
        data = [t for t in proto.input if not t.startswith("^")]
        inputs = []
        for text, ref in zip(data, self._inputs(name), strict=True):
            inputs.append(tensor_name(self.moved[ref]) if ref in self.moved else text)
        old = [t for t in proto.input if t.startswith("^")]
        controls = [f"^{c}" for c in self._controls_of(name)]
        inputs.extend(old if set(controls) == set(old) else controls)
        if inputs != list(proto.input):
            del node.input[:]
            node.input.extend(inputs)

    def _alias(self, name: str) -> None:
        """A node of the old name for a fetched tensor (or target) that moved into a cluster."""
        clustering = self.clustering
        node = self.graph[name]
        fetched = any(n == name for n, _ in clustering.fetches)
        if not fetched and name not in clustering.targets:
            return
        new = self.out.node.add()
        new.name = name
        new.device = node.device
        types = node.output_types or []
        if not types or not fetched:
            new.op = "NoOp"
            new.input.extend(f"^{c}" for c in dict.fromkeys([self.owner[name].name, *self._controls_of(name)]))
            return
        new.op = "Identity" if len(types) == 1 else "IdentityN"
        new.input.extend(tensor_name(self.moved[(name, port)]) for port in range(len(types)))
        if len(types) == 1:
            new.attr["T"].type = types[0]
        else:
            new.attr["T"].list.type.extend(types)
        if "_output_shapes" in node.attr:
            new.attr["_output_shapes"].CopyFrom(node.attr["_output_shapes"])

    # ---- launches -----------------------------------------------------------------------------------------------

    def _launch(self, launch: Launch, function: str) -> None:
        cluster = launch.cluster
        node = self.out.node.add()
        node.name = cluster.name
        node.op = LAUNCH_OP
        node.device = _common_device(cluster)
        node.input.extend(tensor_name(self.moved.get(ref, ref)) for ref in launch.args)
        controls = {f"^{self.owner[c].name if c in self.owner else c}": None for c in cluster.controls}
        node.input.extend(c for c in controls if c != f"^{cluster.name}")
        attr = node.attr
        attr["executable"].s = launch.executable
        attr["original"].func.name = function
        attr["nodes"].s = "\n".join(n.name for n in cluster.nodes).encode()
        attr["abi"].i = launch.abi
        arg_types = [self._type(ref) for ref in launch.args]
        for key, kinds in (("Tconst", ("const", "variable")), ("Thost", ("host",)), ("Targs", ("device",))):
            attr[key].list.SetInParent()
            attr[key].list.type.extend(t for t, k in zip(arg_types, launch.kinds, strict=True) if k in kinds)
        for key, host in (("Thostout", True), ("Tout", False)):
            attr[key].list.SetInParent()
            attr[key].list.type.extend(
                self._type(ref) for ref, h in zip(launch.results, launch.host_results, strict=True) if h == host
            )
        shapes = attr["_output_shapes"].list
        shapes.SetInParent()
        for dims in launch.shapes:
            shape = shapes.shape.add()
            for d in dims:
                shape.dim.add().size = d

    def _type(self, ref: TensorRef) -> int:
        return self.graph.type_of(ref)

    def _original_function(self, launch: Launch) -> Any:
        """The cluster as a FunctionDef with the launch's signature (a node's control inputs inside the cluster are kept)."""
        cluster = launch.cluster
        library_class = type(self.original.library)
        f = library_class().function.add()
        names = _Names(n.name for n in cluster.nodes)
        names.taken.update(cluster.constants)
        arg_of: dict[TensorRef, str] = {}
        for i, ref in enumerate(launch.args):
            arg = f.signature.input_arg.add()
            arg.name = arg_of[ref] = names.fresh(f"arg{i}")
            arg.type = self._type(ref)
        inside = {n.name for n in cluster.nodes} | set(cluster.constants)
        for node in [*(self.graph[c] for c in cluster.constants), *cluster.nodes]:
            new = f.node_def.add()
            new.CopyFrom(node.proto)
            del new.input[:]
            for ref in node.inputs:
                if ref[0] in inside:
                    new.input.append(self._body_name(ref))
                    continue
                new.input.append(arg_of[cluster.through.get(ref, ref)])
            if "_class" in new.attr:  # colocation with nodes that are not in the function
                del new.attr["_class"]
            new.input.extend(f"^{c}" for c in node.controls if c in inside and c not in cluster.constants)
        for i, ref in enumerate(launch.results):
            result = f.signature.output_arg.add()
            result.name = f"out{i}"
            result.type = self._type(ref)
            f.ret[result.name] = self._body_name(ref)
        for node in cluster.nodes:
            if node.op == "Assert":
                f.control_ret[f"check_{len(f.control_ret)}"] = node.name
        f.signature.control_output.extend(sorted(f.control_ret))
        f.signature.is_stateful = bool(f.control_ret)
        digest = hashlib.sha256(serialized(f)).hexdigest()[:16]
        f.signature.name = f"{ORIGINAL_PREFIX}{digest}_{cluster.name.rpartition('_')[2]}"
        return f

    def _body_name(self, ref: TensorRef) -> str:
        node = self.graph[ref[0]]
        info = op_info(node.op)
        if info is None:
            raise GraphError(f"op {node.op!r} is not known", node.name)
        for arg, (start, count) in info.output_offsets(node.attr).items():
            if start <= ref[1] < start + count:
                return f"{ref[0]}:{arg}:{ref[1] - start}"
        raise GraphError(f"{node.op} has no output {ref[1]}", node.name)

    # ---- the way back -------------------------------------------------------------------------------------------

    def _recipe(self) -> None:
        plan = recipe.Plan(
            outputs=[tensor_name(ref) for ref in self.clustering.fetches] + [f"^{t}" for t in self.clustering.targets],
            clusters=[x.plan for x in self.launches],
            compiled=sorted(self.clustering.compiled - set(self.owner)),
            keep_legacy=self.graph.keep_legacy,
            hoisted=[list(place) for place in self.graph.hoisted],
        )
        data = recipe.make(self.original, self.out, plan)
        f = self.out.library.function.add()
        f.signature.name = RESTORE_PREFIX + hashlib.sha256(data).hexdigest()[:16]
        result = f.signature.output_arg.add()
        result.name, result.type = "recipe", 7
        node = f.node_def.add()
        node.name, node.op = "data", "Const"
        node.attr["dtype"].type = 7
        tensor = node.attr["value"].tensor
        tensor.dtype = 7
        tensor.tensor_shape.SetInParent()
        tensor.string_val.append(data)
        f.ret["recipe"] = "data:output:0"
        # so that tools that drop unreachable functions keep it
        for node in self.out.node:
            if node.op == LAUNCH_OP:
                node.attr[RECIPE_ATTR].func.name = f.signature.name
                break


class _Names:
    """Argument names that collide with no node of the body."""

    def __init__(self, taken: Iterable[str]) -> None:
        self.taken = set(taken)

    def fresh(self, base: str) -> str:
        name, at = base, 1
        while name in self.taken:
            at += 1
            name = f"{base}_{at}"
        self.taken.add(name)
        return name


def _check_launch(launch: Launch) -> None:
    rank = {"const": 0, "variable": 0, "host": 1, "device": 2}
    order = [rank[k] for k in launch.kinds]
    if len(order) != len(launch.args) or order != sorted(order):
        raise GraphError("arguments must be constants, host, device in this order", launch.cluster.name)
    if len(launch.results) != len(launch.host_results) or set(launch.results) != set(launch.cluster.outputs):
        raise GraphError("results are not the outputs of the cluster", launch.cluster.name)
    if sorted(launch.host_results, reverse=True) != list(launch.host_results):
        raise GraphError("host results come first", launch.cluster.name)


def _drop_colocations(graph_def: Any) -> None:
    """Colocation with a node that is gone would be an error in TensorFlow."""
    names = {node.name for node in graph_def.node}
    for node in graph_def.node:
        if "_class" in node.attr:
            groups = list(node.attr["_class"].list.s)
            kept = [g for g in groups if not g.startswith(b"loc:@") or g[5:].decode("utf-8", "replace") in names]
            if not kept:
                del node.attr["_class"]
            elif kept != groups:
                del node.attr["_class"].list.s[:]
                node.attr["_class"].list.s.extend(kept)


def _common_device(cluster: Cluster) -> str:
    devices = {node.device for node in cluster.nodes}
    return devices.pop() if len(devices) == 1 else ""


def find_recipe(graph_def: Any) -> bytes:
    """The recipe inside a rewritten graph. ``GraphError`` if there is none."""
    for f in graph_def.library.function:
        if f.signature.name.startswith(RESTORE_PREFIX):
            data = f.node_def[0].attr["value"].tensor.string_val
            if len(data) == 1:
                return data[0]
    raise GraphError("the graph was not written by disc_tf, or its restore function was removed")


def restore(graph_def: Any) -> Any:
    """The original graph, bit for bit in the deterministic wire format. ``GraphError`` if the graph holds no recipe or nodes that
    it needs are gone."""
    return recipe.restore(graph_def, find_recipe(graph_def))


def put_back(graph_def: Any, names: Iterable[str]) -> Any:
    """The rewritten graph with the named clusters back in TensorFlow, the others as they are (nothing is compiled again).

    All clusters put back gives the original. ``GraphError`` for names that are no cluster of the graph.
    """
    names = set(names)
    data = find_recipe(graph_def)
    original = recipe.restore(graph_def, data)
    plan = recipe.read_plan(data)
    unknown = names - {c.name for c in plan.clusters}
    if unknown:
        raise GraphError(f"no such cluster: {', '.join(sorted(unknown))}; there are {', '.join(c.name for c in plan.clusters)}")
    launched = {n.name: n for n in graph_def.node if n.op == LAUNCH_OP}
    graph, _, _ = expand(Graph(original), [t.lstrip("^").partition(":")[0] for t in plan.outputs], plan.keep_legacy)
    graph = constants_out(graph, [(f, n) for f, n in plan.hoisted]) if plan.hoisted else graph
    compiled = {*plan.compiled, *(n for c in plan.clusters for n in c.nodes)}
    launches = []
    for c in plan.clusters:
        if c.name in names:
            continue
        node = launched.get(c.name)
        if node is None:
            raise GraphError("the launch of this cluster is gone from the graph", c.name)
        shapes = [tuple(int(d.size) for d in s.dim) for s in node.attr["_output_shapes"].list.shape]
        launches.append(Launch.from_plan(graph, c, node.attr["executable"].s, shapes, int(node.attr["abi"].i)))
    clustering = restored_clustering(graph, [x.cluster for x in launches], compiled, plan.outputs)
    return rewrite(original, clustering, launches)

