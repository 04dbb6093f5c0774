"""Audio to notes with the `basic-pitch` wheel's own inference code, on its own SavedModel and on the optimised one.

    python -m bench.notes OPTIMIZED [--rounds 9] [--seconds 20]

Run where `basic-pitch` is installed (TF_USE_LEGACY_KERAS=1); OPTIMIZED is what `disc-tf optimize` made of the model in the wheel. The same
file goes through `basic_pitch.inference.predict` in turn, the side that comes first changes: reading and resampling the audio and making
notes of the model's outputs are part of the time. `run_inference` alone is timed in the same rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import statistics
import tempfile
import time
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

RATE = 22050


def write_audio(path: Path, seconds: float) -> None:
    """Notes with overtones, one to three at a time, made from a fixed seed; mono, 16 bits."""
    rng = np.random.default_rng(7)
    out = np.zeros(int(seconds * RATE))
    at = 0.0
    while at < seconds - 0.5:
        length = float(rng.uniform(0.25, 0.9))
        t = np.arange(int(min(length, seconds - at) * RATE)) / RATE
        for note in rng.integers(48, 80, rng.integers(1, 4)):
            f = 440 * 2 ** ((int(note) - 69) / 12)
            tone = sum(0.5**k * np.sin(2 * np.pi * f * (k + 1) * t) for k in range(5))
            first = int(at * RATE)
            out[first : first + len(t)] += tone * np.minimum(1, t / 0.01) * np.exp(-2 * t)
        at += length
    data = (out / np.abs(out).max() * 0.8 * 32767).astype("<i2")
    with wave.open(str(path), "wb") as f:
        f.setnchannels(1)
        f.setsampwidth(2)
        f.setframerate(RATE)
        f.writeframes(data.tobytes())


def same(a: Any, b: Any) -> dict[str, Any]:
    """How far two results of `predict` are apart: the model's outputs, and the notes."""
    errors = {name: float(np.max(np.abs(np.asarray(a[0][name]) - np.asarray(b[0][name])))) for name in a[0]}
    notes = [[(round(float(n[0]), 4), round(float(n[1]), 4), int(n[2])) for n in sorted(x[2], key=lambda n: n[:3])] for x in (a, b)]
    bends = [[[int(v) for v in n[4] or []] for n in sorted(x[2], key=lambda n: n[:3])] for x in (a, b)]
    return {"notes": len(notes[0]), "same_notes": notes[0] == notes[1], "same_bends": bends[0] == bends[1], "errors": errors}


def interleaved(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Seconds of every round, the side that comes first in turn."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for i in range(rounds):
        for name in list(calls)[:: 1 if i % 2 else -1]:
            start = time.perf_counter()
            calls[name]()
            found[name].append(time.perf_counter() - start)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("optimized")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=20.0)
    args = parser.parse_args()
    import basic_pitch
    from basic_pitch.inference import Model, predict, run_inference

    import disc_tf.ops  # noqa: F401  registers the op

    with tempfile.TemporaryDirectory() as temp, contextlib.redirect_stdout(io.StringIO()):
        audio = Path(temp) / "audio.wav"
        write_audio(audio, args.seconds)
        models = {"original": Model(basic_pitch.ICASSP_2022_MODEL_PATH), "optimized": Model(args.optimized)}
        results = {name: predict(audio, m) for name, m in models.items()}  # the first run is not timed
        whole = interleaved({name: lambda m=m: predict(audio, m) for name, m in models.items()}, args.rounds)
        model = interleaved({name: lambda m=m: run_inference(audio, m) for name, m in models.items()}, args.rounds)
    said: dict[str, Any] = {"seconds": args.seconds, **same(results["original"], results["optimized"])}
    for what, times in (("predict", whole), ("run_inference", model)):
        ratios = [a / b for a, b in zip(times["original"], times["optimized"], strict=True)]
        medians = {f"{name}_ms": round(1e3 * statistics.median(t), 1) for name, t in times.items()}
        said[what] = {**medians, "times_faster": round(statistics.median(ratios), 3), "least": round(min(ratios), 3)}
    print(json.dumps(said, indent=2))


if __name__ == "__main__":
    main()
