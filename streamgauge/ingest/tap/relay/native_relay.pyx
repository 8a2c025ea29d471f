# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, binding=False, nonecheck=True
"""Forward response bodies between two sockets in a thread that does not hold Python's global interpreter lock (GIL).

`NativeRelay` does what `Exchange.upstream_data` does for a response whose head has been forwarded, if both connections are plain
TCP. `streamgauge.ingest.tap.relay.body_relay` has the contract for the caller.

Threads
- The relay's thread runs `run` and calls only `nogil` functions. The only Python objects that it uses are the bodies' readers, by
  methods without the interpreter lock; nothing else uses a reader meanwhile.
- `Relay.lock` guards all state. The thread acquires it for each event. The thread and its callers first acquire `Relay.gate`,
  so a caller waits for at most one event.
- Records, waits and ends go to Python in one queue, in the order in which they occurred.

Bounds
- Bytes kept for the log stay within half of `free_bytes`. Without room, frames are dropped, as in `Recorder`.
- Bodies share that room as streams share the record buffer (`record_buffer.has_share`).
- While a client does not read, the relay keeps at most one read (64 KiB) for it and does not read from its upstream.
- At most `MAX_QUEUED_WAITS` waits are queued; later ones are counted and dropped.
"""

import threading

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.errno cimport EAGAIN, EEXIST, EINTR, ENOMEM, errno
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec
from posix.unistd cimport close, read, write

from streamgauge.ingest.http1.bodies cimport BodyReader, holds_only_comments
from streamgauge.ingest.recording.record_buffer cimport has_share, held_bytes_of

from streamgauge.ingest import records

cdef extern from "<sys/epoll.h>" nogil:
    ctypedef union epoll_data_t:
        uint64_t u64
    struct epoll_event:
        uint32_t events
        epoll_data_t data
    enum: EPOLLIN, EPOLLOUT, EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CLOEXEC
    int epoll_create1(int flags)
    int epoll_ctl(int epoll, int operation, int descriptor, epoll_event *event)
    int epoll_wait(int epoll, epoll_event *events, int count, int timeout_ms)

cdef extern from "<sys/eventfd.h>" nogil:
    enum: EFD_CLOEXEC, EFD_NONBLOCK
    int eventfd(unsigned int initial, int flags)

cdef extern from "<sys/socket.h>" nogil:
    enum: MSG_DONTWAIT, MSG_NOSIGNAL
    ssize_t recv(int descriptor, void *data, size_t size, int flags)
    ssize_t send(int descriptor, const void *data, size_t size, int flags)

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    int pthread_mutex_init(pthread_mutex_t *mutex, void *attributes)
    int pthread_mutex_destroy(pthread_mutex_t *mutex)
    int pthread_mutex_lock(pthread_mutex_t *mutex)
    int pthread_mutex_unlock(pthread_mutex_t *mutex)

cdef extern from "<sys/prctl.h>" nogil:
    enum: PR_SET_NAME
    int prctl(int option, const char *name)

# --- the state of the relay

cdef enum:
    READ_BYTES = 65536
    FLUSH_BYTES = 65536  # of payload in one record
    WAKE_BYTES = 262144  # pending bytes that wake the event loop
    MAX_HEAD_BYTES = 80  # of a record before its first frame
    SEQ_AT = 13  # bytes before the end of the head
    COUNT_AT = 4
    FRAME_BYTES = 15  # of a frame before its payload
    ARRIVAL_AT = 2
    SIZE_AT = 11
    MIN_RECORD_BYTES = 400
    EVENTS_AT_ONCE = 64
    RECORDS_AT_ONCE = 32
    MAX_QUEUED_WAITS = 65536

cdef int64_t PERIOD_NS = 25000000
cdef int64_t MIN_BLOCK_NS = 5000000  # as in streamgauge.ingest.tap.exchanges.loop_monitor
cdef int64_t LONG_SILENCE_NS = 50000000  # as in streamgauge.ingest.recording.waits
cdef uint64_t UNLIMITED = 1ull << 62  # as in streamgauge.ingest.recording.body_capture

cpdef enum:  # kind of an item of the queue
    RECORD
    LOST  # (seq, bytes)
    CLIENT_WAIT  # (from ns, until ns)
    TAP_WAIT  # (from ns, until ns)
    END

cpdef enum:  # cause of an end
    COMPLETE
    UPSTREAM_LOST
    CLIENT_LOST
    MALFORMED
    TAKEN_BACK

cdef struct Item:  # of the queue to Python; a record's bytes follow
    Item *next
    int kind
    int body
    uint64_t a  # number of frames of a record
    uint64_t b  # payload bytes of a record
    size_t size
    size_t capacity

cdef struct Queue:
    Item *first
    Item **last

cdef struct Body:
    int upstream  # a descriptor, and the body's number
    int client
    uint32_t generation
    bint blocked  # the client does not read
    bint events  # the payload is SSE
    PyObject *reader  # a `BodyReader`; the body holds a reference
    int64_t t0_ns
    int64_t last_ns  # the last read
    int64_t output_ns  # the last read that held more than heartbeats
    int64_t blocked_ns  # since when the client does not read
    int64_t ready_ns  # when it last began to read again
    uint64_t payload_bytes
    uint64_t wire_bytes
    int cause
    int error
    uint8_t *unsent
    size_t unsent_size
    size_t unsent_at
    # recording
    uint8_t head[MAX_HEAD_BYTES]
    size_t head_size  # 0: do not record
    uint64_t seq
    uint64_t capture_bytes  # still to capture
    uint64_t uncaptured_bytes
    int64_t uncaptured_ns  # arrival of the first byte that is counted but not captured
    int64_t dropped_bytes  # ≥ 0 while a run of frames is being dropped
    size_t held_bytes  # of records queued in this and the previous epoch
    size_t new_bytes  # of records queued in this epoch
    uint64_t epoch
    Item end  # its room is here, so that an end can always be reported: only it gives the sockets back to Python
    Item *record
    int64_t record_ns  # arrival of its first frame
    Body *earlier  # bodies with a record, in the order of `record_ns`
    Body *later

cdef struct Relay:
    pthread_mutex_t gate
    pthread_mutex_t lock
    bint stopping
    int epoll
    int wake  # eventfd that wakes the event loop when a body has ended or WAKE_BYTES are pending
    bint woken
    Body **bodies  # by number
    int capacity
    Queue queue
    size_t queued_bytes  # of records in the queue
    Body ends  # of the list of bodies with a record: the oldest is `later`, the newest `earlier`
    size_t free_bytes  # of the record buffer; half of them are granted
    uint64_t epoch  # of the record buffer
    size_t pending_bytes  # of all records
    uint32_t queued_waits
    uint64_t dropped_waits
    uint64_t blocked_bodies
    int64_t due_ns
    int64_t block_from_ns  # 0: no block
    int64_t block_until_ns
    uint32_t generation  # of the latest body; 0 is that of ended ones
    uint8_t input[READ_BYTES]
    uint8_t scratch[READ_BYTES]


cdef uint8_t FRAME_HEAD[FRAME_BYTES]
if len(records.FRAME_HEAD) != FRAME_BYTES:
    raise RuntimeError("the layout of a frame has changed")  # an ImportError would select the Python code
memcpy(FRAME_HEAD, <const char *>records.FRAME_HEAD, FRAME_BYTES)


cdef inline int64_t clock_ns() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <int64_t>now.tv_sec * 1000000000 + now.tv_nsec


cdef inline void enter(Relay *relay) noexcept nogil:
    # A mutex is not fair: a thread that unlocks it and locks it again usually wins, and the event loop would wait for a
    # whole batch of events. Whoever waits holds the gate, so the other side cannot lock twice in a row.
    pthread_mutex_lock(&relay.gate)
    pthread_mutex_lock(&relay.lock)
    pthread_mutex_unlock(&relay.gate)


cdef inline void leave(Relay *relay) noexcept nogil:
    pthread_mutex_unlock(&relay.lock)


cdef inline uint8_t *content(Item *item) noexcept nogil:
    return <uint8_t *>(item + 1)


cdef inline void put_number(uint8_t *target, uint64_t value, int bytes_) noexcept nogil:
    cdef int i
    for i in range(bytes_):
        target[i] = <uint8_t>(value >> (8 * (bytes_ - 1 - i)))


cdef void wake_python(Relay *relay) noexcept nogil:
    # One write until Python has read it: a busy relay would otherwise spend a system call per record to say the same
    # thing.
    cdef uint64_t one = 1
    if not relay.woken:
        relay.woken = True
        write(relay.wake, &one, 8)


cdef inline void put(Queue *queue, Item *item) noexcept nogil:
    item.next = NULL
    queue.last[0] = item
    queue.last = &item.next


cdef inline void clear(Queue *queue) noexcept nogil:
    queue.first, queue.last = NULL, &queue.first


cdef bint queue_pair(Relay *relay, Body *body, int kind, uint64_t a, uint64_t b) noexcept nogil:
    cdef Item *item = <Item *>calloc(1, sizeof(Item))
    if item == NULL:
        return False
    item.kind, item.body, item.a, item.b = kind, body.upstream, a, b
    put(&relay.queue, item)
    return True


cdef void queue_wait(Relay *relay, Body *body, int kind, int64_t from_ns, int64_t until_ns) noexcept nogil:
    # A stream that is not recorded has no `Closed` that could hold its waits.
    if from_ns >= until_ns or body.head_size == 0:
        return
    if relay.queued_waits < MAX_QUEUED_WAITS and queue_pair(relay, body, kind, from_ns, until_ns):
        relay.queued_waits += 1
    else:
        relay.dropped_waits += 1

# --- records: `streamgauge.ingest.records.Frames`

cdef Item *finish_record(Relay *relay, Body *body) noexcept nogil:
    """Complete the record of a body and detach it. NULL: it has none."""
    cdef Item *item = body.record
    cdef uint8_t *target
    if item == NULL or item.a == 0:
        return NULL
    body.earlier.later, body.later.earlier = body.later, body.earlier
    body.record = NULL
    # Number and count are written last, into room that was left for them. They have fixed widths (uint64, array 32)
    # although smaller ones would do: the frames behind them never move.
    target = content(item) + body.head_size
    put_number(target - SEQ_AT, body.seq, 8)
    put_number(target - COUNT_AT, item.a, 4)
    body.seq += 1
    return item


cdef void hold(Relay *relay, Body *body, size_t size) noexcept nogil:
    """As `Recorder._hold`."""
    if body.epoch != relay.epoch:
        body.held_bytes = held_bytes_of(body.new_bytes, relay.epoch - body.epoch)
        body.epoch, body.new_bytes = relay.epoch, 0
    body.new_bytes += size
    body.held_bytes += size


cdef void queue_record(Relay *relay, Body *body) noexcept nogil:
    cdef Item *item = finish_record(relay, body)
    if item != NULL:
        # The bytes will leave the relay but stay in the log's queue, where they count against the body for two epochs.
        hold(relay, body, item.capacity)
        relay.queued_bytes += item.capacity
        put(&relay.queue, item)
        if relay.pending_bytes >= WAKE_BYTES:
            wake_python(relay)


cdef bint resize_record(Relay *relay, Body *body, size_t capacity) noexcept nogil:
    cdef size_t before = body.record.capacity if body.record != NULL else 0
    cdef Item *item
    # Only half of the free room is granted, so what the relay uses counts twice.
    if not has_share(2 * relay.pending_bytes, 2 * (capacity - before), body.held_bytes, relay.free_bytes):
        return False
    item = <Item *>realloc(body.record, sizeof(Item) + capacity)
    if item == NULL:
        return False
    relay.pending_bytes += capacity - before
    item.capacity = capacity
    if body.record == NULL:
        item.kind, item.body, item.a, item.b = RECORD, body.upstream, 0, 0
        item.size = body.head_size
        memcpy(content(item), body.head, body.head_size)
    body.record = item
    return True


cdef uint8_t *room_for_frame(Relay *relay, Body *body, size_t size) noexcept nogil:
    """Where the payload of the next frame goes, of at most `size` bytes. NULL: there is no room."""
    cdef size_t capacity = body.record.capacity if body.record != NULL else 0
    cdef size_t needed = FRAME_BYTES + size + (body.record.size if body.record != NULL else body.head_size)
    if needed > capacity:
        hold(relay, body, 0)
        # Doubling keeps the copies of a growing record below its final size. When room is short, only what is needed is
        # tried.
        if not resize_record(relay, body, max(needed, 2 * capacity, <size_t>MIN_RECORD_BYTES)) and not resize_record(
            relay, body, needed
        ):
            return NULL
    return content(body.record) + body.record.size + FRAME_BYTES


cdef void add_frame(Relay *relay, Body *body, int64_t now_ns, size_t size) noexcept nogil:
    """Add the frame whose payload is where `room_for_frame` said."""
    cdef Item *item = body.record
    cdef uint8_t *target = content(item) + item.size
    memcpy(target, FRAME_HEAD, FRAME_BYTES)
    put_number(target + ARRIVAL_AT, now_ns - body.t0_ns, 8)
    put_number(target + SIZE_AT, size, 4)
    item.size += FRAME_BYTES + size
    # The list of bodies by the age of their first frame lets a tick take old records without a walk over all bodies. A
    # body enters it once per record, at its end, because times only grow.
    item.a += 1
    item.b += size
    if item.a == 1:
        body.record_ns = now_ns
        body.earlier, body.later = relay.ends.earlier, &relay.ends
        body.earlier.later = body.later.earlier = body


cdef void drop_frame(Relay *relay, Body *body, size_t size) noexcept nogil:
    if body.dropped_bytes < 0:
        queue_record(relay, body)
        body.dropped_bytes = 0
    body.dropped_bytes += size


cdef void record_payload(Relay *relay, Body *body, int64_t now_ns, uint8_t *room, size_t size) noexcept nogil:
    """Record the payload of one read. It is at `room` already, unless that is NULL."""
    cdef size_t captured = size if size < body.capture_bytes else body.capture_bytes
    if captured < size:
        if body.uncaptured_ns == 0:
            body.uncaptured_ns = now_ns
        body.uncaptured_bytes += size - captured
    if captured == 0:
        return
    if body.capture_bytes != UNLIMITED:
        body.capture_bytes -= captured
    if room == NULL:
        drop_frame(relay, body, captured)
        return
    add_frame(relay, body, now_ns, captured)
    if body.record.b >= FLUSH_BYTES:
        queue_record(relay, body)

# --- forwarding

cdef int64_t read_payload(BodyReader reader, const uint8_t *data, int64_t size, uint8_t *payload, size_t *payload_size) noexcept nogil:
    """Copy the payload of a read. Returns the number of bytes that belong to the body, -1 if it is malformed."""
    cdef int64_t at = 0, start
    payload_size[0] = 0
    while 0 <= at < size and not reader.complete:
        start, at = at, reader.advance(data, at, size)
        if reader.is_payload:
            memcpy(payload + payload_size[0], data + start, at - start)
            payload_size[0] += at - start
    return at


cdef int watch(Relay *relay, int descriptor, uint32_t events, Body *body) noexcept nogil:
    cdef epoll_event event
    event.events = events
    event.data.u64 = <uint64_t>body.generation << 32 | body.upstream
    return epoll_ctl(relay.epoll, EPOLL_CTL_ADD, descriptor, &event)


cdef void unwatch(Relay *relay, int descriptor) noexcept nogil:
    cdef epoll_event event
    epoll_ctl(relay.epoll, EPOLL_CTL_DEL, descriptor, &event)


cdef void report_silence(Relay *relay, Body *body, int64_t since_ns, int64_t now_ns) noexcept nogil:
    """Nothing happened between these times. Report the tap's part: a block of this thread. As `Waits.silence_ended`."""
    cdef int64_t from_ns = relay.block_from_ns, until_ns = relay.block_until_ns
    if from_ns == 0 or until_ns <= since_ns or now_ns - since_ns <= LONG_SILENCE_NS:
        return
    if from_ns < since_ns:
        from_ns = since_ns
    if body.blocked:
        queue_wait(relay, body, CLIENT_WAIT, body.blocked_ns, from_ns)
        if body.blocked_ns < until_ns:
            body.blocked_ns = until_ns
    queue_wait(relay, body, TAP_WAIT, from_ns, until_ns)


cdef void end_body(Relay *relay, Body *body, int cause, int error, int64_t now_ns) noexcept nogil:
    """Stop forwarding a body. From now on its sockets and state belong to Python."""
    unwatch(relay, body.client if body.blocked else body.upstream)
    if body.blocked:
        relay.blocked_bodies -= 1
        report_silence(relay, body, body.blocked_ns, now_ns)
        queue_wait(relay, body, CLIENT_WAIT, body.blocked_ns, now_ns)
    queue_record(relay, body)
    if body.record != NULL:  # without frames
        relay.pending_bytes -= body.record.capacity
        free(body.record)
        body.record = NULL
    body.cause, body.error = cause, error
    body.generation = 0
    body.end.kind, body.end.body = END, body.upstream
    put(&relay.queue, &body.end)
    if cause != TAKEN_BACK:
        wake_python(relay)


cdef void on_readable(Relay *relay, Body *body) noexcept nogil:
    # MSG_DONTWAIT instead of O_NONBLOCK: the descriptors belong to the event loop, and their flags are its own
    # business.
    cdef ssize_t received = recv(body.upstream, relay.input, READ_BYTES, MSG_DONTWAIT), sent
    cdef int error = errno  # the next call of the system may change it
    cdef int64_t now_ns = clock_ns()
    cdef size_t payload_size
    cdef int64_t used
    cdef uint8_t *room = NULL
    cdef uint8_t *payload
    # The time above was taken right after the read and before any work on it: it is the arrival that TTFT and gaps are
    # computed from.
    if received < 0:
        if error != EAGAIN and error != EINTR:
            end_body(relay, body, UPSTREAM_LOST, error, now_ns)
        return
    report_silence(relay, body, body.last_ns, now_ns)
    body.last_ns = now_ns
    if received == 0:
        end_body(relay, body, COMPLETE if (<BodyReader>body.reader).until_close else UPSTREAM_LOST, 0, now_ns)
        return
    if body.head_size and body.capture_bytes:
        # Room for the whole read, before its payload is known: it is then copied straight into the record. What framing
        # takes off is not used, and the next frame starts there.
        room = room_for_frame(relay, body, received)
        # The run of dropped frames gets its number before the first frame after it. If even that small item has no
        # memory, the frame is dropped too: a later record must never have an earlier number.
        if room != NULL and body.dropped_bytes >= 0:
            if queue_pair(relay, body, LOST, body.seq, body.dropped_bytes):
                body.dropped_bytes = -1
                body.seq += 1
            else:
                room = NULL
    # The payload is needed even when it is not recorded, to tell heartbeats from output.
    payload = room if room != NULL else relay.scratch
    used = read_payload(<BodyReader>body.reader, relay.input, received, payload, &payload_size)
    if used < 0:
        end_body(relay, body, MALFORMED, 0, now_ns)
        return
    (<BodyReader>body.reader).excess = received - used
    # Sent before it is recorded: the client never waits for the recording. The bytes go as they came, with their chunk
    # framing. MSG_NOSIGNAL: a client that has left would otherwise end the process by SIGPIPE.
    sent = send(body.client, relay.input, used, MSG_DONTWAIT | MSG_NOSIGNAL)
    error = errno
    body.wire_bytes += used
    if payload_size:
        body.payload_bytes += payload_size
        if not body.events or not holds_only_comments(payload, payload_size):
            body.output_ns = now_ns
        if body.head_size:
            record_payload(relay, body, now_ns, room, payload_size)
    if sent < 0:
        if error != EAGAIN and error != EINTR:
            end_body(relay, body, CLIENT_LOST, error, now_ns)
            return
        sent = 0
    if sent < used:
        body.unsent_size = used - sent
        body.unsent_at = 0
        body.unsent = <uint8_t *>malloc(body.unsent_size)
        if body.unsent == NULL:
            body.unsent_size = 0
            end_body(relay, body, CLIENT_LOST, ENOMEM, now_ns)
            return
        memcpy(body.unsent, relay.input + sent, body.unsent_size)
    if (<BodyReader>body.reader).complete:
        end_body(relay, body, COMPLETE, 0, now_ns)
    # Only one of the two sockets is watched at a time. So the client's pace holds back the upstream through TCP, and
    # one read is all that is ever kept.
    elif body.unsent != NULL:
        unwatch(relay, body.upstream)
        body.blocked, body.blocked_ns = True, now_ns
        relay.blocked_bodies += 1
        if watch(relay, body.client, EPOLLOUT, body) < 0:
            end_body(relay, body, CLIENT_LOST, errno, now_ns)


cdef void on_writable(Relay *relay, Body *body) noexcept nogil:
    cdef size_t size = body.unsent_size - body.unsent_at
    cdef ssize_t sent = send(body.client, body.unsent + body.unsent_at, size, MSG_DONTWAIT | MSG_NOSIGNAL)
    cdef int error = errno  # the next call of the system may change it
    cdef int64_t now_ns = clock_ns()
    if sent < 0:
        if error != EAGAIN and error != EINTR:
            end_body(relay, body, CLIENT_LOST, error, now_ns)
        return
    body.unsent_at += sent
    if body.unsent_at < body.unsent_size:
        return
    free(body.unsent)
    body.unsent = NULL
    body.unsent_size = 0
    report_silence(relay, body, body.blocked_ns, now_ns)
    queue_wait(relay, body, CLIENT_WAIT, body.blocked_ns, now_ns)
    unwatch(relay, body.client)
    body.blocked, body.ready_ns = False, now_ns
    relay.blocked_bodies -= 1
    if watch(relay, body.upstream, EPOLLIN, body) < 0:
        end_body(relay, body, UPSTREAM_LOST, errno, now_ns)


cdef void find_block(Relay *relay, int64_t now_ns) noexcept nogil:
    """As `LoopMonitor`, for this thread."""
    if now_ns < relay.due_ns:
        return
    # The thread wakes at least every 25 ms. If it wakes late, it did not run: the machine was busy or suspended.
    # Silences in that time are the tap's, not the upstream's or the client's.
    if now_ns - relay.due_ns >= MIN_BLOCK_NS:
        relay.block_from_ns, relay.block_until_ns = relay.due_ns, now_ns
    else:
        relay.block_from_ns = 0
    relay.due_ns = now_ns + PERIOD_NS


cdef int until_due_ms(Relay *relay) noexcept nogil:
    """Time to the next check for blocks, rounded up. Only the thread changes `due_ns`."""
    cdef int64_t left_ns = relay.due_ns - clock_ns()
    return <int>((left_ns + 999999) // 1000000) if left_ns > 0 else 0


cdef void run(Relay *relay) noexcept nogil:
    cdef epoll_event events[EVENTS_AT_ONCE]
    cdef Body *body
    cdef int count, i
    cdef bint stopping = False
    prctl(PR_SET_NAME, b"tap-relay")
    relay.due_ns = clock_ns() + PERIOD_NS
    while not stopping:
        count = epoll_wait(relay.epoll, events, EVENTS_AT_ONCE, until_due_ms(relay))
        enter(relay)
        find_block(relay, clock_ns())
        stopping = relay.stopping
        leave(relay)
        for i in range(count):
            # Locked for each event and not for the batch: the event loop, which needs the lock too, would stand still for
            # a batch of 64 reads.
            enter(relay)
            body = relay.bodies[<uint32_t>events[i].data.u64]
            # An earlier event of this batch, or Python, may have ended the body. Descriptors are reused. The generation
            # in the event tells a new body from the one that the event was about, which epoll cannot.
            if body != NULL and body.generation == events[i].data.u64 >> 32:
                if body.blocked:
                    on_writable(relay, body)
                else:
                    on_readable(relay, body)
            leave(relay)


# --- the interface for Python

cdef class NativeRelay:
    """The relay of one event loop. Call all methods from the loop's thread. `streamgauge.ingest.tap.relay.body_relay` explains the results."""

    cdef Relay *relay
    cdef object thread

    def __cinit__(self):
        self.relay = <Relay *>calloc(1, sizeof(Relay))
        if self.relay == NULL:
            raise MemoryError
        pthread_mutex_init(&self.relay.gate, NULL)
        pthread_mutex_init(&self.relay.lock, NULL)
        clear(&self.relay.queue)
        self.relay.ends.earlier = self.relay.ends.later = &self.relay.ends
        self.relay.epoll = epoll_create1(EPOLL_CLOEXEC)
        self.relay.wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)

    def start(self):
        """Start the thread. Raises OSError if the system refuses a descriptor or the thread."""
        if self.thread is not None:
            raise RuntimeError("the native relay runs already")
        if self.relay.epoll < 0 or self.relay.wake < 0:
            raise OSError("cannot start the native relay: no file descriptor is left. Raise the limit of open files.")
        thread = threading.Thread(target=forward, args=(self,), name="tap-relay", daemon=True)
        try:
            thread.start()
        except RuntimeError as e:
            raise OSError(f"cannot start the native relay's thread: {e}") from None
        self.thread = thread

    def close(self):
        """Stop the thread. Bodies that it still forwards are left alone: take them back before."""
        if self.thread is not None:
            enter(self.relay)
            self.relay.stopping = True
            leave(self.relay)
            self.thread.join()

    def __dealloc__(self):
        cdef Relay *relay = self.relay
        cdef int number
        if relay == NULL:
            return
        free_records(relay.queue.first)
        for number in range(relay.capacity):
            if relay.bodies[number] != NULL:
                free_body(relay.bodies[number])
        free(relay.bodies)
        if relay.epoll >= 0:
            close(relay.epoll)
        if relay.wake >= 0:
            close(relay.wake)
        pthread_mutex_destroy(&relay.gate)
        pthread_mutex_destroy(&relay.lock)
        free(relay)

    def fileno(self):
        """A descriptor that becomes readable when `take` has something that should not wait."""
        return self.relay.wake

    def counts(self):
        """(bytes kept for records, waits that were dropped, bodies whose client does not read)."""
        enter(self.relay)
        try:
            return self.relay.pending_bytes, self.relay.dropped_waits, self.relay.blocked_bodies
        finally:
            leave(self.relay)

    def set_room(self, size_t size_bytes, uint64_t epoch):
        """Limit the bytes kept for records. `epoch`: of the record buffer."""
        enter(self.relay)
        self.relay.free_bytes, self.relay.epoch = 2 * size_bytes, epoch
        leave(self.relay)

    def add(
        self, int upstream, int client, BodyReader reader not None, int64_t now_ns, int64_t output_ns, bint events, bytes head,
        uint64_t seq, int64_t t0_ns, uint64_t capture_bytes,
    ):
        """Forward the rest of a body between two descriptors. Returns its number. Raises OSError or MemoryError.

        `head`: `records.frames_head`; empty: do not record.
        """
        cdef Relay *relay = self.relay
        cdef Body *body
        cdef int error
        if head and not SEQ_AT <= len(head) <= MAX_HEAD_BYTES:
            raise ValueError("the head of a record is too short or too long")
        body = <Body *>calloc(1, sizeof(Body))
        if body == NULL:
            raise MemoryError
        Py_INCREF(reader)
        body.reader, body.events = <PyObject *>reader, events
        body.upstream, body.client = upstream, client
        body.last_ns, body.output_ns, body.t0_ns = now_ns, output_ns, t0_ns
        body.head_size = len(head)
        memcpy(body.head, <const char *>head, body.head_size)
        body.seq, body.capture_bytes, body.dropped_bytes = seq, capture_bytes, -1
        enter(relay)
        error = begin(relay, body)
        leave(relay)
        if error:
            free_body(body)
            raise OSError(error, "cannot watch a connection in the native relay")
        return upstream

    def take_back(self, int number, int64_t now_ns):
        """Stop forwarding a body. Adds an end to the queue unless one is already there, or nothing has this number."""
        cdef Body *body
        enter(self.relay)
        body = body_of(self.relay, number)
        if body != NULL and body.generation:
            end_body(self.relay, body, TAKEN_BACK, 0, now_ns)
        leave(self.relay)

    def progress(self, int number):
        """(time of the last read, time of the last read with output, time when the client last resumed reading, whether the
        client is blocked now). Times in ns. Raises KeyError if nothing has this number."""
        cdef Body *body
        enter(self.relay)
        try:
            body = body_of(self.relay, number)
            if body == NULL:
                raise KeyError(number)
            return body.last_ns, body.output_ns, body.ready_ns, bool(body.blocked)
        finally:
            leave(self.relay)

    def take(self, int64_t before_ns):
        """Everything in the queue, and the records whose first frame arrived before a time: a list of (kind, body, a, b).

        `RECORD`: `a` is `EncodedRecords`. A record never comes after an event that followed it; it may come before an earlier one,
        except `LOST`.
        """
        cdef Relay *relay = self.relay
        cdef Item *item
        cdef Item *following
        cdef Body *body
        cdef uint64_t woken
        cdef EncodedRecords records = None
        cdef list events = []
        enter(relay)
        while queue_old_records(relay, before_ns):
            leave(relay)  # the thread waits for the lock
            enter(relay)
        if relay.woken:
            relay.woken = False
            read(relay.wake, &woken, 8)
        # The whole queue is detached under the lock and turned into Python objects without it: the relay goes on
        # meanwhile.
        item = relay.queue.first
        clear(&relay.queue)
        relay.pending_bytes -= relay.queued_bytes
        relay.queued_waits = relay.queued_bytes = 0
        leave(relay)
        while item != NULL:
            following = item.next
            if item.kind == RECORD:
                if records is None:
                    records = EncodedRecords()
                    events.append((RECORD, 0, records, None))
                records.add(item)
            elif item.kind == END:
                body = relay.bodies[item.body]
                events.append((END, item.body, end_of(body), None))
                enter(relay)
                relay.bodies[item.body] = NULL
                leave(relay)
                free_body(body)
            else:
                if item.kind == LOST:
                    records = None
                events.append((item.kind, item.body, item.a, item.b))
                free(item)
            item = following
        return events


def forward(NativeRelay relay not None):
    """Run a relay until it is closed."""
    with nogil:
        run(relay.relay)


cdef class EncodedRecords:
    """Encoded records. They become objects of Python by `take`, which any thread may call."""

    cdef Queue queue
    cdef readonly uint64_t count, frames, captured_bytes
    cdef readonly size_t size_bytes

    def __cinit__(self):
        clear(&self.queue)

    cdef add(self, Item *item):
        put(&self.queue, item)
        self.count += 1
        self.frames += item.a
        self.captured_bytes += item.b
        self.size_bytes += sizeof(Item) + item.capacity

    def take(self):
        """The records. Later calls return none."""
        cdef Item *item = self.queue.first
        cdef list taken = []
        while item != NULL:
            taken.append(PyBytes_FromStringAndSize(<char *>content(item), item.size))
            item = item.next
        free_records(self.queue.first)
        clear(&self.queue)
        return taken

    def __dealloc__(self):
        free_records(self.queue.first)


cdef void free_records(Item *item) noexcept nogil:
    cdef Item *following
    while item != NULL:
        following = item.next
        if item.kind != END:  # part of its body
            free(item)
        item = following


cdef bint queue_old_records(Relay *relay, int64_t before_ns) noexcept nogil:
    """Queue some records whose first frame arrived before a time, the oldest first. Returns whether there may be more."""
    cdef int i
    for i in range(RECORDS_AT_ONCE):
        if relay.ends.later == &relay.ends or relay.ends.later.record_ns > before_ns:
            return False
        queue_record(relay, relay.ends.later)
    return True


cdef inline Body *body_of(Relay *relay, int number) noexcept nogil:
    """NULL: no body has this number."""
    return relay.bodies[number] if 0 <= number < relay.capacity else NULL


cdef tuple end_of(Body *body):
    """The fields of `body_relay.RelayedEnd`."""
    unsent = b""
    if body.unsent != NULL:
        unsent = PyBytes_FromStringAndSize(<char *>body.unsent + body.unsent_at, body.unsent_size - body.unsent_at)
    return (
        body.cause, body.error, body.last_ns, body.output_ns, body.payload_bytes, body.wire_bytes, unsent,
        body.seq, body.capture_bytes, body.uncaptured_bytes, body.uncaptured_ns, body.dropped_bytes,
    )


cdef int begin(Relay *relay, Body *body) noexcept nogil:
    """Begin to forward a body. Returns 0 or the system's error."""
    cdef int number = body.upstream
    cdef int wanted
    cdef void *grown
    if number >= relay.capacity:
        wanted = number + 64
        grown = realloc(relay.bodies, wanted * sizeof(Body *))
        if grown == NULL:
            return ENOMEM
        relay.bodies = <Body **>grown
        memset(relay.bodies + relay.capacity, 0, (wanted - relay.capacity) * sizeof(Body *))
        relay.capacity = wanted
    if number < 0 or relay.bodies[number] != NULL:
        return EEXIST
    body.generation = relay.generation = relay.generation % <uint32_t>0xffffffff + 1
    if watch(relay, number, EPOLLIN, body) < 0:
        return errno
    relay.bodies[number] = body
    return 0


cdef void free_body(Body *body) noexcept:
    Py_DECREF(<BodyReader>body.reader)
    free(body.unsent)
    free(body.record)
    free(body)
