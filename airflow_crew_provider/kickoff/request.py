"""The user's kickoff request, validated before it starts anything or costs money.

Literal webhook credentials are refused, because rendered fields would show them. A Flow also lists optional inputs, so
the preflight check fails only if a missing input is known to be required. Otherwise, the service decides, and its
refusal is reported in the same words.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any, ClassVar

from airflow_crew_provider import exceptions
from airflow_crew_provider.api.requests import Kickoff
from airflow_crew_provider.api.values import value_of
from airflow_crew_provider.client.crew import ConnectedCrew
from airflow_crew_provider.client.deployment import CREW
from airflow_crew_provider.compat.rendered_fields import HidesRendered
from airflow_crew_provider.compat.task_instance import RelatedTask
from airflow_crew_provider.compat.web import airflow_url
from airflow_crew_provider.inbox.messages import WORD
from airflow_crew_provider.kickoff.files import check_names, checked_files, given_files, mask_queries
from airflow_crew_provider.models import REGION_FIELDS, ExpectedInputs, HumanInputWebhook, Json, Webhooks, listed, shown
from airflow_crew_provider.task.waiting import WaitingTask
from airflow_crew_provider.wait.outcomes import seconds

FROM_FAILED_TASK, FROM_START = RETRY_FROM = ("failed_task", "start")
SECRET_FIELDS = ("token", "username", "password")
# Part of every request's fingerprint since release 0.1; later fields are included only if they are set.
ALWAYS_NAMED = ("inputs", "webhooks", "meta")


class SendsWebhooks:
    """A base class of operators with an argument `webhooks`."""

    @classmethod
    def partial(cls, **kwargs: Any) -> Any:
        """Return a mapped task, whose arguments Airflow stores without calling the constructor."""
        refuse_literal_credentials(kwargs.get("webhooks"))
        return super().partial(**kwargs)  # type: ignore[misc]


class StartingTask(SendsWebhooks, HidesRendered, WaitingTask):
    """The base class of operators that start an execution: the parameters of the kickoff and of its wait.

    Their signatures list and describe them, too, because Airflow reads each constructor's for ``partial`` and
    ``default_args``.
    """

    template_fields: Sequence[str] = (
        *("inputs", "files", "webhooks", "meta", "restore_from", "crew_conn_id", "output_to", "files_to"),
    )
    template_fields_renderers: ClassVar[dict[str, str]] = dict.fromkeys(("inputs", "files", "webhooks", "meta"), "json")
    ui_color = "#e8e4f8"
    wait_for_completion = deferrable = True
    is_killed = False  # Airflow only calls `on_kill`; the process keeps running for a few seconds

    def __init__(
        self,
        *,
        inputs: Any,
        files: Any = None,
        webhooks: Any = None,
        meta: Any = None,
        restore_from: Any = None,
        crew_conn_id: str,
        check_inputs: bool = True,
        poll_in_worker: Any = 0,
        poll_interval: Any = 10.0,
        timeout: Any = None,
        cancel_on_kill: bool = True,
        on_unknown_outcome: str = "fail",
        retry_from: str = FROM_FAILED_TASK,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        for name, value in (("poll_interval", poll_interval), ("timeout", timeout)):
            seconds(value, name)
        if on_unknown_outcome not in ("fail", "retry"):
            raise ValueError(f"on_unknown_outcome must be 'fail' or 'retry', not {shown(on_unknown_outcome)}")
        if retry_from not in RETRY_FROM:
            raise ValueError(f"retry_from must be 'failed_task' or 'start', not {shown(retry_from)}")
        self.inputs = inputs
        self.files = given_files(files)
        self.webhooks = given_webhooks(webhooks)
        self.meta = meta
        self.restore_from = restore_from
        self.crew_conn_id = crew_conn_id
        self.check_inputs = check_inputs
        self.poll_in_worker = seconds(poll_in_worker, "poll_in_worker") or 0.0
        self.poll_interval = poll_interval
        self.timeout = timeout
        self.cancel_on_kill = cancel_on_kill
        self.on_unknown_outcome = on_unknown_outcome
        self.retry_from = retry_from

    def hide_rendered(self) -> None:
        """Mask the signatures of web addresses in rendered fields and logs."""
        mask_queries(self.files)


def request_of(task: StartingTask) -> Kickoff:
    """Build the request from an operator's arguments; `Kickoff` has the rules of each.

    :raises CrewInvalidInput: the request cannot be sent
    """
    meta = {} if task.meta is None else value_of(task.meta)
    webhooks = checked_webhooks(task.webhooks)
    request = Kickoff(
        inputs=value_of(task.inputs), webhooks=webhooks, meta=meta, restore_from=task.restore_from
    ).checked()
    if "airflow" in (request.meta or {}):
        raise exceptions.CrewInvalidInput("meta.airflow is filled in by this operator. Nothing was sent")
    return replace(request, files=checked_files(task.files, request.inputs))


def name_of(request: Kickoff, identity: Json, crew_conn_id: str) -> Json:
    """Return the fields that identify a user's request for this task instance; they must not change between releases.

    Fields that the operator adds are not included (see `OwnExecution`), nor are files, whose content counts.
    """
    fields = {name: value for name, value in vars(request).items() if name not in ("idempotency_key", "files")}
    named = {name: value for name, value in fields.items() if name in ALWAYS_NAMED or value is not None}
    webhooks = request.webhooks.as_dict() if isinstance(request.webhooks, Webhooks) else request.webhooks
    airflow = {name: value for name, value in identity.items() if name not in REGION_FIELDS}
    meta = {**(request.meta or {}), "airflow": airflow}
    return {**named, "meta": meta, "webhooks": webhooks, "connection": crew_conn_id}


def seen_from_outside(task: RelatedTask) -> Json:
    """Return the fields that the service's page needs to link to this Airflow and to leave decisions to its review."""
    url, review = airflow_url(), binding_review(task)
    return {**({"base_url": url} if url else {}), **({"review": review} if review else {})}


def binding_review(task: RelatedTask) -> Json | None:
    """Return the first review, in or after this task, that restricts reviewers or needs several approvals."""
    later = sorted(task.get_flat_relatives(upstream=False), key=lambda each: (len(each.task_id), each.task_id))
    for each in (task, *later):
        # Recognize a review by its arguments, because this package must not import the operator.
        approvals, named = _argument(each, "approvals"), bool(_argument(each, "assigned_users"))
        if isinstance(approvals, int) and (approvals > 1 or named):
            return {"task_id": each.task_id, "approvals": approvals, "named_people": named}
    return None


def _argument(task: Any, name: str) -> Any:
    """Return an argument of a task; None if it has none, or if a mapped task gets it only when it runs."""
    if not hasattr(task, "partial_kwargs"):
        return getattr(task, name, None)
    mapped = task.expand_input.value
    arguments = {**task.partial_kwargs, **(mapped if isinstance(mapped, dict) else {})}
    return arguments.get(name, getattr(task.operator_class, name, None))


def given_webhooks(webhooks: Any) -> Any:
    """Return webhooks as a task keeps them, in a form whose addresses can be rendered as templates.

    :raises CrewInvalidInput: they contain a credential
    """
    refuse_literal_credentials(webhooks)
    if isinstance(webhooks, Webhooks):
        return webhooks.as_dict()
    human = webhooks.get("human_input") if isinstance(webhooks, dict) else None
    return {**webhooks, "human_input": asdict(human)} if isinstance(human, HumanInputWebhook) else webhooks


def refuse_literal_credentials(webhooks: Any) -> None:
    """Refuse credentials that would end up in rendered fields, the serialized DAG or a log."""
    human = webhooks.human_input if isinstance(webhooks, Webhooks) else None
    if isinstance(webhooks, dict):
        human = webhooks.get("human_input")
    for name in SECRET_FIELDS:
        value = getattr(human, name, None) if isinstance(human, HumanInputWebhook) else None
        if isinstance(human, dict):
            value = human.get(name)
        if value is not None:
            raise exceptions.CrewInvalidInput(
                f"webhooks.human_input.{name} would be readable in the rendered fields; "
                "put the credential into an Airflow connection and set conn_id"
            )


def checked_webhooks(webhooks: Any) -> Webhooks | str | None:
    """Validate the rendered webhooks; return the word ``inbox`` unchanged."""
    webhooks = value_of(webhooks)
    if webhooks == WORD:
        return WORD
    refuse_literal_credentials(webhooks)
    try:
        return Webhooks.of(webhooks)
    except (TypeError, ValueError) as error:
        problem = str(error)
    raise exceptions.CrewInvalidInput(f"{problem}. Nothing was sent")


def check_inputs(
    hook: ConnectedCrew, inputs: Json, log: Any, files: dict[str, str] | None = None
) -> ExpectedInputs | None:
    """Compare inputs and files with those that the crew reports; return the latter, or None if they are unavailable.

    :raises CrewInvalidInput: the crew does not take one of the files
    :raises CrewMissingInputs: a required input is missing
    :raises CrewUnauthorized: the service refuses the token
    :raises CrewNotFound: there is no crew at this path
    :raises CrewWebPage: there is no crew at this address, or currently only a gateway that responds for it
    :raises CrewConnectionError: the service cannot be reached
    """
    try:
        expected = hook.inputs()
    except (exceptions.CrewUnauthorized, exceptions.CrewNotFound, exceptions.CrewInvalidInput, exceptions.CrewWebPage):
        raise
    except exceptions.CrewError as error:
        if isinstance(error, exceptions.CrewConnectionError) and (error.unreachable or error.permanent):
            raise
        log.warning("The crew's inputs could not be checked (%s); starting the crew anyway", error)
        return None
    check_names(files, expected)
    missing = [name for name in expected.names if name not in inputs and name not in (files or {})]
    required = (
        expected.required if expected.required is not None else expected.names if hook.connection.kind == CREW else []
    )
    if lacking := [name for name in missing if name in required]:
        detail = hook.mask(missing_inputs(lacking, expected, inputs))
        raise exceptions.CrewMissingInputs([hook.mask(name) for name in lacking], status_code=None, detail=detail)
    _warn(hook, expected, missing, inputs, log)
    return expected


def missing_inputs(names: Iterable[str], expected: ExpectedInputs, inputs: Json) -> str:
    """Return the error message for missing inputs."""
    return f"Missing inputs: {_listed(names)} (the crew asks for {_listed(expected.names)}; given: {_listed(inputs)})"


def _warn(hook: ConnectedCrew, expected: ExpectedInputs, missing: list[str], inputs: Json, log: Any) -> None:
    if missing and expected.required is None:
        lacking = hook.mask(f"The crew also asks for {_listed(missing)}")
        log.warning("%s. The service decides whether these inputs are required", lacking)
    unasked = sorted(set(inputs) - set(expected.names))
    if unasked:
        warning = f"The crew did not ask for {_listed(unasked)}; it asks for {_listed(expected.names)}"
        log.warning("%s", hook.mask(warning))


def _listed(names: Iterable[str]) -> str:
    return listed(names) or "none"
