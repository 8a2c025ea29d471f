"""Alerts: rules, their states, the history in the store, and the webhook."""
