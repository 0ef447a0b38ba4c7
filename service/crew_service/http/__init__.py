"""The service over HTTP: the API in one of two dialects, the page for people, and the limits on both.

A request passes these gates, each of which answers it or passes it on::

    connections: time and size limits ──> auth: who is it ──> bodies: plain JSON ──> dialects: what is meant
       ──> api, or forms and page for people ──> engine ──> dialects: the response

* A handler reads a request, calls the engine and makes the response; rules about executions are the engine's.
  `endpoints` is the one table of routes, documentation and authentication.
* The dialects differ in words and shapes only. Both understand the same bodies and the same refusals of the engine.
* A caller is identified before the body is read, and limits hold before a token is known: somebody without one costs
  bounded memory, threads and time. Expensive reads have slots for each owner (`slots`).
* Nothing that a crew or a person wrote acts in a browser: drafts lose what would load or run, and the page accepts only
  its own script.
* Every error is JSON with a `detail`, without a token, and says whether anything was changed.
"""
