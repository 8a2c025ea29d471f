"""A simulated upstream that speaks the dialects, with a ledger of the truth.

`server` runs it, `plan` decides, `speakers` speak, `perform` keeps time and breaks things on purpose, `ledger` remembers,
`traffic` asks, `audit` compares what was measured with what was simulated.
"""
