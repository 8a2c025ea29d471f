"""Rows are kept by several processes together: DuckLake, with its catalog in PostgreSQL."""
