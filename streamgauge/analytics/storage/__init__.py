"""The store: one DuckLake with its catalog, commits, upkeep, export and rebuild."""
