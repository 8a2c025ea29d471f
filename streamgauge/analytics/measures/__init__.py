"""Convert finished streams to rows: times, tokens, outcomes, roll-ups. The definitions are in
docs/explanation/measurement.md."""
