"""One task that starts a crew, waits for it, asks people and sends their answers, until the execution is completed.

Each step belongs to another room, and none of them knows this one: `kickoff` starts, `wait` waits, `review` asks,
`resume` sends. This room keeps the state of the task between them, so that each visit of a worker, in whatever try,
continues there (`record`).

* A question has a number, counted by the task. Airflow has one form for each attempt and replaces it with each
  question, so the form carries the number, and an answer must too: one for another number is not accepted.
* What the rooms keep about a question and about its answer is forgotten when the next question gets its number, not
  before: two equal questions in a row are two questions.
* The crew's time is counted without the time that people take.
"""
