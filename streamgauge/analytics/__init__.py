"""Consume log records and commit rows to the store. It never talks to gateways or clients.

Data flows through the packages in this order: `assembly` puts streams together and decodes them with `decoding` and `dialects`,
`measures` computes their rows, `storage` commits rows and log positions in one transaction, `query` answers SQL.
"""
