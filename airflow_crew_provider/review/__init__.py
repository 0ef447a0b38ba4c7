"""A person reviews a draft in Airflow; no answer is lost, and none is applied to a different draft.

The parts of a review, behind the operator::

    rules (decision)  the question, from the arguments; for an open question, those that the person saw
    question          asks, waits, escalates; created each time a worker runs the task
    record            the questions and answers of earlier tries; read once each time
    decision          whether an event is an answer, and its effect

* While the task waits, it stores the form's content with the draft's hash. The answer belongs to that content, even if
  the task renders differently later.
* An approval is deliberate: there is no default, and an invalid answer is refused with a reason.
* Drafts, questions and answers are untrusted: no form renderer loads or runs anything in them (`drafts`).
* `airflow_form` and `refusal_notice` describe how Airflow stores a form, and the changes from 3.1 to 3.4.
"""
