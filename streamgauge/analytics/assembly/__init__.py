"""Assemble log records into streams, and detect the end of each stream."""
