"""The types of the extension module `native_exchange.pyx`, the same as in `context`."""

from streamgauge.ingest.tap.exchanges import context

def NativeExchanges(context: context.TapContext) -> context.NativeExchanges: ...
