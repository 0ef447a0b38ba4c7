"""Pauses a Flow at a question, and continues it from there in another process.

`kickoff` and `resume` cannot pause a Flow without occupying a thread, keep several gates open, or continue after a
crash: CrewAI's own pause cancels the branches parallel to the gate and forgets which methods have finished.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from crewai.flow import PendingFeedbackContext
from crewai.flow.flow import Flow
from crewai.flow.human_feedback import HumanFeedbackResult
from pydantic import BaseModel, ValidationError

from crew_service.crewai.internals import Seam, first_missing
from crew_service.crewai.internals.crew_tasks import TASKS
from crew_service.crewai.internals.human_input import PEOPLE

AsyncCall = Callable[..., Awaitable[Any]]
Memory = dict[str, Any]
FIRED = "_fired_or_listeners"  # listeners with or_() conditions: each fires only once
SETS = ("_completed_methods", FIRED)
COUNTS = ("_method_call_counts", "_method_execution_counts")
EVENTS = "_pending_events"  # partially met and_() conditions
OUTPUTS = "_method_outputs"
BRANCH = "a question ends only its own branch"
AGAIN = "after an answer, listeners fire again as they would in the same process"
AT_GATE = "an earlier process asked the question"
KEPT = "another process continues the Flow with it"
FLOWS = Seam(
    "Flows run without steps and questions, and begin again if their process was killed",
    {
        "crewai.flow.flow:Flow._execute_method": "each method is reported, and nothing of a finished one happens again",
        "crewai.flow.flow:Flow._persist_method_completion": "only a state with another id is saved again",
        "crewai.flow.flow:Flow._run_human_feedback_step": "a question stops its method before a model is created",
        "crewai.flow.flow:Flow._finalize_human_feedback": "a chosen outcome needs no model",
        "crewai.flow.flow:Flow._execute_start_method": BRANCH,
        "crewai.flow.flow:Flow._execute_single_listener": BRANCH,
        "crewai.flow.flow:Flow._execute_racing_listeners": BRANCH,
        "crewai.flow.flow:Flow._execute_listeners": BRANCH,
        "crewai.flow.flow:Flow._rearm_or_listeners_for_trigger": AGAIN,
        "crewai.flow.flow:Flow._start_method_names": AGAIN,
        "crewai.flow.flow:Flow._start_condition_triggered_by": AGAIN,
        "crewai.flow.flow:Flow._listen_condition": AGAIN,
        "crewai.flow.flow:Flow._listener_methods": "methods that CrewAI would never run are refused",
        "crewai.flow.flow:Flow._pending_feedback_context": AT_GATE,
        "crewai.flow.flow:Flow._is_execution_resuming": AT_GATE,
        "crewai.flow.flow:Flow._flow_match_id": AT_GATE,
        "crewai.flow.flow:Flow._state": KEPT,
        "crewai.flow.flow:Flow._restore_state": KEPT,
        "crewai.flow.flow:Flow._initialize_state": "CrewAI loses inputs for fields that have an alias",
        **{f"crewai.flow.flow:Flow.{name}": KEPT for name in (*SETS, *COUNTS, EVENTS, OUTPUTS)},
        "crewai.flow.human_feedback:_serialize_llm_for_context": KEPT,
        "crewai.flow.runtime:_iter_condition_events": AGAIN,
        "crewai.flow:PendingFeedbackContext.from_dict": KEPT,
        "crewai.flow:PendingFeedbackContext.to_dict": KEPT,
        "crewai.flow.flow_config:flow_config.hitl_provider": "Flows inside a method must not read a terminal",
    },
    returns={
        "Flow._execute_method": "tuple",
        "Flow._execute_single_listener": "tuple",
        "Flow._finalize_human_feedback": "HumanFeedbackResult",
        "Flow._start_method_names": "list",
        "Flow._listener_methods": "Iterator",
        "_iter_condition_events": "Iterator",
        "PendingFeedbackContext.to_dict": "dict",
    },
)
MARK = "human_feedback"  # the decorator's name, in declarations and in what it sets
LISTED = "the methods and conditions of a Flow are listed nowhere else"
DEFINITION = "crewai.flow.flow_definition:FlowMethodDefinition"
METHODS = Seam(
    "the methods of Flows are not listed",
    {
        "crewai.flow.flow:Flow._definition": LISTED,
        "crewai.flow.flow:Flow.flow_definition": LISTED,
        "crewai.flow.flow_definition:FlowDefinition.name": LISTED,
        "crewai.flow.flow_definition:FlowDefinition.methods": LISTED,
        **{f"{DEFINITION}.{name}": LISTED for name in ("start", "listen", "router", "emit", "human_feedback")},
    },
)
INPUTS = Seam(
    "the inputs of Flows are not listed, and fields that a Flow's state requires are not filled in",
    {"crewai.flow.flow:Flow.initial_state": "the inputs of a Flow are the fields of its state"},
)
ASK = Seam(
    "methods that call `self.ask()` end with an error",
    {
        "crewai.flow.flow_config:flow_config": "a provider for all Flows can be set nowhere else",
        "crewai.flow.flow:Flow.ask": "CrewAI's own waits in the process",
        "crewai.flow.flow:Flow.input_provider": "a Flow may ask people in its own way",
        "crewai.flow.flow_config:flow_config.input_provider": "a provider for all Flows can be set nowhere else",
    },
)


def off() -> Seam | None:
    """Return why Flows can only be run by CrewAI's public API; None if they need not be."""
    return first_missing(FLOWS, METHODS, TASKS, PEOPLE)


def definition(flow: Flow[Any] | type[Flow[Any]]) -> Any:
    """Return a Flow's name and methods; without methods if this CrewAI does not list them."""
    kind: Any = flow if isinstance(flow, type) else type(flow)
    if METHODS.missing:
        return SimpleNamespace(name=kind.__name__, methods={})
    return (None if isinstance(flow, type) else flow._definition) or kind.flow_definition()


def asking(kind: type[Flow[Any]], methods: dict[str, Any]) -> list[str]:
    """List the methods that ask a person; if this CrewAI lists no methods, those that their decorator has marked."""
    if not METHODS.missing:
        return [name for name, method in methods.items() if method.human_feedback is not None]
    members = (each for base in kind.__mro__ for each in vars(base).items() if callable(each[1]))
    return [name for name, member in members if any(MARK in mark for mark in getattr(member, "__dict__", ()))]


def state_model(flow_class: type[Flow[Any]]) -> Any:
    """Return the model, instance or dict that initializes a Flow's state; None if the Flow does not define one."""
    if INPUTS.missing:
        return None
    declared = flow_class.model_fields["initial_state"].default
    return declared if declared is not None else getattr(flow_class, "_initial_state_t", None)


def has_input_provider(flow: Any) -> bool:
    """Return whether a Flow, or a class of Flows, has an input provider of its own."""
    fields = getattr(flow, "model_fields", {}) if isinstance(flow, type) else {}
    return (fields["input_provider"].default if fields else flow.input_provider) is not None


def set_feedback_provider(provider: Any) -> None:
    """Let CrewAI ask this provider if a Flow's question did not stop its method earlier."""
    with suppress(ImportError, AttributeError):  # then it reads a terminal, which is refused
        config: Any = import_module("crewai.flow.flow_config")
        config.flow_config.hitl_provider = provider


def stamp(flow: Flow[Any], state_id: str) -> None:
    """Set the state's id."""
    if isinstance(flow.state, dict):
        flow.state["id"] = state_id
    else:
        object.__setattr__(flow.state, "id", state_id)


def state(flow: Flow[Any]) -> Any:
    return flow._state


def set_state(flow: Flow[Any], state: Any) -> None:
    flow._state = state


def restore_state(flow: Flow[Any], state: dict[str, Any]) -> None:
    """Set a state that CrewAI dumped, which it does by field name, although it validates by alias."""
    if isinstance(flow._state, BaseModel):
        flow._state = type(flow._state).model_validate(state, by_alias=False, by_name=True)
    else:
        flow._restore_state(state)


def add_inputs_by_name(flow: Flow[Any]) -> None:
    """Let a kickoff add its inputs to the state that there is.

    CrewAI would lose fields that have an alias, and refuse defaults that do not fit their type, such as
    `outline: Outline = None`: pydantic never checks those, nor does CrewAI if there are no inputs.
    """
    add = flow._initialize_state

    def added(inputs: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        state = flow._state
        if not isinstance(state, BaseModel):
            add(inputs, *args, **kwargs)
            return
        dumped, known = state.model_dump(), type(state).model_fields
        changed = {
            name: value for name, value in dumped.items() if name not in known or value is not known[name].default
        }
        try:
            flow._state = type(state).model_validate({**changed, **inputs}, by_alias=True, by_name=True)
        except ValidationError as error:
            raise ValueError(f"Invalid inputs for structured state: {error}") from error

    object.__setattr__(flow, "_initialize_state", added)


def replace(flow: Flow[Any], name: str, wrapped: Callable[[Any], Callable[..., Any]]) -> None:
    """Wrap one of the instance's methods."""
    object.__setattr__(flow, name, wrapped(getattr(flow, name)))


def set_persistence(flow: Flow[Any], persistence: Any) -> None:
    """Set the persistence of an existing Flow; the backends named by `@persist` remain in use."""
    object.__setattr__(flow, "persistence", persistence)


def wait_at(flow: Flow[Any], gate: PendingFeedbackContext) -> None:
    """Make a fresh Flow wait at a gate."""
    flow._pending_feedback_context = gate
    flow._is_execution_resuming = True
    flow._flow_match_id = flow.flow_id


def gate(flow: Flow[Any], method: str, feedback: Any, output: Any) -> PendingFeedbackContext:
    """Describe a method's question as CrewAI describes it to a provider."""
    llm = feedback.llm
    return PendingFeedbackContext(
        flow_id=flow.flow_id,
        flow_class=f"{type(flow).__module__}.{type(flow).__name__}",
        method_name=method,
        method_output=output,
        message=feedback.message,
        emit=list(feedback.emit) if feedback.emit else None,
        default_outcome=feedback.default_outcome,
        metadata=feedback.metadata or {},
        llm=llm if llm is None or isinstance(llm, str | dict) else FLOWS["_serialize_llm_for_context"](llm),
    )


def question_in(flow: Flow[Any], method: str) -> PendingFeedbackContext:
    """Describe a question that a crew asks within a method."""
    return PendingFeedbackContext(
        flow_id=flow.flow_id, flow_class=type(flow).__name__, method_name=method, method_output=None, message=""
    )


def answer_in(flow: Flow[Any], method: str, earlier: int) -> HumanFeedbackResult | None:
    """Return what a person has said to a method's call, given how many answers there were before it."""
    return next((each for each in flow.human_feedback_history[earlier:] if each.method_name == method), None)


def note_answer(flow: Flow[Any], answer: HumanFeedbackResult) -> None:
    flow.human_feedback_history.append(answer)
    flow.last_human_feedback = answer


def note_end(flow: Flow[Any], method: str, result: Any, answer: HumanFeedbackResult | None) -> None:
    """Let a Flow know of a method's call in an earlier process what CrewAI would note at its end."""
    asks = definition(flow).methods[method].human_feedback
    if asks and answer is None and isinstance(result, HumanFeedbackResult):
        answer = result
    entry = {"method": method, "output": result}
    if answer is not None:
        note_answer(flow, answer)
        if asks and asks.emit:  # the result is the outcome
            entry |= {"output": answer.output, "human_feedback": answer}
    getattr(flow, OUTPUTS).append(entry)
    counts = getattr(flow, COUNTS[1])
    counts[method] = counts.get(method, 0) + 1
    getattr(flow, SETS[0]).add(method)


async def save(flow: Any, method: str) -> None:
    """Save the state as CrewAI does at a method's end, if the Flow or the method has `@persist`."""
    await asyncio.to_thread(flow._persist_method_completion, method)


def fired(flow: Flow[Any]) -> set[str]:
    return set(map(str, getattr(flow, FIRED)))


def started(flow: Flow[Any], method: str) -> bool:
    """Whether a method ran as a start method: CrewAI counts only listeners' calls."""
    return method in flow._start_method_names() and not flow._method_call_counts.get(method)


def rearm(flow: Any, outcome: str, fired: set[str]) -> None:
    """Let those of the fired listeners that listen to the outcome fire again."""
    flow._rearm_or_listeners_for_trigger(outcome, fired)


def rearm_way_back(flow: Flow[Any], event: str, gate: str) -> None:
    """Let each listener on a path from the event to the gate fire again."""
    methods = definition(flow).methods
    way = {name for name in fired(flow) & _before(methods, gate) if event in _awaited(methods, name)}
    getattr(flow, FIRED).difference_update(way)


async def start_again(flow: Any, outcome: str) -> None:
    """Run the methods with `@start(outcome)`, except those that have already run as listeners to the outcome."""
    for name in flow._start_method_names():
        triggered = flow._start_condition_triggered_by(name, outcome)
        if triggered and outcome not in _events(flow._listen_condition(name)):
            await flow._execute_start_method(name)


def _before(methods: dict[str, Any], method: str) -> set[str]:
    """Return the method and all methods that can lead to it."""
    names: set[str] = set()
    new = {method}
    while new:
        names |= new
        awaited = _of(methods, new)
        new = {name for name, each in methods.items() if _emits(name, each, awaited, methods)} - names
    return names


def _awaited(methods: dict[str, Any], method: str) -> set[str]:
    """Return the events that lead to the method."""
    return _of(methods, _before(methods, method))


def _of(methods: dict[str, Any], names: set[str]) -> set[str]:
    return {event for name in names for event in _events(methods[name].listen) | _events(methods[name].start)}


def _emits(name: str, method: Any, awaited: set[str], methods: dict[str, Any]) -> bool:
    """Whether the method may emit an awaited event; a router without declared outcomes may emit any."""
    asks = method.human_feedback
    declared = (asks.emit if asks else None) or method.emit
    outcomes = awaited - methods.keys() if method.router and not declared else set(declared or ())
    return name in awaited or bool(outcomes & awaited)


def _events(condition: Any) -> set[str]:
    return set(FLOWS["_iter_condition_events"](condition)) if isinstance(condition, str | dict) else set()


def never_listening(definition: Any) -> list[str]:
    """List methods whose `@listen` or `@router` is ignored: in early CrewAI versions, start methods cannot listen."""
    if first_missing(FLOWS, METHODS):
        return []
    some_flow: Any = SimpleNamespace(_definition=definition)
    listening = {str(name) for name, *_ in Flow._listener_methods(some_flow)}
    return [name for name, method in definition.methods.items() if method.listen is not None and name not in listening]


def memory(flow: Flow[Any], keep: Callable[[Any, str], str]) -> Memory:
    """Return a Flow's internal data, except its state, as plain JSON.

    :param keep: encodes a method's result or an answer to it, given with the method's name
    """
    known: Memory = {name: sorted(map(str, getattr(flow, name))) for name in SETS}
    known |= {name: {str(method): count for method, count in getattr(flow, name).items()} for name in COUNTS}
    known[EVENTS] = {str(key): sorted(map(str, events)) for key, events in getattr(flow, EVENTS).items()}
    answers = flow.human_feedback_history
    known["answers"] = [keep(answer, answer.method_name) for answer in answers]
    known[OUTPUTS] = [_entry(entry, answers, keep) for entry in getattr(flow, OUTPUTS)]
    return known


def remember(flow: Flow[Any], known: Memory, decoded: Callable[[str], Any]) -> None:
    """Load the data that `memory` returned, now or in an earlier release, into a fresh Flow."""
    for name in (*SETS, *COUNTS):
        getattr(flow, name).update(known[name])
    getattr(flow, EVENTS).update({key: set(events) for key, events in known[EVENTS].items()})
    answers = [
        HumanFeedbackResult(**answer) if isinstance(answer, dict) else decoded(answer) for answer in known["answers"]
    ]
    flow.human_feedback_history.extend(answers)
    flow.last_human_feedback = answers[-1] if answers else None
    for stored in known[OUTPUTS]:
        answer = stored["answer"]
        output = decoded(stored["kept"]) if "kept" in stored else stored["output"]
        if stored.get("is_answer"):
            output = answers[answer]
        entry = {"method": stored["method"], "output": output}
        getattr(flow, OUTPUTS).append(entry if answer is None else {**entry, "human_feedback": answers[answer]})


def _entry(entry: Any, answers: list[HumanFeedbackResult], keep: Callable[[Any, str], str]) -> Memory:
    output, feedback = entry["output"], entry.get("human_feedback")
    place = next((place for place, answer in enumerate(answers) if answer is feedback), None)
    if place is not None and output is feedback:
        return {"method": entry["method"], "output": None, "answer": place, "is_answer": True}
    return {"method": entry["method"], "kept": keep(output, entry["method"]), "answer": place}
