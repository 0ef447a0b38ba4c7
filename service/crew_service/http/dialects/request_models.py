"""The request bodies, with examples. Types are strict: a string is not a boolean, and a number is not a string."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from crew_service import addresses
from crew_service.http.dialects.response_models import ID

PORT = r"6553[0-5]|655[0-2][0-9]|65[0-4][0-9]{2}|6[0-4][0-9]{3}|[1-5][0-9]{4}|[1-9][0-9]{0,3}"
HOST = r"[A-Za-z0-9._~-]+|\[[0-9A-Fa-f:.]+\]"
WEB_ADDRESS = rf"^https?://([!-.0-9:;=A-Z_a-z~]+@)?({HOST})(:({PORT}))?([/?#][!-~]*)?$"
NO_ADDRESS = "must be an http or https URL, in ASCII"
HEADER_TEXT = r"^[!-~]([ -~]*[!-~])?$"


def camel(name: str) -> str:
    """Return the other spelling of a field."""
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


def snake(name: str) -> str:
    return re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower()


def _like(pattern: str, reason: str) -> AfterValidator:
    """Return a check of the pattern, which is also in the schema; its error gives the reason, not the pattern."""

    def check(value: str) -> str:
        if not re.fullmatch(pattern.removeprefix("^").removesuffix("$"), value):
            raise ValueError(reason)
        return value

    return AfterValidator(check)


def _as_sent(value: str) -> str:
    try:
        return addresses.parsed(value)
    except ValueError:
        raise ValueError(NO_ADDRESS) from None


Text = Annotated[str, Field(strict=True)]
WITHOUT_ZEROS = "^[^\\x00]*$"  # PostgreSQL cannot store a NUL in a string
Name = Annotated[
    str,
    Field(strict=True, json_schema_extra={"pattern": WITHOUT_ZEROS}),
    _like(WITHOUT_ZEROS, "must not contain a NUL character"),
]
Url = Annotated[
    str,
    Field(strict=True, max_length=2048, json_schema_extra={"pattern": WEB_ADDRESS}),
    _like(WEB_ADDRESS, NO_ADDRESS),
    AfterValidator(_as_sent),
]
BearerToken = Annotated[
    str,
    Field(strict=True, max_length=4096, json_schema_extra={"pattern": HEADER_TEXT}),
    _like(HEADER_TEXT, "must be printable ASCII, because it is sent in a header"),
]
FileName = Annotated[Name, Field(min_length=1, max_length=255)]
StateId = Annotated[Name, Field(min_length=1, max_length=255)]
UserName = Annotated[
    str,
    Field(strict=True, json_schema_extra={"pattern": "^[^:]*$"}),
    _like("^[^:]*$", "must not contain a colon"),
]
NOTHING = {"type": "object", "maxProperties": 0}
NO_EVENTS = {
    "type": "object",
    "properties": {"events": {"type": "array", "maxItems": 0}},
    "required": ["events"],
    "additionalProperties": False,
}


class Record(BaseModel):
    model_config = ConfigDict(extra="ignore")
    one_spelling: ClassVar[frozenset[str]] = frozenset()  # fields that are not accepted in another spelling


class BearerAuthentication(Record):
    strategy: Literal["bearer"]
    token: BearerToken


class BasicAuthentication(Record):
    strategy: Literal["basic"]
    username: UserName
    password: Text


def _or_no_events(schema: dict[str, Any]) -> None:
    schema["anyOf"].append(NO_EVENTS)


def _asked_for(value: Any) -> Any:
    """Treat a stream without events as no stream."""
    return None if value == {"events": []} else value


def _or_nothing(schema: dict[str, Any]) -> None:
    schema["anyOf"].append(NOTHING)


class HumanInputWebhookModel(Record):
    """The address to notify when a person must decide, and the credential to send to it."""

    url: Url
    authentication: BearerAuthentication | BasicAuthentication | None = Field(
        None,
        discriminator="strategy",
        description="If absent or empty, no Authorization header is sent.",
        json_schema_extra=_or_nothing,
    )


class EventsWebhookModel(Record):
    """The address to stream events to, as `{"events": [{"id", "execution_id", "timestamp", "type", "data"}]}`."""

    events: list[Text] | None = Field(None, description="Types of events; by default, all.")
    url: Url
    realtime: Annotated[bool, Field(strict=True)] | None = Field(
        None, description="`false`: events are collected until a task ends instead of being sent one by one."
    )
    authentication: BearerAuthentication | None = Field(
        None, description="If absent or empty, no Authorization header is sent.", json_schema_extra=_or_nothing
    )


class WebhookUrls(Record):
    """Addresses to notify, valid until the execution next waits for a person; a resume must send them again."""

    taskWebhookUrl: Url | None = Field(None, description="Notified of every finished task.")
    stepWebhookUrl: Url | None = Field(None, description="Notified of every agent step.")
    crewWebhookUrl: Url | None = Field(None, description="Notified once, when the crew has succeeded.")
    humanInputWebhook: HumanInputWebhookModel | None = Field(None, description="Notified when a person must decide.")
    humanInputWebhookUrl: Url | None = Field(
        None, description="Like `humanInputWebhook`, which takes precedence, but without authentication."
    )

    webhooks: Annotated[EventsWebhookModel | None, BeforeValidator(_asked_for)] = Field(
        None, description="Notified of every event.", json_schema_extra=_or_no_events
    )

    def addresses(self) -> dict[str, Any]:
        """Return the addresses in stored form: {kind: {url, authentication}}."""
        urls = {"task": self.taskWebhookUrl, "step": self.stepWebhookUrl, "crew": self.crewWebhookUrl}
        hooks: dict[str, Any] = {kind: {"url": url} for kind, url in urls.items() if url}
        if self.humanInputWebhook:
            hooks["human_input"] = self.humanInputWebhook.model_dump(exclude_none=True)
        elif self.humanInputWebhookUrl:
            hooks["human_input"] = {"url": self.humanInputWebhookUrl}
        if self.webhooks:
            hooks["events"] = self.webhooks.model_dump(exclude_none=True)
        return hooks


class KickoffLimits(Record):
    """Limits for this execution; if one is null or absent, the service's limit applies."""

    max_seconds: float | None = Field(
        None,
        strict=True,
        gt=0,
        allow_inf_nan=False,
        description="Seconds of run time, excluding waits for a person.",
    )
    max_tokens: int | None = Field(None, strict=True, gt=0, description="Language model tokens.")

    @field_validator("max_seconds", "max_tokens")
    @classmethod
    def _within_the_service(cls, value: float | None, info: ValidationInfo) -> float | None:
        most = (info.context or {}).get(info.field_name)
        if value is not None and most is not None and value > most:
            raise PydanticCustomError("above_limit", "above this service's limit of {most}", {"most": f"{most:g}"})
        return value


class KickoffBody(WebhookUrls):
    """A crew's inputs and files, and the addresses to notify.

    It may also be sent as a form: objects as JSON, and each file as a part named like its input, with a file name.
    """

    inputs: dict[str, Any] = Field(default_factory=dict, description="Values for the inputs that `GET /inputs` lists.")
    input_files: dict[FileName, Text] | None = Field(
        None, description="Files by input: addresses that `POST /files` returned. Each serves one execution."
    )
    meta: dict[str, Any] | None = Field(None, description="Any object; included in every webhook.")
    restoreFromStateId: StateId | None = Field(
        None,
        description="For a Flow with `@persist`: the id of the execution or state to start from.",
    )
    continueFrom: Annotated[Name, Field(min_length=1)] | None = Field(
        None,
        description="The id of an execution with the same inputs that ended with an error: the new one continues from "
        "the failed task.",
    )
    limits: KickoffLimits | None = Field(None, description="An execution that exceeds them ends with an error.")


Sha256 = Annotated[str, Field(strict=True, pattern="^[0-9a-f]{64}$")]


class EditedOutputBody(Record):
    """Text that replaces the waiting draft."""

    text: Annotated[str, Field(strict=True, min_length=1)]
    output_sha256: Sha256 = Field(
        description="Hash of the original draft: the SHA-256 of its UTF-8 text, with NUL and unpaired surrogates "
        "replaced by U+FFFD. For a JSON object, the hash of its JSON with sorted keys and no spaces is accepted too.",
    )


EDITED_OUTPUT = Field(
    None,
    description="Beyond the specification: becomes the task's output if the draft is approved; or, as a JSON object, "
    "the arguments of the tool that is waiting for the outcome `approve`.",
)
OUTCOME = "In the middle of a task: one of the `outcomes` in the status. `is_approve` alone approves or denies."


class ResumeBody(WebhookUrls):
    """A person's decision on the waiting task."""

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [{"required": ["is_approve"]}, {"required": ["outcome"]}],
            "examples": [
                {
                    "execution_id": ID,
                    "task_id": "draft_task",
                    "human_feedback": "Shorter, and name the sources.",
                    "is_approve": False,
                }
            ],
        }
    )
    execution_id: Text = Field(description="The id that the kickoff returned.")
    task_id: Text = Field(description="The task that is waiting for feedback.")
    human_feedback: Text = Field("", description="Required without `outcome`, except for a question in the middle.")
    is_approve: bool | None = Field(
        None, strict=True, description="true approves; false runs the task again. Required without `outcome`."
    )
    outcome: Text | None = Field(None, description=f"Beyond the specification. {OUTCOME}")
    edited_output: EditedOutputBody | None = EDITED_OUTPUT
    output_sha256: Sha256 | None = Field(
        None,
        description="Beyond the specification: the hash of the answered draft; the answer is refused for any other.",
    )


class FlowResumeBody(WebhookUrls):
    """A person's answer to a Flow's question."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"execution_id": ID, "task_id": "check_briefing", "outcome": "publish"}]}
    )
    execution_id: Text = Field(description="The id that the kickoff returned.")
    task_id: Text = Field(description="The method that asks the question.")
    outcome: Text | None = Field(None, description="One of the `outcomes` in the status; no model is called.")
    human_feedback: Text = Field(
        "", description="Passed to the Flow unchanged; without an outcome, its model interprets it."
    )
    is_approve: bool | None = Field(
        None, strict=True, description="Chooses the outcome if that is unambiguous; `outcome` takes precedence."
    )
    edited_output: EditedOutputBody | None = Field(
        None, description="In the middle of a task: as a JSON object, the arguments of the tool to approve."
    )
    output_sha256: Sha256 | None = Field(
        None,
        description="Beyond the specification: the hash of the answered draft; the answer is refused for any other.",
    )


class FlowAnswerBody(Record):
    """The answer to a Flow webhook."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"feedback": "publish", "source": "airflow"}]})
    feedback: Text = Field("", description="An outcome, or text for the Flow or its model.")
    outcome: Text | None = Field(None, description="The chosen outcome, if feedback contains other text.")
    source: Annotated[Name, Field(max_length=100)] | None = Field(None, description="The sender of the answer.")


class ResumeFeedbackBody(FlowAnswerBody):
    """The answer to a Flow's current question."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"flow_id": ID, "feedback": "publish"}]})
    flow_id: Text = Field(description="From the status or from the Flow webhook.")


class LiveResumeBody(WebhookUrls):
    """A person's decision on the waiting task. The text alone decides; an approval flag is ignored."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"executionId": ID, "taskId": ID, "humanFeedback": "Approved."}]}
    )
    one_spelling = frozenset({"executionId", "taskId", "humanFeedback"})

    executionId: Text = Field(description="The id that the kickoff returned, never one that a resume returned.")
    taskId: Text = Field(description="From the human-input webhook; a new one each time a person is asked.")
    humanFeedback: Text | None = Field(
        None,
        description="`Approved.` or similar text lets the crew continue; with any other text, the task runs again.",
    )
    outcome: Text | None = Field(None, description="For a Flow: the chosen outcome.")
