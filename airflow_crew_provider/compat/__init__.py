"""Everything that depends on Airflow's version or on its internals, one file per subject."""
