"""Row S31: two neighbouring releases share one PostgreSQL for the time of a rollout, there and back.

The next release is this one with one more migration.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from crew_client import Client, Command, Receiver, eventually
from sqlalchemy import create_engine, text

import crew_service
from crew_service.storage import schema
from crew_service.storage.database import Database, DatabaseUnusable

pytestmark = [pytest.mark.slow, pytest.mark.row("S31")]
TOKEN = "a-token-for-tests-only"
NEXT = f"{int(schema.newest()) + 1:04}"
MIGRATION = f"""
import sqlalchemy as sa
from alembic import op

revision = "{NEXT}"
down_revision = "{schema.newest()}"


def upgrade() -> None:
    op.add_column("executions", sa.Column("of_the_next_release", sa.Integer))
"""
SCENARIO = """
{"inputs": ["topic"], "tasks": [
    {"id": "research_task", "seconds": 0.3, "output": "Notes on {topic}"},
    {"id": "draft_task", "seconds": 0.1, "human_input": "review", "output": "Draft on {topic}"},
    {"id": "publish_task", "seconds": 0.3, "output": "All on {topic}"}]}
"""


@pytest.fixture
def next_release(tmp_path: Path) -> Path:
    """A folder with the package as the next release has it."""
    folder = tmp_path / "next"
    shutil.copytree(Path(crew_service.__file__).parent, folder / "crew_service")
    (folder / "crew_service/storage/migrations/versions" / f"{NEXT}_next.py").write_text(MIGRATION)
    return folder


def revision(database: str) -> str | None:
    engine = create_engine(database)
    with engine.connect() as connection:
        found: str | None = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    engine.dispose()
    return found


@pytest.mark.long
def test_a_hundred_executions_survive_a_rollout_and_its_rollback(
    command: Callable[..., Command], postgresql: str, next_release: Path, tmp_path: Path, receiver: Receiver
) -> None:
    (tmp_path / "scenario.json").write_text(SCENARIO)

    def start(**environment: str) -> Command:
        given = {"CREW_SERVICE_TOKEN": TOKEN, "CREW_SERVICE_DB": postgresql, **environment}
        return command("--crew", "scenario.json", "--workers", "8", environment=given, fresh=True)

    def kicked_off(service: Command, numbers: range) -> dict[int, str]:
        def one(number: int) -> str:
            inputs = {"topic": str(number), **({} if number % 4 == 0 else {"review": "no"})}
            body = {"inputs": inputs, "crewWebhookUrl": receiver.url}
            answer = service.client(TOKEN).post("/kickoff", body)
            assert answer.ok, answer.text
            return str(answer.json()["kickoff_id"])

        with ThreadPoolExecutor(5) as pool:
            return dict(zip(numbers, pool.map(one, numbers), strict=True))

    old = [start(), start()]
    ids = kicked_off(old[0], range(40))
    new = [start(PYTHONPATH=str(next_release))]
    assert revision(postgresql) == NEXT
    old.pop(0).stop()
    ids |= kicked_off(new[0], range(40, 70))
    old.append(start())  # back again, beside the newer schema
    new.pop().stop()
    ids |= kicked_off(old[1], range(70, 100))
    new.append(start(PYTHONPATH=str(next_release)))

    clients = [service.client(TOKEN) for service in (*old, *new)]
    for number in range(0, 100, 4):
        client: Client = clients[number // 4 % 3]
        client.until(ids[number], "pending")
        assert clients[(number // 4 + 1) % 3].resume(ids[number], crewWebhookUrl=receiver.url).ok
    for number, kickoff_id in ids.items():
        result = clients[number % 3].until(kickoff_id, "completed")["result"]
        assert result["output"] == f"All on {number}"
    assert len(set(ids.values())) == 100
    eventually(lambda: len(receiver.taken) >= 100, "the webhooks")
    assert sorted(body["kickoff_id"] for _, _, body in receiver.taken) == sorted(ids.values()), "each came once"
    figures = clients[0].get("/metrics").text
    assert re.search(r'^crew_service_executions\{.*state="completed".*\} 100.0$', figures, re.MULTILINE), figures


def test_older_releases_work_beside_a_newer_schema_only_if_allowed(postgresql: str) -> None:
    Database(postgresql).close()
    engine = create_engine(postgresql)

    def upgraded(oldest: str) -> None:
        with engine.begin() as connection:
            connection.execute(text(f"UPDATE alembic_version SET version_num = '{NEXT}'"))
            connection.execute(text(f"UPDATE releases SET newest = '{NEXT}', oldest = '{oldest}'"))

    upgraded(oldest=schema.newest())
    Database(postgresql).close()
    assert revision(postgresql) == NEXT
    upgraded(oldest=NEXT)
    with pytest.raises(DatabaseUnusable, match="a different version"):
        Database(postgresql)
    engine.dispose()
