"""The types of the extension module `native_recorder.pyx`: those of `deferred_recorder`."""

from ingest.tap.deferred_recorder import DeferredRecorders

NativeDeferredRecorders = DeferredRecorders
