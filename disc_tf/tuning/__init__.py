"""Tables of the schedules that are about speed alone: what products and convolutions are cut into, by instruction set and shape.

One table an instruction set lies beside this file (`x86-64-v4.json` and so on) and is what everybody gets; `disc-tf tune` measures another
one for a machine, which `Options.tuning` names. docs/architecture.md, section 14, has the contract: **no table changes the order of
additions**, so results are the same bits with every one.

    table.py     what a table says; reading it, with errors that name what is wrong
"""

from disc_tf.tuning.table import ColumnRule, ConvTable, GemmTable, PartRule, Table, TableError, parse, shipped

__all__ = ["ColumnRule", "ConvTable", "GemmTable", "PartRule", "Table", "TableError", "parse", "shipped"]
