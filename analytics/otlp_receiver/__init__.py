"""Receive spans of other services over OTLP and store them."""
