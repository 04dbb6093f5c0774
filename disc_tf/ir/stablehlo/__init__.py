"""StableHLO in and out, through jaxlib's MLIR: `to_stablehlo`, `from_stablehlo`. Importing this package needs jaxlib."""

from disc_tf.ir.stablehlo.export import StableHLOError, to_stablehlo
from disc_tf.ir.stablehlo.importer import from_stablehlo, inline_stablehlo

__all__ = ["StableHLOError", "from_stablehlo", "inline_stablehlo", "to_stablehlo"]
