"""The Crew tab: what a crew is doing and has done, on its task's page in Airflow.

The browser gets pages that the API server renders; they update themselves while the execution runs::

    browser ──page, fragment──> app ──which execution?──> records of the task instance (Airflow's database)
                                 └──what does it do?──> lookups ──at most once every two seconds──> deployment

* The browser never specifies which execution a page shows: the server looks it up in the task instance's XComs, and
  shows it only if a task of the DAG run has recorded it too. A URL only names a task instance.
* Every URL requires Airflow's permissions for its DAG's XComs and forms.
* However many people watch, a deployment is polled at most once every two seconds per execution and API server process.
  No request waits for a deployment that hangs, and finished executions are not polled again.
* Whatever a crew, a service or a person wrote, a page stays under 1 MB (`page.Share`) and is rendered once.
* Pages contain no token and no header of a connection. Text from crews and people is untrusted: nothing in it is run,
  loaded or followed (`markdown`), and the content security policy of each page forbids it too (`app`).
* A deployment with only the specified endpoints reports less, and the page shows what is unknown (`execution`).
"""
