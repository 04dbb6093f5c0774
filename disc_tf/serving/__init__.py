"""TensorFlow Serving: a model server that speaks its protocols (`disc-tf serve`), and the optimiser in front of it (`disc-tf serving
prepare`).

Nothing here is imported by the compiler or by `disc_tf.ops`, only `protos` by `disc_tf.testing`. Packages beside numpy and protobuf
(grpcio, aiohttp, prometheus_client, fsspec) come with the extra `serve`; TensorFlow is imported where a model is loaded.
"""
