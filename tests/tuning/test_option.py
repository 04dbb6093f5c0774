"""The option `tuning`: files become content, content is part of what code is known by, and changes no result."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from disc_tf.compiler import compile_module
from disc_tf.ir.builder import new_function
from disc_tf.ir.core import Module
from disc_tf.ir.types import DType
from disc_tf.options import OptionError, Options
from disc_tf.runtime.cpu import native_target
from disc_tf.runtime.executable import Executable
from disc_tf.tuning import ColumnRule, ConvTable, GemmTable, PartRule, Table, shipped
from disc_tf.tuning.table import TILES


def other(isa: str) -> Table:
    rule = (ColumnRule(2 * TILES[isa][1]),)
    return Table(isa, 50, GemmTable((PartRule(2, 100), PartRule(3)), rule, 5, 8), ConvTable(2, rule))


def test_a_file_becomes_its_content(tmp_path: Path) -> None:
    table = other("x86-64-v3")
    file = tmp_path / "t.json"
    file.write_text(json.dumps(table.to_dict(), indent=2))
    options = Options.from_overrides(tuning=str(file))
    assert options.tables == [table]
    file.unlink()
    assert Options.from_overrides(options.to_dict()) == options, "nothing is read again"
    assert options.tuned == {t: (table if t == "x86-64-v3" else shipped(t)).digest for t in options.targets}
    assert options.to_dict() != Options().to_dict()


def test_order_of_tables_does_not_matter() -> None:
    texts = [other(isa).text() for isa in TILES]
    assert Options.from_overrides(tuning=texts) == Options.from_overrides(tuning=texts[::-1])


def test_what_cannot_be_a_table_is_refused(tmp_path: Path) -> None:
    bad, binary, large = tmp_path / "bad.json", tmp_path / "b.json", tmp_path / "l.json"
    bad.write_text('{"isa": "x86-64-v3"}')
    binary.write_bytes(b"\xff\xfe\x00")
    large.write_text(" " * (1 << 20) + "{}")
    twice = [other("x86-64-v2").text()] * 2
    for value, message in [
        (str(tmp_path / "none.json"), "cannot read .*none.json: No such file"), (str(tmp_path), "Is a directory"),
        ("a\0b", "cannot read a.b: embedded null byte"),
        (str(bad), "bad.json: rows_first_percent, gemm, conv is missing"), (str(binary), "it is not text"),
        (str(large), "that is no table"),
        (twice, "two tables are for x86-64-v2"), (3, "takes a list of strings"), ("{}", "option 'tuning': isa, .* is missing"),
    ]:  # fmt: skip
        with pytest.raises(OptionError, match=message):
            Options.from_overrides(tuning=value)


def test_two_tables_never_share_an_entry_of_the_jit_cache() -> None:
    from disc_tf.just_in_time.cache import cache_key
    from disc_tf.just_in_time.settings import JitOptions
    from disc_tf.just_in_time.work import Request

    isa = native_target()
    tables = [(), (other(isa).text(),), (dataclasses.replace(other(isa), rows_first_percent=49).text(),)]
    made = [JitOptions.from_overrides(tuning=t).compiler for t in tables]
    assert len({cache_key("graph", Request(b"", ["y:0"], o.to_dict(), True)) for o in made}) == len(tables)


@pytest.mark.parametrize("body", ["product", "convolution"])
def test_programs_give_the_same_bits_with_other_code(body: str) -> None:
    """Through the whole compiler and the runtime, at shapes 0, 1 and primes."""
    target, f32 = native_target(), DType.F32

    def program(tables: tuple[Table, ...]) -> bytes:
        if body == "product":
            fn, b = new_function("main", {"x": (f32, ["m", 37]), "w": (f32, [37, 211]), "v": (f32, [211, 64])})
            x, w, v = fn.params
            y = b.dot_general(b.tanh(b.dot_general(x, w, [1], [0])), v, [1], [0])
        else:
            fn, b = new_function("main", {"x": (f32, ["n", "m", 23, 16]), "w": (f32, [3, 3, 16, 70])})
            y = b.convolution(*fn.params, strides=(1, 2), padding_low=(1, 1), padding_high=(1, 1))
        b.return_([y])
        module = Module()
        module.add(fn)
        return compile_module(module, [target], verify_passes=True, tuning=tables).executable

    plain, tuned, foreign = (program(t) for t in ((), (other(target),), tuple(other(t) for t in TILES if t != target)))
    assert plain == foreign, "tables of other instruction sets are not looked at"
    assert plain != tuned
    rng = np.random.default_rng(5)
    with Executable.from_bytes(plain) as first, Executable.from_bytes(tuned) as second:
        for m in (0, 1, 2, 17, 101, 151, 307):
            if body == "product":
                arrays = [rng.standard_normal(s, np.float32) for s in ((m, 37), (37, 211), (211, 64))]
            else:
                arrays = [rng.standard_normal(s, np.float32) for s in ((1 + m % 3, m, 23, 16), (3, 3, 16, 70))]
            a, c = first.run(arrays)[0], second.run(arrays)[0]
            assert a.shape == c.shape and a.tobytes() == c.tobytes(), m
