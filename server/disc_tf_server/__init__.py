"""disc_tf_server: the gRPC service."""
