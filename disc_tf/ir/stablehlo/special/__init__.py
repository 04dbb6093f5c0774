"""Special functions written with JAX, for `disc_tf.ir.stablehlo.trace`. Importing this package imports JAX.

Each function takes arrays of one shape and one float dtype (f32 or f64) and gives one of the same; all are elementwise. They follow the
Cephes library in the form in which TensorFlow's CPU kernels (Eigen) have it: same intervals, same series, same special values. Loops run
until every element of the tensor has converged; an element that has is not changed any more, so that results do not depend on neighbours.
"""
