"""A generated family of Flows, each played by CrewAI itself, in both of its ways, and by the service's FlowRun.

Run as a process of its own: `python flow_family.py NAME...` prints one JSON object for each Flow. The service is killed
behind every method of one run; with `--apart`, in as many runs as there are methods, once in each. A Flow that the
service refuses has the words instead.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from crew_service.crewai.errors import UnsupportedCrew

Condition = str | tuple[Any, ...]
Answers = tuple[tuple[str, str], ...]
AFTER_A_RESUME = "after a resume"
NOWHERE = "nowhere"


@dataclass(frozen=True)
class Method:
    listen: Condition | None = None
    start: bool | str = False
    emit: tuple[str, ...] = ()  # the outcomes of a gate
    text: bool = False  # a gate for free text
    routes: tuple[str, ...] = ()  # what a router returns, call by call


@dataclass(frozen=True)
class Shape:
    methods: dict[str, Method]
    answers: Answers
    persist: bool = False
    parallel: bool = False  # its methods have no order of their own
    goes_as: str = "one process"  # or AFTER_A_RESUME, or NOWHERE: what to compare with
    goes: tuple[str, ...] = ()  # where CrewAI itself goes nowhere

    def rounds(self) -> dict[str, int]:
        """Count how often each gate is answered."""
        return Counter(gate for gate, _ in self.answers)

    def hearing(self, gate: str) -> list[str]:
        """List who listens to a gate by its name, though it has outcomes."""
        return [name for name, method in self.methods.items() if self.methods[gate].emit and method.listen == gate]


def gate(listen: Condition | None, *emit: str, start: bool | str = False) -> Method:
    return Method(listen, start, emit or ("send", "again"))


def chain(first: Method, length: int) -> dict[str, Method]:
    """Steps of which each listens to the one before it."""
    steps = {"step1": first}
    return steps | {f"step{number}": Method(f"step{number - 1}") for number in range(2, length + 1)}


ENTRIES: dict[str, Callable[[int], dict[str, Method]]] = {
    "or": lambda length: chain(Method(("or", "load", "again")), length),
    "router": lambda length: {
        "choose": Method("load", routes=("go",)),
        **chain(Method(("or", "go", "again")), length),
    },
    "router in the loop": lambda length: {
        "choose": Method(("or", "load", "again"), routes=("go", "go on")),
        **chain(Method(("or", "go", "go on")), length),
    },
    "two ways in": lambda length: {
        "quick": Method("load"),
        **chain(Method(("or", "quick", "again", "more")), length),
    },
    "redo": lambda length: {"redo": Method("again"), **chain(Method(("or", "load", "redo")), length)},
    "start": lambda length: {"other": Method(start="again"), **chain(Method("load"), length)},
    "start and listen": lambda length: chain(Method("load", start="again"), length),
    "and": lambda length: {
        "left": Method(("or", "load", "again")),
        "right": Method(("or", "load", "again")),
        **chain(Method(("and", "left", "right")), length),
    },
    "and, redo": lambda length: {
        "redo": Method("again"),
        "left": Method(("or", "load", "redo")),
        "right": Method(("or", "load", "redo")),
        **chain(Method(("and", "left", "right")), length),
    },
}
GOES_AS = {"redo": AFTER_A_RESUME, "and, redo": AFTER_A_RESUME}
ENDS: dict[str, tuple[dict[str, Method], Answers]] = {
    "end": ({}, ()),
    "chain": ({"out": Method("send"), "told": Method("out")}, ()),
    "or": ({"out": Method(("or", "send", "never"))}, ()),
    "gate": ({"place": Method("send", text=True), "out": Method("place")}, (("place", "the board"),)),
    "named": ({"seen": Method("gate"), "out": Method("send")}, ()),
}
BRANCHES: dict[str, tuple[dict[str, Method], Answers]] = {
    "side": ({"side": Method("load"), "join": Method(("and", "side", "send"))}, ()),
    "side start": ({"aside": Method(start=True), "join": Method(("and", "aside", "send"))}, ()),
    "side gate": (
        {"check": gate("load", "fine"), "join": Method(("and", "fine", "send"))},
        (("check", "fine"),),
    ),
    "side race": ({"side": Method("load"), "slow": Method("send"), "join": Method(("or", "side", "slow"))}, ()),
    "fired before": ({"early": Method(("or", "load", "send"))}, ()),
}
OTHERS = {
    "loop on itself": Shape(
        {"load": Method(start=True), "gate": gate(("or", "load", "again")), "out": Method("send")},
        (("gate", "again"), ("gate", "again"), ("gate", "send")),
    ),
    "gate that starts and listens": Shape(
        {"gate": gate("again", start=True), "out": Method("send")},
        (("gate", "again"), ("gate", "again"), ("gate", "send")),
    ),
    "start gate, steps, second gate": Shape(
        {
            "first": gate(None, "go", start=True),
            "step": Method(("or", "go", "again")),
            "gate": gate("step"),
            "out": Method("send"),
        },
        (("first", "go"), ("gate", "again"), ("gate", "send")),
    ),
    "start gate by name and by outcome": Shape(
        {"gate": gate(None, start=True), "step": Method(("or", "gate", "send")), "out": Method("step")},
        (("gate", "send"),),
    ),
    "back to the first of two gates": Shape(
        {
            "load": Method(start=True),
            "step": Method(("or", "load", "again", "over")),
            "first": gate("step", "on", "again"),
            "next": Method("on"),
            "gate": gate("next", "send", "over", "next again"),
            "out": Method("send"),
        },
        (("first", "again"), ("first", "on"), ("gate", "over"), ("first", "on"), ("gate", "send")),
    ),
    "way back of two steps": Shape(
        {
            "load": Method(start=True),
            "redo": Method("again"),
            "more": Method("redo"),
            "step": Method(("or", "load", "more")),
            "gate": gate("step"),
            "out": Method("send"),
        },
        (("gate", "again"), ("gate", "again"), ("gate", "send")),
        goes_as=AFTER_A_RESUME,
    ),
    "way back by a router": Shape(
        {
            "load": Method(start=True),
            "redo": Method("again", routes=("redone",)),
            "step": Method(("or", "load", "redone")),
            "gate": gate("step"),
            "out": Method("send"),
        },
        (("gate", "again"), ("gate", "again"), ("gate", "send")),
    ),
    "way back of two branches": Shape(
        {
            "load": Method(start=True),
            "left": Method("again"),
            "right": Method("again"),
            "step": Method(("or", "load", ("and", "left", "right"))),
            "gate": gate("step"),
            "out": Method("send"),
        },
        (("gate", "again"), ("gate", "again"), ("gate", "send")),
        parallel=True,
        goes_as=AFTER_A_RESUME,
    ),
    "a loop in each of two branches": Shape(
        {
            "load": Method(start=True),
            "step": Method(("or", "load", "again")),
            "gate": gate("step"),
            "side": Method(("or", "load", "over")),
            "check": gate("side", "fine", "over"),
            "join": Method(("and", "fine", "send")),
        },
        (("gate", "again"), ("gate", "send"), ("check", "over"), ("check", "over"), ("check", "fine")),
        parallel=True,
    ),
    "a start again after a start gate": Shape(
        {
            "gate": gate(None, start=True),
            "plain": Method(start=True),
            "other": Method(start="again"),
            "out": Method("send"),
        },
        (("gate", "again"),),
        parallel=True,
        goes_as=NOWHERE,
        goes=("gate", "plain", "other"),
    ),
}


def shapes() -> dict[str, Shape]:
    """Return the whole family by name."""
    rounds = (("gate", "again"), ("gate", "again"), ("gate", "send"))
    family = dict(OTHERS)
    for (entry, steps), length, (end, (more, answers)) in itertools.product(ENTRIES.items(), (1, 2, 3), ENDS.items()):
        before = steps(length)
        asks: Condition = ("or", f"step{length}", "other") if "other" in before else f"step{length}"
        methods = {"load": Method(start=True), **before, "gate": gate(asks), **more}
        shape = Shape(methods, rounds + answers, parallel=entry.startswith("and"))
        family[f"{entry}/{length}/{end}"] = replace(shape, goes_as=GOES_AS.get(entry, shape.goes_as))
    for (branch, (more, answers)), length in itertools.product(BRANCHES.items(), (1, 2, 3)):
        methods = {"load": Method(start=True), **ENTRIES["or"](length), "gate": gate(f"step{length}"), **more}
        family[f"beside {branch}/{length}"] = Shape(methods, rounds + answers, parallel=True)
    for length in (1, 2, 3):
        family[f"persist/{length}"] = replace(family[f"or/{length}/chain"], persist=True)
    return family


def main(names: list[str]) -> None:
    family, results = shapes(), sys.stdout
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - what CrewAI prints is not wanted
    apart = "--apart" in names
    for name in family.keys() & names:
        print(json.dumps({"name": name, **played(family[name], apart=apart)}), file=results, flush=True)
    os._exit(0)


def played(shape: Shape, *, apart: bool) -> dict[str, Any]:
    """Play a Flow in all ways; each gives the methods that were called and the output."""
    with tempfile.TemporaryDirectory() as folder:
        by_itself = {"one process": by_crewai(shape), AFTER_A_RESUME: by_resuming(shape, Path(folder))}
    try:
        return by_itself | by_the_service(shape, apart=apart)
    except UnsupportedCrew as refusal:
        return {**by_itself, "refused": str(refusal)}


def by_the_service(shape: Shape, *, apart: bool) -> dict[str, Any]:
    served = Served(shape).play()
    places = range(1, len(served["finished"]) + 1)
    killed = [Served(shape, kills).play() for kills in ([{place} for place in places] if apart else [set(places)])]
    return {
        "served": served,
        "killed": killed,
        "stored by an earlier release": Served(shape, earlier_release=True).play(),
    }


LOG: list[str] = []


def flow_class(shape: Shape, **more: Any) -> Any:
    """Make the class that somebody would write by hand."""
    from crewai.flow import Flow
    from crewai.flow.persistence import persist
    from pydantic import BaseModel

    class Calls(BaseModel):
        calls: list[str] = []

    methods = {name: _decorated(name, method, shape) for name, method in shape.methods.items()}
    quiet: dict[str, Any] = {"_skip_auto_memory": True, "suppress_flow_events": True}
    quiet["__annotations__"] = dict.fromkeys(quiet, bool)
    made: Any = type(Flow)("Made", (Flow[Calls],), {"__module__": __name__, **quiet, **methods, **more})
    return persist()(made) if shape.persist else made


def _decorated(name: str, method: Method, shape: Shape) -> Any:
    from crewai.flow import human_feedback, listen, router, start

    def call(self: Any, given: Any = None) -> str:
        LOG.append(name)
        self.state.calls.append(name)
        count = self.state.calls.count(name)
        if method.routes:
            return method.routes[min(count, len(method.routes)) - 1]
        return name if shape.parallel else f"{name} {count} of ({_plain(given)})"

    call.__name__ = call.__qualname__ = name
    made: Any = call
    if method.emit or method.text:
        made = human_feedback(message="Well?", emit=list(method.emit) or None)(made)
    if method.start:
        made = start(method.start if isinstance(method.start, str) else None)(made)
    if method.listen is not None:
        made = (router if method.routes else listen)(_condition(method.listen))(made)
    return made


def _condition(condition: Condition) -> Any:
    from crewai.flow import and_, or_

    if isinstance(condition, str):
        return condition
    word, *branches = condition
    return {"or": or_, "and": and_}[word](*map(_condition, branches))


def _plain(given: Any) -> str:
    if hasattr(given, "outcome"):
        return f"{given.output}: {given.outcome or given.feedback}"
    return "" if given is None else str(given)


def _reference(shape: Shape) -> Any:
    """Take an outcome that was chosen as it is; CrewAI asks a model even then."""
    from crewai.flow import Flow

    async def finalize(self: Any, **values: Any) -> Any:
        result = await Flow._finalize_human_feedback(self, **{**values, "emit": None, "default_outcome": None})
        result.outcome = values["raw_feedback"] if values["emit"] else None
        return result

    return flow_class(shape, _finalize_human_feedback=finalize)


class Script:
    """The answers to each gate, in turn."""

    def __init__(self, answers: Answers) -> None:
        self._answers: dict[str, Iterator[str]] = {
            name: iter([said for asked, said in answers if asked == name]) for name, _ in answers
        }

    def answer(self, name: str) -> str:
        return next(self._answers[name])

    def request_feedback(self, context: Any, flow: Any) -> str:
        return self.answer(context.method_name)


class Pausing:
    def request_feedback(self, context: Any, flow: Any) -> str:
        from crewai.flow.async_feedback import HumanFeedbackPending

        raise HumanFeedbackPending(context=context)


def _told(output: Any, **more: Any) -> dict[str, Any]:
    calls = list(LOG)
    LOG.clear()
    return {"calls": calls, "output": getattr(output, "output", output), **more}


def by_crewai(shape: Shape) -> dict[str, Any]:
    from crewai.flow.flow_config import flow_config

    flow_config.hitl_provider = Script(shape.answers)
    return _told(_reference(shape)().kickoff())


def by_resuming(shape: Shape, folder: Path) -> dict[str, Any]:
    from crewai.flow.async_feedback import HumanFeedbackPending
    from crewai.flow.flow_config import flow_config
    from crewai.flow.persistence import SQLiteFlowPersistence

    flow_config.hitl_provider = Pausing()
    script, kind = Script(shape.answers), _reference(shape)
    kept = SQLiteFlowPersistence(str(folder / "pending.db"))
    outcome = kind(persistence=kept).kickoff()
    while isinstance(outcome, HumanFeedbackPending):
        flow = kind.from_pending(outcome.context.flow_id, kept)
        outcome = flow.resume(script.answer(outcome.context.method_name))
    return _told(outcome)


class Killed(BaseException):
    """The process ends here; what was reported before is stored."""


class Served:
    """Plays a Flow as the service does, with nothing kept between two segments but JSON.

    :param kills: the finished methods after which the process ends, counted from 1
    :param earlier_release: take from each stored question what the first release did not store
    """

    def __init__(self, shape: Shape, kills: set[int] | None = None, *, earlier_release: bool = False) -> None:
        from engine_stub import EngineStub

        from crew_service.crewai.flow_source import FlowSource

        self._shape = shape
        self._source = FlowSource.of_class(flow_class(shape))
        self._source.describe()  # as at the start of the service
        self._kills = kills or set()
        self._earlier_release = earlier_release
        self.done = 0
        self._stub = EngineStub(self, Path("no-log"))  # type: ignore[arg-type]
        self._stub.inputs = {}

    def play(self) -> dict[str, Any]:
        script = Script(self._shape.answers)
        outcome = self._restarted(self._stub.segment)
        while asked := self._stub.waiting:
            said = script.answer(asked.task_id)
            for question in asked.state["waiting"] if self._earlier_release else ():
                del question["fired"], question["starts"]
            answer = self._stub.choose if asked.outcomes else self._stub.answer
            outcome = self._restarted(partial(answer, said))
        return _told(outcome, finished=self._stub.finished())

    def _restarted(self, segment: Callable[[], Any]) -> Any:
        while True:
            try:
                return segment()
            except Killed:
                segment = self._stub.segment

    def run(self, job: Any, report: Any) -> Any:
        from crew_service.crewai.flow_run import FlowRun
        from crew_service.engine.crew import TaskDone

        def reported(progress: Any) -> None:
            report(progress)
            if isinstance(progress, TaskDone):
                self.done += 1
                if self.done in self._kills:
                    raise Killed

        return FlowRun(self._source, job, reported).run()


if __name__ == "__main__":
    main(sys.argv[1:])
