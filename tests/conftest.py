"""TensorFlow is imported once in a test process: with the reference settings (docs/numerics.md), whichever test comes first."""

import os

os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
