"""Streamgauge for the gateway of Acme.

The tap imports this module for the header, so it imports nothing of analytics.
"""

SESSION_HEADERS = ("x-acme-dialogue", "x-acme-room:plain")
