"""Spans that others send over OTLP, on their way into table `spans`."""
