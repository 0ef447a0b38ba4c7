"""Upgrades an older database to this release: `versions` has one file per change, applied in order at startup.

To change the schema:

1. Change `storage/tables.py`.
2. Add `versions/NNNN_subject.py` with the next number: `revision = "NNNN"`, `down_revision` the previous one, and an
   `upgrade()`. New columns are nullable or have a `server_default`, because rows already exist.
3. Run `tests/service/test_service_migrations.py`, which compares the result with the tables.

Never change a released file. There is no downgrade: make a copy of the database before an upgrade.
"""
