"""A Flow that each process can recreate from its class, its declaration, or a function that returns it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import crewai
from crewai.flow.flow import Flow
from pydantic import AliasChoices, AliasPath, BaseModel, ValidationError

from crew_service.crewai import answers, execution_files, file_types, flow_asks
from crew_service.crewai.errors import UnsupportedCrew
from crew_service.crewai.internals import flow_methods
from crew_service.engine.crew import STATE_ID, STATE_ID_REFUSED, CrewFailed, Job, digest_of
from crew_service.engine.file_inputs import REFUSED, FileInputs

Inputs = dict[str, Any]
CONVERSATION = (
    "This is a conversational Flow: each of its turns needs a message, which a kickoff does not give. A Flow that asks "
    "people with self.ask() can be served."
)
NO_FIELD = "This Flow takes no files: its state has no field with one of CrewAI's file types."


class FlowSource:
    def __init__(
        self,
        make: Callable[[Inputs], Flow[Any]],
        flow: type[Flow[Any]],
        definition: Any,
        state: Any,
        provided: Any = None,
    ) -> None:
        self.new = make
        self._class = flow
        self._provided = provided or flow
        self.name: str = definition.name
        self._methods = definition.methods
        self._never_listening = flow_methods.never_listening(definition)
        self._state = state
        self._files = file_types.places(_model(state))

    @classmethod
    def of_class(cls, flow_class: type[Flow[Any]]) -> FlowSource:
        state = flow_methods.state_model(flow_class)
        if _missing(state) and "__init__" in vars(flow_class):
            with suppress(Exception):  # its own `__init__` does not supply what the state requires
                state = flow_class().state

        def make(inputs: Inputs) -> Flow[Any]:
            return flow_class(initial_state=_filled(state, inputs)) if _missing(state) else flow_class()

        if not _missing(state):
            make({})  # a Flow that cannot be created is rejected when the service starts
        return cls(make, flow_class, flow_methods.definition(flow_class), state)

    @classmethod
    def of_instance(cls, flow: Flow[Any]) -> FlowSource:
        """Use this instance itself, because a process runs at most one segment."""
        return cls(lambda inputs: flow, type(flow), flow_methods.definition(flow), flow.state, flow)

    @classmethod
    def declared(cls, path: Path) -> FlowSource:
        if flow_methods.METHODS.missing and flow_methods.MARK in path.read_text():
            raise UnsupportedCrew(f"it may ask a person, but Flows cannot pause: {flow_methods.METHODS.reason}.")
        flow: Any = Flow.from_declaration(path=path)
        return cls.of_instance(flow)

    def describe(self) -> dict[str, Any]:
        off = flow_methods.off()
        if not (self._methods or off):
            raise UnsupportedCrew("it is a Flow without methods; give it one with @start().")
        if off and (names := flow_methods.asking(self._class, self._methods)):
            raise UnsupportedCrew(f"its method {names[0]!r} asks a person, but Flows cannot pause: {off.reason}.")
        for name in self._never_listening:
            raise UnsupportedCrew(
                f"its start method {name!r} also listens, which CrewAI {crewai.__version__} ignores; "
                "use a newer CrewAI, or listen in a separate method."
            )
        tasks = [
            {
                "id": name,
                "agent": self.name,
                "description": "",
                "human_input": method.human_feedback is not None,
                "digest": digest_of(answers.prompt_as_text([method, self._code(name)])),
            }
            for name, method in self._methods.items()
        ]
        return {
            "inputs": fields(self._state),
            "required": required(self._state),
            "tasks": tasks,
            "files": self._files,
            "file_problem": execution_files.problem() or (None if self._files else NO_FIELD),
        }

    @property
    def told(self) -> list[str]:
        """List what users should know when the service starts."""
        return [flow_asks.KEEPS_PROVIDER] if flow_asks.keeps_provider(self._provided) else []

    def inputs_of(self, job: Job) -> Inputs:
        """Return the inputs with their files; refuse what a terminal or an earlier release should not have queued."""
        if STATE_ID in job.inputs and not job.decision:
            raise CrewFailed(STATE_ID_REFUSED)
        if getattr(self._class, "conversational", False):
            raise CrewFailed(CONVERSATION)
        try:
            return execution_files.in_inputs(job, FileInputs(self._files))
        except LookupError as place:
            if job.decision:
                return job.inputs
            raise CrewFailed(REFUSED.format(name=place.args[0])) from None

    def _code(self, method: str) -> str:
        """Return a method's source code; an empty string if it is unavailable."""
        with suppress(OSError, TypeError):
            return inspect.getsource(inspect.unwrap(getattr(self._class, method, None)))  # type: ignore[arg-type]
        return ""


def fields(state: Any) -> list[str]:
    """List the inputs that a kickoff may set: the names of the state's fields except the id, which the execution sets.

    A field with aliases is given under one of them.
    """
    model = _model(state)
    if model is None:
        return sorted(name for name in (state if isinstance(state, dict) else ()) if name != "id")
    return sorted({name for field in model.model_fields if field != "id" for name in _names(model, field)})


def required(state: Any) -> list[str]:
    """List the inputs without which the state cannot be created; of several names for a field, none is required."""
    model = _model(state)
    names = [_names(model, field) for field in _missing(state)] if model else []
    return sorted(each[0] for each in names if len(each) == 1)


def _missing(state: Any) -> list[str]:
    """List the fields that the state requires and does not have yet."""
    model = _model(state)
    present = vars(state) if isinstance(state, BaseModel) else {}
    known = model.model_fields.items() if model else ()
    return [name for name, field in known if field.is_required() and name != "id" and name not in present]


def _names(model: type[BaseModel], field: str) -> list[str]:
    """List the names under which a kickoff can give a field; with the path of an alias, it gives an object."""
    alias, settings = model.model_fields[field].validation_alias, model.model_config
    choices = alias.choices if isinstance(alias, AliasChoices) else [alias]
    aliases = [each.path[0] if isinstance(each, AliasPath) else each for each in choices]
    names = [each for each in aliases if isinstance(each, str)] if settings.get("validate_by_alias", True) else []
    by_name = settings.get("validate_by_name") or settings.get("populate_by_name")
    return list(dict.fromkeys([*names, field] if by_name or not names else names))


def _model(state: Any) -> type[BaseModel] | None:
    kind = state if isinstance(state, type) else type(state)
    return kind if issubclass(kind, BaseModel) else None


def _filled(state: type[BaseModel], inputs: Inputs) -> BaseModel:
    try:
        return state.model_validate({name: value for name, value in inputs.items() if name in fields(state)})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise CrewFailed(f"The inputs do not fit the Flow's state: {where}: {first['msg']}.") from None
