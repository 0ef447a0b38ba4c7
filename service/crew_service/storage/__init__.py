"""The database: SQLite for one service, PostgreSQL for several. The execution's row is also its place in the queue.

* A function takes the caller's transaction, so that claim, progress, question, webhooks and stored response change
  together or not at all. `database` decides when a transaction is durable; its failures raise `DatabaseUnavailable`.
* `states` lists the moves between states, and each write names its move: one from another state changes nothing.
* Text of users and crews is stored as JSON, without what a database refuses (`json_values`). A value that cannot be
  read is `UNREADABLE`, never an error of the query: other rows of a list stay readable (`integrity`).
* Times are the database server's (`clock`); the silence of a process is measured by those who observe it (`claims`).
* What is counted, deleted or kept with every write, in any release, is done by triggers: several releases may share a
  database. Migrations only add, and stored forms only gain fields; a feature that an earlier release would get wrong
  keeps it out first (`schema`).
* Reads are as large as what they show: statuses, lists and details select columns, and know sizes before values.
"""
