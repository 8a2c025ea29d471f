"""Remove text from records before they leave the host, and keep everything that is measured.

Rules. They are structural and independent of the API dialect.

- A JSON string is replaced by filler of the same number of bytes and characters, unless its key is allow-listed
  (`allow_list`). The same holds for digits of numbers, for unknown keys, and for payloads that are not JSON.
- Kept strings are identifiers (`streamgauge.ingest.identifiers`), so they cannot carry prose.
- No data waits for later reads. A read may be cut anywhere, also inside an escape or a character, without changing the
  result, with one exception: the start of a word that is cut is kept, although the rest may show that it is no identifier.
- Compressed bodies are passed on decoded, with their sizes on the wire (`record_redactor`).

Modules: `allow_list` decides how much of a key and a string is kept, `filler` makes filler. `json_redactor` redacts JSON,
`body_redactor` the lines around it, whole events by templates, and decoded values, `record_redactor` records. None does I/O:
`streamgauge.ingest.ship` stores the state of open streams.
"""
