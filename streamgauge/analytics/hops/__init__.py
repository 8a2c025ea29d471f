"""Hops: pairs of an outer stream (client to gateway) and an inner stream (gateway to model) of one request."""
