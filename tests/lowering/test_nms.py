"""The NonMaxSuppression family: TF against the rules on the interpreter."""

import numpy as np
import pytest

from disc_tf.ir.types import DType
from disc_tf.testing.tf_case import Tolerance, check_op

FEW = np.array([[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, -0.1, 1, 0.9], [0, 10, 1, 11], [0, 10.1, 1, 11.1], [0, 100, 1, 101]])
SCORES = np.array([0.9, 0.75, 0.6, 0.95, 0.5, 0.3])
FLOATS = [np.float32, np.float16]


def boxes(n, dtype=np.float32, seed=0):
    """Boxes in any orientation, some without area, with scores that have ties."""
    rng = np.random.default_rng(seed)
    low = rng.integers(0, 24, (n, 2)) / 4
    out = np.concatenate([low, low + rng.integers(-12, 13, (n, 2)) / 4], 1)
    return out.astype(dtype), (rng.integers(0, 12, n) / 8 - 0.25).astype(dtype)


def operands(data, scores, limit, dtype, **more):
    given = {"scores": np.asarray(scores, dtype), "max_output_size": np.int32(limit).reshape(())}
    given |= {name: np.asarray(v, dtype) for name, v in more.items()}
    return {"overlaps" if "overlap_threshold" in more else "boxes": np.asarray(data, dtype), **given}


@pytest.mark.parametrize("dtype", FLOATS)
def test_versions(dtype):
    for n, limit, thresholds in [(0, 5, [0.5]), (1, 1, [0.5]), (6, 100, [0.5]), (61, 0, [0.5]), (61, 5, [0.0, 1.0]), (61, 100, [0.25])]:
        b, s = (FEW, SCORES) if n == 6 else boxes(n, dtype)
        for at in thresholds:
            if dtype is np.float32 and at:
                check_op("NonMaxSuppression", **operands(b, s, limit, dtype), iou_threshold=at, const=[])
            check_op("NonMaxSuppressionV2", **operands(b, s, limit, dtype, iou_threshold=at))
            both = operands(b, s, limit, dtype, iou_threshold=at, score_threshold=0.25)
            check_op("NonMaxSuppressionV3", **both)
            for pad in (False, True):
                check_op("NonMaxSuppressionV4", **both, pad_to_max_output_size=pad)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("pad", [False, True])
def test_soft(pad, dtype):
    for n in (0, 6, 31):
        b, s = (FEW, SCORES) if n == 6 else boxes(n, dtype, 1)
        for sigma in (0.0, 0.5, 3.0):
            for least in (0.0, 0.3):
                both = operands(b, s, 9, dtype, iou_threshold=0.4, score_threshold=least, soft_nms_sigma=sigma)
                check_op("NonMaxSuppressionV5", **both, pad_to_max_output_size=pad, tol=Tolerance(ulps=8))


def test_special_scores_and_thresholds():
    inf, nan = np.inf, np.nan
    for s in ([nan, 0.75, 0.6, nan, 0.5, 0.3], [-inf, 0.75, 0.6, inf, 0.5, -3e38], [1] * 6, [0.0, -0.0, 0.0, -0.0, 0.0, 0.0]):
        check_op("NonMaxSuppressionV2", **operands(FEW, s, 30, np.float32, iou_threshold=0.5))
        for least in (-inf, -1.0, 0.55, inf, nan):
            both = operands(FEW, s, 30, np.float32, iou_threshold=0.5, score_threshold=least)
            check_op("NonMaxSuppressionV3", **both)
    odd = FEW.copy()
    odd[1, 2], odd[2, 0], odd[3, 3] = nan, -inf, inf
    for sigma in (0.0, 0.5):
        both = operands(odd, SCORES, 30, np.float32, iou_threshold=0.5, score_threshold=0.1, soft_nms_sigma=sigma)
        check_op("NonMaxSuppressionV5", **both, pad_to_max_output_size=False)


def test_overlaps():
    for n in (0, 1, 23):
        _overlaps(n)


def _overlaps(n):
    rng = np.random.default_rng(2)
    matrix = rng.uniform(-0.5, 1.5, (n, n)).round(2)
    special = matrix.copy()
    special[n // 2 :, ::3] = np.inf
    special[:, 1::5] = np.nan
    for at in (-1.0, 0.5, 7.0):
        for limit in (0, 4, 50):
            for m in (matrix, special):
                both = operands(m, boxes(n)[1], limit, np.float32, overlap_threshold=at, score_threshold=-0.5)
                check_op("NonMaxSuppressionWithOverlaps", **both)


def test_mixed_types():
    given = operands(FEW, SCORES, 4, np.float16, iou_threshold=0.5, score_threshold=0.4)
    given["iou_threshold"], given["score_threshold"] = np.asarray(0.5, np.float32), np.asarray(0.4, np.float32)
    check_op("NonMaxSuppressionV3", **given)
    check_op("NonMaxSuppressionV4", **given)


BAD = [
    {"iou_threshold": -0.1}, {"iou_threshold": 1.1}, {"iou_threshold": np.nan}, {"limit": -3}, {"boxes": FEW[:, :3]}, {"boxes": FEW[0]},
    {"scores": SCORES[:4]}, {"scores": SCORES[None]}, {"iou_threshold": [0.5]}, {"score_threshold": [0.5]}, {"soft_nms_sigma": -1.0},
    {"soft_nms_sigma": np.nan},
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD, ids=str)
def test_errors(bad):
    given = {"boxes": FEW, "scores": SCORES, "limit": 3, "iou_threshold": 0.5, "score_threshold": 0.1, "soft_nms_sigma": 0.0} | bad
    rest = {k: v for k, v in given.items() if k.endswith(("threshold", "sigma"))}
    every = operands(given["boxes"], given["scores"], given["limit"], np.float32, **rest)
    check_op("NonMaxSuppressionV5", **every, pad_to_max_output_size=True)
    sigma = every.pop("soft_nms_sigma")
    if sigma == 0:
        check_op("NonMaxSuppressionV4", **every, pad_to_max_output_size=False)
        check_op("NonMaxSuppressionV3", **every)
        every.pop("score_threshold")
        if np.ndim(given["score_threshold"]) == 0:
            check_op("NonMaxSuppressionV2", **every)


def test_many_boxes():
    for dtype in (DType.F32, DType.F16):
        b, s = boxes(3001, dtype.np, 7)
        s = (s + np.random.default_rng(3).uniform(0, 1, s.shape)).astype(dtype.np)
        given = operands(b, s, 200, dtype.np, iou_threshold=0.5, score_threshold=0.2)
        check_op("NonMaxSuppressionV3", **given, modes=["dynamic"])


def combined(b, s, per_class, total, at=0.5, least=0.1, **more):
    check_op(
        "CombinedNonMaxSuppression", boxes=np.asarray(b, np.float32), scores=np.asarray(s, np.float32),
        max_output_size_per_class=np.array(per_class, np.int32), max_total_size=np.array(total, np.int32),
        iou_threshold=np.array(at, np.float32), score_threshold=np.array(least, np.float32), **more,
    )  # fmt: skip


def several(batch, n, shared, classes, seed=0):
    """Boxes of images with shared or own boxes of each class; no score occurs twice."""
    images = [boxes(n * shared, seed=seed + k)[0] for k in range(batch)]
    b = np.array(images).reshape(batch, n, shared, 4)
    s = np.random.default_rng(seed).permutation(batch * n * classes) / max(batch * n * classes, 1)
    return b / 6, s.reshape(batch, n, classes) - 0.2


@pytest.mark.parametrize(("pad", "clip"), [(False, True), (True, False)])
def test_combined(pad, clip):
    for batch, n, shared, classes in ((2, 23, 1, 3), (1, 7, 3, 3), (2, 1, 1, 1), (0, 3, 1, 2), (2, 0, 1, 2), (3, 5, 2, 2)):
        for per_class, total, least in ((3, 5, 0.1), (30, 40, -1.0), (1, 100, -1.0)):
            b, s = several(batch, n, shared, classes)
            combined(b, s, per_class, total, least=least, pad_per_class=pad, clip_boxes=clip)


def test_combined_errors():
    b, s = several(2, 5, 1, 3)
    wrong = {"pad_per_class": False, "clip_boxes": True}
    for per_class, total in ((0, 5), (-1, 5), (3, 0), (3, -1), ([3], 5), (3, [5])):
        combined(b, s, per_class, total, **wrong)
    for at in (1.5, np.nan, [0.5]):
        combined(b, s, 3, 5, at, **wrong)
    for boxes_, scores in ((b[:, :, 0], s), (np.tile(b, (1, 1, 2, 1)), s), (b, s[:, :3]), (b[:1], s), (b[..., :3], s)):
        combined(boxes_, scores, 3, 5, **wrong)
    special = np.array([np.nan, 0.7, np.inf, -np.inf, 0.2])[None, :, None]
    combined(b[:1], special, 3, 5, least=-np.inf, **wrong)
