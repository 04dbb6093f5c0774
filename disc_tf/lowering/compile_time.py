"""Which operands the rules read at compile time: shapes, axes, permutations, paddings, counts.

A request to a compiler elsewhere carries the content of these and of nothing else (`disc_tf.remote`); what a rule makes use of besides
(indices of a gather, seeds, which branch is taken) it does without where it is not known. tests/remote/test_compile.py holds that real
graphs compile as far without it.
"""

from __future__ import annotations

from disc_tf.lowering.registry import RULES


def _ops(text: str, *positions: int) -> dict[str, tuple[int, ...]]:
    return dict.fromkeys(text.split(), positions)


#: TF op type -> positions of the operands (negative ones from the end)
OPERANDS: dict[str, tuple[int, ...]] = {
    # axes
    **_ops("All Any ArgMax ArgMin EuclideanNorm Max Mean Min Prod Sum", 1),
    **_ops("Cumprod Cumsum CumulativeLogsumexp ExpandDims Reverse ReverseV2 UniqueV2 UniqueWithCountsV2", 1),
    **_ops("Concat Split", 0),
    **_ops("ConcatV2", -1),
    **_ops("GatherV2", 2),
    **_ops("SplitV", 1, 2),
    **_ops("Roll", 1, 2),
    # permutations
    **_ops("Transpose ConjugateTranspose", 1),
    # shapes and sizes
    **_ops("BroadcastTo Reshape Tile OneHot ResizeArea ResizeBicubic ResizeBilinear ResizeNearestNeighbor ResizeNearestNeighborGrad", 1),
    **_ops("AvgPoolGrad AvgPool3DGrad Conv2DBackpropInput Conv3DBackpropInputV2 DepthwiseConv2dNativeBackpropInput Fill", 0),
    **_ops("Conv2DBackpropFilter Conv3DBackpropFilterV2 DepthwiseConv2dNativeBackpropFilter Bincount DenseBincount SparseToDense", 1),
    **_ops("BroadcastArgs BroadcastGradientArgs", 0, 1),
    **_ops("ImageProjectiveTransformV2 ImageProjectiveTransformV3 ScatterNd HistogramFixedWidth LinSpace RaggedBincount", 2),
    **_ops("CropAndResize CropAndResizeGradImage", 3),
    **_ops("RaggedTensorToTensor", 0),
    **_ops("MatrixDiagV2 MatrixDiagV3", 1, 2, 3),
    **_ops("MatrixBandPart", 1, 2),
    **_ops("MatrixDiagPartV2 MatrixDiagPartV3", 1),
    **_ops("MatrixSetDiagV2 MatrixSetDiagV3", 2),
    **_ops("SparseDenseCwiseAdd SparseDenseCwiseDiv SparseDenseCwiseMul SparseFillEmptyRows SparseReorder SparseSoftmax", 2),
    **_ops("SparseTensorDenseAdd SparseTensorDenseMatMul", 2),
    **_ops("SparseReduceMax SparseReduceSum", 2, 3),
    **_ops("SparseReshape", 1, 2),
    **_ops("SparseSlice", 2, 3, 4),
    **_ops("SparseSplit", 0, 3),
    **_ops("StatelessRandomNormal StatelessRandomUniform StatelessRandomUniformFullInt StatelessRandomUniformInt", 0),
    **_ops("StatelessTruncatedNormal", 0),
    **_ops("StatelessRandomNormalV2 StatelessRandomUniformV2 StatelessRandomUniformFullIntV2 StatelessTruncatedNormalV2", 0, 3),
    **_ops("StatelessRandomUniformIntV2", 0, 3),
    # windows and paddings
    **_ops("BatchToSpace SpaceToBatch MirrorPad MirrorPadGrad Pad PadV2", 1),
    **_ops("BatchToSpaceND SpaceToBatchND MaxPoolV2", 1, 2),
    **_ops("MaxPoolGradV2 MaxPoolGradGradV2", 3, 4),
    # ranges
    **_ops("Range", 0, 1, 2),
    **_ops("Slice", 1, 2),
    **_ops("StridedSlice", 1, 2, 3),
    **_ops("StridedSliceGrad", 0, 1, 2, 3),
    # counts
    **_ops("BlockLSTM BlockLSTMV2", 0),
    **_ops("CombinedNonMaxSuppression", 2, 3),
    **_ops("NonMaxSuppression NonMaxSuppressionV2 NonMaxSuppressionV3 NonMaxSuppressionV4 NonMaxSuppressionV5", 2),
    **_ops("NonMaxSuppressionWithOverlaps InTopKV2", 2),
    **_ops("NthElement TopKV2", 1),
    **_ops("QuantizeAndDequantizeV3", 3),
    **_ops("SparseSegmentMeanWithNumSegments SparseSegmentSqrtNWithNumSegments SparseSegmentSumWithNumSegments", 3),
    **_ops("SparseSegmentMeanGrad SparseSegmentSqrtNGrad SparseSegmentSumGrad", 3),
    **_ops("UnsortedSegmentMax UnsortedSegmentMin UnsortedSegmentProd UnsortedSegmentSum", 2),
    # lists: shapes of elements, lengths
    **_ops("EmptyTensorList TensorListReserve", 0, 1),
    **_ops("TensorListConcatV2 TensorListFromTensor TensorListPopBack TensorListResize TensorListStack", 1),
    **_ops("TensorListGather TensorListGetItem", 2),
    **_ops("TensorListScatter", 2),
    **_ops("TensorListScatterV2", 2, 3),
    **_ops("TensorListSplit", 1, 2),
}

#: TF op type -> (position, values): an operand that is read only if it is one number, and one of these. Any other may be a weight.
VALUES: dict[str, tuple[int, frozenset[float]]] = {"Pow": (1, frozenset((2.0,)))}  # a square is a product

#: Arithmetic on integers that shapes are made with: content that goes in decides content that comes out.
ARITHMETIC = frozenset(
    """
    Abs Add AddN AddV2 All Any BroadcastArgs BroadcastGradientArgs BroadcastTo Cast Concat ConcatV2 Cumprod Cumsum Div DynamicStitch
    EnsureShape Equal ExpandDims Fill FloorDiv FloorMod Gather GatherNd GatherV2 Greater GreaterEqual Identity IdentityN InvertPermutation
    Less LessEqual ListDiff LogicalAnd LogicalNot LogicalOr Max Maximum Min Minimum Mod Mul Neg NotEqual OnesLike Pack Pow Prod Range
    Reshape Reverse ReverseV2 ScatterNd Select SelectV2 Sign Slice Snapshot Split SplitV Square Squeeze StopGradient StridedSlice Sub Sum
    TensorScatterUpdate Tile Transpose TruncateDiv TruncateMod Unpack Where ZerosLike
    """.split()
)


def compile_time_operands(op: str, count: int) -> tuple[int, ...]:
    """Positions of the operands of a node with ``count`` inputs whose content is read at compile time: the table's, and those that the
    rule cannot do without."""
    rule = RULES.get(op)
    positions = {*OPERANDS.get(op, ()), *(rule.constants if rule is not None else ())}
    return tuple(sorted(at for p in positions if 0 <= (at := p if p >= 0 else count + p) < count))
