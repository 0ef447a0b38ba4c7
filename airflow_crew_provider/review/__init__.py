"""A person reviews a draft in Airflow; no answer is lost, and none is applied to a different draft.

The parts of a review, behind the operator::

    rules (decision)  build the question from the operator's arguments; once it is open, from those that the person saw
    question          asks, waits and escalates; created each time a worker runs the task
    record            keeps the questions and answers of earlier tries; read once each time a worker runs the task
    decision          determines whether an event is a valid answer, and its effect

* While the task waits, the form's content is stored with the draft's hash. The answer applies to that content, even if
  the task renders differently later.
* Approval is deliberate: it is never the default, and an invalid answer is refused with a reason.
* Drafts, questions and answers are untrusted: no form renderer loads or runs anything in them (`drafts`).
* `airflow_form` and `refusal_notice` deal with how Airflow stores a form, which changed between 3.1 and 3.4.
"""
