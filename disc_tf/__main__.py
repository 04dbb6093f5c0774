"""``python -m disc_tf``: the command `disc-tf`."""

from __future__ import annotations

import sys

from disc_tf.cli import main

if __name__ == "__main__":
    sys.exit(main())
