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

from crew_service.crewai import answers, file_types, internals
from crew_service.crewai.errors import UnsupportedCrew
from crew_service.engine.crew import STATE_ID, STATE_ID_REFUSED, CrewFailed, digest_of
from crew_service.engine.file_inputs import FileInputs

Inputs = dict[str, Any]


class FlowSource:
    def __init__(self, make: Callable[[Inputs], Flow[Any]], flow: type[Flow[Any]], definition: Any, state: Any) -> None:
        self.new = make
        self._class = flow
        self.name: str = definition.name
        self._methods = definition.methods
        self._never_listening = internals.never_listening(definition)
        self._state = state
        self._files = file_types.places(_model(state))

    @classmethod
    def of_class(cls, flow_class: type[Flow[Any]]) -> FlowSource:
        state = internals.state_model(flow_class)

        def make(inputs: Inputs) -> Flow[Any]:
            return flow_class(initial_state=_filled(state, inputs)) if _missing(state) else flow_class()

        if not _missing(state):
            make({})  # a Flow that cannot be created is rejected when the service starts
        return cls(make, flow_class, flow_class.flow_definition(), state)

    @classmethod
    def of_instance(cls, flow: Flow[Any]) -> FlowSource:
        """Use this instance itself, because a process runs at most one segment."""
        return cls(lambda inputs: flow, type(flow), internals.definition(flow), flow.state)

    @classmethod
    def declared(cls, path: Path) -> FlowSource:
        flow: Any = Flow.from_declaration(path=path)
        return cls.of_instance(flow)

    def describe(self) -> dict[str, Any]:
        if not self._methods:
            raise UnsupportedCrew("it is a Flow without methods; give it one with @start().")
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
        }

    def check_inputs(self, inputs: Inputs) -> None:
        """Refuse the inputs of an execution that was queued from a terminal or by an earlier release."""
        problem = STATE_ID_REFUSED if STATE_ID in inputs else FileInputs(self._files).problem(inputs)
        if problem:
            raise CrewFailed(problem)

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
    given = vars(state) if isinstance(state, BaseModel) else {}
    known = model.model_fields.items() if model else ()
    return [name for name, field in known if field.is_required() and name != "id" and name not in given]


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
