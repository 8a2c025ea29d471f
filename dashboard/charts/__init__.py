"""Altair charts of the pages."""
