"""The REST side (aiohttp in a thread of its own): `/v1/models/...`, health, Prometheus metrics."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hmac
import logging
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent import futures
from typing import Any

from aiohttp import web
from aiohttp.web_protocol import RequestPayloadError

from disc_tf.serving import json_codec
from disc_tf.serving.errors import HTTP_STATUS, ServingError, from_exception, invalid
from disc_tf.serving.handlers import Handlers
from disc_tf.serving.manager import label_or_version
from disc_tf.serving.metrics import CONTENT_TYPE, Metrics
from disc_tf.serving.protos import serving
from disc_tf.serving.servable import Servable
from disc_tf.serving.streaming import Cancellation

log = logging.getLogger("disc_tf.serving")

#: a streamed answer: of body, deadline and whether the client is gone
Lines = Callable[[bytes, float | None, Cancellation], Generator[str, None, None]]
_MODEL = r"/v1/models/(?P<model>[^/:]+)(?:/versions/(?P<version>[0-9]{1,19})|/labels/(?P<label>[^/:]+))?"
_CALL = re.compile(_MODEL + r":(?P<method>predict|classify|regress)", re.IGNORECASE)
_STREAM = re.compile(_MODEL + r":predict_streamed", re.IGNORECASE)
_INFO = re.compile(_MODEL + r"(?P<metadata>/metadata)?", re.IGNORECASE)
#: so many bodies of the largest size may be in memory at once
_LARGE_BODIES = 4
METRICS_PATH = "/monitoring/prometheus/metrics"
_API = {"predict": "Predict", "classify": "Classify", "regress": "Regress"}


class _WithoutRequests(logging.Filter):
    """Of what aiohttp says when it cannot read a request only the kind of error: its messages quote the request, tokens included."""

    def filter(self, record: logging.LogRecord) -> bool:
        kind = record.exc_info[0] if isinstance(record.exc_info, tuple) else None
        record.msg, record.args = f"an HTTP request could not be read ({kind.__name__ if kind else 'no reason given'})", ()
        record.exc_info = record.exc_text = None
        record.levelno, record.levelname = logging.WARNING, "WARNING"
        return True


#: aiohttp's own log; what our handlers raise is in `log`
_aiohttp_log = logging.getLogger("disc_tf.serving.http")
_aiohttp_log.addFilter(_WithoutRequests())


class RestApi:
    """ModelServer's REST API, version 1, over `Handlers`: plain functions, no network."""

    def __init__(self, handlers: Handlers) -> None:
        self._handlers = handlers

    def route(self, method: str, path: str) -> tuple[str, str, Callable[[bytes, float | None], str]]:
        """(model, name of the API, function of body and deadline that gives JSON). INVALID_ARGUMENT for a path or method that is none."""
        if not path.isascii():
            _check_unicode(path)
        if method == "POST" and (found := _CALL.fullmatch(path)):
            kind = found["method"].lower()
            call = self._predict if kind == "predict" else functools.partial(self._examples, kind)
            return found["model"], _API[kind], functools.partial(call, found)
        if method == "GET" and (found := _INFO.fullmatch(path)):
            if found["metadata"]:
                return found["model"], "GetModelMetadata", functools.partial(self._metadata, found)
            return found["model"], "GetModelStatus", functools.partial(self._status, found)
        raise invalid(f"Malformed request: {method} {path}")

    def stream(self, method: str, path: str) -> tuple[str, Lines] | None:
        """(model, function that gives lines of JSON as outputs come to exist) of a path that asks for a streamed Predict, else None."""
        found = _STREAM.fullmatch(path) if method == "POST" and path.isascii() else None
        return None if found is None else (found["model"], functools.partial(self._predict_streamed, found))

    def _predict(self, found: re.Match[str], body: bytes, deadline: float | None) -> str:
        with self._predict_request(found, body) as (servable, request, rows):
            # the version whose types the values were read with, whatever becomes the latest meanwhile
            response = self._handlers.predict_on(servable, request, deadline)
        return json_codec.predict_json(response, rows)

    def _predict_streamed(
        self, found: re.Match[str], body: bytes, deadline: float | None, cancellation: Cancellation
    ) -> Generator[str, None, None]:
        with (
            self._predict_request(found, body) as (servable, request, _),
            contextlib.closing(self._handlers.predict_streamed_on(servable, request, deadline, cancellation)) as responses,
        ):
            for response in responses:
                yield json_codec.outputs_json(response)

    @contextlib.contextmanager
    def _predict_request(self, found: re.Match[str], body: bytes) -> Iterator[tuple[Servable, Any, bool]]:
        """The version that answers, the PredictRequest, and whether it came in row format."""
        request = serving("PredictRequest")
        _fill_spec(request, found)
        document = json_codec.parse_object(body)
        name = json_codec.default_signature_name(document)
        request.model_spec.signature_name = name
        with self._handlers.manager.lease(found["model"], *label_or_version(request.model_spec)) as servable:
            signature = servable.signature(name)
            if signature is None:
                raise invalid(f'Serving signature name: "{name}" not found in signature def')
            yield servable, request, json_codec.fill_predict_request(request, document, signature)

    def _examples(self, kind: str, found: re.Match[str], body: bytes, deadline: float | None) -> str:
        request = serving("ClassificationRequest" if kind == "classify" else "RegressionRequest")
        _fill_spec(request, found)
        document = json_codec.parse_object(body)
        request.model_spec.signature_name = document.get("signature_name", "")
        json_codec.fill_examples(request, document)
        call = self._handlers.classify if kind == "classify" else self._handlers.regress
        return json_codec.results_json(call(request, deadline))

    def _metadata(self, found: re.Match[str], body: bytes, deadline: float | None) -> str:
        request = serving("GetModelMetadataRequest", metadata_field=["signature_def"])
        _fill_spec(request, found)
        return json_codec.metadata_json(self._handlers.get_model_metadata(request))

    def _status(self, found: re.Match[str], body: bytes, deadline: float | None) -> str:
        request = serving("GetModelStatusRequest")
        _fill_spec(request, found)
        return json_codec.status_json(self._handlers.get_model_status(request))


def _check_unicode(path: str) -> None:
    try:
        path.encode()
    except UnicodeEncodeError:
        raise invalid("Malformed request: the path is no UTF-8 text") from None


def _fill_spec(request: Any, found: re.Match[str]) -> None:
    request.model_spec.name = found["model"]
    if found["version"]:
        if int(found["version"]) >= 1 << 63:
            raise invalid(f"Failed to convert version: {found['version']} to numeric.")
        request.model_spec.version.value = int(found["version"])
    elif found["label"]:
        request.model_spec.version_label = found["label"]


def _same(header: str, token: bytes) -> bool:
    return hmac.compare_digest(header.encode("utf-8", "surrogateescape"), token)


class HttpServer:
    """Serves `RestApi` on ``host:port``. ``timeout``: seconds that a request may take. Raises OSError if the address cannot be bound."""

    def __init__(
        self,
        api: RestApi,
        metrics: Metrics,
        host: str,
        port: int,
        *,
        threads: int,
        max_message_bytes: int,
        timeout: float,
        ready: Callable[[], bool],
        tls: ssl.SSLContext | None = None,
        token: str | None = None,
        max_concurrent: int | None = None,
    ) -> None:
        self._api, self._metrics, self._timeout, self._ready = api, metrics, timeout, ready
        self._token = f"Bearer {token}".encode() if token else None
        self._limit = max_concurrent
        self._running = 0
        self._buffered = 0  # bytes of the bodies that are in memory
        self._budget = _LARGE_BODIES * max_message_bytes
        self._pool = futures.ThreadPoolExecutor(threads, thread_name_prefix="rest")
        self._max, self._tls = max_message_bytes, tls
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family, backlog=1024)
        self.port: int = self._socket.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="rest-loop", daemon=True)
        self._started = threading.Event()
        self._fault: Exception | None = None
        self._runner: web.AppRunner | None = None

    def start(self) -> None:
        """Returns once requests are answered. Raises what kept it from that."""
        self._thread.start()
        self._started.wait()
        if self._fault is not None:
            self._thread.join()
            raise self._fault

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._open())
        except Exception as e:
            self._fault = e
        finally:
            self._started.set()
        if self._fault is None:
            self._loop.run_forever()
        self._loop.close()

    async def _open(self) -> None:
        app = web.Application(client_max_size=self._max)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = runner = web.AppRunner(app, access_log=None, logger=_aiohttp_log)
        await runner.setup()
        await web.SockSite(runner, self._socket, ssl_context=self._tls).start()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        if path == "/healthz":
            return web.Response(text="ok\n")
        if path == "/readyz":
            return web.Response(text="ready\n") if self._ready() else web.Response(text="not ready\n", status=503)
        if self._token is not None and not _same(request.headers.get("Authorization", ""), self._token):
            return self._failure(ServingError("UNAUTHENTICATED", "a bearer token is needed: header `Authorization: Bearer TOKEN`"))
        if path == METRICS_PATH and request.method == "GET":
            return web.Response(body=self._metrics.text(), headers={"Content-Type": CONTENT_TYPE})
        start = time.monotonic()
        model, api, error = "", "", None
        body = bytearray()
        self._running += 1
        try:
            if self._limit is not None and self._running > self._limit:
                raise ServingError("RESOURCE_EXHAUSTED", f"more than {self._limit} requests run")
            streamed = self._api.stream(request.method, path)
            if streamed is not None:
                model, api = streamed[0], "PredictStreamed"
                async with asyncio.timeout(self._timeout):
                    await self._read(request, body)
                response, error = await self._stream(request, model, streamed[1], bytes(body), start)
                return response
            model, api, call = self._api.route(request.method, path)
            async with asyncio.timeout(self._timeout):
                await self._read(request, body)
            text = await self._loop.run_in_executor(self._pool, self._call, call, bytes(body), start + self._timeout)
            return web.Response(text=text, content_type="application/json")
        except TimeoutError:
            error = ServingError("DEADLINE_EXCEEDED", "the time limit passed before the whole request was there")
            return self._failure(error)
        except web.HTTPRequestEntityTooLarge:
            error = ServingError("RESOURCE_EXHAUSTED", f"the request is over the limit of {self._max} bytes")
            return web.Response(text=json_codec.error_json(error.message), status=413, content_type="application/json")
        except (RequestPayloadError, ConnectionError) as e:
            gone = isinstance(e, ConnectionError)
            error = ServingError("CANCELLED", "the client closed the connection") if gone else invalid("the request's body cannot be read")
            return self._failure(error)
        except Exception as e:
            error = from_exception(e)
            if error.code == "INTERNAL":
                log.exception("%s %s failed", request.method, path)
            return self._failure(error)
        finally:
            self._running -= 1
            self._buffered -= len(body)
            self._metrics.finish(model, api, "REST", error.code if error is not None else "OK", time.monotonic() - start)

    async def _read(self, request: web.Request, body: bytearray) -> None:
        """Append the request's body to ``body``, which counts as buffered."""
        async for chunk in request.content.iter_any():
            if len(body) + len(chunk) > self._max:
                raise web.HTTPRequestEntityTooLarge(self._max, len(body) + len(chunk))
            if self._buffered + len(chunk) > self._budget:
                raise ServingError("RESOURCE_EXHAUSTED", "too many large requests at once")
            self._buffered += len(chunk)
            body += chunk

    async def _stream(
        self, request: web.Request, model: str, lines: Lines, body: bytes, start: float
    ) -> tuple[web.StreamResponse, ServingError | None]:
        """Send lines as they come. What fails before the first one is raised; what fails later is the last line, and returned."""
        cancellation, items = Cancellation(), asyncio.Queue[str | Exception | None]()

        def work() -> None:
            def tell(item: str | Exception | None) -> None:
                self._loop.call_soon_threadsafe(items.put_nowait, item)

            try:
                deadline = start + self._timeout
                with self._answering(deadline), contextlib.closing(lines(body, deadline, cancellation)) as found:
                    for line in found:
                        tell(line)
                tell(None)
            except Exception as e:
                tell(e)

        worker = self._loop.run_in_executor(self._pool, work)
        try:
            item = await items.get()
            if isinstance(item, Exception):
                raise item
            self._metrics.first_output(model, time.monotonic() - start)
            response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
            await response.prepare(request)
            while isinstance(item, str):
                await self._send(request, response, item)
                item = await items.get()
            error = from_exception(item) if item is not None else None
            if error is not None:
                await self._send(request, response, json_codec.error_json(error.message))
            await response.write_eof()
            return response, error
        except ConnectionError as e:  # the client is gone
            raise ServingError("CANCELLED", "the client closed the connection, or does not read") from e
        finally:
            cancellation.set()
            await worker

    async def _send(self, request: web.Request, response: web.StreamResponse, line: str) -> None:
        """A line of a streamed answer. ConnectionError if the client is gone, or does not read within the time of a request."""
        try:
            async with asyncio.timeout(self._timeout):
                await response.write(line.encode() + b"\n")
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
            raise ConnectionAbortedError("the client does not read") from None

    def _call(self, call: Callable[[bytes, float | None], str], body: bytes, deadline: float) -> str:
        with self._answering(deadline):
            return call(body, deadline)

    @contextlib.contextmanager
    def _answering(self, deadline: float) -> Iterator[None]:
        """A request that has got its thread: counted as running, unless that took until its deadline."""
        if time.monotonic() >= deadline:
            raise ServingError("DEADLINE_EXCEEDED", "the time limit passed while the request waited for a thread")
        with self._metrics.running.track_inprogress():
            yield

    @staticmethod
    def _failure(error: ServingError) -> web.Response:
        return web.Response(text=json_codec.error_json(error.message), status=HTTP_STATUS[error.code], content_type="application/json")

    def stop(self, grace: float) -> None:
        """No new connections; waits up to ``grace`` seconds for requests that run."""
        if not self._thread.is_alive():
            self._socket.close()
            return

        async def close() -> None:
            assert self._runner is not None
            for site in list(self._runner.sites):
                await site.stop()
            end = self._loop.time() + grace
            while self._running and self._loop.time() < end:
                await asyncio.sleep(0.01)
            await self._runner.cleanup()

        asyncio.run_coroutine_threadsafe(close(), self._loop).result(grace + 60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._pool.shutdown(wait=False)
