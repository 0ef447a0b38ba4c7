"""The handler of each endpoint, from request to response. Paths and documentation are in endpoints.py."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

from fastapi import HTTPException, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from sqlalchemy.engine import Row

from crew_service.engine import paths, usage
from crew_service.engine.budgets import OverBudget
from crew_service.engine.container import Container, Process
from crew_service.engine.continuing import AlreadyContinued
from crew_service.engine.decisions import (
    NO_FEEDBACK,
    AlreadyAnswered,
    AlreadyOver,
    BadAnswer,
    BadResponseToken,
    Decision,
    UnknownExecution,
    UnknownTask,
)
from crew_service.engine.details import Details
from crew_service.engine.executions import Start
from crew_service.engine.files import StoredFile
from crew_service.engine.flow_answers import FlowAnswer
from crew_service.engine.idempotency import IdempotencyKey
from crew_service.engine.output_files import DIRECTIONS, OUT, ListedFile, chosen
from crew_service.engine.principals import Principal
from crew_service.engine.usage_report import BY, MOST_ROWS, BadPeriod, TooMany
from crew_service.http import bodies
from crew_service.http.auth import denial
from crew_service.http.dialects import Dialect
from crew_service.http.dialects.base import Body
from crew_service.http.dialects.kickoff_files import NOT_FETCHED, KickoffFiles, form_body, is_field
from crew_service.http.dialects.request_models import FlowAnswerBody, ResumeFeedbackBody
from crew_service.http.dialects.spec import WORDS as SPECIFIED
from crew_service.http.downloads import NotFetched
from crew_service.http.html import attachment, plain_text
from crew_service.http.large_answers import LargeAnswer
from crew_service.http.shared_reads import MOST_KEYS, SharedReads
from crew_service.http.slots import PROBES, Slots, Threads
from crew_service.http.uploads import BadForm, Form, Part, Uploads, is_form
from crew_service.storage.states import State
from crew_service.times import iso

LONGEST_KEY = 255
# Response headers that offer extensions to the specification: the path for combined polls, and fields of a resume.
OFFER, PATH = "Crew-Batch-Status", "/statuses"
EDITS_OFFER, EDITS_FIELD = "Crew-Edited-Output", "edited_output"
HASH_OFFER, HASH_FIELD = "Crew-Draft-Hash", "output_sha256"
VIEW = "Crew-View"  # the path of the execution's page, relative to the crew's base URL
USAGE, USAGE_FIELD = usage.HEADER, "usage"  # in addition to the body, which stays as specified
MOST_IDS = 200
LISTED_STATES = tuple(dict.fromkeys(SPECIFIED.values()))  # the specification's words, in both dialects
LONGEST_LIST = 100
USUAL_LIST = 20
USUAL_STEPS, MOST_STEPS = 50, 500
GIVEN_ID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
LONGEST_IN_BATCH = 32 * 1024  # characters; a longer status needs its own request
SHOWN = 80  # characters of a caller's text that a response quotes
SMALL_BODY = 16 * 1024  # bytes; parsing a smaller body takes less time than starting a thread

Asked = TypeVar("Asked")


class Repeated(Exception):
    """Raised if the request was already answered; the answer is repeated, whatever the crew requires now."""

    def __init__(self, answer: dict[str, Any]) -> None:
        super().__init__("the request was already answered")
        self.answer = answer


class HealthChecks:
    """The endpoints that need neither a crew nor a token."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._probes = Threads(PROBES)

    async def healthz(self, request: Request) -> JSONResponse:
        return _health(await self._probes.run(self._process.health.problem))

    async def livez(self, request: Request) -> JSONResponse:
        return _health(self._process.health.dead())

    async def readyz(self, request: Request) -> JSONResponse:
        return _health(await self._probes.run(self._process.unready), self._process.off)


class Api(HealthChecks):
    def __init__(self, service: Container, dialect: Dialect, slots: Slots, details: Details, uploads: Uploads) -> None:
        super().__init__(service.process)
        self._service = service
        self._slots = slots
        self._dialect = dialect
        self._executions = service.executions
        self._small_statuses = SharedReads(self._executions.small_status_rows)
        self._prices = service.settings.prices
        self._details = details
        self._uploads = uploads
        takes_edits = EDITS_FIELD in dialect.resume_body.model_fields and service.crew.kind != "flow"
        checks_drafts = HASH_FIELD in dialect.resume_body.model_fields
        self._offers = {
            OFFER: PATH,
            **({EDITS_OFFER: EDITS_FIELD} if takes_edits else {}),
            **({HASH_OFFER: HASH_FIELD} if checks_drafts else {}),
        }

    async def status(self, request: Request) -> Response:
        kickoff_id = request.path_params["kickoff_id"]
        if not _is_uuid(kickoff_id):
            return self._answered(None)
        caller = _caller(request)
        if self._service.database.is_sqlite:  # it answers in microseconds, faster than a thread starts
            row = self._executions.small_status_rows([kickoff_id]).get(kickoff_id)
        else:
            row = await self._small_statuses.get(kickoff_id)
        if self._executions.sees(caller, row):
            return self._answered(row)
        owner = self._service.owner(caller)
        return await self._slots.statuses.run(owner, self._read_status, caller, kickoff_id)

    def _read_status(self, caller: Principal, kickoff_id: str) -> Response:
        return self._answered(self._executions.status_row(caller, kickoff_id), LargeAnswer)

    def _answered(self, row: Row[Any] | None, response: type[Response] = JSONResponse) -> Response:
        code, answer, used = self._said(row)
        view = {VIEW: paths.view(row.id)} if row is not None else {}
        return response(answer, code, {**self._offers, **view, **usage.header(used)})

    async def statuses(self, request: Request) -> JSONResponse:
        owner = self._service.owner(_caller(request))
        return await self._slots.batches.run(owner, self._statuses, _caller(request), self._ids(request))

    def _statuses(self, caller: Principal, ids: list[str]) -> JSONResponse:
        answers: dict[str, Any] = {}
        for start in range(0, len(ids), MOST_KEYS):  # holding all rows at once would take too much memory
            some = ids[start : start + MOST_KEYS]
            rows = self._executions.small_status_rows([each for each in some if _is_uuid(each)])
            answers |= {each: self._in_batch(caller, each, rows.get(each)) for each in some}
        return JSONResponse({"statuses": answers})

    def _in_batch(self, caller: Principal, kickoff_id: str, row: Row[Any] | None) -> dict[str, Any] | None:
        if not self._executions.sees(caller, row):
            row = None
            if _is_uuid(kickoff_id) and self._executions.is_known(caller, kickoff_id):
                return None
        code, answer, used = self._said(row)
        if len(json.dumps(answer)) > LONGEST_IN_BATCH:
            return None
        return {"code": code, "body": answer, **({USAGE_FIELD: used} if used else {})}

    def _said(self, row: Row[Any] | None) -> tuple[int, dict[str, Any], usage.Usage | None]:
        """Return a status's code, body and usage."""
        if row is None:
            return *self._dialect.unknown(), None
        used = self._prices.priced(usage.so_far(row))
        return 200, self._dialect.status(row, self._service.crew, used), self._with_chain(row, used)

    def _with_chain(self, row: Row[Any], used: usage.Usage | None) -> usage.Usage | None:
        return usage.told(used, self._prices.priced(usage.chain(row)))

    async def inputs(self, request: Request) -> JSONResponse:
        crew = self._service.crew
        files = {} if crew.file_inputs.problem else {"files": sorted(crew.file_inputs.names)}
        return JSONResponse({"inputs": crew.inputs, "required": crew.required, "continues": True, **files})

    async def upload(self, request: Request) -> JSONResponse:
        try:
            file, field_name = await self._uploads.file(request, self._service.owner(_caller(request)))
        except BadForm as problem:
            raise HTTPException(self._dialect.bad_request, f"{problem} Nothing was stored.") from None
        url = f"{self._service.url}/files/{file.id}"
        return JSONResponse({"url": url, "field_name": field_name, **asdict(file)})

    async def kickoff(self, request: Request) -> JSONResponse:
        if not is_form(request):
            return await self._kickoff(request)
        try:
            async with self._uploads.received(request, self._service.owner(_caller(request)), _is_of_kickoff) as form:
                return await self._kickoff(request, form)
        except BadForm as problem:
            raise self._dialect.malformed(str(problem)) from None

    async def _kickoff(self, request: Request, form: Form | None = None) -> JSONResponse:
        if not self._service.settings.allow_file_urls:
            return await self._start(request, form)
        async with self._uploads.kept_if_used() as downloads:
            return await self._start(request, form, downloads)

    async def _start(self, request: Request, form: Form | None, downloads: Form | None = None) -> JSONResponse:
        caller, owner = _caller(request), self._service.owner(_caller(request))
        kickoff_files: list[KickoffFiles] = []  # found while the idempotency key is checked

        def identified(body: dict[str, Any]) -> dict[str, Any]:
            kickoff_files.append(KickoffFiles.of(body, self._service.crew, partial(self._service.files.find, owner)))
            return kickoff_files[0].canonical(body)

        def started(body: dict[str, Any], fetched: Mapping[str, StoredFile]) -> Start:
            limits = self._service.limits, kickoff_files[0].fetched(fetched), self._service.files.limits
            return replace(self._dialect.start(body, self._service.crew, *limits), files_of=owner)

        def understand(body: dict[str, Any]) -> tuple[Start, Callable[[Mapping[str, StoredFile]], Start]]:
            web = kickoff_files[0].web if downloads else ()
            return started(body, dict.fromkeys(web, NOT_FETCHED)), partial(started, body)

        try:
            (start, started_with), once = await self._read(request, "kickoff", understand, identified, form)
        except Repeated as repeated:
            answer = repeated.answer
        else:
            if downloads and (web := kickoff_files[0].web):
                await self._fetch(owner, web, downloads)
                start = await run_in_threadpool(started_with, downloads.files)
            answer = await run_in_threadpool(self._executions.kickoff, caller, start, once)
        return JSONResponse(answer, headers={VIEW: paths.view(answer["kickoff_id"])})

    async def _fetch(self, owner: str, web: Mapping[str, str], downloads: Form) -> None:
        """Fetch the files at web addresses, each of which is given with the name of its input."""
        async with self._slots.downloads.slot(owner):
            for address, name in web.items():
                try:
                    await self._uploads.fetch(owner, address, downloads)
                except NotFetched as problem:
                    sentence = f"The file for the input {name[:SHOWN]!r} was not fetched from its address: {problem}."
                    raise HTTPException(self._dialect.bad_request, sentence) from None

    async def executions(self, request: Request) -> JSONResponse:
        limit = _whole(request, "limit", USUAL_LIST, least=1, most=LONGEST_LIST, code=self._dialect.bad_request)
        states = self._states(request)
        rows = await self._in_place(request, self._executions.latest, _caller(request), limit, states)
        total = len(self._service.crew.tasks)
        return JSONResponse({"executions": [_listed(row, total) for row in rows]})

    async def details(self, request: Request) -> Response:
        known = request.headers.getlist("if-none-match")
        return await self._in_place(request, self._detailed, _caller(request), request.path_params["id"], known)

    def _detailed(self, caller: Principal, some_id: str, known: list[str]) -> Response:
        """Return 304 if the caller has the current version; check permissions first."""
        execution = self._details.found(self._head(caller, some_id))
        headers = {"ETag": execution.etag, "Cache-Control": "private, no-cache"}
        if _is_known(execution.etag, known):
            return Response(status_code=304, headers=headers)
        # The record is created once per state, however many callers request it.
        text = self._slots.pages.get(execution.etag, lambda: self._details.text(execution.id))
        if text is None:
            raise UnknownExecution("no such execution")
        return Response(text, media_type="application/json", headers=headers)

    async def steps(self, request: Request) -> JSONResponse:
        after = _whole(request, "after", 0, least=0)
        limit = _whole(request, "limit", USUAL_STEPS, least=1, most=MOST_STEPS)
        return await self._in_place(request, self._steps, _caller(request), request.path_params["id"], after, limit)

    def _steps(self, caller: Principal, some_id: str, after: int, limit: int) -> JSONResponse:
        body = self._details.steps(self._head(caller, some_id).id, after=after, most=limit)
        if body is None:
            raise UnknownExecution("no such execution")
        return JSONResponse(body)

    async def files(self, request: Request) -> JSONResponse:
        entries = await self._in_place(request, self._files, _caller(request), request.path_params["id"])
        return JSONResponse({"files": [each.as_dict() for each in entries]})

    def _files(self, caller: Principal, some_id: str) -> list[ListedFile]:
        entries = self._details.files(self._head(caller, some_id).id)
        if entries is None:
            raise UnknownExecution("no such execution")
        return entries

    async def file(self, request: Request) -> Response:
        """Return a file's content, which no browser may show as a page of this service."""
        directions = request.query_params.getlist("direction") or [OUT]
        if len(directions) > 1 or directions[0] not in DIRECTIONS:
            raise HTTPException(400, f"The direction must be one of {', '.join(DIRECTIONS)}.")
        version = None
        if "version" in request.query_params:
            version = _whole(request, "version", 1, least=1)
        name = request.path_params["name"]
        listed = await self._in_place(request, self._files, _caller(request), request.path_params["id"])
        entry = chosen(listed, name, version, directions[0])
        if entry is None:
            raise HTTPException(404, "The execution has no such file.")
        etag = f'"{entry.stored.sha256}"'
        if _is_known(etag, request.headers.getlist("if-none-match")):
            return Response(status_code=304, headers={"ETag": etag})
        return await attachment(entry, self._service.files, {"ETag": etag, "Cache-Control": "private, no-cache"})

    async def logs(self, request: Request) -> Response:
        return await self._in_place(request, self._logs, _caller(request), request.path_params["id"])

    def _logs(self, caller: Principal, some_id: str) -> Response:
        head = self._head(caller, some_id)
        if caller.user is not None:
            raise HTTPException(403, "A crew may print anything, so reading its output needs the organization's token.")
        return plain_text(self._executions.printed(head.id))

    def _head(self, caller: Principal, some_id: str) -> Row[Any]:
        head = self._executions.head(caller, some_id) if _is_uuid(some_id) else None
        if head is None:
            raise UnknownExecution("no such execution")
        return head

    async def resume(self, request: Request) -> JSONResponse:
        try:
            decision, once = await self._read(request, "resume", self._decision)
        except Repeated as repeated:
            return JSONResponse(repeated.answer)

        def answer(kickoff_id: str, settled: Decision = decision) -> dict[str, Any]:
            return self._dialect.resumed(settled, kickoff_id)

        if decision.edit:
            owner = self._service.owner(_caller(request))
            await self._slots.edits.run(owner, self._executions.check_edit, _caller(request), decision)
        try:
            reply = await run_in_threadpool(self._executions.resume, _caller(request), decision, once, answer)
        except (UnknownExecution, UnknownTask):
            if decision.lacks_feedback:  # as any other body that lacks a field, which no id excuses
                raise BadAnswer(NO_FEEDBACK) from None
            if not self._dialect.fresh_ids:
                raise
            # Live deployments return an id whose state never changes.
            reply = await run_in_threadpool(self._executions.say_once, once, answer(str(uuid4())))
        return JSONResponse(reply)

    async def resume_feedback(self, request: Request) -> JSONResponse:
        body, _ = await self._read(request, "resume_feedback", self._reader(ResumeFeedbackBody))
        answer = FlowAnswer(body.feedback, body.outcome, body.source)
        resume = self._service.flow_answers.resume
        return JSONResponse(await run_in_threadpool(resume, _caller(request), body.flow_id, answer))

    async def respond(self, request: Request) -> JSONResponse:
        question_id = request.path_params["request_id"]
        self._service.flow_answers.check_token(question_id, request.query_params.get("token", ""))
        body, _ = await self._read(request, "respond", self._reader(FlowAnswerBody))
        answer = FlowAnswer(body.feedback, body.outcome, body.source)
        return JSONResponse(await run_in_threadpool(self._service.flow_answers.respond, question_id, answer))

    async def stop(self, request: Request) -> JSONResponse:
        kickoff_id = request.path_params["kickoff_id"]
        row = await run_in_threadpool(self._executions.stop, _caller(request), kickoff_id)
        used = self._with_chain(row, self._prices.priced(usage.so_far(row)))
        return JSONResponse({"status": "stopped", "kickoffId": kickoff_id}, headers=usage.header(used))

    async def metrics(self, request: Request) -> Response:
        if _caller(request).user is not None:
            raise HTTPException(403, "These metrics cover all users, so they need the organization's token.")
        figures = await run_in_threadpool(self._service.figures, _caller(request))
        return Response(figures, media_type=CONTENT_TYPE_LATEST)

    async def usage(self, request: Request) -> JSONResponse:
        parameters = {name: request.query_params.getlist(name) for name in ("from", "to", "by")}
        try:
            if twice := next((name for name, values in parameters.items() if len(values) > 1), None):
                raise BadPeriod(f"{twice} must be given once.")
            period = self._service.usage.period(*(values[0] if values else None for values in parameters.values()))
            report = await self._in_place(request, self._service.usage.read, _caller(request), *period)
        except BadPeriod as problem:
            raise HTTPException(400, str(problem)) from None
        except TooMany:
            sentence = f"There are more than {MOST_ROWS} rows; choose a shorter time, or fewer of {', '.join(BY)}."
            raise HTTPException(400, sentence) from None
        return JSONResponse(report)

    async def refused(self, request: Request, refused: Any) -> JSONResponse:
        if isinstance(refused, BadResponseToken):
            return denial()
        if isinstance(refused, AlreadyAnswered):
            return JSONResponse(_already_answered(refused), 409)
        if isinstance(refused, OverBudget):
            sentence, budget = self._service.usage.refusal(_caller(request), refused.standing)
            body = {"detail": f"{sentence} {refused.fate}", "budget": budget}
            return JSONResponse(body, 429, {"Retry-After": str(refused.retry_after)})
        if isinstance(refused, AlreadyContinued):
            return JSONResponse({"detail": str(refused), "kickoff_id": refused.kickoff_id}, 409)
        code, text = self._dialect.refusals[type(refused)]
        state = self._dialect.word(refused.state) if isinstance(refused, AlreadyOver) else ""
        return JSONResponse({"detail": text.format(state=state, reason=refused)}, code)

    async def _in_place(self, request: Request, work: Callable[..., Asked], *args: Any) -> Asked:
        return await self._slots.run(self._service.owner(_caller(request)), work, *args)

    def _ids(self, request: Request) -> list[str]:
        values = request.query_params.getlist("ids")
        ids = list(dict.fromkeys(values[0].split(","))) if len(values) == 1 else []
        if not ids or not all(ids) or len(ids) > MOST_IDS:
            raise HTTPException(self._dialect.bad_request, f"Pass 1 to {MOST_IDS} ids, separated by commas.")
        return ids

    def _states(self, request: Request) -> set[State]:
        values = request.query_params.getlist("state")
        if len(values) > 1 or any(word not in LISTED_STATES for word in values):
            raise HTTPException(self._dialect.bad_request, f"The state must be one of {', '.join(LISTED_STATES)}.")
        return {state for state, word in SPECIFIED.items() if word in values}

    async def _read(
        self,
        request: Request,
        endpoint: str,
        understand: Callable[[dict[str, Any]], Asked],
        identified: Callable[[dict[str, Any]], dict[str, Any]] = lambda body: body,
        form: Form | None = None,
    ) -> tuple[Asked, IdempotencyKey | None]:
        """Read and parse a request's body; parse a large one in a thread, so that other requests do not wait.

        :param identified: returns what a request with the same idempotency key must repeat
        :param form: the body, if it was sent as a form
        :raises Repeated: the request was already answered
        """
        settings = self._service.settings
        raw = b""
        if form is None:
            raw = await bodies.read(request, limit=settings.max_body, seconds=settings.body_seconds)

        def parse() -> tuple[Asked, IdempotencyKey | None]:
            try:
                body = form_body(form.texts, form.files) if form else _parsed(request, raw)
            except bodies.BadBody as error:
                raise self._dialect.malformed(str(error)) from None
            once = _once(request, endpoint, identified(body))
            if once and (answer := self._executions.said(once)) is not None:
                raise Repeated(answer)
            return understand(body), once

        may_name_files = (
            form is not None or b"iles" in raw or b"\\u" in raw or self._service.crew.file_inputs.are_in_inputs
        )
        is_quick = len(raw) <= SMALL_BODY and "idempotency-key" not in request.headers and not may_name_files
        return parse() if is_quick else await run_in_threadpool(parse)

    def _reader(self, model: type[Body]) -> Callable[[dict[str, Any]], Body]:
        return lambda body: self._dialect.read(model, body)

    def _decision(self, body: dict[str, Any]) -> Decision:
        return self._dialect.decision(body, self._service.crew)


def _health(problem: str | None, off: Sequence[str] = ()) -> JSONResponse:
    if problem:
        return JSONResponse({"status": "unavailable", "detail": problem}, 503)
    return JSONResponse({"status": "ok", **({"off": [*off]} if off else {})})


async def key_reused(request: Request, error: Any) -> JSONResponse:
    return JSONResponse({"detail": "This Idempotency-Key was already used with a different body."}, 422)


def _already_answered(refused: AlreadyAnswered) -> dict[str, Any]:
    when = iso(refused.at)
    sentence = f"The question was answered by {refused.by} at {when}."
    answered = {"responded_by": refused.by, "responded_at": when}
    return {"status": "already_responded", "error": "already_responded", "detail": sentence, **answered}


def _caller(request: Request) -> Any:
    """Return the holder of the request's token; None if the endpoint needs no token."""
    return request.state.caller


def _parsed(request: Request, raw: bytes) -> dict[str, Any]:
    return bodies.parse(raw, request.headers.get("content-type"))


def _is_of_kickoff(part: Part, form: Form) -> None:
    if part.name in form.texts or part.name in form.files:
        raise BadForm(f"The form has two parts named {part.name[:80]!r}.")
    if part.filename is None and not is_field(part.name):
        raise BadForm(f"The part {part.name[:80]!r} is neither a field of a kickoff nor a file with a file name.")
    if part.filename is not None and is_field(part.name):
        raise BadForm(f"The part {part.name[:80]!r} is a field of a kickoff, and must not be a file.")


def _is_known(etag: str, headers: list[str]) -> bool:
    """Return whether `If-None-Match` contains the ETag, by weak comparison, as RFC 9110 requires for this header."""
    tags = {tag.strip().removeprefix("W/") for line in headers for tag in line.split(",")}
    return etag in tags or "*" in tags


def _whole(
    request: Request, name: str, usual: int, *, least: int, most: int = paths.MOST_NUMBER, code: int = 400
) -> int:
    values = request.query_params.getlist(name) or [str(usual)]
    number = paths.whole(values[0], least=least, most=most) if len(values) == 1 else None
    if number is None:
        raise HTTPException(code, f"{name} must be a single whole number from {least} to {most}.")
    return number


def _once(request: Request, endpoint: str, body: dict[str, Any]) -> IdempotencyKey | None:
    if (key := request.headers.get("idempotency-key")) is None or _caller(request) is None:
        return None  # an address with its own token accepts only one answer anyway
    if not 1 <= len(key) <= LONGEST_KEY:
        raise HTTPException(400, f"The Idempotency-Key must have 1 to {LONGEST_KEY} characters.")
    return IdempotencyKey.of(_caller(request), endpoint, key, body)


def _listed(row: Row[Any], total: int) -> dict[str, Any]:
    return {
        "kickoff_id": row.kickoff_id,
        "execution_id": row.id,
        "status": SPECIFIED[row.state],
        "current_task": row.current_task,
        "task_id": row.asked[-1] if row.state == State.WAITING else None,
        "progress": {"completed_tasks": row.completed_tasks, "total_tasks": total},
        "execution_time": round(row.work_seconds, 3),
        "error": row.error,
        "created_at": iso(row.created_at),
        "updated_at": iso(row.updated_at),
    }


def _is_uuid(text: str) -> bool:
    """Return whether a string is a UUID; the service creates no other ids, so it need not look up any others."""
    return GIVEN_ID.fullmatch(text) is not None
