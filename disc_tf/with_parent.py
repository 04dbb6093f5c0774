"""Child processes that end when their parent does: ``python -m disc_tf.with_parent PARENT MODULE [ARGUMENT...]`` runs a module so."""

from __future__ import annotations

import contextlib
import os
import runpy
import signal
import sys
import threading
import time


def end_with(parent: int) -> None:
    """End this process, at once and from a thread, when ``parent`` (a process id) is not its parent any more.

    If it leads a process group, all that it started in there ends too. Looked at twice a second.
    """
    threading.Thread(target=_wait, args=(parent,), name="end-with-parent", daemon=True).start()


def _wait(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    if os.getpgrp() == os.getpid():
        with contextlib.suppress(OSError):
            os.killpg(0, signal.SIGKILL)
    os._exit(1)


def main() -> None:
    parent, module, *arguments = sys.argv[1:]
    end_with(int(parent))
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
