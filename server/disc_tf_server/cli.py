"""The command disc-tf-server."""

from __future__ import annotations

import sys


def main() -> int:
    """Says that this version has no server; exit code 6, as `disc-tf` for what is not built."""
    print("disc-tf-server: the service is not built yet; use `disc-tf optimize`", file=sys.stderr)
    return 6
