"""One task that starts a crew, waits for it, asks people and sends their answers, until the execution completes.

Each step has its own package, which does not import this one: `kickoff` starts, `task.waiting` waits, `review` asks,
`resume` sends. This package puts them in order (`steps`), and stores the task's state between them, so that any worker
and any try can continue (`record`).

* The task numbers its questions. Airflow has one form for each attempt and replaces it with each question, so the form
  contains the number, and the task accepts only an answer with that number.
* These packages' records of a question and its answer are removed only when the next question gets its number, so that
  two identical questions in a row are not mistaken for one.
* The time that people take does not count toward the crew's time limit.
"""
