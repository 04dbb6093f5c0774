"""Many clients at mixed shapes while versions change: no request fails (`bench/serving.py` measures)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench.serving import run
from disc_tf.serving.protos import serving
from disc_tf.serving.tensors import to_proto
from tests.serving.models import save_tf2


@pytest.mark.slow
@pytest.mark.parametrize("flags", [[], ["--batch-rows", "16", "--threads", "32"]], ids=["alone", "batched"])
def test_no_request_fails(flags: list[str], tmp_path: Path) -> None:
    save_tf2(tmp_path / "m" / "1")
    requests = []
    for rows in range(1, 5):
        for columns in (1, 3, 8):
            request = serving("PredictRequest")
            request.model_spec.name = "m"
            to_proto(np.ones((rows, columns), np.float32), request.inputs["x"])
            requests.append(request.SerializeToString())
    result = run("m", tmp_path / "m", "m", requests, 200, 8.0, *flags)
    assert result.failures == 0 and result.requests >= 200
    assert set(result.versions) == {1, 2}
