"""Altair charts. Functions take data frames of the columns that they name and return charts."""
