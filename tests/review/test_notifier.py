"""The news of a waiting review: its subject and a link that opens the form and answers nothing."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.providers.common.compat.sdk import BaseNotifier
from airflow_stand_ins import PENDING, Supervisor, TaskParked

from airflow_crew_provider.notifications.crew import CrewReviewNotifier
from airflow_crew_provider.operators.review import CrewReviewOperator

FORM = "https://airflow.example.com/dags/dag/runs/run/tasks/task/required_actions?map_index=-1"


class Sent(BaseNotifier):
    """Keeps what it would send."""

    kept: list[str]

    def __init__(self, text: str, kept: list[str]) -> None:
        super().__init__()
        self.text, self.kept = text, kept

    def notify(self, context: Any) -> None:
        self.kept.append(self.text)


def ask(context: dict[str, Any], *notifiers: BaseNotifier) -> None:
    review = CrewReviewOperator(task_id="review", pending=PENDING, subject="Read this", notifiers=list(notifiers))
    context["task"] = review
    with pytest.raises(TaskParked):
        review.execute(context)


def test_the_subject_and_the_link_are_sent_and_the_link_answers_nothing(
    context: dict[str, Any], supervisor: Supervisor
) -> None:
    kept: list[str] = []
    ask(context, CrewReviewNotifier(lambda *said: Sent(" ".join(said), kept), "https://airflow.example.com"))
    assert kept == [f"Read this {FORM}"]


def test_a_review_without_a_subject_of_its_own_sends_the_default_one(
    context: dict[str, Any], supervisor: Supervisor
) -> None:
    kept: list[str] = []
    notifier = CrewReviewNotifier(lambda subject, link: Sent(subject, kept), "https://airflow.example.com")
    context["task"] = review = CrewReviewOperator(task_id="review", pending=PENDING, notifiers=[notifier])
    with pytest.raises(TaskParked):
        review.execute(context)
    assert kept == [supervisor.asked[0].subject]


class Rendered(Sent):
    """Renders what it is given, as most notifiers do."""

    template_fields = ("text",)


@pytest.mark.parametrize("text", ["{{ 6 * 7 }}", "{% if 1 %}42{% endif %}", "{# 42 #}", "{{{ 6 * 7 }}}"])
def test_what_a_crew_or_a_person_has_written_is_no_template_of_the_notifier(
    context: dict[str, Any], supervisor: Supervisor, text: str
) -> None:
    """It could name any connection's password."""
    kept: list[str] = []
    notifier = CrewReviewNotifier(lambda subject, link: Rendered(subject, kept), "https://airflow.example.com")
    context["task"] = review = CrewReviewOperator(task_id="review", pending=PENDING, subject=text, notifiers=[notifier])
    with pytest.raises(TaskParked):
        review.execute(context)
    assert [each.replace("\N{WORD JOINER}", "") for each in kept] == [text]


def test_a_notifier_that_cannot_be_made_does_not_keep_others_from_being_called(
    context: dict[str, Any], supervisor: Supervisor
) -> None:
    def broken(subject: str, link: str) -> BaseNotifier:
        raise OSError("no mail server")

    kept: list[str] = []
    ask(context, CrewReviewNotifier(broken, "https://airflow.example.com"), Sent("second", kept))
    assert kept == ["second"]
