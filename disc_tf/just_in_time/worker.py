"""The compiler process: ``python -m disc_tf.just_in_time.worker PARENT``. Requests on stdin, answers on stdout, ends with its parent."""

from __future__ import annotations

import contextlib
import os
import sys

from disc_tf.just_in_time.child import read_message, write_message
from disc_tf.just_in_time.work import Request, compile_request
from disc_tf.with_parent import end_with

#: politeness: the program that it compiles for is running
NICE = 5


def main() -> int:
    end_with(int(sys.argv[1]))  # a compilation that nobody waits for must not go on
    with contextlib.suppress(OSError):
        os.nice(NICE)
    # what a library prints must not get between the answers
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    requests = sys.stdin.buffer
    while (message := read_message(requests)) is not None:
        head, graph = message
        try:
            result = compile_request(Request(graph, head["fetches"], head["options"], head["any_size"]))
        except Exception as e:
            write_message(answers, {"error": f"{type(e).__name__}: {e}"}, b"")
        else:
            write_message(answers, {"report": result.head().decode()}, result.graph)
    return 0


if __name__ == "__main__":
    sys.exit(main())
