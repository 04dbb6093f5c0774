"""disc_tf: a dynamic-shape compiler for TensorFlow graphs."""
