"""The code that both dialects share: parsing a body in either spelling, and errors in the dialect's shape."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict
from typing import Any, ClassVar, TypeVar

from fastapi import HTTPException
from pydantic import BaseModel, ValidationError
from sqlalchemy.engine import Row

from crew_service.engine import agent_messages
from crew_service.engine.crew import STATE_ID, STATE_ID_REFUSED, Crew
from crew_service.engine.decisions import Decision, Refused
from crew_service.engine.executions import Start
from crew_service.engine.limits import Limits
from crew_service.engine.usage import Usage
from crew_service.http.dialects.kickoff_files import INPUT_FILES, TWIN, KickoffFiles
from crew_service.http.dialects.request_models import EditedOutputBody, KickoffBody, Record, WebhookUrls, camel, snake
from crew_service.settings import FileLimits
from crew_service.storage.states import State

ONCE = {422: "The Idempotency-Key was already used with a different body."}

USED = ("usage", "tokens", "model_usage", "earlier_usage")  # columns for the usage, which a status includes
WITH_AUTHENTICATION = ("humanInputWebhook", "webhooks")
LONGEST_REASON = 300  # characters of a reason, which may quote what the caller sent

Body = TypeVar("Body", bound=Record)


class Dialect(ABC):
    name: ClassVar[str]
    fresh_ids: ClassVar[bool]  # a new task_id for every question to a person, and a new kickoff_id for every resume
    queue_delay: ClassVar[float]  # minimum seconds that an execution stays queued
    bad_request: ClassVar[int]  # the code for a request that cannot be parsed
    without_header: ClassVar[str]  # the 401's text for a request that has no Authorization header
    resume_body: ClassVar[type[WebhookUrls]]
    flow_resume_body: ClassVar[type[WebhookUrls]]
    columns: ClassVar[tuple[str, ...]]  # columns of an execution that its status needs
    refusals: ClassVar[dict[type[Refused], tuple[int, str]]]
    # for the documentation: the shapes of responses, and errors specific to this dialect
    status_answer: ClassVar[Any]
    resume_answer: ClassVar[type[BaseModel]]
    problem: ClassVar[type[BaseModel]]  # the model for a 422
    status_problems: ClassVar[dict[int, str]]
    resume_problems: ClassVar[dict[int, str]]

    def start(
        self, body: dict[str, Any], crew: Crew, limits: Limits, given: KickoffFiles, file_limits: FileLimits
    ) -> Start:
        """Return the checked request.

        :raises Refused: if it names an unknown file
        """
        one, other = body.get(INPUT_FILES), body.get(TWIN)
        if one is not None and other is not None and one != other:
            raise HTTPException(self.bad_request, f"{INPUT_FILES} and {TWIN} differ.")
        kickoff = self.read(KickoffBody, body, asdict(limits))
        takes = crew.file_inputs.names
        missing = sorted(
            name for name in crew.required if name not in kickoff.inputs and not (name in given.named and name in takes)
        )
        if as_file := next((name for name in missing if name in given.named), None):
            raise HTTPException(self.bad_request, f"The input {as_file!r} takes no file; give its value in inputs.")
        if missing:
            raise HTTPException(422, f"Missing inputs: {', '.join(missing)}")
        if crew.kind == "flow" and STATE_ID in kickoff.inputs:
            raise HTTPException(self.bad_request, STATE_ID_REFUSED)
        if crew.kind == "agent" and (problem := agent_messages.problem(kickoff.inputs)):
            raise HTTPException(self.bad_request, problem)
        if kickoff.continueFrom and kickoff.restoreFromStateId:
            raise HTTPException(400, "continueFrom and restoreFromStateId cannot be combined.")
        if kickoff.restoreFromStateId and crew.kind != "flow":
            raise HTTPException(self.bad_request, "restoreFromStateId is for Flows, but this is a crew.")
        inputs, files = given.checked(kickoff.inputs, crew, file_limits, self.bad_request)
        own = kickoff.limits.model_dump(exclude_none=True) if kickoff.limits else {}
        return Start(
            inputs,
            kickoff.meta,
            kickoff.addresses(),
            limits=own,
            restore_from=kickoff.restoreFromStateId,
            continue_from=kickoff.continueFrom,
            files=files,
        )

    def read(self, model: type[Body], body: dict[str, Any], context: dict[str, Any] | None = None) -> Body:
        try:
            return model.model_validate(_folded(body, model), context=context)
        except ValidationError as error:
            raise self.refuse(error) from None

    @abstractmethod
    def malformed(self, message: str) -> HTTPException:
        """Return the response to a body that is not a JSON object."""

    @abstractmethod
    def refuse(self, error: ValidationError) -> HTTPException:
        """Return the response to a body with invalid fields."""

    @abstractmethod
    def decision(self, body: dict[str, Any], crew: Crew) -> Decision: ...

    @abstractmethod
    def resumed(self, decision: Decision, kickoff_id: str) -> dict[str, Any]: ...

    @abstractmethod
    def unknown(self) -> tuple[int, dict[str, Any]]:
        """Return the status code and body for an unknown id."""

    @abstractmethod
    def status(self, row: Row[Any], crew: Crew, used: Usage | None) -> dict[str, Any]:
        """Return the body of a status; it includes `used` if the dialect has a place for it."""

    @abstractmethod
    def word(self, state: State) -> str: ...


def _folded(body: dict[str, Any], model: type[Record]) -> dict[str, Any]:
    """Fold both spellings of each field into the model's own, which takes precedence; null counts as absent."""
    fields = {name: value for name, value in body.items() if value is not None}
    known = set(model.model_fields)
    folded = {name: value for name, value in fields.items() if name in known}
    known -= model.one_spelling
    for name, value in fields.items():
        twin = next((other for other in (camel(name), snake(name)) if other in known), None)
        if twin:
            folded.setdefault(twin, value)
    edited = folded.get("edited_output")
    if isinstance(edited, dict) and "edited_output" in known:
        folded["edited_output"] = _folded(edited, EditedOutputBody)
    for name in WITH_AUTHENTICATION:
        hook = folded.get(name)
        if isinstance(hook, dict) and hook.get("authentication") == {}:
            folded[name] = {**hook, "authentication": None}
    return folded


def problems(error: ValidationError) -> list[dict[str, Any]]:
    """Return the position and problem of each invalid field."""
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    return [{"loc": list(e["loc"]), "msg": e["msg"][:LONGEST_REASON], "type": e["type"]} for e in errors]


def task_now(row: Row[Any], crew: Crew) -> str:
    """Return the task in progress or, between tasks, the next one."""
    if row.current_task is not None:
        return str(row.current_task)
    ids = [task.id for task in crew.tasks] or [""]
    position: int = min(row.completed_tasks, len(ids) - 1)
    return ids[position]
