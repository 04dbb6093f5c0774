"""The command disc-tf-server."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from disc_tf_server.app import Service
    from disc_tf_server.config import ServerConfig

#: exit codes, as those of `disc-tf`
OK, INTERNAL_ERROR, USAGE, BAD_INPUT = 0, 1, 2, 3


def main(argv: Sequence[str] | None = None, environment: Mapping[str, str] | None = None) -> int:
    """Runs the server until SIGTERM or SIGINT. Returns the exit code."""
    from disc_tf_server.config import ConfigError, load, to_toml

    try:
        config, args = load(sys.argv[1:] if argv is None else argv, os.environ if environment is None else environment)
        if args.version:
            from disc_tf.version import __version__

            print(f"disc-tf-server {__version__}")
            return OK
        if args.print_config:
            print(to_toml(config), end="")
            return OK
        return _serve(config)
    except ConfigError as e:
        return _failed(str(e), USAGE)


def _failed(message: str, code: int) -> int:
    print(f"disc-tf-server: {message}", file=sys.stderr)
    return code


def _serve(config: ServerConfig) -> int:
    from disc_tf.extras import MissingPackages, needing
    from disc_tf_server import logs
    from disc_tf_server.interfaces import ChildFailed, ServiceError

    logs.configure(config.log_format, config.log_level)
    try:
        with needing("the server", "server"):
            asyncio.run(_run(config))
    except OSError as e:
        return _failed(f"cannot start: {e}", BAD_INPUT)
    except (ServiceError, ChildFailed) as e:
        return _failed(f"cannot start: {e.message}", BAD_INPUT)
    except MissingPackages as e:
        return _failed(str(e), INTERNAL_ERROR)
    return OK


async def _run(config: ServerConfig) -> None:
    from disc_tf_server.app import Service
    from disc_tf_server.backends import open_backends

    backends = await open_backends(config)
    service = Service(config, backends)
    stopped = asyncio.Event()
    _on_signals(service, stopped)
    try:
        await service.start()
    except BaseException:
        await service.end(0.0)
        raise
    print(f"disc-tf-server: serving on {', '.join(service.addresses)}", flush=True)
    await stopped.wait()
    ending = asyncio.ensure_future(service.end(config.drain))
    stopped.clear()
    again = asyncio.ensure_future(stopped.wait())
    await asyncio.wait({ending, again}, return_when=asyncio.FIRST_COMPLETED)
    if not ending.done():  # asked for a second time: nothing is waited for, what runs is handed back
        service.worker.hurry()
    again.cancel()
    await ending


def _on_signals(service: Service, stopped: asyncio.Event) -> None:
    """SIGTERM and SIGINT end the server; SIGHUP reads tokens and signing keys again."""
    import logging

    log = logging.getLogger("disc_tf_server")

    def reload() -> None:
        for what, files in (("tokens", service.authenticator.tokens), ("signing keys", service.signer)):
            try:
                if files is not None:
                    files.reload()
                    log.info("the %s were read again", what)
            except ValueError as e:
                log.error("the old %s stay in force: %s", what, e)

    handlers: dict[signal.Signals, Callable[[], None]] = {signal.SIGTERM: stopped.set, signal.SIGINT: stopped.set, signal.SIGHUP: reload}
    loop = asyncio.get_running_loop()
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
