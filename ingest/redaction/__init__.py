"""Take the text out of records before they leave the host, and leave everything that is measured.

The rules, structural, knowing no dialect:

- Every JSON string that does not stand under an allow-listed key (`keys`) becomes filler of the same number of bytes and of
  characters; so do the digits of numbers, the names of keys that nobody reads, and every payload that is not JSON.
- What may stay is bounded in length and shape (a word: no spaces, no quotes), so that prose cannot hide there.
- It is a transducer: each byte of output depends on the bytes before it alone, so a read that is cut anywhere, also inside
  an escape or a character, says the same as an uncut one, and nothing ever waits for what comes next.
- Compressed bodies are handed on decoded, with their sizes on the wire (`records`).

`keys` has the list, `kept` and `names` say what stays of a string and of a key, `filler` makes filler, `json_text` reads JSON,
`body` the lines around it, `template` does both at once, `records` does it to records, `state` keeps where each stream stands
over a restart. No I/O but in `state`.
"""
