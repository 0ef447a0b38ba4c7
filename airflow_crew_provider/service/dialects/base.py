"""What both dialects share: reading a body in either spelling, and refusing it in the dialect's own words."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import Any, ClassVar, TypeVar

from fastapi import HTTPException
from pydantic import BaseModel, ValidationError
from sqlalchemy import Row

from airflow_crew_provider.service.crews import Crew
from airflow_crew_provider.service.desk import Decision, Refused, Start
from airflow_crew_provider.service.states import State

from .requests import KickoffBody, WebhookUrls

ONCE = {422: "The Idempotency-Key was given before, with another body."}

Body = TypeVar("Body", bound=WebhookUrls)


class Dialect(ABC):
    name: ClassVar[str]
    fresh_ids: ClassVar[bool]  # a new task_id at every question, a new kickoff_id at every resume
    queue_delay: ClassVar[float]  # seconds that an execution is queued at least
    resume_body: ClassVar[type[WebhookUrls]]
    columns: ClassVar[tuple[str, ...]]  # of an execution, that a status tells of
    refusals: ClassVar[dict[type[Refused], tuple[int, str]]]
    # for the documentation: the shapes of the answers, and the refusals that only this dialect knows
    status_answer: ClassVar[Any]
    resume_answer: ClassVar[type[BaseModel]]
    problem: ClassVar[type[BaseModel]]  # of a 422
    look_problems: ClassVar[dict[int, str]]
    resume_problems: ClassVar[dict[int, str]]

    def start(self, body: dict[str, Any], crew: Crew) -> Start:
        asked = self.read(KickoffBody, body)
        missing = sorted(name for name in crew.inputs if asked.inputs.get(name) is None)
        if missing:
            raise HTTPException(422, f"Missing inputs: {', '.join(missing)}")
        return Start(asked.inputs, asked.meta, asked.webhooks())

    def read(self, model: type[Body], body: dict[str, Any]) -> Body:
        try:
            return model.model_validate(_folded(body, model))
        except ValidationError as error:
            raise self.refuse(error) from None

    @abstractmethod
    def malformed(self, message: str) -> HTTPException:
        """The answer to a body that is no JSON object."""

    @abstractmethod
    def refuse(self, error: ValidationError) -> HTTPException:
        """The answer to fields of a wrong type."""

    @abstractmethod
    def decision(self, body: dict[str, Any]) -> Decision: ...

    @abstractmethod
    def resumed(self, decision: Decision, kickoff_id: str) -> dict[str, Any]: ...

    @abstractmethod
    def unknown(self) -> tuple[int, dict[str, Any]]:
        """Status code and body for an id that is not known."""

    @abstractmethod
    def status(self, row: Row[Any], crew: Crew) -> dict[str, Any]: ...

    @abstractmethod
    def word(self, state: State) -> str: ...


def _folded(body: dict[str, Any], model: type[WebhookUrls]) -> dict[str, Any]:
    """One spelling of each field, null taken as absent; where both spellings are given, the model's own counts."""
    given = {name: value for name, value in body.items() if value is not None}
    known = set(model.model_fields)
    folded = {name: value for name, value in given.items() if name in known}
    known -= model.one_spelling
    for name, value in given.items():
        twin = next((other for other in (_camel(name), _snake(name)) if other in known), None)
        if twin:
            folded.setdefault(twin, value)
    hook = folded.get("humanInputWebhook")
    if isinstance(hook, dict) and hook.get("authentication") == {}:
        folded["humanInputWebhook"] = {**hook, "authentication": None}
    return folded


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower()


def task_now(row: Row[Any], crew: Crew) -> str:
    """The task in progress; before it has begun, the one that is next."""
    if row.current_task is not None:
        return row.current_task
    ids = [task.id for task in crew.tasks] or [""]
    return ids[min(row.completed_tasks, len(ids) - 1)]
