"""Writes the faults to docs/reliability.md, and the tests that cover them to tests/reliability.md.

`python -m scripts.reliability` writes both; with `--check` it only reports whether they are up to date.
"""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, TypeGuard

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "reliability.md"
TESTS = ROOT / "tests" / "reliability.md"
ABOUT = """# Faults and the tests that cover them

Written by `python -m scripts.reliability` from `@pytest.mark.row`. The faults that users may notice are in
[docs/reliability.md](../docs/reliability.md).
"""
BEGIN, END = "<!-- rows: written by scripts/reliability.py -->", "<!-- end of rows -->"
ROW, LONG = "pytest.mark.row", "pytest.mark.long"
TITLES = {"N": "The network and the service", "A": "Airflow", "S": "The crew service", "F": "Flows"}

# Rows covered by benchmarks, because tests with a time limit would fail on a busy machine.
BENCHMARKS = {"A10": "`make bench-full`: [poll_cost.py](../benchmarks/poll_cost.py)"}

# The rows that users may notice, or ask about; only the list of tests has the others.
NOTICED = frozenset(
    " ".join(
        (
            "N1 N2 N3 N6 N7 N9 N10 N11 N12 N13 N17 N19 N30",
            "A1 A2 A3 A4 A5 A6 A7 A8 A14 A9 A16 A21 A37 A56 A47 A52 A70 A71",
            "S1 S2 S4 S5 S7 S8 S19 S70",
            "F2 F6",
        )
    ).split()
)

# Each fault, and its outcome.
ROWS = {
    "N1": ("status: 5xx for several minutes", "polling continues with growing pauses"),
    "N2": ("status: 429 with any Retry-After", "honoured up to 5 minutes"),
    "N3": ("status: refused, reset, unknown host, TLS failure", "retried; a bad certificate fails at once"),
    "N4": ("status: no response, a byte a second, half a body", "the poll ends at its timeout or the deadline"),
    "N5": (
        "status: 401 or 403 during a wait",
        "the connection is looked up once more; if the token has not changed, the task fails",
    ),
    "N6": ("status: unknown id, at first or always", "retried for 5 minutes, longer if it was known before"),
    "N7": ("status: not JSON, wrong types, unknown state, 50 MB", "never a success"),
    "N8": ("status: goes backwards", "the first final state counts; an old pause is not taken for a new one"),
    "N9": ("a redirect", "a same-origin GET is followed, a POST never"),
    "N10": ("kickoff: connection refused", "nothing was sent; retried"),
    "N11": ("kickoff: its response is lost", "no second POST; the message says what to check"),
    "N12": ("kickoff: rejected", "a clear error; missing inputs are named"),
    "N13": ("resume: sent twice", "applied once"),
    "N14": ("resume: no longer pending", "the task continues if an earlier try sent the answer, else fails"),
    "N15": ("ids with slashes, `..`, unicode, 10 kB", "quoted, or refused before anything is sent"),
    "N16": ("netrc, proxies, paths, IPv6, slashes", "the connection wins"),
    "N17": ("webhook: forged, replayed, malformed, early", "rejected or accepted once; never counts as an approval"),
    "N18": ("the secrets backend is unavailable", "a wait continues; a kickoff relies on its retries"),
    "N19": ("resume: its response is lost, and the draft changes", "no answer reaches a draft that was not shown"),
    "N20": ("resume: a gateway times out and the service acts late", "applied once"),
    "N21": ("resume: the status shows the old pause for 20 s", "the next wait does not mistake it for a new question"),
    "N22": ("token, URL or a credential changes after a lost response", "the outcome stays unknown; nothing is sent"),
    "N23": ("404 on the poll before a resume", "the draft cannot be compared, so nothing is sent"),
    "N24": ("a CA file is replaced in place", "it is read again; a wait survives one failure"),
    "N25": ("a rejection that reads like an approval", "never counts as an approval"),
    "N26": ("a header's value is part of an input's name", "masked only where it is displayed"),
    "N27": ("another task is cleared, and this one is retried", "nothing is started again"),
    "N28": ("many polls in one request: rejected, failing, lost", "each wait polls alone"),
    "N29": ("a connection is edited while waits use the old one", "each continues at the new URL"),
    "N30": ("no usage is reported while a budget is set", "the task fails or asks a person"),
    "N31": ("the trace differs in each try", "still the same request"),
    "N32": ("fields that an operator adds differ", "still the same request"),
    "N33": ("an execution exceeds its budget", "it is stopped; retries start nothing"),
    "N34": ("the Host is edited during a wait", "it continues at the new Host"),
    "N35": ("404 for a running execution, for a while or at another URL", "a stop is attempted; no second execution"),
    "N36": ("an agent's second question fails, and its task is retried", "the first is not asked again"),
    "N37": ("a redirect that URL parsers read differently", "not followed; the token goes nowhere else"),
    "N38": ("interim responses (102, 103)", "the final response counts"),
    "N39": ("a stop is answered by a gateway's page", "unknown, not refused; repeated"),
    "N40": (
        "continuing a failed execution: rejected, or no response",
        "it starts over, or one execution continues it; never both",
    ),
    "A1": ("worker killed between the POST and its record", "no second execution; the next try reports it"),
    "A2": ("worker killed while it waits", "the next try waits for the same execution"),
    "A3": ("triggerer killed with 100 waits", "another triggerer continues them, with their deadlines"),
    "A4": ("scheduler, API server or database unavailable", "the wait continues; nothing is started again"),
    "A5": (
        "a user fails or clears the task, or stops the run",
        "the execution is stopped if requested; a restart does not stop it",
    ),
    "A6": ("a timeout of any kind", "the message reports the fate of the execution"),
    "A7": ("the task is cleared, or the run repeated", "a new execution, as intended"),
    "A8": ("deferred by one release, resumed by the next", "records of earlier releases still load"),
    "A9": (
        "an answer that is late, repeated, empty, huge or a template",
        "the first valid one counts; text is never interpreted",
    ),
    "A10": ("10,000 waits on one triggerer", "the event loop keeps up, and sockets are bounded"),
    "A11": ("the wait's XCom changes while a form is open", "an answer belongs to the draft that was shown"),
    "A12": ("a kickoff is cleared and the new execution needs fewer rounds", "the result is that of the new execution"),
    "A13": ("an answer between two tries; a notifier that raises", "the answer is kept and used; no task fails"),
    "A14": ("a record's Variable cannot be read", "the try fails before anything is sent"),
    "A15": ("killed during the POST, or its id cannot be recorded", "the log names the id or the time"),
    "A16": ("a retry renders different inputs while the first runs", "never two executions at once unless requested"),
    "A17": ("retrying or clearing with little information", "clearing is distinguished from retrying"),
    "A18": ("a crew that asks nothing in the first or second round", "the data task runs"),
    "A19": ("wrong types from templates and params", "read as intended, or refused before anything is sent"),
    "A20": ("an answer with other fields, or unreadable values", "not accepted, and asked again"),
    "A21": ("a rejection, accepted or not, then the deadline", "not approved at the deadline"),
    "A32": ("an empty list of people who may answer", "rejected"),
    "A36": ("a rejected draft, clearing, then the deadline", "not approved at the deadline"),
    "A41": ("a rejection of an output whose answer was refused, then the deadline", "not approved at the deadline"),
    "A26": ("Airflow 3.4: a review is retried or cleared as it is answered", "the answer counts, or it is asked again"),
    "A27": ("SQLite: forty answers over REST while tasks and webhooks write", "each request is answered within 5 s"),
    "A28": ("Airflow 3.4: rounds in a loop, and references to their tasks", "each finds its own iteration"),
    "A29": ("the tab: a viewer without permissions", "403 or 404 at every URL"),
    "A30": ("the tab: huge or slow drafts, outputs and inputs", "a page stays under 1 MB and 0.2 s"),
    "A31": ("the tab: a different text with the hash of an approved draft", "the draft kept by the review is shown"),
    "A33": ("the tab: an XCom names another DAG's execution", "shown only if a task of the run has recorded it"),
    "A22": ("a DAG run deleted and recreated under its id", "a new execution"),
    "A23": ("simultaneous escalation steps; an answer after a lost lookup", "everybody is notified; the answer counts"),
    "A24": ("Airflow 3.4, and an upgrade to it with open registrations", "the inbox still finds what it stored"),
    "A25": ("the service starts after the DAG run", "the kickoff is retried"),
    "A34": (
        "`retries` is edited, so clearing looks like a retry",
        "counts as a retry; clearing again starts a new execution",
    ),
    "A35": (
        "a DAG run is recreated under its id; its first try dies early",
        "counts as a new run if the two can be told apart, else as a retry",
    ),
    "A37": ("the same try runs again (`RetryAction.RESCHEDULE`)", "continues with what it started"),
    "A38": ("`execution_timeout` ends a wait in its worker", "stopped for good"),
    "A39": ("Airflow's task state store is emptied", "nothing is lost: records are Variables"),
    "A57": ("the rendered fields of reviews and answers", "show no draft"),
    "A48": ("`default_args` around `crew_with_review`", "the group works as without them"),
    "A49": ("a number, a list or None as `subject` or `body`", "shown as text"),
    "A50": ("a question arrives while its DAG run is failed, which is then cleared", "it is asked"),
    "A55": ("an old page answers an old question; `max_rounds` is edited", "the form counts; no new draft is affected"),
    "A51": ("`retry_policy` rules that name the package's errors", "match, if a retry may help"),
    "A56": ("a gateway's page in place of any response", "never an answer; like a 503"),
    "A42": ("an output with the provider's own XCom keys; XComs of any shape", "refused; ignored"),
    "A40": ("live: an answer's response is lost, then another answer is given", "waits for a clear after a message"),
    "A43": ("`CrewRunOperator`: a retry starts another execution", "earlier decisions stay"),
    "A44": ("fields that a DAG adds to a review, or changes while it is open", "in the record; the form sent counts"),
    "A45": ("Airflow 3.4: a DAG's people are edited while a question is open", "the form's people may answer"),
    "A46": ("live: an approval with a comment", "the crew continues; the comment is in the record"),
    "A47": ("a user may read Variables, but neither XComs nor forms", "sees no draft, feedback or reviewer"),
    "A52": ("Airflow is upgraded during a run; a record is lost", "found; nothing is sent until the task is cleared"),
    "A53": ("nobody runs triggers while a review looks for an answer", "nobody is asked again; a retry looks again"),
    "A54": ("an old kickoff is cleared while its execution still runs", "stopped"),
    "A70": ("worker killed around an upload; its response lost", "one kickoff; only files are uploaded again"),
    "A71": ("a file is missing or has changed at a retry", "the execution continues with the file that was sent"),
    "A73": ("worker killed while it copies a crew's files", "nothing stands under the name; a retry copies them"),
    "A72": ("a file that is empty, unreadable, too large, damaged or not taken", "named; nothing is started"),
    "A75": ("a kickoff is refused because a budget is used up", "nothing is started; a policy waits for its end"),
    "A76": ("a try fails after its crew has used tokens", "XCom `crew_usage` has all executions since the last clear"),
    "S1": ("service killed in any state", "nothing is lost"),
    "S2": ("two resumes at once, or at the wrong time", "one wins, and the others are rejected"),
    "S3": ("malformed, huge and slow requests", "4xx with a reason, never 500"),
    "S4": ("200 kickoffs at once", "all accepted, run by a bounded pool"),
    "S5": ("webhook receiver down, slow, redirecting", "bounded retries that never delay the crew"),
    "S6": ("token guessing", "constant-time comparison, no hint"),
    "S7": ("a crew that raises, hangs, exits, prints megabytes", "its execution ends with the reason; others continue"),
    "S8": (
        "disk full, database read-only or unreachable",
        "503 with a reason, also from `/healthz`; work continues once fixed",
    ),
    "S9": ("1,000 webhooks to a fast receiver", "each arrives once and in order; twice only after a crash"),
    "S10": ("a silent receiver with 10,000 webhooks", "other receivers get theirs in seconds"),
    "S11": ("1 MiB of hostile JSON", "answered within a second, like everybody else's requests"),
    "S12": ("database locked, restarted or disconnected", "executions wait or continue; none fails"),
    "S13": ("two services on one database", "SQLite: the second refuses to start; PostgreSQL: they share the work"),
    "S14": ("1,100 half-sent requests", "others are served"),
    "S15": ("a stored row that cannot be read", "that execution ends with an error; others are unaffected"),
    "S17": ("outputs of 10 MB, a silent receiver, the page open", "memory and the page stay bounded"),
    "S16": ("crews leave processes, threads or a busy loop behind", "none of them outlives its execution"),
    "S18": ("the clock jumps by ten minutes", "nothing gets stuck, or is early by more than the jump"),
    "S19": ("one of three services is killed under load", "others continue its executions within a minute"),
    "S20": ("connections that send requests and read no response", "closed; memory stays bounded"),
    "S21": ("`restoreFromStateId` of an execution that the caller may not see", "not found"),
    "S22": ("lists over large executions; a large status", "only displayed fields are read"),
    "S23": ("machines whose clocks differ by 40 days", "nothing is deleted, rejected or ordered by these clocks"),
    "S24": ("webhooks to one address with and without a credential", "in order, each with its own"),
    "S25": ("a webhook that is resent", "the same id and credential, even after the end"),
    "S26": ("many stored executions", "pages and lists cost no more"),
    "S27": ("NUL characters in a text; 2^40 tokens", "rejected or stored; no execution stays running"),
    "S28": ("a crew closes its descriptors", "its execution ends with an error that says so"),
    "S29": (
        "a forged `X-Forwarded-For`, a locked SQLite file, a bad chunk",
        "the login limit holds; 503 within ten seconds; 400",
    ),
    "S30": (
        "PostgreSQL unavailable for several minutes, with the manifest's probes",
        "not ready, but alive: no restart",
    ),
    "S31": ("two consecutive releases on one PostgreSQL", "nothing is lost or duplicated, or one refuses to start"),
    "S32": ("a Flow's input `id` names another owner's state", "refused; nothing is read or overwritten"),
    "S33": ("a crew's code catches the question's exception", "the execution is still pending"),
    "S34": (
        "an address that one parser accepts and another rejects",
        "rejected; webhooks already stored for it are abandoned",
    ),
    "S35": ("endless trailers, and hundreds of unfinished bodies", "431, 408 or 503; memory stays bounded"),
    "S36": ("many pages, lists or searches by one owner", "429 for that owner alone; nobody else waits"),
    "S37": ("one owner's 1,500 silent addresses or slow names", "the others' webhooks arrive within seconds"),
    "S38": ("the machine runs out of files, threads or memory", "work waits or gets 503; nothing fails"),
    "S39": ("secrets of the service, and of one owner", "in no environment or command line, and never shown to others"),
    "S40": ("a crew replaces its streams, or forks and exits", "its answer counts"),
    "S41": ("secrets in an exception's text, escaped or split", "masked in status, page, log and webhook"),
    "S42": ("an edited answer that the model or guardrail rejects", "400; the question stays open"),
    "S43": ("one unreadable question among many", "that execution ends as `error`; the others are announced"),
    "S44": ("1,001 logins by a user, a borrowed name, a form from another site", "no other session ends; rejected"),
    "S45": (
        "a Flow's state or results that a second process would not get unchanged",
        "the execution runs on; if a question or crash needs them, it ends as `error` and names the field",
    ),
    "S55": ("a Flow with a state of many MB, or too large to be kept", "stored once; too large: the Flow runs on"),
    "S56": ("a tool rule beside a Flow that names no tool or crew", "the start is refused; no call runs unapproved"),
    "S57": (
        "an approved call depends on what earlier calls kept in memory",
        "with the rule `prepare` they run again; the question counts the others",
    ),
    "S85": ("a budget is used up: restarts, a month's end, a clock set back", "429; nothing starts"),
    "S86": ("an earlier release uses tokens beside this one, or before it", "they count, once"),
    "S87": ("a budget is used up, raised or removed while executions are queued", "held; no scaler counts them"),
    "S88": ("a model without a known price, with a budget in USD", "refused and named, or allowed as configured"),
    "S89": ("a budget that stops is used up by a running execution", "it ends as `error` and can be continued"),
    "S90": ("many kickoffs to several services with one budget", "the budget and one execution a place at most"),
    "S96": (
        "a crew's processes, hidden ones too, use more memory or are more than allowed",
        "it ends as `error`, with all of them; others go on",
    ),
    "S97": ("temporary files of a crew that completes, fails, is killed or stopped", "its own; deleted with it"),
    "S82": ("a chart that a tool drew, then a kill, a rejected draft or a review", "there afterwards; drafts apart"),
    "S83": ("links, pipes, huge or odd names, HTML in a crew's folder", "not stored, or only ever downloaded"),
    "S81": ("a CrewAI release that renames what it does not document", "one feature is off or refused at the start"),
    "S100": ("a CrewAI release that requires more of classes that its users derive from", "crews and Flows run"),
    "S101": ("a CrewAI release in which a function returns something else", "one feature is off"),
    "S102": ("a CrewAI release that lists the methods of Flows nowhere", "a Flow that asks a person is refused"),
    "S53": ("the published unit, Compose file and manifest, as they are written", "run a crew of CrewAI"),
    "S58": ("three executions at once of a crew with knowledge", "embedded once; if it fails, each says why"),
    "S59": ("a graceful stop while a receiver answers slowly", "the webhook arrives once"),
    "S60": ("a model that replaces its token counters", "counted as far as possible; the crew goes on"),
    "S61": ("continued twice, changed, or by another user", "one kickoff continues it; the others get 404, 409 or 422"),
    "S50": ("memory of two users' executions", "neither recalls anything of the other's"),
    "S51": ("two crews in a service, with memory, knowledge, `.env`, tokens", "neither gets anything of the other"),
    "S46": ("a file or factory that runs a crew while it is loaded", "the start is refused; nothing that ran is used"),
    "S47": ("an input that a hook fills; null as an input", "not required; given"),
    "S48": ("an `after_kickoff` hook that returns nothing, a model, a list", "the crew's answer, or JSON"),
    "S54": ("a draft that is rejected, edited or left, in a crew with memory", "only the approved text is remembered"),
    "S52": (
        "a transaction pooler; any database error that is not a value's",
        "work waits or gets 503; no execution ends for it",
    ),
    "S70": ("a path or an address in a Flow's field with a file type", "400 names the field; nothing is read"),
    "S71": ("a file named `../../etc/passwd`, with NUL, 255 letters", "a label, never a path; NUL: 400"),
    "S72": ("another owner's file, a used or an unknown one", "404 names the input; nothing starts"),
    "S73": ("files above a limit: each, an execution's, an owner's, all", "413, 429 or 507; nothing is stored"),
    "S74": ("an upload that stops in the middle, or is too slow", "no file; what had arrived is deleted"),
    "S75": ("200 slow uploads beside kickoffs", "16 at once, 503 for the others; kickoffs do not wait"),
    "S76": ("a review, a restart or a kill in an execution with files", "the same bytes in every process"),
    "S77": ("the disk is full when a file arrives or is laid out for a crew", "503, or the execution waits"),
    "S78": ("a file's web address, or a redirect, that leads into the network", "400 with the reason; nothing is sent"),
    "F1": ("a Flow lists inputs that it does not require", "the kickoff is sent; the service's 422 decides"),
    "F20": ("a copied file is damaged, or its name leads elsewhere", "nothing stands under its name; refused"),
    "F2": ("a Flow's webhook: forged, old, repeated, nested, unknown", "rejected, or accepted once"),
    "F3": (
        "an empty answer, an unknown outcome, feedback with an outcome",
        "the first two are rejected with a list of the outcomes; feedback and outcome both arrive",
    ),
    "F4": ("a Flow's question was answered elsewhere", "reported, with who answered and when"),
    "F5": ("a callback URL on a different host", "rejected on receipt and on sending"),
    "F6": ("the service is killed while a Flow waits", "it keeps waiting, and continues after the answer"),
    "F7": (
        "an answer leads a Flow back to an earlier step, even across restarts",
        "the same methods run as in CrewAI itself",
    ),
}  # fmt: skip


def main() -> int:
    """Write the page and the list of tests, or check them."""
    written = {PAGE: with_faults(PAGE.read_text("utf-8")), TESTS: f"{ABOUT}\n{tables(proofs())}\n"}
    stale = [path for path, text in written.items() if not path.exists() or path.read_text("utf-8") != text]
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is not up to date; run: python -m scripts.reliability")
        return int(bool(stale))
    for path in stale:
        path.write_text(written[path], "utf-8")
    return 0


def with_faults(page: str) -> str:
    """Return the page with its faults rewritten."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{faults()}\n\n{END}{after}"


def faults() -> str:
    """Return the outcome of each fault that users may notice."""
    return "\n\n".join(f"### {title}\n\n{_faults(letter)}" for letter, title in TITLES.items())


def _faults(letter: str) -> str:
    shown = [each for row, each in ROWS.items() if row[0] == letter and row in NOTICED]
    lines = [f"| {fault} | {outcome} |" for fault, outcome in shown]
    return "\n".join(["| fault | outcome |", "|---|---|", *lines])


def tables(proven: dict[str, list[Proof]]) -> str:
    """Return a table of rows and their tests for each part of the matrix."""
    return "\n\n".join(f"## {title}\n\n{_table(letter, proven)}" for letter, title in TITLES.items())


class Proof(NamedTuple):
    """A test that covers a row: its file, its function, and whether only `make long` runs it."""

    file: str
    function: str
    is_long: bool


@functools.cache
def proofs(root: Path = ROOT) -> dict[str, list[Proof]]:
    """Return the tests that cover each row; raise `KeyError` for a row that is not in the matrix."""
    found: dict[str, list[Proof]] = {row: [] for row in ROWS}
    for path in sorted((root / "tests").rglob("test_*.py")):
        file = path.relative_to(root).as_posix()
        for function, marks in _marked(ast.parse(path.read_text())):
            for row in _rows(marks):
                found[row].append(Proof(file, function, any(ast.unparse(mark) == LONG for mark in marks)))
    return found


def _table(letter: str, proven: dict[str, list[Proof]]) -> str:
    lines = ["| row | fault | outcome | proven by |", "|---|---|---|---|"]
    for row, (fault, outcome) in ROWS.items():
        if row[0] == letter:
            lines.append(f"| {row} | {fault} | {outcome} | {_proof(row, proven[row])} |")
    return "\n".join(lines)


def _proof(row: str, tests: list[Proof]) -> str:
    return _tests(tests) or BENCHMARKS.get(row, "**no test**")


def _tests(tests: list[Proof]) -> str:
    by_file: dict[str, list[str]] = {}
    for proof in tests:
        by_file.setdefault(proof.file, []).append(f"`{proof.function}`")
    links = {path: f"[{Path(path).name}]({path.removeprefix('tests/')})" for path in by_file}
    named = [f"{links[path]}: {', '.join(names)}" for path, names in by_file.items()]
    return "<br>".join(named)


def _marked(tree: ast.Module) -> Iterator[tuple[str, list[ast.expr]]]:
    """Yield the tests in a file with their markers, including those for the whole file."""
    of_file = [mark for node in tree.body if _is_pytestmark(node) for mark in _marks(node.value)]
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node.name, of_file + node.decorator_list


def _is_pytestmark(node: ast.stmt) -> TypeGuard[ast.Assign]:
    return isinstance(node, ast.Assign) and any(
        isinstance(target, ast.Name) and target.id == "pytestmark" for target in node.targets
    )


def _marks(value: ast.expr) -> list[ast.expr]:
    return value.elts if isinstance(value, ast.List) else [value]


def _rows(marks: list[ast.expr]) -> list[str]:
    """Return the rows of markers, and of single parameters among them."""
    nodes = [node for mark in marks for node in ast.walk(mark)]
    calls = [node for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) == ROW]
    return [str(argument.value) for call in calls for argument in call.args if isinstance(argument, ast.Constant)]


if __name__ == "__main__":
    sys.exit(main())
