"""The request bodies, with their examples. Types are strict: text is no boolean and a number is no text."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from .answers import ID

PORT = r"6553[0-5]|655[0-2][0-9]|65[0-4][0-9]{2}|6[0-4][0-9]{3}|[1-5][0-9]{4}|[1-9][0-9]{0,3}"
HOST = r"[A-Za-z0-9._~-]+|\[[0-9A-Fa-f:.]+\]"
WEB_ADDRESS = rf"^https?://([!-.0-9:;=A-Z_a-z~]+@)?({HOST})(:({PORT}))?([/?#][!-~]*)?$"
HEADER_TEXT = r"^[!-~]([ -~]*[!-~])?$"


def _like(pattern: str, reason: str) -> AfterValidator:
    """The pattern also stands in the schema, but an error says its reason instead."""

    def check(value: str) -> str:
        if not re.fullmatch(pattern.removeprefix("^").removesuffix("$"), value):
            raise ValueError(reason)
        return value

    return AfterValidator(check)


Text = Annotated[str, Field(strict=True)]
Url = Annotated[
    str,
    Field(strict=True, max_length=2048, json_schema_extra={"pattern": WEB_ADDRESS}),
    _like(WEB_ADDRESS, "must be an http or https URL, in ASCII"),
]
BearerToken = Annotated[
    str,
    Field(strict=True, max_length=4096, json_schema_extra={"pattern": HEADER_TEXT}),
    _like(HEADER_TEXT, "must be printable ASCII, since it is sent in a header"),
]
UserName = Annotated[
    str,
    Field(strict=True, json_schema_extra={"pattern": "^[^:]*$"}),
    _like("^[^:]*$", "must not contain a colon"),
]
NOTHING = {"type": "object", "maxProperties": 0}


class Record(BaseModel):
    model_config = ConfigDict(extra="ignore")


class BearerAuthentication(Record):
    strategy: Literal["bearer"]
    token: BearerToken


class BasicAuthentication(Record):
    strategy: Literal["basic"]
    username: UserName
    password: Text


def _or_nothing(schema: dict[str, Any]) -> None:
    schema["anyOf"].append(NOTHING)


class HumanInputWebhook(Record):
    """Where to ask the person, and what to show there as a proof of who asks."""

    url: Url
    authentication: BearerAuthentication | BasicAuthentication | None = Field(
        None,
        discriminator="strategy",
        description="Absent or empty: no Authorization header is sent.",
        json_schema_extra=_or_nothing,
    )


class WebhookUrls(Record):
    """Addresses to notify. They hold for one run up to the next question; a resume gives them again."""

    one_spelling: ClassVar[frozenset[str]] = frozenset()  # fields that are not read in another spelling

    taskWebhookUrl: Url | None = Field(None, description="Told about every finished task.")
    stepWebhookUrl: Url | None = Field(None, description="Told about every step of an agent.")
    crewWebhookUrl: Url | None = Field(None, description="Told once, when the crew has succeeded.")
    humanInputWebhook: HumanInputWebhook | None = Field(None, description="Asked when a person is to decide.")
    humanInputWebhookUrl: Url | None = Field(
        None, description="The same, without authentication. `humanInputWebhook` wins."
    )

    def webhooks(self) -> dict[str, Any]:
        """As stored: kind to {url, authentication}."""
        urls = {"task": self.taskWebhookUrl, "step": self.stepWebhookUrl, "crew": self.crewWebhookUrl}
        hooks: dict[str, Any] = {kind: {"url": url} for kind, url in urls.items() if url}
        if self.humanInputWebhook:
            hooks["human_input"] = self.humanInputWebhook.model_dump(exclude_none=True)
        elif self.humanInputWebhookUrl:
            hooks["human_input"] = {"url": self.humanInputWebhookUrl}
        return hooks


class KickoffBody(WebhookUrls):
    """What a crew starts with, and whom to tell."""

    inputs: dict[str, Any] = Field(default_factory=dict, description="Values for the names of `GET /inputs`.")
    meta: dict[str, Any] | None = Field(None, description="Anything; comes back in every webhook.")


class ResumeBody(WebhookUrls):
    """A person's decision on the task that waits."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "execution_id": ID,
                    "task_id": "draft_task",
                    "human_feedback": "Shorter, and name the sources.",
                    "is_approve": False,
                }
            ]
        }
    )
    execution_id: Text = Field(description="The id that the kickoff gave.")
    task_id: Text = Field(description="The task that awaits feedback.")
    human_feedback: Text
    is_approve: bool = Field(strict=True, description="true continues; false runs the task again.")


class LiveResumeBody(WebhookUrls):
    """A person's decision on the task that waits. The text decides; an approval flag is ignored."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"executionId": ID, "taskId": ID, "humanFeedback": "Approved."}]}
    )
    one_spelling = frozenset({"executionId", "taskId", "humanFeedback"})

    executionId: Text = Field(description="The id that the kickoff gave, never that of a continuation.")
    taskId: Text = Field(description="From the human-input webhook; another one at every question.")
    humanFeedback: Text | None = Field(None, description="`Approved.` continues; any other text runs the task again.")
