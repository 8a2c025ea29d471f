"""A simulated upstream in every dialect, with the ground truth of what it sent.

`server` receives requests, `response_plan` decides the response, `response_writer` encodes it as one of the `written_streams`,
`response_sender` sends it, and `ledger` records it. `traffic` simulates clients. `measurement_check` compares measured with
simulated streams.
"""
