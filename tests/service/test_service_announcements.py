"""Row S43: one question of a Flow that cannot be read stops no other's announcement."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, select, text

from crew_service.engine.flow_webhook import FlowWebhook, FlowWebhooks
from crew_service.storage import questions
from crew_service.storage.database import Database
from crew_service.storage.states import State
from crew_service.storage.tables import executions, outbox

GATE = {"task_id": "ask", "key": "ask", "output": "Draft", "agent": "Flow", "state": {}, "rounds": []}
ASKED = {**GATE, "question": "Publish?", "outcomes": [], "details": {}}


@pytest.mark.row("S43")
@pytest.mark.parametrize("gate", ["{broken", "5", '{"question_id": "bad"}', None])
def test_an_unreadable_question_ends_its_execution_while_others_are_announced(tmp_path: Path, gate: str | None) -> None:
    database = Database(str(tmp_path / "x.db"))
    try:
        for name in ("bad", "good"):
            put(
                database,
                name,
                gate={**ASKED, "question_id": name} if name == "good" or gate else {**GATE, "question_id": name},
            )
        if gate:
            with database.writing() as connection:
                connection.execute(text("UPDATE executions SET gate = :gate WHERE id = 'bad'"), {"gate": gate})
        FlowWebhooks(database, FlowWebhook("http://localhost/", "secret", ""), lambda: None)._announce()
        with database.reading() as connection:
            assert connection.execute(select(outbox.c.key)).scalars().all() == ["good"]
            states = {row.id: row.state for row in connection.execute(select(executions.c.id, executions.c.state))}
        assert states == {"bad": State.FAILED, "good": State.WAITING}
    finally:
        database.close()


def put(database: Database, name: str, **values: Any) -> None:
    row = {"id": name, "kickoff_id": name, "state": State.WAITING, "inputs": {}, "asked": ["ask"]}
    with database.writing() as connection:
        connection.execute(insert(executions).values(**row, created_at=1.0, due_at=1.0, updated_at=1.0, **values))
        questions.ask(connection, name, name, now=1.0)
