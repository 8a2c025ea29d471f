"""Markers such as deployments, received over HTTP and drawn on charts."""
