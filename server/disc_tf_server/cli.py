"""The command disc-tf-server."""

from __future__ import annotations

import sys


def main() -> int:
    """Says that this version has no server; exit code 2."""
    print("disc-tf-server: the service is not part of this version; use `disc-tf optimize`.", file=sys.stderr)
    return 2
