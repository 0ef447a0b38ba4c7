"""The crew service's storage: tables, transactions, queries."""
