"""The model table: published architectures with random weights, at dynamic shapes, through the compiler (docs/models.md)."""
