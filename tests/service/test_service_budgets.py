"""Budgets over an hour, a day or a month: what may begin, what is held in the queue, and what callers are told."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from crew_client import Client, Command, Serve, eventually
from databases import put
from sqlalchemy import select, text, update

from crew_service.budgets import BadBudget, Budget, Owner, Window
from crew_service.cli import main
from crew_service.engine.budgets import Budgets, OverBudget, hold
from crew_service.engine.ledger import Ledger
from crew_service.prices import Price, Prices
from crew_service.storage import claims, clock, usage_sums
from crew_service.storage.database import Database
from crew_service.storage.states import State
from crew_service.storage.tables import executions, processes

TOKEN = "a-token-for-tests-only"
PRICES = Prices({"gpt-4o": Price(2.5, 1.25, 10.0)})
TASK = {"id": "only_task", "tokens": 400, "output": "x"}
SPENDING = {"inputs": ["topic"], "tasks": [TASK]}
PRICED = {"inputs": ["topic"], "tasks": [{**TASK, "model": "gpt-4o", "tokens": 1000}]}  # one cent


def utc(text: str) -> float:
    return datetime.fromisoformat(f"{text}+00:00").timestamp()


# --- windows and options ---


@pytest.mark.parametrize(
    ("kind", "now", "since", "until"),
    [
        ("hour", "2026-11-28T13:59:59.999", "2026-11-28T13:00", "2026-11-28T14:00"),
        ("hour", "2026-12-31T23:00", "2026-12-31T23:00", "2027-01-01T00:00"),
        ("day", "2026-02-28T23:59:59", "2026-02-28", "2026-03-01"),
        ("day", "2028-02-28T23:59:59", "2028-02-28", "2028-02-29"),
        ("month", "2026-12-31T23:59:59.999", "2026-12-01", "2027-01-01"),
        ("month", "2027-01-01T00:00", "2027-01-01", "2027-02-01"),
        ("month", "2026-01-31T12:00", "2026-01-01", "2026-02-01"),
        ("month", "2028-02-29T12:00", "2028-02-01", "2028-03-01"),
    ],
)
def test_a_window_is_the_hour_day_or_month_in_utc(kind: str, now: str, since: str, until: str) -> None:
    assert Window.at(kind, utc(now)) == Window(utc(since), utc(until))


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("*=20USD/day", Budget("*", 20, "USD", "day")),
        ("crew:report=500000tokens/hour", Budget("crew:report", 500_000, "tokens", "hour")),
        ("organization=0.5USD/month", Budget("organization", 0.5, "USD", "month")),
        ("a=b/c=1tokens/hour", Budget("a=b/c", 1, "tokens", "hour")),
    ],
)
def test_a_budget_is_read(text: str, budget: Budget) -> None:
    assert Budget.read(text) == budget


@pytest.mark.parametrize(
    ("who", "crew", "owner"),
    [
        *(("*", None, None), ("organization", None, Owner()), ("alice", None, Owner("alice"))),
        *((name, None, Owner(name)) for name in ("alice/", "/alice", "team/alice", "/", "//", "*/", "crew/alice")),
        *(("crew:a", "a", None), ("crew:a/alice", "a", Owner("alice", True))),
        *((f"crew:a/{name}", "a", Owner(name, True)) for name in ("alice/", "/alice", "team/alice", "/", "*")),
        *(("crew:a/organization", "a", Owner(None, True)), ("crew:a/crew:b", "a", Owner("crew:b", True))),
    ],
)
def test_a_budget_names_one_crew_or_owner_despite_slashes(who: str, crew: str | None, owner: Owner | None) -> None:
    budget = Budget.read(f"{who}=1USD/day")
    assert (budget.crew, budget.owner) == (crew, owner)


@pytest.mark.parametrize(
    "text",
    [
        *("", "alice", "=20USD/day", "alice=20/day", "alice=20USD", "alice=20USD/week", "alice=20 USD/day"),
        *("alice=0USD/day", "alice=-1USD/day", "alice=1.5tokens/day", "alice=1e9USD/day", "crew:=1USD/day"),
        *("crew:/alice=1USD/day", "crew:a/=1USD/day"),
        "alice=20EUR/day",
    ],
)
def test_an_invalid_budget_is_refused_with_the_expected_form(text: str) -> None:
    with pytest.raises(BadBudget, match="--budget"):
        Budget.read(text)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--budget", "nobody=20tokens/day"], "no user token named 'nobody' (organization)"),
        (
            ["--crew", "a=demo", "--crew-token", "a/eve=secret-1", "--budget", "eve=20tokens/day"],
            "no user token named 'eve' (crew:a/eve, organization)",
        ),
        (["--budget", "crew:report=20tokens/day"], "no crew 'report'"),
        (["--crew", "a=demo", "--budget", "crew:a/*=20tokens/day"], "no user token named 'crew:a/*'"),
        (["--budget", "*=20tokens/day", "--budget", "*=30tokens/day"], "there is already a budget of * in tokens"),
        (["--prices", "none", "--budget", "*=20USD/day"], "a budget in USD needs --prices"),
        (["--user-token", "*=secret-1"], "must not be named '*'"),
        (["--user-token", "organization=secret-1"], "must not be named 'organization'"),
        (["--user-token", "crew:x=secret-1"], "must not be named 'crew:x'"),
        (["--crew", "a=demo", "--crew-token", "a/organization=secret-1"], "must not be named 'organization'"),
    ],
)
def test_nonsensical_options_end_the_start_in_a_sentence(
    capsys: pytest.CaptureFixture[str], options: list[str], problem: str
) -> None:
    assert main(["check", *options]) == 1
    said = capsys.readouterr().err
    assert problem in said
    assert "secret-1" not in said


# --- the sums, without a service ---


def spend(database: Database, tokens: int, *, at: float, prices: Prices | None = None, **values: Any) -> None:
    """Book an execution's tokens for a time."""
    row = {"id": f"e-{time.monotonic_ns()}", "state": State.COMPLETED, "tokens": tokens, "updated_at": at, **values}
    put(database, row.pop("id"), **row)
    with database.writing() as connection:
        Ledger(database, prices or Prices())._book_rows(connection, usage_sums.unbooked(connection))


@pytest.fixture
def opened(database: str) -> Iterator[Database]:
    with contextlib.closing(Database(database)) as found:
        yield found


def of(*given: str, **options: Any) -> Budgets:
    return Budgets([Budget.read(each) for each in given], **options)


def used(database: Database, budgets: Budgets, now: float) -> list[float]:
    with database.reading() as connection:
        return [standing.used for standing in budgets.standings(connection, now=now)]


@pytest.mark.row("S85")
def test_tokens_count_in_their_hour_and_relevant_budgets(opened: Database) -> None:
    budgets = of("*=9tokens/hour", "*=9tokens/day", "*=9tokens/month", "crew:b=9tokens/day", "alice=9tokens/day")
    spend(opened, 1, at=utc("2026-11-30T22:59:59"), crew="a", owner="alice")
    spend(opened, 2, at=utc("2026-11-30T23:00:00"), crew="a")
    spend(opened, 4, at=utc("2026-11-30T23:59:59"), crew="b", owner="alice")
    assert used(opened, budgets, utc("2026-11-30T23:59:59")) == [6, 7, 7, 4, 5]
    assert used(opened, budgets, utc("2026-12-01T00:00:00")) == [0, 0, 0, 0, 0], "a month's end"
    assert used(opened, budgets, utc("2026-11-30T22:30:00")) == [1, 7, 7, 4, 5], "a clock that was set back"


@pytest.mark.row("S85")
def test_merging_the_sums_changes_nothing_but_their_number(opened: Database) -> None:
    budgets, now = of("*=9tokens/day", "alice=9tokens/day"), utc("2026-11-30T12:00")
    for number in range(8):
        spend(opened, 10, at=now, owner="alice" if number % 2 else None, model_usage={"m": {"total_tokens": 3}})
    before = used(opened, budgets, now)
    with opened.writing() as connection:
        assert not usage_sums.add_up(connection, since=0)
        rows = usage_sums.grouped(connection, ("owner", "model"), (), since=0, until=now + 3600, limit=9)
        number = connection.execute(text("SELECT count(*) FROM usage_sums")).scalar_one()
    assert used(opened, budgets, now) == before == [80, 40]
    assert number == len(rows) == 4
    assert {(row.owner, row.model): (row.executions, row.total_tokens) for row in rows} == {
        (None, ""): (4, 28),
        (None, "m"): (4, 12),
        ("alice", ""): (4, 28),
        ("alice", "m"): (4, 12),
    }


@pytest.mark.row("S85")
def test_sums_outlive_their_executions_by_thirteen_months(opened: Database) -> None:
    spend(opened, 5, at=utc("2025-10-20T12:00"))
    spend(opened, 6, at=utc("2025-11-20T12:00"))
    ledger = Ledger(opened, Prices(), keep_seconds=0.0)
    with opened.writing() as connection:
        connection.execute(text("DELETE FROM executions"))
        usage_sums.forget(connection, before=utc("2026-12-20T00:00") - ledger._kept)
        rows = usage_sums.grouped(connection, ("day",), (), since=0, until=utc("2027-01-01T00:00"), limit=9)
    assert [row.total_tokens for row in rows] == [6]


@pytest.mark.row("S86")
def test_an_earlier_releases_tokens_and_this_ones_are_booked_once(opened: Database) -> None:
    now = opened.now()
    put(opened, "old", state=State.QUEUED, tokens=300, usage={"total_tokens": 300}, updated_at=now)
    ledger, budgets = Ledger(opened, Prices()), of("*=1tokens/month")
    ledger.start()
    ledger.stop()
    assert used(opened, budgets, now) == [300]
    with opened.writing() as connection:  # an earlier release counts on, and says nothing of it
        grown = {"tokens": 500, "usage": {"total_tokens": 500}, "model_usage": {"m": {"total_tokens": 500}}}
        connection.execute(update(executions).values(grown))
        ledger.book_claimed(connection, ["old"])
        ledger.book_claimed(connection, ["old"])
        rows = usage_sums.grouped(connection, ("model",), (), since=0, until=now + 3600, limit=9)
    assert {row.model: (row.executions, row.total_tokens) for row in rows} == {"": (0, 0), "m": (1, 500)}


@pytest.mark.row("S86")
def test_a_running_earlier_release_is_counted_before_judging_a_budget(postgresql: str) -> None:
    with contextlib.closing(Database(postgresql)) as database:
        ledger, now = Ledger(database, Prices()), database.now()
        budgets = of("*=400tokens/month", ledger=ledger)
        with database.writing() as connection:
            claims.register(connection, "old", host="x", alone=False, now=now)
            connection.execute(update(processes).values(release="0024"))
        put(database, "of-it", tokens=400, usage={"total_tokens": 400}, updated_at=now)
        with database.writing() as connection, pytest.raises(OverBudget):
            budgets.check(connection, "", Owner(), now=now)


def test_an_unreadable_execution_counts_with_its_total(tmp_path: Path) -> None:
    with contextlib.closing(Database(str(tmp_path / "x.db"))) as database:
        put(database, "broken", tokens=70, state=State.FAILED)
        with database.writing() as connection:
            connection.execute(text("UPDATE executions SET model_usage = '{broken'"))
            Ledger(database, Prices())._book_rows(connection, usage_sums.unbooked(connection))
            assert usage_sums.unbooked(connection) == []
        assert used(database, of("*=1tokens/day"), database.now()) == [70]


@pytest.mark.row("S87")
def test_only_first_segments_of_concerned_owners_are_held_and_logged(
    opened: Database, caplog: pytest.LogCaptureFixture
) -> None:
    now = opened.now()
    spend(opened, 50, at=now, owner="alice")
    for name, values in {
        "alices": {"owner": "alice"},
        "begun": {"owner": "alice", "segment": 1},
        "bobs": {"owner": "bob"},
        "other crew": {"owner": "alice", "crew": "b"},
    }.items():
        put(opened, name, state=State.QUEUED, **values)
    budgets = of("alice=50tokens/day")
    caplog.set_level("INFO")
    with opened.writing() as connection:
        claims.register(connection, "me", host="x", alone=True, now=now)
        barred = budgets.barred(connection, "", now=now)
        hold(connection, "", barred)
        assert claims.has_queued(connection, "", now=now)
        claimed = claims.claim_due(connection, "me", "", now=now, limit=9, holds=barred.holds)
        assert sorted(claimed or []) == ["begun", "bobs"]
        assert not claims.has_queued(connection, "", now=now)
        (queue, _) = claims.queues(connection, now=now)
        assert (queue.crew, queue.queued, queue.held) == ("", 0, 1)
        held = dict(connection.execute(select(executions.c.id, executions.c.held_until)).all())
    until = Window.at("day", now).until
    assert held["alices"] == until
    assert {name for name, each in held.items() if each} == {"alices"}
    assert any("held. The day's budget of alice is used up until" in record.message for record in caplog.records)
    with opened.writing() as connection:
        assert claims.has_queued(connection, "", now=until), "the window's end"
        hold(connection, "", budgets.barred(connection, "", now=until))
        assert claims.claim_due(connection, "me", "", now=until, limit=9) == ["alices"]


@pytest.mark.row("S85")
def test_same_named_owners_are_distinct_where_crews_have_own_tokens(opened: Database) -> None:
    now = opened.now()
    own = {"crew": "b", "crew_token": True}
    for tokens, values in {
        1: {"crew": "a", "owner": "alice", "crew_token": False},
        2: {"crew": "c", "owner": "alice"},  # an earlier release wrote it
        4: {**own, "owner": "alice"},
        8: {**own, "owner": None},
        16: {"crew": "b", "owner": None, "crew_token": False},
    }.items():
        spend(opened, tokens, at=now, **values)
    budgets = of(*(f"{who}=4tokens/day" for who in ("alice", "crew:b/alice", "organization", "crew:b/organization")))
    assert used(opened, budgets, now) == [3, 4, 16, 8]
    for name, values in {"b's": own, "the service's": {"crew": "b"}}.items():
        put(opened, name, state=State.QUEUED, owner="alice", **values)
    with opened.writing() as connection:
        budgets.check(connection, "a", Owner("alice"), now=now)
        for name, whose in {"alice": "alice of the crew b", None: "the organization of the crew b"}.items():
            with pytest.raises(OverBudget, match=f"The day's budget of {whose} is used up"):
                budgets.check(connection, "b", Owner(name, True), now=now)
            budgets.check(connection, "c", Owner(name, True), now=now)
        claims.register(connection, "me", host="x", alone=True, now=now)
        barred = budgets.barred(connection, "b", now=now)
        assert claims.claim_due(connection, "me", "b", now=now, limit=9, holds=barred.holds) == ["the service's"]


@pytest.mark.row("S90")
@pytest.mark.parametrize("lost", [False, True], ids=["given back", "its process lost"])
def test_a_budget_used_up_meanwhile_holds_claimed_but_unbegun_executions(opened: Database, lost: bool) -> None:
    put(opened, "mine", state=State.QUEUED)
    budgets = of("*=50tokens/day")
    for tokens, claimed in ((0, ["mine"]), (0, ["mine"]), (50, [])):
        now = opened.now()
        spend(opened, tokens, at=now)
        with opened.writing() as connection:
            claims.register(connection, "me", host="x", alone=True, now=now)
            barred = budgets.barred(connection, "", now=now)
            hold(connection, "", barred)
            assert claims.claim_due(connection, "me", "", now=now, limit=9, holds=barred.holds) == claimed
        with opened.writing() as connection:
            if lost:
                claims.remove_process(connection, "me", beat=0, now=now)
            else:
                claims.requeue_lost(connection, "me", "", [], now=now)


@pytest.mark.row("S31")
@pytest.mark.row("S90")
def test_what_an_earlier_release_began_continues_over_a_spent_budget(opened: Database) -> None:
    put(opened, "mine", state=State.QUEUED, segment=2, writes=1, had_begun=False)
    now = opened.now()
    spend(opened, 50, at=now)
    with opened.writing() as connection:
        claims.register(connection, "me", host="x", alone=True, now=now)
        barred = of("*=50tokens/day").barred(connection, "", now=now)
        assert claims.claim_due(connection, "me", "", now=now, limit=9, holds=barred.holds) == ["mine"]


@pytest.mark.row("S87")
def test_a_larger_budget_or_none_releases_what_is_held(opened: Database) -> None:
    now = opened.now()
    spend(opened, 50, at=now)
    put(opened, "mine", state=State.QUEUED)

    def held_by(budgets: Budgets) -> float | None:
        with opened.writing() as connection:
            hold(connection, "", budgets.barred(connection, "", now=now))
            found = select(executions.c.held_until).where(executions.c.id == "mine")
            until: float | None = connection.execute(found).scalar_one()
            return until

    day, month = Window.at("day", now).until, Window.at("month", now).until
    assert held_by(of("*=50tokens/day")) == day
    assert held_by(of("*=50tokens/day", "organization=50tokens/month")) == month, "two budgets at once"
    assert held_by(of("*=51tokens/day")) is None
    assert held_by(of("crew:=50tokens/day".replace("crew:", "*"))) == day
    assert held_by(Budgets()) is None


@pytest.mark.row("S88")
def test_an_unknown_price_uses_up_a_usd_budget_unless_allowed(opened: Database) -> None:
    now = opened.now()
    of_model = {"total_tokens": 1000, "completion_tokens": 1000}
    spend(opened, 1000, at=now, prices=PRICES, model_usage={"gpt-4o": of_model})
    refusing, allowing = of("*=1USD/day"), of("*=1USD/day", refuses_unknown=False)
    with opened.writing() as connection:
        refusing.check(connection, "", Owner(), now=now)
    spend(opened, 5, at=now, prices=PRICES, model_usage={"mystery": {"total_tokens": 5}})
    with opened.writing() as connection:
        with pytest.raises(OverBudget, match="price of mystery is unknown"):
            refusing.check(connection, "", Owner(), now=now)
        allowing.check(connection, "", Owner(), now=now)
    assert used(opened, allowing, now) == [pytest.approx(0.01)]


def test_tokens_that_turn_out_to_be_another_models_are_moved(opened: Database) -> None:
    now = opened.now()
    ledger = Ledger(opened, PRICES)
    row = type("Row", (), {"crew": "", "owner": None, "crew_token": False})
    figures = {"total_tokens": 1000, "prompt_tokens": 0, "completion_tokens": 1000}
    with opened.writing() as connection:
        ledger.book(connection, row, {}, {"": figures}, now)
        ledger.book(connection, row, {"": figures}, {"gpt-4o": figures}, now)
        sums = usage_sums.used(connection, (), since=now - 7200, until=now + 7200)
        (unknown, known) = usage_sums.grouped(connection, ["model"], (), since=now - 7200, until=now + 7200, limit=9)
    assert (sums.executions, sums.total_tokens, sums.unpriced) == (1, 1000, 0)
    assert sums.cost_usd == pytest.approx(0.01)
    assert [(each.model, each.executions, each.total_tokens) for each in (unknown, known)] == [
        ("", 0, 0),
        ("gpt-4o", 1, 1000),
    ]


def test_executions_count_per_used_model_and_once_in_other_groups(opened: Database) -> None:
    now = opened.now()
    both = {"small": {"total_tokens": 3}, "large": {"total_tokens": 4}}
    spend(opened, 7, at=now, model_usage=both)
    spend(opened, 4, at=now, owner="alice", model_usage={"large": {"total_tokens": 4}})

    def executions_by(*by: str) -> list[int]:
        with opened.reading() as connection:
            rows = usage_sums.grouped(connection, by, (), since=now - 7200, until=now + 7200, limit=9)
        return [row.executions for row in rows]

    for _ in range(2):
        assert executions_by("model") == [2, 1]
        assert executions_by("crew", "model") == [2, 1]
        assert executions_by("crew") == executions_by("day") == [2]
        assert sorted(executions_by("owner")) == [1, 1]
        with opened.writing() as connection:  # the next round: as they are once they have been merged
            usage_sums.add_up(connection, since=0)


# --- a service ---


@pytest.fixture
def shifted(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Set the database's clock; it goes on from there."""
    real = clock.Clock.now

    def shift(to: float) -> None:
        ahead = to - time.time()
        monkeypatch.setattr(clock.Clock, "now", lambda self: real(self) + ahead)

    return shift


NOON = utc("2026-11-30T12:10:00")


def spent(client: Client) -> str:
    """Run an execution; return its id when its tokens are known."""
    kickoff_id = client.kickoff()
    client.until(kickoff_id, "completed")
    return kickoff_id


@pytest.mark.row("S85")
def test_a_kickoff_over_budget_gets_429_with_the_windows_end(serve: Serve, shifted: Callable[[float], None]) -> None:
    shifted(NOON)
    budget = Budget.read("organization=400tokens/day")
    client = serve(SPENDING, budgets=(budget,), user_tokens=[("alice", "alices-token")])
    known = {"Idempotency-Key": "k"}
    first = client.post("/kickoff", {"inputs": {"topic": "a"}}, headers=known)
    client.until(first.json()["kickoff_id"], "completed")
    refused = client.post("/kickoff", {"inputs": {"topic": "b"}})
    assert refused.status_code == 429
    assert 0 < int(refused.headers["Retry-After"]) <= 12 * 3600 - 600
    assert refused.json() == {
        "detail": "The day's budget of the organization is used up until 2026-12-01T00:00:00+00:00 "
        "(400 tokens of 400 tokens). Nothing was started.",
        "budget": {
            "who": "organization",
            "window": "day",
            "until": "2026-12-01T00:00:00+00:00",
            "used": 400,
            "amount": 400,
            "unit": "tokens",
        },
    }
    assert len(client.get("/executions").json()["executions"]) == 1
    assert client.post("/kickoff", {"inputs": {"topic": "a"}}, headers=known).json() == first.json()
    assert spent(client.holding("alices-token")), "the budget is another owner's"
    shifted(utc("2026-12-01T00:00:01"))
    assert spent(client), "it begins anew"


@pytest.mark.row("S85")
def test_a_user_sees_only_window_and_end_of_other_budgets(serve: Serve, shifted: Callable[[float], None]) -> None:
    shifted(NOON)
    budgets = tuple(Budget.read(each) for each in ("*=800tokens/hour", "alice=400tokens/hour"))
    client = serve(SPENDING, budgets=budgets, user_tokens=[("alice", "alices-token"), ("bob", "bobs-token")])
    alice, bob = client.holding("alices-token"), client.holding("bobs-token")
    spent(alice)
    assert alice.post("/kickoff", {"inputs": {"topic": "b"}}).json()["budget"]["used"] == 400
    spent(bob)
    theirs, all_of_it = (each.post("/kickoff", {"inputs": {"topic": "b"}}).json() for each in (bob, client))
    assert theirs["budget"] == {"who": "*", "window": "hour", "until": "2026-11-30T13:00:00+00:00"}
    assert "800" not in theirs["detail"]
    assert all_of_it["budget"]["used"] == 800

    def seen(by: Client) -> list[str]:
        return [each["who"] for each in by.get("/usage").json()["budgets"]]

    assert (seen(client), seen(alice), seen(bob)) == (["*", "alice"], ["alice"], [])
    rows = bob.get("/usage", params={"by": "day,owner", "from": "2026-11-30", "to": "2026-11-30"}).json()["rows"]
    assert [(row["day"], row["owner"], row["total_tokens"]) for row in rows] == [("2026-11-30", "bob", 400)]


@pytest.mark.slow
@pytest.mark.row("S85")
def test_a_users_namesake_in_another_crew_sees_and_spends_nothing(
    command: Callable[..., Command], tmp_path: Path
) -> None:
    (tmp_path / "crew.json").write_text(json.dumps({"inputs": [], "tasks": [TASK]}))
    given = ["--crew", "a=crew.json", "--crew", "b=crew.json", "--crew", "c=crew.json", "--token", TOKEN]
    given += [
        "--user-token",
        "alice=of-the-service",
        "--crew-token",
        "b=of-team-b",
        "--crew-token",
        "b/alice=of-crew-b",
    ]
    given += [part for who in ("alice", "crew:b/alice") for part in ("--budget", f"{who}=400tokens/month")]
    base = command(*given).url.rpartition("/crews/")[0]
    alice, shared, namesake, team, service = (
        Client(f"{base}/crews/{crew}", token)
        for crew, token in (
            *(("a", "of-the-service"), ("c", "of-the-service")),
            *(("b", "of-crew-b"), ("b", "of-team-b"), ("a", TOKEN)),
        )
    )
    first = namesake.post("/kickoff", {"inputs": {}})
    namesake.until(first.json()["kickoff_id"], "completed")
    assert namesake.post("/kickoff", {"inputs": {}}).json()["budget"] | {"until": ""} == {
        **{"who": "crew:b/alice", "window": "month", "until": ""},
        **{"used": 400, "amount": 400, "unit": "tokens"},
    }
    alice.until(alice.post("/kickoff", {"inputs": {}}).json()["kickoff_id"], "completed")
    assert shared.post("/kickoff", {"inputs": {}}).json()["budget"]["who"] == "alice", "her crews share her budget"

    def seen(by: Client) -> tuple[list[tuple[str, int]], list[str]]:
        report = by.get("/usage", params={"by": "owner"}).json()
        rows = [(row["owner"], row["total_tokens"]) for row in report["rows"]]
        return rows, [each["who"] for each in report["budgets"]]

    assert seen(alice) == ([("alice", 400)], ["alice"])
    assert seen(namesake) == ([("alice", 400)], ["crew:b/alice"])
    assert seen(team) == ([("alice", 400)], ["crew:b/alice"])
    assert seen(service) == ([("alice", 400), ("crew:b/alice", 400)], ["alice", "crew:b/alice"])


@pytest.mark.row("S87")
def test_queued_executions_wait_for_the_next_window_and_say_so(
    serve: Serve, shifted: Callable[[float], None], terminal: Callable[..., str]
) -> None:
    shifted(NOON)
    scenario = {"inputs": ["topic"], "tasks": [{**TASK, "seconds": 0.5}]}
    client = serve(scenario, workers=1, budgets=(Budget.read("*=400tokens/hour"),))
    first, second = client.kickoff(), client.kickoff()
    client.until(first, "completed")

    def held() -> dict[str, Any] | None:
        status = client.status(second)
        return status if "held_until" in status else None

    status = eventually(held, "the hold")
    assert (status["status"], status["held_until"]) == ("running", "2026-11-30T13:00:00+00:00")
    assert client.get(f"/executions/{second}").json()["held_until"] == "2026-11-30T13:00:00+00:00"
    metrics = client.get("/metrics").text
    assert "crew_service_queued 0.0" in metrics
    assert "crew_service_held 1.0" in metrics
    assert 'crew_service_budget_used{unit="tokens",who="*",window="hour"} 400.0' in metrics
    (queue,) = json.loads(terminal("queue"))
    assert (queue["queued"], queue["held"], queue["oldest_seconds"]) == (0, 1, None)
    shifted(utc("2026-11-30T13:00:00"))
    client.until(second, "completed")


@pytest.mark.row("S87")
def test_what_has_begun_goes_on_over_a_used_up_budget(serve: Serve, shifted: Callable[[float], None]) -> None:
    shifted(NOON)
    scenario = {"inputs": ["topic"], "tasks": [{**TASK, "id": "draft_task", "human_input": True}, {**TASK, "id": "b"}]}
    client = serve(scenario, budgets=(Budget.read("*=400tokens/hour"),))
    kickoff_id = client.kickoff()
    client.until(kickoff_id, "pending")
    assert client.post("/kickoff", {"inputs": {"topic": "x"}}).status_code == 429
    client.resume(kickoff_id)
    client.until(kickoff_id, "completed")


@pytest.mark.row("S85")
def test_continuing_an_execution_is_a_kickoff(serve: Serve, shifted: Callable[[float], None]) -> None:
    shifted(NOON)
    scenario = {"inputs": ["topic"], "tasks": [TASK, {"id": "b", "error": "no paper"}]}
    client = serve(scenario, budgets=(Budget.read("*=400tokens/hour"),))
    kickoff_id = client.kickoff()
    client.until(kickoff_id, "error")
    again = {"inputs": {"topic": "AI"}, "continueFrom": kickoff_id}
    assert client.post("/kickoff", again).status_code == 429
    shifted(utc("2026-11-30T13:00:00"))
    assert client.post("/kickoff", again).status_code == 200, "the refusal has changed nothing"


@pytest.mark.row("S89")
def test_executions_ended_by_a_stopping_budget_can_be_continued(serve: Serve, shifted: Callable[[float], None]) -> None:
    shifted(NOON)
    scenario = {"inputs": ["topic"], "tasks": [TASK, {"id": "b", "seconds": 3600, "output": "y"}]}
    client = serve(scenario, budgets=(Budget.read("*=400tokens/hour"),), budget_stops=True)
    kickoff_id = client.kickoff()
    error = client.until(kickoff_id, "error")["error"]
    assert error == "BudgetExceeded: The hour's budget of this service is used up until 2026-11-30T13:00:00+00:00."
    shifted(utc("2026-11-30T13:00:00"))
    assert client.post("/kickoff", {"inputs": {"topic": "AI"}, "continueFrom": kickoff_id}).status_code == 200


@pytest.mark.row("S85")
def test_a_restart_forgets_nothing(command: Callable[..., Command], tmp_path: Path) -> None:
    (tmp_path / "crew.json").write_text(json.dumps(SPENDING))
    options = ("--crew", "crew.json", "--token", TOKEN, "--budget", "*=400tokens/month")
    killed = command(*options)
    spent(killed.client(TOKEN))
    killed.kill()
    answer = command(*options).client(TOKEN).post("/kickoff", {"inputs": {"topic": "x"}})
    assert answer.status_code == 429


@pytest.mark.parametrize(
    "query",
    [
        {"from": "2026-11"},
        {"from": "2026-11-31"},
        {"from": "2026-12-02", "to": "2026-12-01"},
        {"from": "2020-01-01"},
        {"by": "crew,day"},
        {"by": "hour"},
        {"by": ""},
        {"by": ["day", "crew"]},
    ],
)
def test_a_report_that_cannot_be_made_is_refused(serve: Serve, query: dict[str, Any]) -> None:
    assert serve(SPENDING).get("/usage", params=query).status_code == 400


def test_the_report_groups_as_asked_and_prices_what_it_can(serve: Serve, shifted: Callable[[float], None]) -> None:
    shifted(NOON)
    client = serve(PRICED, prices=PRICES)
    spent(client)
    spent(client)
    assert client.get("/usage").json() == {
        "rows": [
            {
                "day": "2026-11-30",
                "executions": 2,
                "total_tokens": 2000,
                "prompt_tokens": 0,
                "completion_tokens": 2000,
                "cost_usd": 0.02,
            }
        ],
        "budgets": [],
    }
    (row,) = client.get("/usage", params={"by": "crew,owner,model"}).json()["rows"]
    assert (row["crew"], row["owner"], row["model"]) == ("", "organization", "gpt-4o")


# --- several services on one database ---


def tokens_in(database: str) -> int:
    with contextlib.closing(Database(database)) as opened, opened.reading() as connection:
        return int(connection.execute(text("SELECT coalesce(sum(tokens), 0) FROM executions")).scalar_one())


def storm(
    command: Callable[..., Command], folder: Path, database: str, scenario: dict[str, Any], *options: str, kickoffs: int
) -> tuple[int, list[dict[str, Any]]]:
    """Send kickoffs from 16 clients to three services; return what was used in the end, and the refusals."""
    (folder / "crew.json").write_text(json.dumps(scenario))
    given = ("--db", database, "--crew", "crew.json", "--token", TOKEN, "--workers", "2", *options)
    services = [command(*given).client(TOKEN) for _ in range(3)]

    def kick(number: int) -> tuple[str | None, dict[str, Any]]:
        client = Client(services[number % 3].url, TOKEN)
        answer = client.post("/kickoff", {"inputs": {"topic": str(number)}})
        assert answer.status_code in (200, 429), answer.text
        return answer.json().get("kickoff_id"), answer.json()

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(kick, range(kickoffs)))
    started = [kickoff_id for kickoff_id, _ in answers if kickoff_id]

    def settled() -> bool:
        statuses = [services[0].status(each) for each in started]
        return all(each["status"] == "completed" or "held_until" in each for each in statuses)

    eventually(settled, "the end of what was started")
    late = services[0].post("/kickoff", {"inputs": {"topic": "late"}})
    assert late.status_code == 429
    return tokens_in(database), [late.json(), *(body for kickoff_id, body in answers if not kickoff_id)]


SLOTS = 3 * 2


@pytest.mark.slow
@pytest.mark.row("S90")
@pytest.mark.parametrize("kickoffs", [48, pytest.param(200, marks=pytest.mark.long)])
def test_three_services_exceed_a_token_budget_only_by_running_executions(
    command: Callable[..., Command], tmp_path: Path, postgresql: str, kickoffs: int
) -> None:
    scenario = {"inputs": ["topic"], "tasks": [{**TASK, "seconds": 0.1, "tokens": 100}]}
    options = ("--budget", "*=2500tokens/month", "--budget", "organization=1500tokens/month")
    total, refusals = storm(command, tmp_path, postgresql, scenario, *options, kickoffs=kickoffs)
    assert 1500 <= total <= 1500 + SLOTS * 100
    for body in refusals:
        assert body["detail"].startswith("The month's budget of the organization is used up until ")
        assert 1500 <= body["budget"]["used"] <= total


@pytest.mark.slow
@pytest.mark.row("S90")
@pytest.mark.parametrize("kickoffs", [48, pytest.param(200, marks=pytest.mark.long)])
def test_three_services_exceed_a_usd_budget_only_by_running_executions(
    command: Callable[..., Command], tmp_path: Path, postgresql: str, kickoffs: int
) -> None:
    (tmp_path / "prices.toml").write_text('["gpt-4o"]\ninput = 2.5\noutput = 10.0\n')
    scenario = {"inputs": ["topic"], "tasks": [{**TASK, "seconds": 0.1, "tokens": 1000, "model": "gpt-4o"}]}
    options = ("--prices", "prices.toml", "--budget", "*=0.15USD/month")
    total, refusals = storm(command, tmp_path, postgresql, scenario, *options, kickoffs=kickoffs)
    assert 0.15 <= total * 10 / 1_000_000 <= 0.15 + SLOTS * 0.01
    assert all("this service is used up until" in body["detail"] for body in refusals)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.row("S90")
def test_a_restart_lets_no_other_execution_begin_beyond_a_budget(
    command: Callable[..., Command], tmp_path: Path
) -> None:
    (tmp_path / "crew.json").write_text(json.dumps({"inputs": [], "tasks": [{**TASK, "seconds": 2.0, "tokens": 400}]}))
    given = ("--crew", "crew.json", "--token", TOKEN, "--workers", "2", "--budget", "*=100tokens/month")
    given += ("--user-token", "alice=alices-token", "--user-token", "bob=bobs-token")
    service = command(*given)
    client = service.client(TOKEN)
    started: list[str] = []
    for number, token in enumerate(("alices-token", "alices-token", "bobs-token"), start=1):
        started.append(client.holding(token).post("/kickoff", {"inputs": {}}).json()["kickoff_id"])
        eventually(partial(are_busy, client, min(2, number)), "her executions at work")
    for _ in range(3):
        service.kill()
        service = command(*given)
        client = service.client(TOKEN)
        eventually(partial(are_busy, client, 2), "two at work again")
    for each in started[:2]:
        client.until(each, "completed")
    assert client.get(f"/executions/{started[2]}").json()["started_at"] is None, "another owner's turn would have come"
    eventually(lambda: "held_until" in client.status(started[2]), "the other one to be held")


def are_busy(client: Client, workers: int) -> bool:
    return f"crew_service_workers_busy {float(workers)}" in client.get("/metrics").text
