"""The types of the extension module `native_heads.pyx`, the same as in `heads`."""

from streamgauge.ingest.tap.http.head_functions import read_request_head as read_request_head
from streamgauge.ingest.tap.http.head_functions import read_response_head as read_response_head
from streamgauge.ingest.tap.http.head_functions import request_for_upstream as request_for_upstream
