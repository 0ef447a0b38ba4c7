"""How an older database becomes one of this release: one file in `versions` for each change, applied in order at start.

To change the schema:

1. Change `storage/tables.py`.
2. Add `versions/NNNN_subject.py` with the next number: `revision = "NNNN"`, `down_revision` the one before, and an
   `upgrade()`. New columns are nullable or have a `server_default`, since rows exist already.
3. Run `tests/service/test_service_migrations.py`, which compares the outcome with the tables.

A file that was released never changes. There is no way back: keep a copy of the database before an upgrade.
"""
