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


def test_the_subject_and_a_link_that_answers_nothing_are_sent(context: dict[str, Any], supervisor: Supervisor) -> None:
    kept: list[str] = []
    ask(context, CrewReviewNotifier(lambda *said: Sent(" ".join(said), kept), "https://airflow.example.com"))
    assert kept == [f"Read this {FORM}"]


def test_a_review_without_its_own_subject_sends_the_default(context: dict[str, Any], supervisor: Supervisor) -> None:
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
def test_text_of_a_crew_or_person_is_no_notifier_template(
    context: dict[str, Any], supervisor: Supervisor, text: str
) -> None:
    """It could name any connection's password."""
    kept: list[str] = []
    notifier = CrewReviewNotifier(lambda subject, link: Rendered(subject, kept), "https://airflow.example.com")
    context["task"] = review = CrewReviewOperator(task_id="review", pending=PENDING, subject=text, notifiers=[notifier])
    with pytest.raises(TaskParked):
        review.execute(context)
    assert [each.replace("\N{WORD JOINER}", "") for each in kept] == [text]


def test_a_notifier_failing_to_construct_does_not_block_others(context: dict[str, Any], supervisor: Supervisor) -> None:
    def broken(subject: str, link: str) -> BaseNotifier:
        raise OSError("no mail server")

    kept: list[str] = []
    ask(context, CrewReviewNotifier(broken, "https://airflow.example.com"), Sent("second", kept))
    assert kept == ["second"]
