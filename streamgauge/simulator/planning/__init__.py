"""Decides what the simulator answers to a request, before any byte is sent."""
