"""Reports for the tests of pages."""

from __future__ import annotations

from disc_tf.report import (
    Box,
    ClusterProfile,
    ClusterReport,
    Drawing,
    KernelReport,
    KernelTime,
    LeftOut,
    MemoryReport,
    Report,
    ShapeResult,
)
from disc_tf.saved_model_report import FunctionReport, SavedModelReport

#: names that a graph may have and that a page must show as they are
HOSTILE = [
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(1)>",
    '"onmouseover="alert(1)" x="',
    "'><b>bold</b>",
    "a&amp;b",
    "<!--",
    "]]>",
    "</style><style>body{display:none}</style>",
    "\u202ereversed",
    "tab\tand\x00nul\x1b[31m",
    "javascript:alert(1)",
    "#box-0",
    "x" * 400,
]


def report_of(names: list[str]) -> Report:
    """A report in which every text that comes from a graph is one of ``names``."""
    first = names[0]
    kernel = KernelReport(names[1 % len(names)], "loop", names, "2*a0d0", ["4*a0d0"], [["k"]])
    cluster = ClusterReport(
        first, 3, kernels=[kernel], arena="4*a0d0", symbols={"a0d0": f"axis 0 of {first}"}, artifact_bytes=10_000,
        memory=MemoryReport(["loop_add", names[2 % len(names)], "x"], [("4*a0d0", 0, 1, 0), ("8*a0d0", 1, 2, 1)], ["4*a0d0", "8*a0d0"]),
        node_names=names,
    )  # fmt: skip
    failed = ClusterReport(names[3 % len(names)], 1, "failed", names[4 % len(names)])
    times = [KernelTime(kernel.symbol, "loop", names, 2, 12.5, 1e6, 1e5, 0.4, "memory"), KernelTime("disc.sort", "library", [], 1, 3.0)]
    return Report(
        "1.0", ["x86-64-v3"], [f"{n}:0" for n in names], True, 30, 2, 20, 10, 0.5,
        clusters=[cluster, failed],
        left_out=[LeftOut(n, n, "UNSUPPORTED_OP", m) for n in names for m in names[:3]],
        warnings=names,
        times_ms={"read": 1.0},
        options={"deny": names},
        verification=[
            ShapeResult({first: [1, 0]}, True, "", {"y": 1e-6}, {"y": 1e-7}, 3.0, 1.5),
            ShapeResult({first: []}, False, names[0]),
        ],
        verified=True,
        drawing=Drawing(
            [
                Box(0, "input", names[0], 0, 1, {names[1 % len(names)]: 1}, names[:1], False),
                Box(1, "cluster", first, 1, 3, {"Add": 3}, [], True),
            ],
            [[0, 1, 2]],
        ),
        profile=[ClusterProfile(first, {first: [7]}, 2, 20.0, 1.0, times, [4, 12, 8], 12)],
        machine={"isa": "x86-64-v3", "threads": 2, "gflops": 100.0, "bandwidth": [[65536, 80.0], [1 << 28, 8.0]]},
    )  # fmt: skip


def saved_model_of(names: list[str]) -> SavedModelReport:
    """Two functions with reports, one without."""
    functions = [
        FunctionReport(names[0], "compiled", names, report=report_of(names)),
        FunctionReport(names[1 % len(names)], "compiled", names[:1], names[2 % len(names)], report=report_of(names)),
        FunctionReport(names[3 % len(names)], "left", names[:1], names[2 % len(names)]),
    ]
    shapes = {names[0]: [ShapeResult({names[0]: [1]}, True, "", {"y": 0.0}, {"y": 0.0}, 3.0, 1.0)], "empty": []}
    skipped = {names[4 % len(names)]: names[0]}
    return SavedModelReport(
        "1.0", "d", ["serve"], names, functions, skipped, names, {"deny": names}, {"read": 1.0}, verification=shapes, verified=True
    )
