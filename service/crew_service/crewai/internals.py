"""What the service uses of CrewAI beyond its public surface; nothing else of the package does.

Pausing a Flow without a thread, several gates at once and going on after a crash need more than `kickoff` and
`resume` give: CrewAI's own pause cancels what runs beside the gate and forgets which methods have finished.
The versions that this file was tried with are listed in docs/crewai.md; `make crewai-matrix` tries them again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from crewai import Crew, Task, TaskOutput
from crewai.events import crewai_event_bus
from crewai.flow.async_feedback import PendingFeedbackContext
from crewai.flow.flow import Flow
from crewai.flow.human_feedback import HumanFeedbackResult, _serialize_llm_for_context
from crewai.flow.runtime import _iter_condition_events
from crewai.flow.types import FlowMethodName
from crewai.llms.base_llm import BaseLLM

WATCHED = "_counting_is_watched"
AsyncCall = Callable[..., Awaitable[Any]]
Memory = dict[str, Any]
FIRED = "_fired_or_listeners"  # of or_() conditions, which count once
SETS = ("_completed_methods", FIRED)
COUNTS = ("_method_call_counts", "_method_execution_counts")
EVENTS = "_pending_events"  # of and_() conditions that are met in part
OUTPUTS = "_method_outputs"
ANSWER = ("output", "feedback", "outcome", "method_name", "metadata")


def watch_count(kind: type[BaseLLM], counting: Callable[[BaseLLM, Callable[[], None]], None]) -> None:
    """Let `counting` perform each count of tokens that a class of models makes by a method of its own."""
    for owner in kind.__mro__:
        count = vars(owner).get("_track_token_usage_internal")
        if count is None or getattr(count, WATCHED, False):
            continue

        def counted(model: BaseLLM, used: Any, count: Callable[..., None] = count) -> None:
            counting(model, lambda: count(model, used))

        setattr(counted, WATCHED, True)
        setattr(owner, count.__name__, counted)


def watch_events(told: Callable[[Any, Any], None]) -> None:
    """Tell of each event where it is emitted; a handler of the bus runs in another thread, at another time."""
    emit = crewai_event_bus.emit

    def emitted(source: Any, event: Any) -> Any:
        told(source, event)
        return emit(source, event)

    crewai_event_bus.emit = emitted  # type: ignore[method-assign]


def feedback_message(context: Any, feedback: str) -> Any:
    """Return a person's feedback as the message that CrewAI gives an agent."""
    return context._format_feedback_message(feedback)


def definition(flow: Flow[Any]) -> Any:
    return flow._definition


def state_model(flow_class: type[Flow[Any]]) -> Any:
    """Return the model, the instance or the dict that a Flow's state is made from; None where it names none."""
    declared = flow_class.model_fields["initial_state"].default
    return declared if declared is not None else getattr(flow_class, "_initial_state_t", None)


def stamp(flow: Flow[Any], state_id: str) -> None:
    """Give the state its id."""
    if isinstance(flow.state, dict):
        flow.state["id"] = state_id
    else:
        object.__setattr__(flow.state, "id", state_id)


def restore_state(flow: Flow[Any], state: dict[str, Any]) -> None:
    flow._restore_state(state)


def replace(flow: Flow[Any], name: str, wrapped: Callable[[AsyncCall], AsyncCall]) -> None:
    """Put a wrapper around one of the instance's methods."""
    object.__setattr__(flow, name, wrapped(getattr(flow, name)))


def set_persistence(flow: Flow[Any], persistence: Any) -> None:
    """Set it on a Flow that is made: the backends that `@persist` names stay in use."""
    object.__setattr__(flow, "persistence", persistence)


def wait_at(flow: Flow[Any], gate: PendingFeedbackContext) -> None:
    """Make a fresh Flow one that waits at that gate."""
    flow._pending_feedback_context = gate
    flow._is_execution_resuming = True
    flow._flow_match_id = flow.flow_id


def gate(flow: Flow[Any], method: str, feedback: Any, output: Any) -> PendingFeedbackContext:
    """Describe the question of a method as CrewAI describes it to a provider."""
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
        llm=llm if llm is None or isinstance(llm, str | dict) else _serialize_llm_for_context(llm),
    )


def fired(flow: Flow[Any]) -> set[str]:
    return set(map(str, getattr(flow, FIRED)))


def rearm(flow: Flow[Any], outcome: str, fired: set[str]) -> None:
    """Let those that listen to the outcome fire again, of the ones that had fired."""
    flow._rearm_or_listeners_for_trigger(FlowMethodName(outcome), {FlowMethodName(name) for name in fired})


def rearm_way_back(flow: Flow[Any], event: str, gate: str) -> None:
    """Let each listener fire again that stands on a way from the event to the gate."""
    methods = definition(flow).methods
    way = {name for name in fired(flow) & _before(methods, gate) if event in _awaited(methods, name)}
    getattr(flow, FIRED).difference_update(way)


async def start_again(flow: Flow[Any], outcome: str) -> None:
    """Run the methods with `@start(outcome)`, less those that have run as its listeners."""
    for name in flow._start_method_names():
        triggered = flow._start_condition_triggered_by(name, FlowMethodName(outcome))
        if triggered and outcome not in _events(flow._listen_condition(name)):
            await flow._execute_start_method(name)


def _before(methods: dict[str, Any], method: str) -> set[str]:
    """Return the method, and those from which a way leads to it."""
    found: set[str] = set()
    new = {method}
    while new:
        found |= new
        awaited = _of(methods, new)
        new = {name for name, each in methods.items() if _emits(name, each, awaited, methods)} - found
    return found


def _awaited(methods: dict[str, Any], method: str) -> set[str]:
    """Return the events that lead to the method."""
    return _of(methods, _before(methods, method))


def _of(methods: dict[str, Any], names: set[str]) -> set[str]:
    return {event for name in names for event in _events(methods[name].listen) | _events(methods[name].start)}


def _emits(name: str, method: Any, awaited: set[str], methods: dict[str, Any]) -> bool:
    """A router that does not declare its outcomes may return any of them."""
    asks = method.human_feedback
    declared = (asks.emit if asks else None) or method.emit
    outcomes = awaited - methods.keys() if method.router and not declared else set(declared or ())
    return name in awaited or bool(outcomes & awaited)


def _events(condition: Any) -> set[str]:
    return set(_iter_condition_events(condition)) if isinstance(condition, str | dict) else set()


def question_in(flow: Flow[Any], method: str) -> PendingFeedbackContext:
    """Describe a question that a crew asks in the middle of a method."""
    return PendingFeedbackContext(
        flow_id=flow.flow_id, flow_class=type(flow).__name__, method_name=method, method_output=None, message=""
    )


def crew_of(task: Task) -> Crew | None:
    crew = task.agent.crew if task.agent else None
    return crew if isinstance(crew, Crew) else None


def wrap_tasks(settled: Callable[[Task], TaskOutput | None], done: Callable[[Task, TaskOutput], None]) -> None:
    """Ask `settled` before any task of this process runs, and tell `done` after one that ran."""
    execute, aexecute = Task._execute_core, Task._aexecute_core

    def executed(task: Task, agent: Any, context: Any, tools: Any) -> TaskOutput:
        task.agent = agent or task.agent
        if (earlier := settled(task)) is not None:
            return earlier
        output = execute(task, agent, context, tools)
        done(task, output)
        return output

    async def aexecuted(task: Task, agent: Any, context: Any, tools: Any) -> TaskOutput:
        task.agent = agent or task.agent
        if (earlier := settled(task)) is not None:
            return earlier
        output = await aexecute(task, agent, context, tools)
        done(task, output)
        return output

    Task._execute_core, Task._aexecute_core = executed, aexecuted  # type: ignore[method-assign, assignment]


def memory(flow: Flow[Any], jsonable: Callable[[Any], Any]) -> Memory:
    """Return what a Flow knows apart from its state, as plain JSON."""
    known: Memory = {name: sorted(map(str, getattr(flow, name))) for name in SETS}
    known |= {name: {str(method): count for method, count in getattr(flow, name).items()} for name in COUNTS}
    known[EVENTS] = {str(key): sorted(map(str, events)) for key, events in getattr(flow, EVENTS).items()}
    answers = flow.human_feedback_history
    known["answers"] = [{name: jsonable(getattr(answer, name)) for name in ANSWER} for answer in answers]
    known[OUTPUTS] = [_entry(entry, answers, jsonable) for entry in getattr(flow, OUTPUTS)]
    return known


def remember(flow: Flow[Any], known: Memory) -> None:
    """Give a fresh Flow what `memory` returned of an earlier one."""
    for name in (*SETS, *COUNTS):
        getattr(flow, name).update(known[name])
    getattr(flow, EVENTS).update({key: set(events) for key, events in known[EVENTS].items()})
    answers = [HumanFeedbackResult(**answer) for answer in known["answers"]]
    flow.human_feedback_history.extend(answers)
    flow.last_human_feedback = answers[-1] if answers else None
    for kept in known[OUTPUTS]:
        answer = kept["answer"]
        entry = {name: value for name, value in kept.items() if name != "answer"}
        getattr(flow, OUTPUTS).append(entry if answer is None else {**entry, "human_feedback": answers[answer]})


def _entry(entry: Any, answers: list[HumanFeedbackResult], jsonable: Callable[[Any], Any]) -> Memory:
    output, given = entry["output"], entry.get("human_feedback")
    plain = output.output if isinstance(output, HumanFeedbackResult) else output
    place = next((place for place, answer in enumerate(answers) if answer is given), None)
    return {"method": entry["method"], "output": jsonable(plain), "answer": place}
