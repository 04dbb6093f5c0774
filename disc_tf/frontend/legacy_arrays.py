"""TensorArrayV3 made TensorLists: the flow of an array becomes the list's handle, its resource goes.

An array whose handle or flow is used in another way stays an array, and so do the loops that it is in. So does one of which an element
may be written twice, or read twice where the first read clears it: TensorFlow refuses that at run time, lists do not (`legacy_once`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from disc_tf.frontend.graph import TensorRef
from disc_tf.frontend.legacy_graph import Flow, FlowNode, frames
from disc_tf.frontend.legacy_once import Path, touches_once
from disc_tf.frontend.opdefs import DT_VARIANT

_INT32 = 3
#: op -> positions of handle and flow, and whether its result is the flow
_OPS = {
    "TensorArrayScatterV3": (0, 3, True),
    "TensorArrayWriteV3": (0, 3, True),
    "TensorArrayReadV3": (0, 2, False),
    "TensorArrayGatherV3": (0, 2, False),
    "TensorArraySizeV3": (0, 1, False),
}
_WRITES = frozenset({"TensorArrayScatterV3", "TensorArrayWriteV3"})
_READS = frozenset({"TensorArrayReadV3", "TensorArrayGatherV3"})
_PASS = frozenset({"Identity", "Enter", "Exit", "Switch", "NextIteration", "Merge"})


def while_name(frame: str) -> str:
    """The name of the While node that a frame becomes."""
    return f"{frame.rstrip('/')}/functional_while"


def arrays_to_lists(flow: Flow, keep: Collection[str], refused: dict[str, str]) -> set[str]:
    """Rewrite all arrays that can be lists, but those in loops that stay (``keep``: names of While nodes that are not wanted). The frames
    that lists enter."""
    entered: set[str] = set()
    arrays = [n for n in flow.nodes.values() if n.op == "TensorArrayV3"]
    paths = frames(flow) if arrays else {}
    for array in arrays:
        try:
            found = _Array(flow, array, flow.users())
            if any(while_name(f) in keep for f in found.frames):
                raise _Stays("its loop stays as it is")
            found.require_once(paths)
            found.rewrite()
            entered |= found.frames
        except _Stays as e:
            refused[array.name] = str(e)
    return entered


class _Stays(Exception):
    pass


class _Array:
    def __init__(self, flow: Flow, array: FlowNode, users: dict[str, list[FlowNode]]) -> None:
        self.flow, self.array, self.users = flow, array, users
        self.handles = self._spread((array.name, 0), flow_of=False)
        self.flows = self._spread((array.name, 1), flow_of=True)
        enters = [flow.nodes[n] for n, _ in self.flows if flow.nodes[n].op == "Enter"]
        self.frames = {n.attr["frame_name"].s.decode("utf-8", "replace") for n in enters}

    def _spread(self, start: TensorRef, flow_of: bool) -> set[TensorRef]:
        """The tensors that are the array's handle, or its flow."""
        seen = {start}
        work = [start]
        while work:
            ref = work.pop()
            for user in self.users.get(ref[0], ()):
                for i, source in enumerate(user.inputs):
                    if source != ref:
                        continue
                    passes = user.op in _PASS and (flow_of or user.op in ("Identity", "Enter", "Switch"))
                    if passes and (i == 0 or user.op == "Merge"):
                        new = [(user.name, 0), (user.name, 1)] if user.op == "Switch" else [(user.name, 0)]
                    elif flow_of and user.op in _OPS and i == _OPS[user.op][1]:
                        new = [(user.name, 0)] if _OPS[user.op][2] else []
                    elif not flow_of and user.op in (*_OPS, "TensorArrayCloseV3") and i == 0:
                        new = []
                    else:
                        raise _Stays(f"{user.name} ({user.op}) reads it in a way that lists do not know")
                    for r in new:
                        if r not in seen:
                            seen.add(r)
                            work.append(r)
        return seen

    def require_once(self, paths: Mapping[str, Path]) -> None:
        """`_Stays` if TensorFlow may refuse what lists do not."""
        users = {u.name: u for r in self.flows for u in self.users.get(r[0], ())}
        of = [u for u in users.values() if u.op in _OPS and u.inputs[_OPS[u.op][1]] in self.flows]
        if not touches_once(self.flow, self.array, [u for u in of if u.op in _WRITES], paths):
            raise _Stays("an element may be written twice, which TensorFlow refuses")
        clears = self.array.attr["clear_after_read"].b if "clear_after_read" in self.array.attr else True
        if clears and not touches_once(self.flow, self.array, [u for u in of if u.op in _READS], paths):
            raise _Stays("an element may be read after a read that clears it, which TensorFlow refuses")

    def rewrite(self) -> None:
        flow, array = self.flow, self.array
        concerned = {n for r in self.flows | self.handles for n in (r[0],)}
        for name in concerned | {u.name for r in self.flows | self.handles for u in self.users.get(r[0], ())}:
            node = flow.nodes[name]
            if node.op in _OPS:
                at = _OPS[node.op]
                if node.inputs[at[0]] not in self.handles or node.inputs[at[1]] not in self.flows:
                    raise _Stays(f"{name} mixes two arrays")
            elif node.op == "Merge" and (node.name, 0) in self.flows and any(r not in self.flows for r in node.inputs):
                raise _Stays(f"{name} mixes two arrays")
        dynamic = array.attr["dynamic_size"].b
        dtype = array.attr["dtype"].type
        shape = self._shape()
        done = sorted({u.name for r in self.flows | self.handles for u in self.users.get(r[0], ())} | concerned)
        for name in done:
            node = flow.nodes[name]
            if node.op in _OPS:
                self._op(node, dtype, shape, dynamic)
            elif node.op == "TensorArrayCloseV3":
                node.become("NoOp", [], [c for c in node.controls], [])
            elif node.op in _PASS and (node.name, 0) in self.flows:
                node.own().attr["T"].type = DT_VARIANT
                node.output_types = [DT_VARIANT if t == node.output_types[0] or i == 0 else t for i, t in enumerate(node.output_types)]
        size = array.inputs[0]
        controls = list(array.controls)
        proto = array.become("TensorListReserve", [(shape, 0), size], controls, [DT_VARIANT])
        proto.attr["element_dtype"].type = dtype
        proto.attr["shape_type"].type = _INT32
        for node in flow.nodes.values():
            if (array.name, 1) in node.inputs:
                node.inputs = [(array.name, 0) if r == (array.name, 1) else r for r in node.inputs]
        for node in list(flow.nodes.values()):  # what passed the handle on
            if (node.name, 0) in self.handles and node is not array:
                del flow.nodes[node.name]
        gone = {r[0] for r in self.handles if r[0] != array.name}
        for node in flow.nodes.values():
            if gone & set(node.controls):
                node.controls = [c for c in node.controls if c not in gone]

    def _shape(self) -> str:
        """A constant with the elements' declared shape."""
        name = self.flow.fresh(f"{self.array.name}/element_shape")
        proto = self.flow.add(name, "Const", [], [], [_INT32])
        proto.attr["dtype"].type = _INT32
        tensor = proto.attr["value"].tensor
        tensor.dtype = _INT32
        shape = self.array.attr["element_shape"].shape if "element_shape" in self.array.attr else None
        if shape is None or shape.unknown_rank:
            tensor.tensor_shape.SetInParent()
            tensor.int_val.append(-1)
        else:
            tensor.tensor_shape.dim.add().size = len(shape.dim)
            tensor.tensor_content = b"".join(int(max(d.size, -1)).to_bytes(4, "little", signed=True) for d in shape.dim)
        return name

    def _op(self, node: FlowNode, dtype: int, shape: str, dynamic: bool) -> None:
        inputs, controls = node.inputs, node.controls
        # the constant stands outside of frames: a copy of it where the list is read
        if node.op == "TensorArraySizeV3":
            node.become("TensorListLength", [inputs[1]], controls, [_INT32])
            return
        if node.op == "TensorArrayScatterV3":
            proto = node.become("TensorListScatterIntoExistingList", [inputs[3], inputs[2], inputs[1]], controls, [DT_VARIANT])
        elif node.op == "TensorArrayWriteV3":
            proto = node.become("TensorListSetItem", [inputs[3], inputs[1], inputs[2]], controls, [DT_VARIANT])
            proto.attr["resize_if_index_out_of_bounds"].b = dynamic
        else:
            own = self._shape_beside(node, shape, inputs[2])
            op = "TensorListGetItem" if node.op == "TensorArrayReadV3" else "TensorListGather"
            proto = node.become(op, [inputs[2], inputs[1], (own, 0)], controls, [dtype])
            proto.attr["_disc_array"].b = True  # some status codes are those of arrays
        proto.attr["element_dtype"].type = dtype

    def _shape_beside(self, node: FlowNode, shape: str, list_ref: TensorRef) -> str:
        """The constant again, in the frame of ``node``."""
        name = self.flow.fresh(f"{node.name}/element_shape")
        proto = self.flow.add(name, "Const", [], [list_ref[0]], [_INT32])
        for key in ("dtype", "value"):
            proto.attr[key].CopyFrom(self.flow.nodes[shape].attr[key])
        return name
