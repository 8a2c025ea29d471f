"""The types of the extension module `native_recorder.pyx`, the same as in `deferred_recorder`."""

from streamgauge.ingest.tap.recording.deferred_recorder import DeferredRecorders

NativeDeferredRecorders = DeferredRecorders
