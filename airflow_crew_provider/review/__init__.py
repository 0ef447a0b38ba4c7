"""A person reads a draft in Airflow and answers; no answer is lost, and none counts for another draft.

The parts of a review, of which the operator is only the outside::

    rules (decision)  what is asked, by the arguments; of an open question those that the person saw
    question          asks, waits, escalates; one for each visit of a worker
    record            what earlier tries have asked and taken; read once for each visit
    decision          whether an event is an answer, and what it decides

* What is shown is kept while the task waits, with the hash of the draft, and an answer belongs to it. Nothing that is
  rendered later replaces it.
* An approval is deliberate: there is no default, and an answer that cannot be one is refused with its reason.
* Drafts, questions and answers are untrusted: whatever renders a form, nothing in them is loaded or run (`drafts`).
* How Airflow stores a form, and what has changed from 3.1 to 3.4, stands in `airflow_form` and `refusal_notice`.
"""
