"""Find what fails or got slow, where and since when: pure statistics over aggregates that SQL returns.

`diagnose` runs a few small queries over `streams` and `open_streams` and returns a `Diagnosis`. `diagnosis` also turns it into text.
"""
