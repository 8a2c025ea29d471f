"""The types of the extension module `native_exchange.pyx`."""

from ingest.tap import context
from ingest.tap.http_head import RequestHead
from ingest.tap.routing import Route

class NativeExchanges(context.NativeExchanges):
    def __init__(self, context: context.TapContext) -> None: ...
    def start(
        self,
        client: context.OpenClient,
        pool: object,
        head: RequestHead,
        route: Route,
        body: bytes,
        client_start_ns: int,
        now_ns: int,
    ) -> bool: ...
