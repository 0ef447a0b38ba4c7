"""One blocking exchange with requests. Connecting is retried; a request that may have arrived is never sent again."""

from __future__ import annotations

import io
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from http.client import HTTPResponse
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import ConnectTimeoutError, ProxyError
from urllib3.fields import RequestField

from airflow_crew_provider.api import endpoints
from airflow_crew_provider.api.endpoints import Call, Upload
from airflow_crew_provider.api.responses import BodyTooLarge, HttpResponse, collect
from airflow_crew_provider.client.deployment import LARGEST_BODY, MOST_REDIRECTS, Deployment, too_large
from airflow_crew_provider.client.proxies import proxy_of

# Seconds before the second and third attempts to connect. Retries are not left to urllib3, which would log each one.
CONNECT_PAUSES = (0.0, 0.6)
LARGEST_PIECE = 64 * 1024  # bytes of a file in memory


class _Body(io.BytesIO):
    """A request body that records whether it was read; until then, nothing that matters has been sent."""

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self.touched = self._withdrawn = False
        self._lock = threading.Lock()

    def read(self, size: int | None = -1) -> bytes:
        with self._lock:
            if self._withdrawn:
                raise TimeoutError("it timed out before it was sent")
            self.touched = True
        return super().read(size)

    def withdraw(self) -> None:
        """Prevent the body from being sent, unless sending has begun."""
        with self._lock:
            self._withdrawn = not self.touched


class _Form:
    """A file as a form, read in pieces while it is sent (observed dialect, Files in)."""

    def __init__(self, upload: Upload) -> None:
        boundary = uuid.uuid4().hex
        name, file = RequestField("field_name", upload.name), RequestField("file", b"", upload.filename)
        name.make_multipart()
        file.make_multipart(content_type="application/octet-stream")
        head = f"--{boundary}\r\n{name.render_headers()}{upload.name}\r\n--{boundary}\r\n{file.render_headers()}"
        self.content_type = f"multipart/form-data; boundary={boundary}"
        self._head, self._content = io.BytesIO(head.encode()), upload.content
        self._left, self._tail = upload.size, io.BytesIO(f"\r\n--{boundary}--\r\n".encode())
        self._length = len(self._head.getbuffer()) + upload.size + len(self._tail.getbuffer())
        self._withdrawn = False

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[bytes]:
        """Yield the pieces; requests takes only a body with this method as a stream."""
        while piece := self.read(LARGEST_PIECE):
            yield piece

    def read(self, size: int) -> bytes:
        if self._withdrawn:
            raise TimeoutError("it timed out before the whole file was sent")
        if piece := self._head.read(size):
            return piece
        if self._left and (piece := self._content.read(min(size, self._left, LARGEST_PIECE))):
            self._left -= len(piece)
            return piece
        return self._tail.read(size)

    def withdraw(self) -> None:
        """Send nothing more."""
        self._withdrawn = True


class _Sockets:
    """The sockets that an exchange has opened. Shutting one down interrupts the read or write its thread is blocked in.

    They are duplicates: TLS takes over the original, and closing the original would not wake the blocked thread.
    """

    def __init__(self) -> None:
        self._lock, self._duplicates = threading.Lock(), list[socket.socket]()
        self.are_shut_down = False

    def add(self, opened: socket.socket) -> None:
        with self._lock:
            self._duplicates.append(opened.dup())
        if self.are_shut_down:
            self.shut_down()

    def shut_down(self) -> None:
        self.are_shut_down = True
        with self._lock:
            for each in self._duplicates:
                with suppress(OSError):  # the peer or `close` got there first
                    each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with self._lock:
            for each in self._duplicates:
                each.close()


_here = threading.local()  # `sockets`: those of the exchange that this thread is performing


class _FinalResponse(HTTPResponse):
    """A response that reads past interim ones, of which `http.client` knows only "100 Continue"."""

    def begin(self) -> None:
        super().begin()
        while 100 <= self.status < 200 and self.status != 101:
            self.headers = self.msg = None  # type: ignore[assignment]  # or `begin` would do nothing
            super().begin()


class _Opening:
    response_class: type[HTTPResponse] = _FinalResponse

    def _new_conn(self) -> socket.socket:
        opened: socket.socket = super()._new_conn()  # type: ignore[misc]
        _here.sockets.add(opened)
        return opened


class _Connection(_Opening, HTTPConnection):
    pass


class _TlsConnection(_Opening, HTTPSConnection):
    pass


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _TlsPool(HTTPSConnectionPool):
    ConnectionCls = _TlsConnection


class _Adapter(HTTPAdapter):
    """Adds each socket that it opens to those of the exchange."""

    def init_poolmanager(self, *args: Any, **more: Any) -> None:
        super().init_poolmanager(*args, **more)
        self.poolmanager.pool_classes_by_scheme = {"http": _Pool, "https": _TlsPool}

    def proxy_manager_for(self, *args: Any, **more: Any) -> Any:
        manager = super().proxy_manager_for(*args, **more)
        manager.pool_classes_by_scheme = self.poolmanager.pool_classes_by_scheme
        return manager


class _Session(requests.Session):
    """A session that leaves redirects to the exchange: requests would read the body of each, whatever its size."""

    def __init__(self) -> None:
        super().__init__()
        self.adapters["http://"] = self.adapters["https://"] = _Adapter()

    def get_redirect_target(self, resp: requests.Response) -> None:
        return None


class Exchange:
    """One blocking exchange in its own session: a POST must not use a stale connection."""

    def __init__(
        self,
        deployment: Deployment,
        call: Call[Any],
        total: float,
        added: Mapping[str, str],
        sink: Callable[[bytes], object] | None = None,
    ) -> None:
        self._deployment, self._call, self._total, self._added, self._sink = deployment, call, total, added, sink
        self._body = _Body(call.content or b"") if call.starts_something else None
        self._form = _Form(call.upload) if call.upload else None
        self._until = time.monotonic() + total
        self._sockets = _Sockets()

    @property
    def sent(self) -> bool:
        return self._body is not None and self._body.touched

    def abandon(self) -> None:
        """Send nothing more and stop reading; this has no effect on a finished exchange."""
        if self._body is not None:
            self._body.withdraw()
        if self._form is not None:
            self._form.withdraw()
        self._sockets.shut_down()

    def perform(self) -> HttpResponse:
        url = self._deployment.base_url + (self._call.target or self._call.path)
        _here.sockets = self._sockets
        with closing(self._sockets), _Session() as session:
            for _ in range(MOST_REDIRECTS):
                answer = self._connect_and_ask(session, url)
                following = endpoints.redirect(self._call, url, answer)
                if following is None:
                    break
                url = following
        return answer

    def _connect_and_ask(self, session: requests.Session, url: str) -> HttpResponse:
        for pause in CONNECT_PAUSES:
            try:
                return self._ask(session, url)
            except requests.ConnectionError as error:
                if not never_connected(error) or self._sockets.are_shut_down:
                    raise
            time.sleep(pause)
        return self._ask(session, url)

    def _ask(self, session: requests.Session, url: str) -> HttpResponse:
        left = max(0.001, self._until - time.monotonic())
        limit = min(left, self._deployment.timeout)
        proxy = proxy_of(self._deployment)
        content_type = self._form.content_type if self._form else "application/json" if self._body else None
        headers = {**self._call.headers, **self._added, **({"Content-Type": content_type} if content_type else {})}
        response = session.request(
            self._call.method,
            url,
            data=self._form or self._body,
            headers=headers,
            auth=_Headers(self._deployment),
            proxies={"http": proxy, "https": proxy} if proxy else None,
            verify=self._deployment.verify,
            timeout=(limit, left),
            allow_redirects=False,
            stream=True,
        )
        pieces = response.iter_content(LARGEST_PIECE)
        try:
            if self._sink is not None and response.status_code == 200:
                for piece in pieces:
                    self._sink(piece)
                pieces = iter(())
            body = collect(pieces, LARGEST_BODY)
        except BodyTooLarge:
            raise too_large(self._call) from None
        return HttpResponse(response.status_code, response.headers, body)


class _Headers(requests.auth.AuthBase):
    """Sets the connection's headers last; because it is an auth object, they override ~/.netrc."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        for name, value in self._deployment.request_headers().items():
            request.headers[name] = value
        return request


def never_connected(error: Exception) -> bool:
    """Whether an exchange failed before a connection was made, so that nothing was sent."""
    reason = getattr(error.args[0], "reason", None) if error.args else None
    if isinstance(reason, ProxyError):
        reason = reason.original_error
    return isinstance(reason, ConnectTimeoutError)


def within(seconds: float, exchange: Exchange) -> HttpResponse | Exception:
    """Perform an exchange in a thread, and abandon it when it times out.

    Socket timeouts limit each read, not the total: a peer that sends a byte a second would never time out.
    """
    done: list[HttpResponse | Exception] = []

    def run() -> None:
        try:
            done.append(exchange.perform())
        except Exception as error:
            done.append(error)

    thread = threading.Thread(target=run, daemon=True, name="crew-request")
    try:
        thread.start()
        thread.join(seconds)
        # The result is read first: abandoning the exchange makes a body without a length seem complete.
        return done[0] if done else TimeoutError(f"no complete response within {seconds:g} s")
    finally:
        exchange.abandon()
