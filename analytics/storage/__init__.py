"""Rows are kept: one DuckDB file, its tables, views and ledger, what is let go of and when."""
