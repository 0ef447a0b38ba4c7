"""The endpoints of the specification: paths, bodies and codes. What a request means stands in desk.py and dialects/."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

from fastapi import FastAPI, HTTPException, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from sqlalchemy import Row

from . import bodies, documentation
from .assembly import Service
from .callers import Caller
from .desk import AlreadyOver, UnknownExecution, UnknownTask
from .once import Once

LONGEST_KEY = 255


class Api:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._dialect = service.dialect
        self._desk = service.desk

    def add_to(self, app: FastAPI) -> None:
        """Status comes first, since the router tries the paths in this order and most requests are looks."""
        routes = (
            ("GET", "/status/{kickoff_id}", self.status),
            ("GET", "/inputs", self.inputs),
            ("POST", "/kickoff", self.kickoff),
            ("POST", "/resume", self.resume),
            ("POST", "/stop/{kickoff_id}", self.stop),
            ("GET", "/healthz", self.healthz),
            ("GET", "/metrics", self.metrics),
        )
        told = documentation.routes(self._dialect)
        for method, path, endpoint in routes:
            app.add_api_route(path, endpoint, methods=[method], **told[endpoint.__name__])

    async def status(self, request: Request) -> JSONResponse:
        kickoff_id = request.path_params["kickoff_id"]
        row = await self._look(_caller(request), kickoff_id) if _is_uuid(kickoff_id) else None
        if row is None:
            code, answer = self._dialect.unknown()
            return JSONResponse(answer, code)
        return JSONResponse(self._dialect.status(row, self._service.crew))

    async def inputs(self) -> JSONResponse:
        return JSONResponse({"inputs": self._service.crew.inputs})

    async def kickoff(self, request: Request) -> JSONResponse:
        body = await self._body(request)
        start = self._dialect.start(body, self._service.crew)
        once = _once(request, "kickoff", body)
        return JSONResponse(await run_in_threadpool(self._desk.kickoff, _caller(request), start, once))

    async def resume(self, request: Request) -> JSONResponse:
        body = await self._body(request)
        decision = self._dialect.decision(body)
        once = _once(request, "resume", body)

        def answer(kickoff_id: str) -> dict[str, Any]:
            return self._dialect.resumed(decision, kickoff_id)

        try:
            said = await run_in_threadpool(self._desk.resume, _caller(request), decision, once, answer)
        except (UnknownExecution, UnknownTask):
            if not self._dialect.fresh_ids:
                raise
            # live deployments give an id that never moves
            said = await run_in_threadpool(self._desk.say_once, once, answer(str(uuid4())))
        return JSONResponse(said)

    async def stop(self, request: Request) -> JSONResponse:
        kickoff_id = request.path_params["kickoff_id"]
        await run_in_threadpool(self._desk.stop, _caller(request), kickoff_id)
        return JSONResponse({"status": "stopped", "kickoffId": kickoff_id})

    async def healthz(self) -> JSONResponse:
        return JSONResponse({"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        registry = self._service.metrics.registry
        return Response(await run_in_threadpool(generate_latest, registry), media_type=CONTENT_TYPE_LATEST)

    async def refused(self, request: Request, refused: Any) -> JSONResponse:
        code, text = self._dialect.refusals[type(refused)]
        state = self._dialect.word(refused.state) if isinstance(refused, AlreadyOver) else ""
        return JSONResponse({"detail": text.format(state=state)}, code)

    async def _look(self, caller: Caller, kickoff_id: str) -> Row[Any] | None:
        """SQLite answers in microseconds, less than a thread takes to start on it; other databases may not."""
        if self._service.store.is_sqlite:
            return self._desk.look(caller, kickoff_id)
        return await run_in_threadpool(self._desk.look, caller, kickoff_id)

    async def _body(self, request: Request) -> dict[str, Any]:
        settings = self._service.settings
        raw = await bodies.read(request, limit=settings.max_body, seconds=settings.body_seconds)
        try:
            return bodies.parse(raw, request.headers.get("content-type"))
        except bodies.BadBody as error:
            raise self._dialect.malformed(str(error)) from None


async def key_reused(request: Request, error: Any) -> JSONResponse:
    return JSONResponse({"detail": "This Idempotency-Key was given before, with another body."}, 422)


def _caller(request: Request) -> Caller:
    return request.state.caller


def _once(request: Request, endpoint: str, body: dict[str, Any]) -> Once | None:
    key = request.headers.get("idempotency-key")
    if key is None:
        return None
    if not 1 <= len(key) <= LONGEST_KEY:
        raise HTTPException(400, f"The Idempotency-Key must have 1 to {LONGEST_KEY} characters.")
    return Once.of(_caller(request), endpoint, key, body)


def _is_uuid(text: str) -> bool:
    """Only such ids are given; anything else is unknown without a look."""
    try:
        return str(UUID(text)) == text
    except ValueError:
        return False
