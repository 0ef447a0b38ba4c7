"""An execution that has failed is continued by another: what it has finished is neither done nor paid for again."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from crew_client import Client, Serve
from sqlalchemy import create_engine, text

from crew_service.engine import retention
from crew_service.engine.tool_rules import JournalOptions, ToolRule
from crew_service.local import running_service
from crew_service.scripted_crew import ScriptedCrew
from crew_service.storage import chains, journal, schema, steps
from crew_service.storage.database import Database

pytestmark = pytest.mark.row("S61")
UNKNOWN = "00000000-0000-4000-8000-000000000000"
PAY_ONCE = JournalOptions((ToolRule("pay", "once"),))
USERS = [("ann", "token-of-ann"), ("bob", "token-of-bob")]


def scenario(*, fails: bool = True, **notes: Any) -> dict[str, Any]:
    last: dict[str, Any] = {"error": "ValueError: no ink"} if fails else {"output": "Report on {topic}"}
    return {
        "inputs": ["topic"],
        "tasks": [
            {"id": "notes", "agent": "Researcher", "output": "Notes on {topic}", "tokens": 100, "model": "m", **notes},
            {"id": "draft", "agent": "Writer", "human_input": "review", "output": "Draft {revision}", "tokens": 10},
            {"id": "report", "agent": "Editor", "tokens": 1, **last},
        ],
    }


@pytest.fixture
def repaired(tmp_path: Path) -> Callable[..., Any]:
    """The same service with another crew, on the database that the first one has left."""

    def start(crew: dict[str, Any] | ScriptedCrew, **more: Any) -> Any:
        given: dict[str, Any] = {"crew": crew} if isinstance(crew, ScriptedCrew) else {"scenario": crew}
        return running_service(**given, db=tmp_path / "service.db", user_tokens=USERS, **more)

    return start


def failed(client: Client, **more: Any) -> str:
    body = {"inputs": {"topic": "AI", "review": "no"}, **more}
    kickoff_id = client.post("/kickoff", body).json()["kickoff_id"]
    client.until(kickoff_id, "error")
    return kickoff_id


def go_on(client: Client, kickoff_id: str, **more: Any) -> Any:
    headers = more.pop("headers", {})
    body = {"inputs": {"topic": "AI", "review": "no"}, "continueFrom": kickoff_id, **more}
    return client.post("/kickoff", body, headers=headers)


def left_by(repaired: Callable[..., Any], crew: dict[str, Any] | None = None, **more: Any) -> str:
    """The id of an execution that has failed in a service that is over."""
    with repaired(crew or scenario()) as service:
        return failed(Client(service.url, service.token), **more)


def test_a_service_that_continues_executions_says_so(serve: Serve) -> None:
    assert serve().get("/inputs").json()["continues"] is True


def test_a_failed_executions_finished_tasks_are_not_run_again(repaired: Callable[..., Any]) -> None:
    first = left_by(repaired)
    with repaired(scenario(fails=False)) as service:
        client = Client(service.url, service.token)
        answer = go_on(client, first)
        assert answer.status_code == 200, answer.text
        second = answer.json()["kickoff_id"]
        assert second != first
        result = client.until(second, "completed")["result"]
        assert [task["output"] for task in result["tasks"]] == ["Notes on AI", "Draft 1", "Report on AI"]
        told = client.get(f"/executions/{second}").json()
        assert told["continued_from"] == first
        assert (told["usage"]["total_tokens"], told["chain_usage"]["total_tokens"]) == (1, 111)
        assert told["chain_usage"]["by_model"]["m"]["total_tokens"] == 100
        header = json.loads(client.get(f"/status/{second}").headers["Crew-Usage"])
        assert header["total_tokens"] == 1
        assert header["chain_usage"] == {"total_tokens": 111, "prompt_tokens": 0, "completion_tokens": 111}
        listed = client.get(f"/statuses?ids={second}").json()["statuses"][second]["usage"]
        assert (listed["total_tokens"], listed["chain_usage"]["total_tokens"]) == (1, 111)
        page = client.get(f"/view?id={second}", headers={"Accept": "text/html"}).text
        assert f'<dt>Continues</dt><dd><a href="view?id={first}">' in page
        assert "1, 111 including the executions that it continues" in page
        earlier = client.get(f"/executions/{first}").json()
        assert (earlier["continued_from"], earlier["chain_usage"], earlier["state"]) == (None, None, "error")
        assert "chain_usage" not in json.loads(client.get(f"/status/{first}").headers["Crew-Usage"])


def test_each_id_of_a_chain_leads_to_its_last_execution(serve: Serve) -> None:
    client = serve(scenario())
    first = failed(client)
    ids = [first]
    for number in range(3):
        ids.append(go_on(client, ids[number // 2]).json()["kickoff_id"])
        client.until(ids[-1], "error")
    told = [client.get(f"/executions/{each}").json() for each in ids]
    assert [each["continued_from"] for each in told] == [None, *ids[:3]]
    assert [each["usage"]["total_tokens"] for each in told] == [110, 0, 0, 0]
    assert [each and each["total_tokens"] for each in (each["chain_usage"] for each in told)] == [None, 110, 110, 110]


@pytest.mark.parametrize("dialect", ["spec", "live"])
def test_what_cannot_be_continued_is_refused_and_nothing_is_started(serve: Serve, dialect: str) -> None:
    client = serve(scenario(), dialect=dialect, user_tokens=USERS)
    word = {"spec": "error", "live": "FAILED"}[dialect]
    body = {"inputs": {"topic": "AI", "review": "no"}}

    def start(by: Client, **more: Any) -> str:
        return by.post("/kickoff", {**body, **more}).json()["kickoff_id"]

    ann, bob = client.holding("token-of-ann"), client.holding("token-of-bob")
    first = start(ann)
    ann.until(first, word)
    waiting = start(client, inputs={"topic": "AI"})
    count = len(client.get("/executions?limit=100").json()["executions"])
    for some_id in (UNKNOWN, "no id", "zero\0"[:4]):
        assert go_on(client, some_id).status_code == 404
    assert go_on(bob, first).status_code == 404
    other = go_on(ann, first, inputs={"topic": "AI", "review": "no", "more": 1})
    assert (other.status_code, other.json()["detail"]) == (
        422,
        f"Execution {first} cannot be continued: it was started with different inputs.",
    )
    assert go_on(client, waiting, inputs={"topic": "AI"}).json()["detail"].endswith("it has not ended.")
    client.post(f"/stop/{waiting}")
    stopped = go_on(client, waiting, inputs={"topic": "AI"})
    assert (stopped.status_code, stopped.json()["detail"]) == (
        422,
        f"Execution {waiting} cannot be continued: it was stopped.",
    )
    assert go_on(client, first, restoreFromStateId=first).status_code == 400
    assert len(client.get("/executions?limit=100").json()["executions"]) == count
    assert go_on(ann, first).status_code == 200


def test_an_execution_goes_on_for_its_owner_whoever_continues_it(serve: Serve) -> None:
    client = serve(scenario(), user_tokens=USERS)
    ann, bob = client.holding("token-of-ann"), client.holding("token-of-bob")
    second = go_on(client, failed(ann)).json()["kickoff_id"]
    assert ann.until(second, "error")
    assert bob.get(f"/status/{second}").status_code == 404


def test_one_that_is_continued_already_is_named(repaired: Callable[..., Any]) -> None:
    first = left_by(repaired)
    with repaired(scenario(fails=False)) as service:
        client = Client(service.url, service.token)
        second = go_on(client, first).json()["kickoff_id"]
        for _ in ("running", "completed"):
            again = go_on(client, first)
            assert (again.status_code, again.json()["kickoff_id"]) == (409, second)
            assert again.json()["detail"] == f"Execution {second} already continues this execution."
            client.until(second, "completed")
        assert go_on(client, second).json()["detail"].endswith("it has completed.")


@pytest.mark.long
@pytest.mark.slow
def test_of_many_that_continue_one_at_once_one_does(serve: Serve, database: str) -> None:
    count = 1 if database.startswith("sqlite") else 2
    clients = [serve(scenario(), db=database, token="token-of-all-of-them") for _ in range(count)]
    first = failed(clients[0])
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda client: go_on(client, first), clients * (8 // count)))
    won = [each.json()["kickoff_id"] for each in answers if each.status_code == 200]
    others = [each for each in answers if each.status_code == 409]
    # One that has failed again is continued by the next request; none is continued twice.
    assert len(won) + len(others) == 8
    assert len(set(won)) == len(won) >= 1
    engine = create_engine(database)
    with engine.connect() as connection:
        found = connection.execute(text("SELECT continued_from FROM executions WHERE continued_from IS NOT NULL"))
        origins = list(found.scalars())
    engine.dispose()
    assert len(set(origins)) == len(origins) == len(won)


def test_a_request_repeated_under_its_key_gets_its_first_answer(serve: Serve) -> None:
    client = serve(scenario())
    first, headers = failed(client), {"Idempotency-Key": "k"}
    second = go_on(client, first, headers=headers).json()
    client.until(second["kickoff_id"], "error")
    assert go_on(client, first, headers=headers).json() == second
    assert go_on(client, first, headers=headers, meta={"a": 1}).status_code == 422
    assert client.get(f"/executions/{second['kickoff_id']}").json()["continued_from"] == first


@pytest.mark.parametrize("change", [{"output": "Other notes"}, {"id": "other_notes"}])
def test_a_crew_with_changed_finished_tasks_must_start_over(
    repaired: Callable[..., Any], change: dict[str, Any]
) -> None:
    first = left_by(repaired)
    with repaired(scenario(fails=False, **change)) as service:
        refused = go_on(Client(service.url, service.token), first)
        assert refused.status_code == 422
        assert refused.json()["detail"].endswith("its finished task 'notes' is not among the crew's current tasks.")


def test_a_failed_executions_tool_calls_are_steps_of_its_continuation(
    repaired: Callable[..., Any],
) -> None:
    def crew(**last: Any) -> dict[str, Any]:
        calls = [{"tool": "look_up", "arguments": {"on": "{topic}"}, "result": "much"}, {"tool": "send_mail"}]
        first = {"id": "notes", "agent": "Researcher", "steps": [{"tool": "look_up"}], "output": "Notes"}
        return {"inputs": ["topic"], "tasks": [first, {"id": "report", "agent": "Editor", "steps": calls, **last}]}

    with repaired(crew(error="no ink")) as service:
        client = Client(service.url, service.token)
        first = failed(client)
        before = [task["steps"] for task in client.get(f"/executions/{first}").json()["tasks"]]
    with repaired(crew(output="Report")) as service:
        client = Client(service.url, service.token)
        second = go_on(client, first).json()["kickoff_id"]
        client.until(second, "completed")
        tasks = client.get(f"/executions/{second}").json()["tasks"]
        assert [[step["number"] for step in steps] for steps in before] == [[1], [2, 3]]
        again = [[{**step, "from_journal": True} for step in steps] for steps in before]
        assert [task["steps"] for task in tasks] == again, "of the finished task too"
        assert len(client.get(f"/executions/{second}/steps").json()["steps"]) == 3
        pages = [client.get(f"/view?id={each}", headers={"Accept": "text/html"}).text for each in (first, second)]
        assert [page.count("look_up") for page in pages] == [2, 2]
        assert [task["steps"] for task in client.get(f"/executions/{first}").json()["tasks"]] == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("refused", "answers"),
    [
        (None, [("look", "1"), ("mail", "2"), ("look", None), ("mail", None), ("plan", "5")]),
        ("Größe\0", [("mail", "2"), ("mail", None), ("plan", "5")]),
    ],
)
def test_a_restarted_tasks_journal_keeps_only_run_once_tools(
    database: str, refused: str | None, answers: list[tuple[str, str | None]]
) -> None:
    calls: list[tuple[str, str, str | None, bool | None]] = [
        *(("Größe\0", "look", "1", None), ("Größe\0", "mail", "2", True), ("Größe\0", "look", "3", None)),
        *(("Größe\0", "mail", None, True), ("", "plan", "5", None)),
    ]
    with closing(Database(database)) as opened, opened.writing() as connection:
        for number, (task, name, answer, once) in enumerate(calls, 11):
            about = {"number": number, "task_id": task, "kind": "tool", "name": name}
            entry = {**about, "part": "", "key": str(number), "within": None, "answer": answer, "once": once}
            journal.add(connection, "a", entry, now=1.0)
            shown = {"agent": "", "state": "done", "seconds": 1.0, "usage": {"total_tokens": 1}, "arguments": "[]"}
            step = {**about, **shown, "result": answer, "is_cut": False, "segment": 3, "began_at": 1.0}
            steps.begin(connection, "a", step, again=False)
        count = chains.take_journal(connection, "a", into="b", refused=refused, unanswered=[13], after=0)
        assert count == len(answers)
        taken = journal.entries(connection, "b")
        assert [(each["number"], each["name"], each["answer"]) for each in taken] == [
            (number, *each) for number, each in enumerate(answers, 1)
        ]
        seen = [
            (each.number, each.name, each.result, each.from_journal, each.usage)
            for each in steps.listed(connection, "b", after=0, most=9)
        ]
        assert seen == [(number, *each, True, None) for number, each in enumerate(answers, 1) if each[1]]
        assert journal.entries(connection, "a") == []


def paying(name: str, *, fails: bool = False, **more: Any) -> ScriptedCrew:
    """A crew whose last task pays, which may happen only once."""
    end = {"error": "no ink"} if fails else {"output": "Paid"}
    last = {"id": name, "agent": "Clerk", "steps": [{"tool": "pay"}], **end, **more}
    return ScriptedCrew({"tasks": [{"id": "notes", "output": "Notes"}, last]}, PAY_ONCE)


def test_a_renamed_task_does_not_repeat_a_run_once_call(repaired: Callable[..., Any]) -> None:
    with repaired(paying("pay_task", fails=True)) as service:
        client = Client(service.url, service.token)
        kickoff_id = client.kickoff()
        client.until(kickoff_id, "error")
    with repaired(paying("payment_task")) as service:
        client = Client(service.url, service.token)
        for _ in range(2):
            kickoff_id = client.kickoff(continueFrom=kickoff_id)
            assert client.until(kickoff_id, "error")["error"] == (
                "The tool pay may run only once, and the task that called it no longer has the id 'pay_task'. No task "
                "was run; restore that task's name or place to continue, or check what the call did before you "
                "start the crew again."
            )
    with repaired(paying("pay_task")) as service:
        client = Client(service.url, service.token)
        kickoff_id = client.kickoff(continueFrom=kickoff_id)
        client.until(kickoff_id, "completed")
        [step] = client.get(f"/executions/{kickoff_id}/steps").json()["steps"]
        assert (step["name"], step["from_journal"]) == ("pay", True)


def numbered(*digests: str, fails: bool = False) -> ScriptedCrew:
    """A crew whose tasks have no names, and of which the one with the digest `pay` pays."""
    end = {"error": "no ink"} if fails else {"output": "Paid"}
    declared = [
        {"id": f"task_{place}", **({"steps": [{"tool": "pay"}], **end} if digest == "pay" else {"output": digest})}
        for place, digest in enumerate(digests, 1)
    ]
    crew = ScriptedCrew({"tasks": declared}, PAY_ONCE)
    crew.tasks = [replace(task, digest=digest) for task, digest in zip(crew.tasks, digests, strict=True)]
    return crew


@pytest.mark.parametrize("fixed", [["notes", "more notes", "pay"], ["notes", "pay"]], ids=["", "same order"])
def test_a_moved_task_does_not_repeat_a_run_once_call(repaired: Callable[..., Any], fixed: list[str]) -> None:
    with repaired(numbered("notes", "pay", fails=True)) as service:
        client = Client(service.url, service.token)
        kickoff_id = client.kickoff()
        client.until(kickoff_id, "error")
    with repaired(numbered(*fixed)) as service:
        client = Client(service.url, service.token)
        kickoff_id = client.kickoff(continueFrom=kickoff_id)
        if len(fixed) == 2:
            client.until(kickoff_id, "completed")
        else:
            assert "no longer has the id 'task_2'" in client.until(kickoff_id, "error")["error"]


@pytest.mark.parametrize("unanswered", [False, True])
def test_a_task_renamed_while_its_execution_waits_repeats_nothing(
    repaired: Callable[..., Any], unanswered: bool
) -> None:
    """A call that a person was asked about before it began has not run."""
    ask = {"steps": [{"tool": "pay", "ask": "tool"}]} if unanswered else {"human_input": True}
    with repaired(paying("pay_task", **ask)) as service:
        client = Client(service.url, service.token)
        kickoff_id = client.kickoff()
        client.until(kickoff_id, "pending")
    with repaired(paying("payment_task")) as service:
        client = Client(service.url, service.token)
        if unanswered:
            answer = {"execution_id": kickoff_id, "task_id": "pay_task#1", "outcome": "approve"}
            assert client.post("/resume", answer).ok
            client.until(kickoff_id, "completed")
        else:
            client.resume(kickoff_id, approve=False, feedback="Again.", task_id="pay_task")
            assert "no longer has the id 'pay_task'" in client.until(kickoff_id, "error")["error"]


def test_the_rounds_of_a_review_are_taken_over(repaired: Callable[..., Any]) -> None:
    def crew(*, fails: bool) -> dict[str, Any]:
        revised = {"revised": "Draft {revision}, after: {feedback}", **({"error": "no paper"} if fails else {})}
        return {"tasks": [{"id": "draft_task", "human_input": True, "output": "Draft 1", **revised}]}

    with repaired(crew(fails=False)) as service:
        client = Client(service.url, service.token)
        first = client.kickoff()
        client.until(first, "pending")
    with repaired(crew(fails=True)) as service:
        client = Client(service.url, service.token)
        client.resume(first, approve=False, feedback="Shorter.")
        client.until(first, "error")
    with repaired(crew(fails=False)) as service:
        client = Client(service.url, service.token)
        second = client.kickoff(continueFrom=first)
        assert client.until(second, "pending")["task_output"] == "Draft 2, after: Shorter."
        client.resume(second)
        client.until(second, "completed")


def test_an_exceeded_token_limit_counts_the_chain_and_bars_continuation(serve: Serve) -> None:
    client = serve(scenario())
    limited = failed(client, limits={"max_tokens": 50})
    assert "TokenLimitExceeded" in client.status(limited)["error"]
    assert go_on(client, limited).json()["detail"].endswith("it has used more tokens than allowed.")
    second = go_on(client, failed(client), limits={"max_tokens": 105}).json()["kickoff_id"]
    said = client.until(second, "error")["error"]
    assert said == "TokenLimitExceeded: the execution used 0 tokens and continues one that used 110; its limit is 105"


def test_one_that_ran_out_of_time_gets_its_time_anew(serve: Serve) -> None:
    slow = {"tasks": [{"id": "notes", "output": "n"}, {"id": "slow", "seconds": 0.6, "output": "s"}]}
    client = serve(slow)
    first = client.kickoff(limits={"max_seconds": 0.3})
    assert "TimeLimitExceeded" in client.until(first, "error")["error"]
    second = client.kickoff(continueFrom=first)
    told = client.until(second, "completed")
    assert [task["output"] for task in told["result"]["tasks"]] == ["n", "s"]


def test_a_chains_earlier_execution_may_be_deleted_by_age(serve: Serve, tmp_path: Path) -> None:
    client = serve(scenario())
    first = failed(client)
    second = go_on(client, first).json()["kickoff_id"]
    client.until(second, "error")
    with closing(Database(str(tmp_path / "service.db"))) as database:
        with database.writing() as connection:
            connection.execute(text("UPDATE executions SET aged_from = 1 WHERE id = :id"), {"id": first})
        assert retention.forget_old(database, before=2.0) == 1
    assert go_on(client, first).status_code == 404
    third = go_on(client, second)
    assert third.status_code == 200
    told = client.get(f"/executions/{third.json()['kickoff_id']}").json()
    assert [task["output"] for task in told["tasks"][:2]] == ["Notes on AI", "Draft 1"]
    assert told["chain_usage"]["total_tokens"] == 110


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(("deleted", "left"), [([1], [0, 2, 3]), ([1, 2], [0, 3]), ([0, 2], [1, 3])])
def test_an_id_leads_past_deleted_executions_to_the_last(
    serve: Serve, database: str, deleted: list[int], left: list[int]
) -> None:
    client = serve(scenario(), db=database)
    ids = [failed(client)]
    for _ in range(3):
        ids.append(go_on(client, ids[-1]).json()["kickoff_id"])
        client.until(ids[-1], "error")
    with closing(Database(database)) as opened:
        with opened.writing() as connection:
            for place in deleted:
                connection.execute(text("UPDATE executions SET aged_from = 1 WHERE id = :id"), {"id": ids[place]})
        assert retention.forget_old(opened, before=2.0) == len(deleted)
    told = {place: client.get(f"/executions/{ids[place]}").json()["continued_from"] for place in left[1:]}
    assert told == {place: ids[before] for before, place in pairwise(left)}
    for place in left[:-1]:
        ids.append(go_on(client, ids[place]).json()["kickoff_id"])
        client.until(ids[-1], "error")
        assert client.get(f"/executions/{ids[-1]}").json()["continued_from"] == ids[-2]


def test_one_whose_continuation_was_deleted_is_not_continued_again(
    repaired: Callable[..., Any], tmp_path: Path
) -> None:
    """Its journal, with all that tools have done which may run only once, went with the other."""
    first = left_by(repaired)
    with repaired(scenario(fails=False)) as service:
        client = Client(service.url, service.token)
        second = go_on(client, first).json()["kickoff_id"]
        client.until(second, "completed")
        with closing(Database(str(tmp_path / "service.db"))) as database:
            with database.writing() as connection:
                connection.execute(text("UPDATE executions SET aged_from = 1 WHERE id = :id"), {"id": second})
            assert retention.forget_old(database, before=2.0) == 1
        refused = go_on(client, first)
        assert refused.status_code == 422
        assert refused.json()["detail"].endswith(f"it was continued by execution {second}, which has been deleted.")


@pytest.mark.slow
@pytest.mark.row("S31")
def test_an_earlier_release_never_claims_an_execution_that_continues_another(serve: Serve, postgresql: str) -> None:
    client = serve(scenario(), db=postgresql)
    first = failed(client)
    engine = create_engine(postgresql)
    older = "INSERT INTO processes (id, beat, host, started_at, release) VALUES ('old', 0, 'elsewhere', 0, '0012')"
    with engine.begin() as connection:
        connection.execute(text(older))
    refused = go_on(client, first)
    assert refused.status_code == 422
    assert "an earlier release of the service is using the same database" in refused.json()["detail"]
    with engine.begin() as connection:
        assert connection.execute(text("SELECT oldest FROM releases")).scalar() == schema.OLDEST
        connection.execute(text("DELETE FROM processes WHERE id = 'old'"))
    assert go_on(client, first).status_code == 200
    with engine.begin() as connection:
        assert connection.execute(text("SELECT oldest FROM releases")).scalar() == schema.WITH_CHAINS
    engine.dispose()
