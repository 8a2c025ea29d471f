# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, binding=False, nonecheck=True
"""Forward short exchanges in native code: those with the whole request in one read and the whole response in another.

An exchange starts here if its request allows that. At the first event that is not the whole response it continues as an
`Exchange` in Python, which has received nothing so far but knows that the request was sent.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t

from streamgauge.ingest.tap.http.native_heads cimport content_length, request_for_upstream, response_head
from streamgauge.ingest.tap.recording.native_recorder cimport NativeDeferredRecorder

from streamgauge.ingest.tap.exchanges.exchange import Exchange
from streamgauge.ingest.tap.exchanges.states import KEEP_OPEN
from streamgauge.ingest.tap.http.heads import LENGTH, NO_BODY
from streamgauge.ingest.tap.exchanges.waits import LONG_SILENCE_NS

cdef extern from "<string.h>":
    void *memmem(const void *text, size_t size, const void *wanted, size_t wanted_size)

cdef object WITHOUT_BODY = NO_BODY, WITH_LENGTH = LENGTH, THEN_KEEP_OPEN = KEEP_OPEN
cdef int64_t SILENCE_NS = LONG_SILENCE_NS


cdef class NativeExchanges:
    """Starts the exchanges of one worker."""

    cdef object _context, _counters
    cdef str _x_forwarded
    cdef set _open
    cdef int64_t _max_request_bytes

    def __init__(self, context):
        self._context = context
        self._counters = context.counters
        self._x_forwarded = context.options.x_forwarded
        self._max_request_bytes = context.options.max_request_bytes
        self._open = context.exchanges

    def start(self, client, pool, head, route, trace, NativeDeferredRecorder recorder, int64_t now_ns, bytes body):
        """Forward a request whose bytes after the head are `body`. False: it must start as an `Exchange`, because it is not
        complete, not usual, or no upstream connection is idle."""
        cdef NativeExchange exchange
        framing = head.body
        if framing is WITHOUT_BODY:
            if body:
                return False
        elif framing is not WITH_LENGTH or head.length != len(body) or 0 < self._max_request_bytes < len(body):
            return False
        if head.upgrade is not None or not head.keep_alive or head.minor != 1 or client.write_paused or client.read_paused:
            return False
        upstream = pool.acquire()
        if upstream is None:
            return False
        self._counters.upstream_reuses += 1
        exchange = NativeExchange.__new__(NativeExchange)
        exchange._group = self
        exchange._client, exchange._pool, exchange._upstream = client, pool, upstream
        exchange._head, exchange._route, exchange._trace, exchange._recorder = head, route, trace, recorder
        exchange._t0_ns, exchange._request_bytes = now_ns, len(body)
        self._open.add(exchange)
        client.exchange = upstream.exchange = exchange
        forwarded = request_for_upstream(head, route, trace, self._x_forwarded, client.address, client.scheme)
        upstream.transport.write(forwarded + body if body else forwarded)
        if recorder is not None:
            try:
                recorder.connected(now_ns)
                if body:
                    recorder.request_data(body)
                if not upstream.write_paused:
                    recorder.request_sent(now_ns)
                if body:
                    recorder.record_request(True)
            except Exception as e:
                exchange._recorder = None
                self._context.failures.failed(e, recorder)
        return True


cdef class NativeExchange:
    """One exchange whose request has been sent."""

    cdef NativeExchanges _group
    cdef object _client, _pool, _upstream, _head, _route, _trace, _continued
    cdef NativeDeferredRecorder _recorder
    cdef int64_t _t0_ns, _request_bytes
    cdef readonly int64_t written_bytes

    def upstream_data(self, bytes data, int64_t now_ns):
        """See `Exchange.upstream_data`."""
        if not self.forward_all(data, now_ns):
            self.in_python().upstream_data(data, now_ns)

    def __getattr__(self, str name):
        """All else of an exchange is left to the one in Python."""
        if self._upstream is None:  # the exchange has ended here
            raise AttributeError(name)
        return getattr(self.in_python(), name)

    cdef bint forward_all(self, bytes data, int64_t now_ns) except -1:
        """Forward `data` if it is the whole response, and end. As `Exchange._respond` and `_end`."""
        cdef const char *text = data
        cdef const char *blank_line = <const char *>memmem(text, len(data), <const char *>b"\r\n\r\n", 4)
        cdef NativeDeferredRecorder recorder = self._recorder
        cdef Py_ssize_t end
        cdef int64_t length
        cdef int status
        context, client, upstream = self._group._context, self._client, self._upstream
        if blank_line == NULL or now_ns - self._t0_ns > SILENCE_NS or context.stopping or client.write_paused:
            return False
        end = blank_line + 4 - text
        head = response_head(PyBytes_FromStringAndSize(text, end))
        if head is None or not head.plain or len(<list?>head.lengths) != 1 or self._head.method == "HEAD":
            return False
        status, length = head.status, content_length((<list?>head.lengths)[0])
        if status < 200 or status == 204 or status == 304 or length != len(data) - end:
            return False
        client.exchange = upstream.exchange = self._upstream = None  # a full write buffer pauses the client's connection only
        self.written_bytes = len(data)
        try:
            client.transport.write(data)
            self._pool.release(upstream)
            self._group._counters.body_bytes += length
            if self._request_bytes:
                self._group._counters.request_bytes += self._request_bytes
            if recorder is not None:
                try:
                    recorder.response_head(head, now_ns)
                    if length:
                        recorder.response_data(PyBytes_FromStringAndSize(text + end, length), now_ns)
                    recorder.ended("complete", None, now_ns, self._request_bytes, length, True, False, [])
                except Exception as e:
                    recorder = None
                    context.failures.failed(e, self._recorder)
        finally:
            client.exchange_ended(self, recorder, now_ns, None, THEN_KEEP_OPEN)
        return True

    cdef in_python(self):
        """The `Exchange` that continues this one."""
        if self._continued is None:
            client, upstream = self._client, self._upstream
            context = self._group._context
            exchange = Exchange(context, client, self._pool, self._head, self._route, self._trace, self._recorder, self._t0_ns)
            exchange.request_was_sent(upstream, self._request_bytes)
            self._group._open.discard(self)
            self._group._open.add(exchange)
            client.exchange = self._continued = exchange
        return self._continued
