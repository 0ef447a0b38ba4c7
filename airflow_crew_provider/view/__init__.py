"""The Crew tab: what a crew does and has done, on the page of its task in Airflow.

The browser gets pages that the API server renders; they replace their parts while the execution runs::

    browser ──page, fragment──> app ──which execution?──> records of the task instance (Airflow's database)
                                 └──what does it do?──> lookups ──at most once in two seconds──> deployment

* Which execution a page is about is never said by the browser: the server looks it up in what the task instance has
  pushed, and shows it where a task of the DAG run has recorded it too. An address names a task instance only.
* Every address needs Airflow's permissions for XComs and for forms of its DAG.
* However many people look, a deployment is asked at most once in two seconds for each execution and API server
  process. Nobody's request waits for a deployment that hangs, and what is over is not asked for again.
* Whatever a crew, a service or a person has written, a page has less than 1 MB (`page.Share`) and is made once.
* No token and no header of a connection is part of a page. What crews and people wrote is untrusted text: nothing in
  it is run, loaded or followed (`markdown`), and the policy of each page forbids it once more (`app`).
* A deployment with the specified endpoints alone tells less, and the page says what is not known (`execution`).
"""
