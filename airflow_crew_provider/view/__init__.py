"""The Crew tab on a task's page in Airflow, which shows what the crew is doing and has done.

The browser gets pages that the API server renders; they update themselves while the execution runs::

    browser ──page, fragment──> app ──which execution?──> records of the task instance (Airflow's database)
                                 └──what is it doing?──> lookups ──at most once every two seconds──> deployment

* The browser never specifies which execution a page shows: a URL only names a task instance. The server looks up the
  execution in the task instance's XComs, and shows it only if a separate record of the DAG run confirms it.
* Every URL requires Airflow's permissions for its DAG's XComs and forms.
* However many people watch, a deployment is polled at most once every two seconds per execution and API server process.
  No request waits more than 1.5 seconds for a deployment, and finished executions are not polled again.
* Whatever a crew, a service or a person wrote, a page stays under 1 MB (`page.Share`), and is rendered only once for
  the same facts.
* Pages contain no tokens or headers from connections. Text from crews and people is untrusted: nothing in it is run,
  loaded or followed (`markdown`), and the content security policy of each page forbids it too (`app`).
* A deployment with only the specified endpoints reports less, and the page lists what is unknown (`execution`).
"""
