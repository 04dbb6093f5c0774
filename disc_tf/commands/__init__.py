"""The verbs of the `disc-tf` command, one module each."""
