"""The life of a task: what it has on record, what an earlier try is to the present one, and the loop that runs steps.

* `attempt`: the relation of two tries, as one table; every record asks it before it trusts what an earlier try wrote.
* `record`: what a task has on record, typed, with one table of moves.
* `store`: the place of a task instance's one record, the same on every Airflow, and of the forms in which earlier
  releases kept it.
* `drive`: the loop. An operator is a list of steps and its parameters. The steps of a start are in `kickoff.start`,
  those of a wait in `waiting`, those of an answer in `resume.sending`, and all of them in `run.steps`.
* `waiting`: the worker's part of a wait; the triggerer runs the other part (`wait.watch.steps`).
"""
