"""A health check from the command line, for containers whose image has nothing else that speaks gRPC.

    python -m disc_tf_server.probe [HOST:PORT | unix:PATH] [SERVICE]

The address is one without TLS: that of ``--health-address``. Exit codes: 0 serving, 1 not serving, 2 nobody answers.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

SERVING, NOT_SERVING, NO_ANSWER = 0, 1, 2
DEFAULT = "127.0.0.1:8472"


def probe(address: str, service: str = "", seconds: float = 3.0) -> tuple[int, str]:
    """(exit code, what to print)."""
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    with grpc.insecure_channel(address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        try:
            status = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=seconds).status
        except grpc.RpcError as e:
            code = getattr(e, "code", lambda: None)()
            return NO_ANSWER, f"{address}: {code.name if code else e}"
    name = health_pb2.HealthCheckResponse.ServingStatus.Name(status)
    return SERVING if status == health_pb2.HealthCheckResponse.SERVING else NOT_SERVING, name


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the state and returns the exit code."""
    given = list(sys.argv[1:] if argv is None else argv)
    if len(given) > 2 or any(a.startswith("-") for a in given):
        print(__doc__, file=sys.stderr)
        return NO_ANSWER
    code, text = probe(given[0] if given else DEFAULT, given[1] if given[1:] else "")
    print(text)
    return code


if __name__ == "__main__":
    sys.exit(main())
