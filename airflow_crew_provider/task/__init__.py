"""What a task keeps between its tries, and what an earlier try is to the present one.

* `attempt`: the relation of two tries, as one table; every record asks it before it trusts what an earlier try wrote.
* `store`: the place of a task instance's records, the same on every Airflow. It tells "nothing was sent" from "what was
  written is lost", so that no record judges that for itself.
"""
