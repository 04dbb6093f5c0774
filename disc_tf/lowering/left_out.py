"""Op types that stay in TensorFlow on purpose, and why: the report and docs/ops.md give these sentences.

Names may be patterns (`*`). No name or pattern covers an op that has a rule (tested).
"""

from __future__ import annotations

import fnmatch
import functools

_TEXT = "strings have no place in compiled code; parsing and formatting are the host's work"
_IO = "reads or writes files, devices or other machines"
_STATE = "changes state that outlives the step; TensorFlow keeps it and orders the changes"
_COMPLEX = "complex numbers are not compiled: the IR has no complex element type"
_DECOMPOSITION = "an iterative decomposition, for which TensorFlow's library is the better place; results are unique only up to signs"

#: reason -> names and patterns
LEFT_OUT: dict[str, tuple[str, ...]] = {
    _TEXT: (
        "AsString", "StringFormat", "StringJoin", "StringLength", "StringLower", "StringNGrams", "StringSplit*", "StringStrip",
        "StringToHashBucket*", "StringToNumber", "StringUpper", "Substr", "Regex*", "StaticRegex*", "ReduceJoin", "UnsortedSegmentJoin",
        "Unicode*", "EncodeBase64", "DecodeBase64", "Parse*", "Decode*", "EncodeProto", "Fingerprint",
        "SparseCross*", "RaggedCross", "GenerateVocabRemapping", "SerializeTensor", "SerializeSparse", "SerializeManySparse",
        "DeserializeSparse", "DeserializeManySparse", "Print", "PrintV2",
    ),
    _IO: (
        "Encode*", "ReadFile", "WriteFile", "MatchingFiles", "Save*", "Restore*", "ShardedFile*", "MergeV2Checkpoints", "*Summary*",
        "*Reader*", "_Send", "_Recv", "_HostSend", "_HostRecv", "Send*", "Recv*", "Collective*", "Nccl*", "Infeed*", "Outfeed*", "*TPU*",
        "XlaSparse*", "CrossReplicaSum", "AllToAll", "Debug*", "Copy", "CopyHost", "ImmutableConst",
        "LoadAndRemapMatrix", "Timestamp", "ExtractJpegShape",
    ),
    "makes or consumes a data set, a queue or a table": (
        "*Dataset*", "*Iterator*", "*Queue*", "*HashTable*", "LookupTable*", "InitializeTable*", "Barrier*", "*Map*Stage*", "Stage*",
        "Unstage", "Stack*", "*Accumulator*", "Optional*", "TensorMap*", "EmptyTensorMap", "OrderedMap*", "Map[CIPSU]*", "*SessionHandle*",
        "*SessionTensor*", "BoostedTrees*", "Mutex*", "ConsumeMutexLock", "Batch", "BatchFunction", "Unbatch*",
    ),
    _STATE: (
        "Assign*", "VarHandleOp", "Variable", "VariableV2", "VariableShape", "VarIsInitializedOp", "IsVariableInitialized",
        "ReadVariableOp", "TemporaryVariable", "DestroyTemporaryVariable", "DestroyResourceOp", "Apply*", "SparseApply*",
        "ResourceApply*", "ResourceSparseApply*", "ResourceScatter*", "ResourceStridedSliceAssign", "ResourceCountUpTo", "CountUpTo",
        "Scatter[ADMSU]*", "ScatterNd[AMSU]*", "StridedSliceAssign", "Inplace*", "Sdca*", "Ref*", "Empty", "ParallelConcat",
        "AccumulateNV2",
        "*SeedGenerator*", "Rng*", "DisableCopyOnRead", "ResourceGatherNd",
    ),
    "random numbers of a generator with state: each run must give others, and which ones depends on TensorFlow's generator": (
        "RandomUniform", "RandomUniformInt", "RandomStandardNormal", "TruncatedNormal", "ParameterizedTruncatedNormal", "RandomShuffle",
        "RandomGamma", "RandomPoisson*", "RandomCrop", "Multinomial", "Stateful[RSTU]*", "NonDeterministicInts", "*CandidateSampler",
        "SampleDistortedBoundingBox*", "FractionalMaxPool", "FractionalAvgPool",
    ),
    "draws a varying amount of numbers for each result by rejection, with bits that depend on how TensorFlow's kernel splits the work": (
        "StatelessRandomBinomial", "StatelessRandomPoisson", "StatelessRandomGammaV2", "StatelessRandomGammaV3", "StatelessMultinomial",
        "StatelessParameterizedTruncatedNormal", "StatelessShuffle", "StatelessSampleDistortedBoundingBox", "RandomIndexShuffle",
    ),
    _COMPLEX: (
        "Complex", "ComplexAbs", "Real", "Imag", "Angle", "Conj", "FFT", "FFT2D", "FFT3D", "FFTND", "IFFT", "IFFT2D", "IFFT3D", "IFFTND",
        "RFFT", "RFFT2D", "RFFT3D", "RFFTND", "IRFFT", "IRFFT2D", "IRFFT3D", "IRFFTND", "BatchFFT*", "BatchIFFT*",
        "Eig", "MatrixLogarithm",
    ),
    _DECOMPOSITION: ("Qr", "Svd", "SelfAdjointEig", "SelfAdjointEigV2"),
    "linear algebra that served models hardly hold; TensorFlow's library does it as well": (
        "MatrixExponential", "MatrixSolveLs", "MatrixSquareRoot", "CholeskyGrad", "BandedTriangularSolve", "TridiagonalSolve",
    ),
    "a sparse matrix or tensor whose number of elements is found while it is made": (
        "CSRSparse*", "SparseMatrix*", "DenseToCSRSparseMatrix", "SparseTensorToCSRSparseMatrix",
        "SparseSparse*", "SparseAdd", "SparseAddGrad", "SparseReduce*Sparse", "SparseSliceGrad",
        "*ToSparseSetOperation", "DenseToDenseSetOperation", "SparseCountSparseOutput", "DenseCountSparseOutput",
        "RaggedCountSparseOutput", "AddSparseToTensorsMap", "AddManySparseToTensorsMap", "TakeManySparseFromTensorsMap",
    ),
    "a ragged tensor inside a variant: its parts are only known at run time": (
        "RaggedTensorToVariant*", "RaggedTensorFromVariant", "CompositeTensorVariant*",
    ),
    "TensorFlow's legacy control flow; it is compiled where it can be turned into While and If": (
        "Enter", "Exit", "Merge", "Switch", "NextIteration", "LoopCond", "ControlTrigger", "Abort",
    ),
    "integer kernels of TensorFlow 1's quantized graphs, which no exporter writes any more; QuantizeV2 and Dequantize are compiled": (
        "Quantized*", "Requantize*", "RequantizationRange*", "QuantizeDownAndShrinkRange", "UniformQuantize*", "UniformDequantize",
        "UniformRequantize",
    ),
    "calls Python": ("PyFunc*", "EagerPyFunc"),
    "not compiled yet; TensorFlow's kernel serves it well": (
        "ScaleAndTranslate*", "TopK", "UnravelIndex", "DataFormatVecPermute", "DataFormatDimMap", "DrawBoundingBoxes*",
        "AudioSpectrogram", "Mfcc", "EditDistance", "SetSize", "NearestNeighbors",
    ),
    "TensorFlow's CPU has no kernel for it": ("MaxPoolGradGradWithArgmax",),
    "a search over sequences, for which TensorFlow's kernel is the better place": (
        "CTCBeamSearchDecoder", "CTCGreedyDecoder", "CTCLoss", "CTCLossV2", "GenerateBoundingBoxProposals",
        "KMC2ChainInitialization", "KmeansPlusPlusInitialization", "IsotonicRegression",
    ),
    "is compiled already: optimise the original, which `disc-tf restore` gives back": ("DiscLaunch", "DiscWeight"),
    "made by other compilers or runs on other devices": ("Xla*", "Cudnn*", "_TRT*", "TRTEngineOp", "ShutdownDistributedTPU"),
    "not available in any graph that TensorFlow 2 loads (removed long ago)": (
        "BatchCholesky*", "BatchMatrixBandPart", "BatchMatrixDeterminant", "BatchMatrixInverse", "BatchMatrixSolve", "BatchMatrixSolveLs",
        "BatchMatrixTriangularSolve", "BatchSelfAdjointEig*", "BatchSvd",
    ),
}  # fmt: skip


@functools.cache
def left_out_reason(op: str) -> str | None:
    """Why an op type without a rule stays in TensorFlow; None if nobody has thought about it."""
    for reason, names in LEFT_OUT.items():
        if any(fnmatch.fnmatchcase(op, name) for name in names):
            return reason
    return None


def left_out_table() -> str:
    """Markdown table of the entries."""
    rows = ["| TF ops | why |", "| --- | --- |"]
    for reason, names in LEFT_OUT.items():
        rows.append(f"| {' '.join(f'`{name}`' for name in names)} | {reason} |")
    return "\n".join(rows) + "\n"
