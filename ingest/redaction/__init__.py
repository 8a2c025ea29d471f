"""Remove text from records before they leave the host, and keep everything that is measured.

Rules. They are structural and independent of the API dialect.

- A JSON string is replaced by filler of the same number of bytes and characters, unless its key is allow-listed
  (`key_rules`). The same holds for digits of numbers, for unknown keys, and for payloads that are not JSON.
- Kept strings are identifiers (`streamgauge.ingest.identifiers`), so they cannot carry prose.
- No data waits for later reads. A read may be cut anywhere, also inside an escape or a character, without changing the
  result, with one exception: the start of a word that is cut is kept, although the rest may show that it is no identifier.
- Compressed bodies are passed on decoded, with their sizes on the wire (`record_redactor`).

Modules: `key_rules` has the allow-list, `kept_text` and `key_names` decide how much of a string or key is kept, `filler` makes
filler. `json_redactor` redacts JSON, `body_redactor` the lines around it, `event_template` whole events, `record_redactor`
records. `stored_values` redacts decoded values. `state_file` stores the state of open streams; only it does I/O.
"""
