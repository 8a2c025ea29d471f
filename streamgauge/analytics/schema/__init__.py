"""Definitions of the store's tables, views and columns. Imports nothing else of the product."""
