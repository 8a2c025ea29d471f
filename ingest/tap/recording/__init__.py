"""From the facts of an exchange to records in the log."""
