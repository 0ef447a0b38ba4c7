"""Names that this provider stores in Airflow's database. Running DAGs depend on them: never change one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NewType

XComKey = NewType("XComKey", str)
XCOM_KEYS: set[str] = set()


def _xcom_key(key: str) -> XComKey:
    XCOM_KEYS.add(key)
    return XComKey(key)


TRIGGER_CLASS_PATH = "airflow_crew_provider.triggers.crew.CrewStatusTrigger"
ANSWER_TRIGGER_CLASS_PATH = "airflow_crew_provider.compat.answer_trigger.AnswerTrigger"

# XCom keys that users may read. No output may have a key in `XCOM_KEYS`, or one that begins with `POSTED_KEY`.
KICKOFF_ID_KEY = _xcom_key("kickoff_id")
EXECUTION_ID_KEY = _xcom_key("execution_id")  # of the first kickoff
REVIEW_KEY = _xcom_key("crew_decision")  # a review, with its draft and round
SCHEMA_REVISION, BY_SCHEMA = "schema_revision", "this"  # in a review decided by a schema
AUTO_APPROVED = "auto_approved"  # in a review: the reason given by the rule that approved its draft, else null
REFUSAL = "refusal"  # in a review of `CrewRunOperator`, or a wait's record for the next round: why it changed nothing
REJECTED_BEFORE = "rejected_before"  # in a review: the hashes of the drafts that people rejected in earlier rounds
NOT_SHOWN = "not_shown"  # in a review that denied a tool call because it could not be shown in full
SENT_FEEDBACK = "sent_feedback"  # in a review: the text to send instead of a comment that the crew does not read
DECISIONS_KEY = _xcom_key("crew_decisions")  # all reviews of a task that asks several times, without drafts
USAGE_KEY = _xcom_key("crew_usage")  # the executions of a task since its last clear, with their usage
REFUSED_KEY = _xcom_key("crew_refused_answer")  # the fields of the last answer that a review did not accept
RESUME_KEY = _xcom_key("crew_resume")  # an answer as sent, and the service's response
NOT_SENT = "not sent"  # the status of an answer that was never sent, or left to the next round
STILL_OPEN = "question_open"  # in a `RESUME_KEY`: the service refused the answer, so that its question is still open
ALREADY = "already_responded"  # the status of an answer to a question that had already been answered
LINK_KEY = _xcom_key("crew_execution_url")
EXECUTION_KEY = _xcom_key("crew_execution")  # the task's execution and its connection

# XCom keys of the inbox.
POSTED_KEY = _xcom_key("crew_inbox")  # maps kickoff ids to registrations
REGISTRATION_KEY = "crew_inbox:"  # until 0.2, followed by the id of a registration
MESSAGES_KEY = _xcom_key("crew_inbox_box")  # until 0.2: the messages that arrived

# Prefixes of the names of the inbox's Variables, each followed by a hash.
INBOX_PREFIX = "crew_inbox_"
INBOX_REGISTRATION_KEY = "crew_inbox_of_"
INBOX_BOX_KEY = "crew_inbox_box_"  # the messages that arrived
INBOX_NEWEST_KEY = "crew_inbox_newest_"  # the latest registered resume of an execution
FLOW_PREFIX = "crew_flow_"
FLOW_QUESTIONS_KEY = "crew_flow_questions_"
FLOW_ANSWER_KEY = "crew_flow_secret_"  # Airflow masks Variables with "secret" in their names
FLOW_RUN_KEY = "crew_flow_run_"  # the DAG run that started an execution or is waiting for it

# Prefix of the names of the Variables with what a task needs in its next try, followed by the task's id and a hash.
TASK_RECORD = "crew_task"
# The parts of such a record. Earlier releases kept each in a Variable, or in the task state store, under this name.
KICKOFF_STATE = "crew_kickoff"
RESUME_STATE = "crew_resume"
AGENT_STATE = "crew_agent"  # followed by a question's hash and its number in the current try
WATCH_STATE = "crew_watch"
REVIEW_STATE = "crew_review"
RUN_STATE = "crew_run"
USAGE_STATE = "crew_used"
PARTS = "parts"
EXECUTIONS = "executions"  # in the part `USAGE_STATE`, and in the XCom `USAGE_KEY`


def hashed(*parts: Any) -> str:
    """Return the hash of texts with which a name ends, so that it reveals no address or id."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:40]


def record_suffix(identity: Mapping[str, Any]) -> str:
    """Return how the names of a task instance's Variables end: with the task's id and a hash.

    :param identity: the fields that identify it across its tries
    """
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:32]
    return f"__{identity['task_id'][:100]}__{digest}"


# Prefix of the names of the Variables that record a DAG run's executions, followed by a hash.
EXECUTION_RECORD_KEY = "crew_execution_"

# Prefix of the names of the Variables with the keys of sealed texts; Airflow masks Variables by the word "secret".
SEAL_KEY = "crew_secret_"

# The fields of the review form.
FEEDBACK_FIELD = "human_feedback"
EDIT_FIELD = "edited_draft"
NUMBER_FIELD = "question_number"  # hidden; only for a task that asks several times


VALIDATION = "validation"  # the ``error_type`` of an event with an invalid answer
OTHER_QUESTION = "other_question"  # in such an event: whether it answers another question of the task
