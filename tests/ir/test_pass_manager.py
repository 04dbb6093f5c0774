"""Pass selection in text, options, statistics, dumps, verification between passes."""

import dataclasses

import pytest

from disc_tf.ir.builder import Builder, new_function
from disc_tf.ir.core import Module
from disc_tf.ir.parser import parse_module
from disc_tf.ir.pass_manager import Pass, PassError, PassManager, format_stats
from disc_tf.ir.types import DType


@dataclasses.dataclass(frozen=True)
class Append(Pass):
    """Append negations."""

    count: int = 1
    scale: float = 1.0
    label: str = "x"
    really: bool = True
    name = "append"

    def run(self, module, ctx):
        if self.really:
            terminator = module.main.body.terminator
            b = Builder(module.main.body, before=terminator)
            for _ in range(self.count):
                terminator.set_operand(0, b.negate(terminator.operands[0]))
        ctx.data["label"] = self.label


@dataclasses.dataclass(frozen=True)
class Break(Pass):
    """Leave the module without a return."""

    name = "break-it"

    def run(self, module, ctx):
        module.main.body.ops.pop()


KNOWN = {"append": Append, "break-it": Break}


def make():
    fn, b = new_function("main", {"x": (DType.F32, ["n"])})
    b.return_([fn.params[0]])
    return Module({"main": fn})


def test_options_in_text():
    manager = PassManager.parse(
        'append{count=3, label="a, b", scale=2.5, really=true}, append ,append{really=false}', KNOWN
    )
    assert manager.passes == (Append(3, 2.5, "a, b"), Append(), Append(really=False))
    assert manager.spec() == 'append{count=3, scale=2.5, label="a, b"},append,append{really=false}'
    assert PassManager.parse(manager.spec(), [Append]).passes == manager.passes
    assert PassManager.parse("", KNOWN).passes == ()


@pytest.mark.parametrize(
    "text, message",
    [
        ("nope", "unknown pass 'nope' .known: append, break-it."),
        ("append{size=1}", "unknown option 'size'"),
        ("append{count=a}", "count must be of type int, is 'a'"),
        ("append{really=1}", "must be of type bool"),
        ("append{count}", "expected option=value"),
        ("append append", "bad pass list"),
        ("append{count=1", "bad pass list"),
    ],
)
def test_bad_text(text, message):
    with pytest.raises(PassError, match=message):
        PassManager.parse(text, KNOWN)


def test_run_times_dumps_and_shares(tmp_path):
    module = make()
    manager = PassManager.parse(
        "append{count=2},append{label=q}", KNOWN, dump_dir=tmp_path, dump_prefix="c0_", verify_each=True
    )
    ctx = manager.run(module)
    assert [(s.spec, s.ops_before, s.ops_after) for s in ctx.stats] == [
        ("append{count=2}", 1, 3),
        ('append{label="q"}', 3, 4),
    ]
    assert all(s.seconds >= 0 for s in ctx.stats) and "3 -> 4 ops" in format_stats(ctx.stats)
    assert ctx.data["label"] == "q"
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == ["c0_00_input.txt", "c0_01_append.txt", "c0_02_append.txt"]
    assert len(parse_module((tmp_path / names[-1]).read_text()).main.body.ops) == 4


def test_verifier_names_the_pass():
    manager = PassManager.parse("append,break-it", KNOWN, verify_each=True)
    with pytest.raises(PassError, match=r"after pass 2, break-it: function main.*return"):
        manager.run(make())
