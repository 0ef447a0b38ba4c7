"""The API's requests and responses as frozen dataclasses, without I/O."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

Json = dict[str, Any]

# Fields that identify a loop iteration, in addition to the DAG, run, task and map index.
REGION_FIELDS = ("region_id", "region_index")


def region(region_id: str, index: int) -> Json:
    """Return the fields that identify a loop iteration."""
    return dict(zip(REGION_FIELDS, (region_id, index), strict=True))


LONGEST_SHOWN = 200  # characters of a value in a message
MOST_LISTED = 50  # names in a message


def shortened(text: str, longest: int = LONGEST_SHOWN) -> str:
    """Truncate text that is too long for a message."""
    if len(text) <= longest:
        return text
    end = f"… ({len(text)} characters)"
    return text[: longest - len(end)] + end


def shown(value: object) -> str:
    """Return a value that somebody gave as a message shows it: in Python's notation, truncated."""
    return shortened(repr(value))


def reason(error: Exception) -> str:
    """Return an error as the reason in a message."""
    return f"{type(error).__name__}: {shortened(str(error))}"


def listed(names: Iterable[str]) -> str:
    """Join names for a message: each truncated, and not all of very many."""
    every = list(names)
    first = ", ".join(map(shortened, every[:MOST_LISTED]))
    return f"{first} and {len(every) - MOST_LISTED} more" if len(every) > MOST_LISTED else first


# NUL and unpaired surrogates are valid in JSON, but databases or UTF-8 encoders reject them.
UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


class ExecutionState(StrEnum):
    """The state of an execution (specification, section 3; the words that live deployments use are mapped to these)."""

    RUNNING = "running"
    PENDING = "pending"
    COMPLETED = "completed"
    ERROR = "error"
    NOT_FOUND = "not_found"


OVER = (ExecutionState.COMPLETED, ExecutionState.ERROR)  # terminal states; all except completed are failures


@dataclass(frozen=True, kw_only=True)
class TaskResult:
    """The result of a crew's finished task (specification, section 2.2)."""

    task_id: str | None
    agent: str | None
    output: str | None
    execution_time: float | None


@dataclass(frozen=True, kw_only=True)
class Execution:
    """The state of an execution as of one poll, the same in both dialects (specification, section 2.2).

    ``output`` is text: the result of a completed execution, or the draft of a pending one. ``output_json`` is the
    object that this text contains, if any. ``execution_time`` is the service's value. ``raw`` is the response body.
    For a pending Flow, ``question`` is its author's question, and ``outcomes`` lists the answers that the Flow routes
    on; it is empty if any text is accepted. If ``ask`` is set, the execution is waiting in the middle of a task, and
    ``outcomes`` lists the words that answer the question. ``takes_edited_output`` indicates whether an approval may
    contain text that replaces the draft, and ``checks_draft`` whether the service checks an answer's hash against the
    waiting draft. ``shown_task`` is the beginning of ``crew_task_id``, for use in messages; secrets were masked before
    it was truncated. ``view`` is the path of the execution's page below the crew's base URL, if the service provides
    one; ``files`` are those to show with an open question. ``has_details`` indicates whether ``GET /executions/{id}``
    returns more information. If ``object_is_kept`` is False, XCom would change ``output_json``, so tasks pass it on
    as text. If ``state_is_known`` is False, the service returned an unknown state: the execution is treated as in
    progress, and no decision is based on this poll.
    """

    kickoff_id: str
    state: ExecutionState
    raw_state: str
    output: str | None = None
    output_json: Json | None = None
    object_is_kept: bool = True
    error: str | None = None
    crew_task_id: str | None = None
    shown_task: str | None = field(default=None, compare=False)
    current_task: str | None = None
    completed_tasks: int | None = None
    total_tasks: int | None = None
    tasks: tuple[TaskResult, ...] = ()
    execution_time: float | None = None
    usage: Json | None = None
    question: str | None = None
    outcomes: list[str] = field(default_factory=list)
    flow_id: str | None = None
    ask: Json | None = None
    view: str | None = None
    files: list[Json] = field(default_factory=list, compare=False)
    has_details: bool = field(default=False, compare=False)
    takes_edited_output: bool = False
    checks_draft: bool = False
    state_is_known: bool = True
    raw: Json = field(default_factory=dict, repr=False, compare=False)

    @property
    def has_failed(self) -> bool:
        """Whether the execution ended without a result."""
        return self.state in OVER and self.state is not ExecutionState.COMPLETED

    @property
    def is_live(self) -> bool:
        """Whether the service uses the live dialect: its status may lag, and each question has its own task id."""
        return speaks_live(self.raw)

    @property
    def progress(self) -> str:
        """Return the progress in a few words, e.g. ``2 of 5 tasks, now draft_task``."""
        of = f" of {self.total_tasks}" if self.total_tasks is not None else ""
        counted = [f"{self.completed_tasks}{of} tasks"] if self.completed_tasks is not None else []
        now = [f"now {self.current_task}"] if self.current_task else []
        return ", ".join(counted + now)

    @property
    def handed_on(self) -> str | Json | None:
        """The output as stored in a record; a draft's text stays unchanged, because its hash is computed from it."""
        if self.output_json is not None and self.object_is_kept:
            return self.output_json
        if self.output_json is None or self.state is ExecutionState.PENDING:
            return self.output
        return json.dumps(self.output_json, ensure_ascii=False)

    @property
    def _draft_hashes(self) -> Json:
        """The draft's hashes, for a pending record; if the draft is an object, the record does not contain its text."""
        if self.state is not ExecutionState.PENDING or self.output is None:
            return {}
        of_object = {"object_sha256": output_sha256(self.handed_on)} if isinstance(self.handed_on, dict) else {}
        return {"output_sha256": output_sha256(self.output), **of_object}

    def record(self, execution_id: str | None = None) -> Json:
        """Return the record that tasks pass on through XCom, as plain JSON."""
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
            **({} if completed or not self.files else {"files": self.files}),
            **({} if completed else self._progress),
            **({"dialect": "live"} if self.is_live and not completed else {}),
            **({"takes_edited_output": True} if self.takes_edited_output and not completed else {}),
        }

    @property
    def _asked(self) -> Json:
        """A Flow's question, or one in the middle of a task; a draft's record has none."""
        ask = {"ask": self.ask} if self.ask else {}
        if self.question is None and not self.outcomes:
            return ask
        flow_id = {"flow_id": self.flow_id} if self.flow_id else {}
        return {"question": self.question, "outcomes": self.outcomes, **flow_id, **ask}

    @property
    def _progress(self) -> Json:
        """The progress of a crew that is waiting for a person, if the service reports it."""
        if self.total_tasks is None:
            return {}
        return {"completed_tasks": self.completed_tasks, "total_tasks": self.total_tasks}


HIGHEST_FIGURE = 2**63
CHAIN = "chain_usage"  # a key in usage data: the total for the execution and those that it continues
REQUESTS = ("successful_requests", "requests")  # keys in usage data: the number of model calls


def total_tokens(usage: Json | None) -> int | float | None:
    """Return the total number of tokens; None if not reported, or reported as 0 although there were requests.

    If the reported total is less than the sum of its parts, return the sum.
    """
    total = _tokens(usage)
    if total is None:
        return None
    most = max(total, _sum(_tokens(used) for used in by_model(usage).values()))
    return most if most or not _has_requests(usage) else None


def _tokens(used: Json | None) -> int | float | None:
    """Read the number of tokens that an execution or a model used: the total, or the sum of its parts if higher."""
    parts = [reported(used, f"{each}_tokens") for each in ("prompt", "completion")]
    whole = reported(used, "total_tokens")
    return None if whole is None and None in parts else max(whole or 0, _sum(parts))


def cost_usd(usage: Json | None) -> int | float | None:
    """Return the cost of an execution; None if not reported, or if a model has no price.

    If the reported cost is less than the sum over its models, return the sum. A cost of 0 counts as unknown if there
    were requests whose tokens are unknown.
    """
    costs, whole = model_costs(usage), reported(usage, "cost_usd")
    if whole is None or None in costs.values():
        return None
    most = max(whole, _sum(costs.values()))
    return most if most or total_tokens(usage) or not _has_requests(usage) else None


def _has_requests(usage: Json | None) -> bool:
    """Whether any model was called."""
    return any(reported(used, name) for used in (usage, *by_model(usage).values()) for name in REQUESTS)


def by_model(usage: Json | None) -> dict[str, Json]:
    """Read the usage of each model that the service names."""
    models = usage.get("by_model") if isinstance(usage, dict) else None
    return {name: used for name, used in models.items() if isinstance(used, dict)} if isinstance(models, dict) else {}


def model_costs(usage: Json | None) -> dict[str, int | float | None]:
    """Read the reported costs by model; None for a model without a price."""
    return {model: reported(used, "cost_usd") for model, used in by_model(usage).items() if "cost_usd" in used}


def _sum(parts: Iterable[int | float | None]) -> int | float:
    """Add up the known figures; the result is a lower bound."""
    return min(round(sum(each for each in parts if each is not None), 10), HIGHEST_FIGURE)


def is_unreadable(usage: Any, names: Collection[str]) -> bool:
    """Whether one of these figures, for the execution or a model, is present but unreadable."""
    if not isinstance(usage, dict):
        return usage is not None
    models = usage.get("by_model")
    if not isinstance(models, dict | None):
        return True
    parts = [usage, *(models or {}).values()]
    return any(
        not isinstance(each, dict) or any(each.get(name) is not None and reported(each, name) is None for name in names)
        for each in parts
    )


def reported(usage: Json | None, name: str) -> int | float | None:
    """Return a figure if it can be compared and added up (unlike NaN), else None."""
    value: Any = usage.get(name) if isinstance(usage, dict) else None
    return value if type(value) in (int, float) and 0 <= value <= HIGHEST_FIGURE else None


def speaks_live(status: Json) -> bool:
    """Whether the body of a status response is in the live dialect, which has a ``state``."""
    return "state" in status


@dataclass(frozen=True)
class HumanInputWebhook:
    """The address to which the service sends questions for a person (observed dialect, POST /kickoff).

    Set ``token`` (bearer), ``username`` and ``password`` (basic), or none of them. ``conn_id`` names an Airflow
    connection that holds the credential; operators accept only this form.
    """

    url: str
    token: str | None = field(default=None, repr=False)
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    conn_id: str | None = None


@dataclass(frozen=True)
class Webhooks:
    """The addresses that the service notifies (specification, section 6); they do not carry over to a resume."""

    task: str | None = None
    step: str | None = None
    crew: str | None = None
    human_input: HumanInputWebhook | None = None

    @classmethod
    def of(cls, value: Webhooks | Json | None) -> Webhooks | None:
        """Read a dict whose keys are field names; refuse unknown keys, and what is not a URL.

        A service may accept such an address, although nothing ever arrives there.
        """
        read = value if value is None or isinstance(value, cls) else cls._of_fields(value)
        if read is not None:
            read._refuse_other_than_urls()
        return read

    @classmethod
    def _of_fields(cls, value: Any) -> Webhooks:
        if not isinstance(value, dict):
            raise ValueError(f"webhooks must be a dict or Webhooks, not {type(value).__name__}")
        _refuse_unknown("webhooks", value, cls)
        human = value.get("human_input")
        if isinstance(human, str):
            human = HumanInputWebhook(human)
        if isinstance(human, dict):
            _refuse_unknown("webhooks.human_input", human, HumanInputWebhook)
            human = HumanInputWebhook(**human)
        if not isinstance(human, HumanInputWebhook | None):
            raise ValueError(
                f"webhooks.human_input must be a URL, a dict or HumanInputWebhook, not {type(human).__name__}"
            )
        return cls(**{**value, "human_input": human})

    def _refuse_other_than_urls(self) -> None:
        human = self.human_input.url if self.human_input else None
        for name, url in {**vars(self), "human_input": human}.items():
            if url and not (isinstance(url, str) and url.lower().startswith(("https://", "http://"))):
                raise ValueError(f"webhooks.{name} is not an http or https address")

    def as_dict(self) -> Json:
        """Return a dict whose values can be rendered as templates."""
        return asdict(self)


def _refuse_unknown(what: str, value: Json, shape: type) -> None:
    known = shape.__dataclass_fields__  # type: ignore[attr-defined]
    for name in value:
        if name not in known:
            raise ValueError(f"{what} has no field {shown(name)}; it has {', '.join(known)}")
    if "url" in known and not value.get("url"):
        raise ValueError(f"{what} needs a url")


@dataclass(frozen=True)
class ExpectedInputs:
    """The inputs that a crew expects (specification, section 4.1).

    :param names: all inputs; those of a Flow may be optional
    :param required: the required inputs; None if not reported
    :param continues: whether a kickoff may continue a failed execution
    :param files: the inputs that are files, empty if any name may be one; None if not reported
    """

    names: list[str]
    required: list[str] | None = None
    continues: bool = False
    files: list[str] | None = None


@dataclass(frozen=True)
class CrewInputs:
    """What a function under ``@task.crew`` may return instead of a dict: inputs, and files to send with them.

    :param inputs: the crew's inputs, plain JSON
    :param files: paths or addresses by input name, as in `CrewKickoffOperator`, beside the ``files`` of the task
    """

    inputs: Json
    files: dict[str, str] | None = None


@dataclass(frozen=True)
class EditedOutput:
    """Text that replaces the draft as a task's output; only `airflow-crew-service` supports it.

    :param output_sha256: the hash of the original draft; the service refuses an edit of any other draft
    """

    text: str
    output_sha256: str


@dataclass(frozen=True)
class Started:
    """The response to a kickoff.

    :param view: the path of the execution's page below the crew's base URL, if the service provides one
    """

    kickoff_id: str
    view: str | None = None


@dataclass(frozen=True)
class UploadedFile:
    """The response to an upload.

    :param url: the address under which a kickoff may name the file
    :param size: in bytes, as counted by the service; None if not reported
    :param sha256: the hash of what arrived; None if not reported
    """

    url: str
    size: int | None = None
    sha256: str | None = None


@dataclass(frozen=True)
class WrittenFile:
    """A file that a crew has written, as `airflow-crew-service` lists it.

    :param name: a relative path
    :param version: counts up with each content
    :param size: in bytes
    :param is_draft: whether its task has not been approved
    :param round: the number of the question with which a person was shown it
    :param view: the path at which a signed-in browser downloads it from the service
    """

    name: str
    version: int
    size: int
    sha256: str
    content_type: str | None = None
    task_id: str | None = None
    is_draft: bool = False
    round: int | None = None
    view: str | None = None


@dataclass(frozen=True)
class Resumed:
    """The response to a resume. ``kickoff_id`` is the id to poll next, which is new on live deployments."""

    kickoff_id: str
    status: str | None = None
    message: str | None = None


def canonical_json(value: Any) -> str:
    """Return canonical JSON for comparison and hashing, with sorted keys and no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def output_sha256(output: str | Json | None) -> str:
    """Hash a draft: text as UTF-8, with characters that databases reject replaced, or an object in canonical form.

    Records from release 0.1, and records without the text, use the hash of the object.
    """
    text = output if isinstance(output, str) else canonical_json(output)
    return hashlib.sha256(UNSTORABLE.sub("\ufffd", text).encode()).hexdigest()
