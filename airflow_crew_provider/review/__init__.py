"""A person reads a draft in Airflow and answers; no answer is lost, and none counts for a different draft.

The parts of a review, behind the operator::

    rules (decision)  what to ask, from the arguments; for an open question, those that the person saw
    question          asks, waits, escalates; one per visit of a worker
    record            what earlier tries asked and accepted; read once per visit
    decision          whether an event is an answer, and what it decides

* What was shown is stored with the draft's hash while the task waits, and the answer belongs to it. Nothing rendered
  later replaces it.
* An approval is deliberate: there is no default, and an invalid answer is refused with a reason.
* Drafts, questions and answers are untrusted: whatever renders a form, it loads and runs nothing in them (`drafts`).
* `airflow_form` and `refusal_notice` describe how Airflow stores a form, and what changed from 3.1 to 3.4.
"""
