"""The values of the API, frozen and without behaviour: what is sent and what comes back."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

Json = dict[str, Any]

# What names an iteration of a loop, beside the DAG, the run, the task and the map index.
REGION_FIELDS = ("region_id", "region_index")


def region(region_id: str, index: int) -> Json:
    """Return an iteration of a loop as it is named everywhere."""
    return dict(zip(REGION_FIELDS, (region_id, index), strict=True))


# NUL and half surrogates: legal in JSON, refused by databases and by UTF-8.
UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


class ExecutionState(StrEnum):
    """What an execution is doing (specification, section 3; the words of live deployments are mapped to these)."""

    RUNNING = "running"
    PENDING = "pending"
    COMPLETED = "completed"
    ERROR = "error"
    NOT_FOUND = "not_found"


@dataclass(frozen=True, kw_only=True)
class TaskResult:
    """One finished task of a crew (specification, section 2.2)."""

    task_id: str | None
    agent: str | None
    output: str | None
    execution_time: float | None


@dataclass(frozen=True, kw_only=True)
class Execution:
    """One poll of an execution, the same for both dialects (specification, section 2.2).

    ``output`` is the text: the result of a completed one, the draft of a pending one. ``output_json`` is the
    object where that text is one. ``execution_time`` is as the service gives it. ``raw`` is the answer itself.
    Of a pending Flow, ``question`` is what its author asks and ``outcomes`` are the answers that it routes on, none
    where it takes any text. ``takes_edited_output`` says whether an approval may bring a text instead of the draft,
    ``checks_draft`` whether the service takes an answer with the hash of its draft for that draft only.
    ``view`` is the path of its page below the crew's base URL, where the service names one.
    ``has_details`` says whether the service tells more of it at ``GET /executions/{id}``.
    With ``object_is_kept`` False an XCom would not bring ``output_json`` back as it is: tasks hand on its text.
    With ``state_is_known`` False the service gave a word of its own: it counts as in progress and decides nothing.
    """

    kickoff_id: str
    state: ExecutionState
    raw_state: str
    output: str | None = None
    output_json: Json | None = None
    object_is_kept: bool = True
    error: str | None = None
    crew_task_id: str | None = None
    current_task: str | None = None
    completed_tasks: int | None = None
    total_tasks: int | None = None
    tasks: tuple[TaskResult, ...] = ()
    execution_time: float | None = None
    usage: Json | None = None
    question: str | None = None
    outcomes: list[str] = field(default_factory=list)
    flow_id: str | None = None
    view: str | None = None
    has_details: bool = field(default=False, compare=False)
    takes_edited_output: bool = False
    checks_draft: bool = False
    state_is_known: bool = True
    raw: Json = field(default_factory=dict, repr=False, compare=False)

    @property
    def is_live(self) -> bool:
        """Whether the service speaks the live dialect, where a status may lag behind and a task id is new each time."""
        return speaks_live(self.raw)

    @property
    def progress(self) -> str:
        """Return in a few words how far the execution is, e.g. ``2 of 5 tasks, now draft_task``."""
        of = f" of {self.total_tasks}" if self.total_tasks is not None else ""
        counted = [f"{self.completed_tasks}{of} tasks"] if self.completed_tasks is not None else []
        now = [f"now {self.current_task}"] if self.current_task else []
        return ", ".join(counted + now)

    @property
    def handed_on(self) -> str | Json | None:
        """The output as it is in a record; the text of a draft stays as it came, since its hash is of that."""
        if self.output_json is not None and self.object_is_kept:
            return self.output_json
        if self.output_json is None or self.state is ExecutionState.PENDING:
            return self.output
        return json.dumps(self.output_json, ensure_ascii=False)

    @property
    def _draft_hashes(self) -> Json:
        """What a pending record says about its draft; of an object the text is not in the record."""
        if self.state is not ExecutionState.PENDING or self.output is None:
            return {}
        of_object = {"object_sha256": output_sha256(self.handed_on)} if isinstance(self.handed_on, dict) else {}
        return {"output_sha256": output_sha256(self.output), **of_object}

    def record(self, execution_id: str | None = None) -> Json:
        """Return the record that tasks hand on as XCom, plain JSON."""
        completed = self.state is ExecutionState.COMPLETED
        return {
            "state": str(self.state),
            "kickoff_id": self.kickoff_id,
            "execution_id": execution_id or self.kickoff_id,
            "crew_task_id": None if completed else self.crew_task_id,
            "output": self.handed_on,
            "tasks": [asdict(task) for task in self.tasks],
            "execution_time": self.execution_time,
            "usage": self.usage,
            **self._draft_hashes,
            **self._asked,
            **({"view": self.view} if self.view else {}),
            **({} if completed else self._progress),
            **({"takes_edited_output": True} if self.takes_edited_output and not completed else {}),
        }

    @property
    def _asked(self) -> Json:
        """The question of a Flow; a crew asks for approval or a revision, and its record has no question."""
        if self.question is None and not self.outcomes:
            return {}
        flow_id = {"flow_id": self.flow_id} if self.flow_id else {}
        return {"question": self.question, "outcomes": self.outcomes, **flow_id}

    @property
    def _progress(self) -> Json:
        """How far a crew is that waits for a person, where the service reports it."""
        if self.total_tasks is None:
            return {}
        return {"completed_tasks": self.completed_tasks, "total_tasks": self.total_tasks}


HIGHEST_FIGURE = 2**63
REQUESTS = ("successful_requests", "requests")  # to models, in a usage


def total_tokens(usage: Json | None) -> int | float | None:
    """Read how many tokens were used in all; None where the service does not say, or says none beside requests.

    Where it gives a total that is less than its parts, as 0 beside them, the parts count.
    """
    given = _tokens(usage)
    if given is None:
        return None
    most = max(given, _sum(_tokens(used) for used in by_model(usage).values()))
    return most if most or not _has_requests(usage) else None


def _tokens(used: Json | None) -> int | float | None:
    """Read the tokens of an execution or of one of its models: the total, or both of its parts if they are more."""
    parts = [reported(used, f"{each}_tokens") for each in ("prompt", "completion")]
    whole = reported(used, "total_tokens")
    return None if whole is None and None in parts else max(whole or 0, _sum(parts))


def cost_usd(usage: Json | None) -> int | float | None:
    """Read what an execution cost; None where the service does not say, or a model has no price.

    Where it gives a cost that is less than those of its models, theirs count. Nothing is not the cost of requests whose
    tokens are not known.
    """
    costs, whole = model_costs(usage), reported(usage, "cost_usd")
    if whole is None or None in costs.values():
        return None
    most = max(whole, _sum(costs.values()))
    return most if most or total_tokens(usage) or not _has_requests(usage) else None


def _has_requests(usage: Json | None) -> bool:
    """Whether models were asked at all."""
    return any(reported(used, name) for used in (usage, *by_model(usage).values()) for name in REQUESTS)


def by_model(usage: Json | None) -> dict[str, Json]:
    """Read the usage of each model that the service names."""
    given = usage.get("by_model") if isinstance(usage, dict) else None
    return {name: used for name, used in given.items() if isinstance(used, dict)} if isinstance(given, dict) else {}


def model_costs(usage: Json | None) -> dict[str, int | float | None]:
    """Read the costs by model, of those for which the service gives one; None for a model without a price."""
    return {model: reported(used, "cost_usd") for model, used in by_model(usage).items() if "cost_usd" in used}


def _sum(parts: Iterable[int | float | None]) -> int | float:
    """Add up the figures that are known, which is the least that was used."""
    return min(round(sum(each for each in parts if each is not None), 10), HIGHEST_FIGURE)


def reported(usage: Json | None, name: str) -> int | float | None:
    """Read a figure that can be compared with a limit and added up, which NaN cannot; None where there is none."""
    value: Any = usage.get(name) if isinstance(usage, dict) else None
    return value if type(value) in (int, float) and 0 <= value <= HIGHEST_FIGURE else None


def speaks_live(status: Json) -> bool:
    """Whether the body of a status answer is of the live dialect: that one has a ``state``."""
    return "state" in status


@dataclass(frozen=True)
class HumanInputWebhook:
    """Where the service asks for a person, and with which credential (observed dialect, POST /kickoff).

    Either ``token`` (bearer), or ``username`` and ``password`` (basic), or none. ``conn_id`` names an Airflow
    connection that holds the credential; operators take it in this form only.
    """

    url: str
    token: str | None = field(default=None, repr=False)
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    conn_id: str | None = None


@dataclass(frozen=True)
class Webhooks:
    """The addresses that the service notifies (specification, section 6); they are not carried over at resume."""

    task: str | None = None
    step: str | None = None
    crew: str | None = None
    human_input: HumanInputWebhook | None = None

    @classmethod
    def of(cls, value: Webhooks | Json | None) -> Webhooks | None:
        """Read a dict with the same keys; a name that is not one of them is refused."""
        if value is None or isinstance(value, cls):
            return value
        if not isinstance(value, dict):
            raise ValueError(f"webhooks must be a dict or Webhooks, not {type(value).__name__}")
        _refuse_unknown("webhooks", value, cls)
        human = value.get("human_input")
        if isinstance(human, str):
            human = HumanInputWebhook(human)
        if isinstance(human, dict):
            _refuse_unknown("webhooks.human_input", human, HumanInputWebhook)
            human = HumanInputWebhook(**human)
        return cls(**{**value, "human_input": human})

    def as_dict(self) -> Json:
        """Return the same as a dict that a template can be rendered in."""
        return asdict(self)


def _refuse_unknown(what: str, value: Json, shape: type) -> None:
    known = shape.__dataclass_fields__  # type: ignore[attr-defined]
    for name in value:
        if name not in known:
            raise ValueError(f"{what} has no field {name!r}; it has {', '.join(known)}")
    if "url" in known and not value.get("url"):
        raise ValueError(f"{what} needs a url")


@dataclass(frozen=True)
class CrewInputs:
    """What a crew asks for at its kickoff.

    :param names: all of them; those of a Flow need not be required
    :param required: which of them are; None where the service does not say
    """

    names: list[str]
    required: list[str] | None = None


@dataclass(frozen=True, kw_only=True)
class Kickoff:
    """What ``POST /kickoff`` carries; the one value that goes from an operator through the hook to the call.

    ``webhooks`` may be the word of the inbox, until its addresses are made right before the POST.
    """

    inputs: Json
    webhooks: Webhooks | str | None = None
    meta: Json | None = None
    restore_from: str | None = None
    idempotency_key: str | None = None


@dataclass(frozen=True)
class EditedOutput:
    """A text that becomes the output of a task instead of its draft, at the project's own crew service only.

    :param output_sha256: the hash of the draft that it was made of; of any other draft the service takes no edit
    """

    text: str
    output_sha256: str


@dataclass(frozen=True, kw_only=True)
class Resume:
    """What ``POST /resume`` carries (specification, section 2.3; of a Flow also the chosen outcome).

    :param output_sha256: the hash of the draft that is answered, at the project's own crew service only
    """

    execution_id: str
    crew_task_id: str
    human_feedback: str
    is_approve: bool | None
    outcome: str | None = None
    webhooks: Webhooks | None = None
    idempotency_key: str | None = None
    edited_output: EditedOutput | None = None
    output_sha256: str | None = None


@dataclass(frozen=True)
class Started:
    """The answer to a kickoff.

    :param view: the path of the execution's page below the crew's base URL, where the service names one
    """

    kickoff_id: str
    view: str | None = None


@dataclass(frozen=True)
class Resumed:
    """The answer to a resume. ``kickoff_id`` is what to poll next: on live deployments a new one."""

    kickoff_id: str
    status: str | None = None
    message: str | None = None


def canonical_json(value: Any) -> str:
    """Write JSON in the one form that is compared and hashed: sorted keys, no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def output_sha256(output: str | Json | None) -> str:
    """Hash a draft: its UTF-8 text as it arrives, without what no database holds; of an object, its one form.

    A draft goes by the hash of its object in what release 0.1 stored, and where the text is gone.
    """
    text = output if isinstance(output, str) else canonical_json(output)
    return hashlib.sha256(UNSTORABLE.sub("\ufffd", text).encode()).hexdigest()
