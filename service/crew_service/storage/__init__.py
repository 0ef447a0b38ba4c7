"""What the crew service stores: tables, transactions, queries."""
