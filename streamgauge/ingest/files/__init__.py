"""Exchanges that a file has: a HAR, or the body of a response. They become the records that a tap would write."""
