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
- Bytes kept for the log stay within `room_bytes`. Without room, frames are dropped, as in `Recorder`.
- A body whose records of this and the previous epoch (`RecordBuffer`) are larger than the free part of `room_bytes` loses frames
  first.
- While a client does not read, the relay keeps at most one read (64 KiB) for it and does not read from its upstream.
- At most `MAX_QUEUED_WAITS` waits are queued; later ones are counted and dropped.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.errno cimport EAGAIN, EINTR, ENOMEM, errno
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec
from posix.unistd cimport close, read, write

from streamgauge.ingest.tap.http.bodies cimport BodyReader

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
    ctypedef unsigned long pthread_t
    int pthread_mutex_init(pthread_mutex_t *mutex, void *attributes)
    int pthread_mutex_destroy(pthread_mutex_t *mutex)
    int pthread_mutex_lock(pthread_mutex_t *mutex)
    int pthread_mutex_unlock(pthread_mutex_t *mutex)
    int pthread_create(pthread_t *thread, void *attributes, void *(*start)(void *) noexcept nogil, void *argument)
    int pthread_join(pthread_t thread, void **result)
    int pthread_setname_np(pthread_t thread, const char *name)

cdef extern from "<signal.h>" nogil:
    ctypedef struct sigset_t:
        pass
    enum: SIG_SETMASK
    int sigfillset(sigset_t *signals)
    int pthread_sigmask(int how, const sigset_t *signals, sigset_t *old)

# --- the state of the relay

cdef enum:
    READ_BYTES = 65536
    FLUSH_BYTES = 65536  # of payload in one record
    WAKE_BYTES = 262144  # pending bytes that wake the event loop
    PREFIX_BYTES = 64  # most bytes of MessagePack before a record's seq
    SEQ_BYTES = 14  # seq and the number of frames
    FRAME_BYTES = 15  # time of a frame and size of its payload
    MIN_RECORD_BYTES = 400
    EVENTS_AT_ONCE = 64
    RECORDS_AT_ONCE = 32
    MAX_QUEUED_WAITS = 65536
    PERIOD_MS = 25

cdef int64_t PERIOD_NS = PERIOD_MS * 1000000
cdef int64_t MIN_BLOCK_NS = 5000000  # as in streamgauge.ingest.tap.exchanges.loop_monitor
cdef int64_t LONG_SILENCE_NS = 50000000  # as in streamgauge.ingest.tap.exchanges.waits
cdef uint64_t UNLIMITED = 1ull << 62  # as in streamgauge.ingest.tap.recording.body_capture

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
    uint32_t body
    uint64_t a  # number of frames of a record
    uint64_t b  # payload bytes of a record
    size_t size
    size_t capacity

cdef struct Body:
    int upstream
    int client
    uint32_t number
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
    uint8_t prefix[PREFIX_BYTES]
    size_t prefix_size  # 0: do not record
    uint64_t seq
    uint64_t capture_bytes  # still to capture
    uint64_t uncaptured_bytes
    int64_t uncaptured_ns  # arrival of the first byte that is counted but not captured
    int64_t dropped_bytes  # ≥ 0 while a run of frames is being dropped
    size_t held_bytes  # of records queued in this and the previous epoch
    size_t new_bytes  # of records queued in this epoch
    uint64_t epoch
    Item *end  # reserved at the start, so that an end can always be reported
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
    Body **bodies
    uint32_t capacity
    uint32_t *unused  # stack of free slots
    uint32_t unused_count
    Item *first
    Item **last
    Body *oldest
    Body *newest
    size_t room_bytes
    uint64_t epoch  # of the record buffer
    size_t pending_bytes  # of all records
    uint32_t queued_waits
    uint64_t dropped_waits
    int64_t due_ns
    int64_t block_from_ns  # 0: no block
    int64_t block_until_ns
    uint32_t generation  # of the latest body; 0 is that of ended ones
    uint8_t input[READ_BYTES]
    uint8_t scratch[READ_BYTES]


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


cdef void queue(Relay *relay, Item *item) noexcept nogil:
    item.next = NULL
    relay.last[0] = item
    relay.last = &item.next


cdef bint queue_pair(Relay *relay, Body *body, int kind, uint64_t a, uint64_t b) noexcept nogil:
    cdef Item *item = <Item *>calloc(1, sizeof(Item))
    if item == NULL:
        return False
    item.kind, item.body, item.a, item.b = kind, body.number, a, b
    queue(relay, item)
    return True


cdef void queue_wait(Relay *relay, Body *body, int kind, int64_t from_ns, int64_t until_ns) noexcept nogil:
    # A stream that is not recorded has no `Closed` that could hold its waits.
    if from_ns >= until_ns or body.prefix_size == 0:
        return
    if relay.queued_waits < MAX_QUEUED_WAITS and queue_pair(relay, body, kind, from_ns, until_ns):
        relay.queued_waits += 1
    else:
        relay.dropped_waits += 1

# --- records: MessagePack of `streamgauge.ingest.records.Frames`

cdef void unlink_record(Relay *relay, Body *body) noexcept nogil:
    if body.earlier != NULL:
        body.earlier.later = body.later
    else:
        relay.oldest = body.later
    if body.later != NULL:
        body.later.earlier = body.earlier
    else:
        relay.newest = body.earlier
    body.earlier = body.later = NULL


cdef Item *finish_record(Relay *relay, Body *body) noexcept nogil:
    """Complete the record of a body and detach it. NULL: it has none."""
    cdef Item *item = body.record
    cdef uint8_t *target
    if item == NULL or item.a == 0:
        return NULL
    unlink_record(relay, body)
    body.record = NULL
    # Number and count are written last, into room that was left for them. They have fixed widths (uint64, array 32)
    # although smaller ones would do: the frames behind them never move.
    target = content(item) + body.prefix_size
    target[0] = 0xcf
    put_number(target + 1, body.seq, 8)
    target[9] = 0xdd
    put_number(target + 10, item.a, 4)
    body.seq += 1
    return item


cdef void hold(Relay *relay, Body *body, size_t size) noexcept nogil:
    """As `Recorder._hold`."""
    if body.epoch != relay.epoch:
        body.held_bytes = body.new_bytes if relay.epoch == body.epoch + 1 else 0
        body.epoch, body.new_bytes = relay.epoch, 0
    body.new_bytes += size
    body.held_bytes += size


cdef void queue_record(Relay *relay, Body *body) noexcept nogil:
    cdef Item *item = finish_record(relay, body)
    if item != NULL:
        hold(relay, body, item.capacity)
        queue(relay, item)
        if relay.pending_bytes >= WAKE_BYTES:
            wake_python(relay)


cdef uint8_t *room_for_frame(Relay *relay, Body *body, size_t size) noexcept nogil:
    """Where the payload of the next frame goes, of at most `size` bytes. NULL: there is no room."""
    cdef Item *item = body.record
    cdef size_t used = item.size if item != NULL else body.prefix_size + SEQ_BYTES
    cdef size_t needed = used + FRAME_BYTES + size
    cdef size_t capacity = item.capacity if item != NULL else 0
    cdef size_t wanted
    if needed > capacity:
        # Doubling keeps the copies of a growing record below its final size. When room is short, only what is needed is
        # tried.
        wanted = needed if needed > 2 * capacity else 2 * capacity
        if wanted < MIN_RECORD_BYTES:
            wanted = MIN_RECORD_BYTES
        hold(relay, body, 0)
        # `room_bytes` is half of the free room of the record buffer (`RecordBuffer.grant`), so this is the rule of
        # `Recorder._frame`, for the relay's own bytes.
        if relay.pending_bytes + wanted - capacity + body.held_bytes > relay.room_bytes:
            wanted = needed
            if relay.pending_bytes + wanted - capacity + body.held_bytes > relay.room_bytes:
                return NULL
        item = <Item *>realloc(body.record, sizeof(Item) + wanted)
        if item == NULL:
            return NULL
        relay.pending_bytes += wanted - capacity
        item.capacity = wanted
        if body.record == NULL:
            item.kind, item.body, item.a, item.b = RECORD, body.number, 0, 0
            memcpy(content(item), body.prefix, body.prefix_size)
            item.size = used
        body.record = item
    return content(item) + item.size + FRAME_BYTES


cdef void add_frame(Relay *relay, Body *body, int64_t now_ns, size_t size) noexcept nogil:
    """Add the frame whose payload is where `room_for_frame` said."""
    cdef Item *item = body.record
    cdef uint8_t *target = content(item) + item.size
    target[0] = 0x92
    target[1] = 0xcf
    put_number(target + 2, now_ns - body.t0_ns, 8)
    target[10] = 0xc6
    put_number(target + 11, size, 4)
    item.size += FRAME_BYTES + size
    # The list of bodies by the age of their first frame lets a tick take old records without a walk over all bodies. A
    # body enters it once per record, at its end, because times only grow.
    item.a += 1
    item.b += size
    if item.a == 1:
        body.record_ns = now_ns
        body.earlier = relay.newest
        body.later = NULL
        if relay.newest != NULL:
            relay.newest.later = body
        else:
            relay.oldest = body
        relay.newest = body


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


cdef bint is_heartbeat(const uint8_t *payload, size_t size) noexcept nogil:
    """Whether a read holds only SSE comment lines. As `streamgauge.ingest.tap.recording.body_capture.is_heartbeat`."""
    cdef size_t at
    if payload[0] != c':':
        return False
    for at in range(1, size):
        if (payload[at - 1] == c'\n' or payload[at - 1] == c'\r') and not (
            payload[at] == c':' or payload[at] == c'\n' or payload[at] == c'\r'
        ):
            return False
    return True

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
    event.data.u64 = <uint64_t>body.generation << 32 | body.number
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
        report_silence(relay, body, body.blocked_ns, now_ns)
        queue_wait(relay, body, CLIENT_WAIT, body.blocked_ns, now_ns)
    queue_record(relay, body)
    if body.record != NULL:  # without frames
        relay.pending_bytes -= body.record.capacity
        free(body.record)
        body.record = NULL
    body.cause, body.error = cause, error
    body.generation = 0
    body.end.kind, body.end.body = END, body.number
    queue(relay, body.end)
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
    if body.prefix_size and body.capture_bytes:
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
        if not body.events or not is_heartbeat(payload, payload_size):
            body.output_ns = now_ns
        if body.prefix_size:
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


cdef void *run(void *argument) noexcept nogil:
    cdef Relay *relay = <Relay *>argument
    cdef epoll_event events[EVENTS_AT_ONCE]
    cdef Body *body
    cdef uint32_t number
    cdef int count, i
    cdef bint stopping = False
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
            number = <uint32_t>events[i].data.u64
            body = relay.bodies[number]
            # An earlier event of this batch, or Python, may have ended the body.
            # Slots are reused. The generation in the event tells a new body from the one that the event was about,
            # which epoll cannot.
            if body != NULL and body.generation == events[i].data.u64 >> 32:
                if body.blocked:
                    on_writable(relay, body)
                else:
                    on_readable(relay, body)
            leave(relay)
    return NULL


# --- the interface for Python

cdef class NativeRelay:
    """The relay of one event loop. Call all methods from the loop's thread. `streamgauge.ingest.tap.relay.body_relay` explains the results."""

    cdef Relay *relay
    cdef pthread_t thread
    cdef bint started

    def __cinit__(self):
        self.relay = <Relay *>calloc(1, sizeof(Relay))
        if self.relay == NULL:
            raise MemoryError
        pthread_mutex_init(&self.relay.gate, NULL)
        pthread_mutex_init(&self.relay.lock, NULL)
        self.relay.last = &self.relay.first
        self.relay.epoll = epoll_create1(EPOLL_CLOEXEC)
        self.relay.wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)

    def start(self):
        """Start the thread. Raises OSError if the system refuses a descriptor or the thread."""
        cdef sigset_t everything, before
        cdef int error
        if self.started:
            raise RuntimeError("the native relay runs already")
        if self.relay.epoll < 0 or self.relay.wake < 0:
            raise OSError("cannot start the native relay: no file descriptor is left. Raise the limit of open files.")
        sigfillset(&everything)
        # The new thread inherits the mask. A signal that the kernel gave to it would never reach Python's handlers.
        pthread_sigmask(SIG_SETMASK, &everything, &before)  # signals are for Python's main thread
        error = pthread_create(&self.thread, NULL, run, self.relay)
        pthread_sigmask(SIG_SETMASK, &before, NULL)
        if error:
            raise OSError(error, "cannot start the native relay's thread")
        self.started = True
        pthread_setname_np(self.thread, "tap-relay")

    def close(self):
        """Stop the thread. Bodies that it still forwards are left alone: take them back before."""
        if self.started:
            self.started = False
            enter(self.relay)
            self.relay.stopping = True
            leave(self.relay)
            # The thread never takes the interpreter lock, but other threads of Python should run during the wait.
            with nogil:
                pthread_join(self.thread, NULL)

    def __dealloc__(self):
        cdef Relay *relay = self.relay
        cdef Item *item
        cdef uint32_t number
        if relay == NULL:
            return
        self.close()
        while relay.first != NULL:
            item, relay.first = relay.first, relay.first.next
            if item.kind != END:  # a body owns its own
                free(item)
        for number in range(relay.capacity):
            if relay.bodies[number] != NULL:
                free_body(relay.bodies[number])
        free(relay.bodies)
        free(relay.unused)
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

    @property
    def dropped_waits(self):
        enter(self.relay)
        dropped_waits = self.relay.dropped_waits
        leave(self.relay)
        return dropped_waits

    @property
    def pending_bytes(self):
        """Bytes kept for records."""
        enter(self.relay)
        pending_bytes = self.relay.pending_bytes
        leave(self.relay)
        return pending_bytes

    def set_room(self, size_t size_bytes, uint64_t epoch):
        """Limit `pending_bytes`. `epoch`: of the record buffer."""
        enter(self.relay)
        self.relay.room_bytes, self.relay.epoch = size_bytes, epoch
        leave(self.relay)

    def add(
        self, int upstream, int client, BodyReader reader not None, int64_t now_ns, int64_t output_ns, bint events, bytes prefix,
        uint64_t seq, int64_t t0_ns, uint64_t capture_bytes,
    ):
        """Forward the rest of a body between two descriptors. Returns its number. Raises OSError or MemoryError.

        `prefix`: MessagePack of a record up to its seq; empty: do not record.
        """
        cdef Relay *relay = self.relay
        cdef Body *body
        cdef int error
        if len(prefix) > PREFIX_BYTES:
            raise ValueError("the prefix of a record is too long")
        body = <Body *>calloc(1, sizeof(Body))
        if body == NULL:
            raise MemoryError
        # Allocated now: an end must be reported even when memory is short, because only it gives the sockets back to
        # Python.
        body.end = <Item *>calloc(1, sizeof(Item))
        body.upstream, body.client = upstream, client
        Py_INCREF(reader)
        body.reader, body.events = <PyObject *>reader, events
        body.last_ns, body.output_ns = now_ns, output_ns
        body.t0_ns = t0_ns
        body.prefix_size = len(prefix)
        memcpy(body.prefix, <const char *>prefix, body.prefix_size)
        body.seq, body.capture_bytes, body.dropped_bytes = seq, capture_bytes, -1
        enter(relay)
        try:
            if body.end == NULL or not slot_for(relay, body):
                free_body(body)
                raise MemoryError
            if watch(relay, upstream, EPOLLIN, body) < 0:
                error = errno  # `free` may change it
                free_slot(relay, body)
                raise OSError(error, "cannot watch a connection in the native relay")
            return body.number
        finally:
            leave(relay)

    def take_back(self, uint32_t number, int64_t now_ns):
        """Stop forwarding a body. Adds an end to the queue unless one is already there, or nothing has this number."""
        cdef Relay *relay = self.relay
        cdef Body *body
        enter(relay)
        body = body_of(relay, number)
        if body != NULL and body.generation:
            end_body(relay, body, TAKEN_BACK, 0, now_ns)
        leave(relay)

    def progress(self, uint32_t number):
        """(time of the last read, time of the last read with output, time when the client last resumed reading, whether the
        client is blocked now). Times in ns. Raises KeyError if nothing has this number."""
        cdef Relay *relay = self.relay
        cdef Body *body
        cdef Body found
        enter(relay)
        body = body_of(relay, number)
        if body != NULL:
            found = body[0]
        leave(relay)
        if body == NULL:
            raise KeyError(number)
        return found.last_ns, found.output_ns, found.ready_ns, bool(found.blocked)

    def take(self, int64_t before_ns):
        """Everything in the queue, and the records whose first frame arrived before a time.

        Returns (records, number of frames, payload bytes in them, events). An event is (number of records before it, kind, body, a, b).
        """
        cdef Relay *relay = self.relay
        cdef Item *item
        cdef Item *following
        cdef Body *body
        cdef uint64_t frames = 0, captured_bytes = 0, woken
        cdef size_t taken_bytes
        cdef list records = [], events = []
        enter(relay)
        if relay.woken:
            relay.woken = False
            read(relay.wake, &woken, 8)
        item = relay.first
        # The whole queue is detached under the lock and turned into Python objects without it: the relay goes on
        # meanwhile.
        relay.first, relay.last = NULL, &relay.first
        relay.queued_waits = 0
        leave(relay)
        while True:
            taken_bytes = 0
            while item != NULL:
                following = item.next
                if item.kind == RECORD:
                    records.append(PyBytes_FromStringAndSize(<char *>content(item), item.size))
                    frames += item.a
                    captured_bytes += item.b
                    taken_bytes += item.capacity
                    free(item)
                elif item.kind == END:
                    body = relay.bodies[item.body]
                    events.append((len(records), END, item.body, end_of(body), None))
                    enter(relay)
                    free_slot(relay, body)
                    leave(relay)
                else:
                    events.append((len(records), item.kind, item.body, item.a, item.b))
                    free(item)
                item = following
            enter(relay)
            # Released in steps of RECORDS_AT_ONCE: a stream that runs full gets room again before the last record is
            # converted.
            relay.pending_bytes -= taken_bytes
            item = finish_old_records(relay, before_ns)
            leave(relay)
            if item == NULL:
                return records, frames, captured_bytes, events


cdef Item *finish_old_records(Relay *relay, int64_t before_ns) noexcept nogil:
    """A list of some records, the oldest first."""
    cdef Item *first = NULL
    cdef Item **last = &first
    cdef int i
    for i in range(RECORDS_AT_ONCE):
        if relay.oldest == NULL or relay.oldest.record_ns > before_ns:
            break
        # As in `queue_record`: the bytes leave the relay but stay in the log's queue, where they count against the body
        # for two epochs.
        hold(relay, relay.oldest, relay.oldest.record.capacity)
        last[0] = finish_record(relay, relay.oldest)
        last[0].next = NULL
        last = &last[0].next
    return first


cdef inline Body *body_of(Relay *relay, uint32_t number) noexcept nogil:
    """NULL: no body has this number."""
    return relay.bodies[number] if number < relay.capacity else NULL


cdef tuple end_of(Body *body):
    """The fields of `body_relay.RelayedEnd`."""
    unsent = b""
    if body.unsent != NULL:
        unsent = PyBytes_FromStringAndSize(<char *>body.unsent + body.unsent_at, body.unsent_size - body.unsent_at)
    return (
        body.cause, body.error, body.last_ns, body.output_ns, body.payload_bytes, body.wire_bytes, unsent,
        body.seq, body.capture_bytes, body.uncaptured_bytes, body.uncaptured_ns, body.dropped_bytes,
    )


cdef bint slot_for(Relay *relay, Body *body) noexcept nogil:
    """Give a body its number. False: no memory."""
    cdef uint32_t wanted, number
    cdef void *grown
    if relay.unused_count == 0:
        wanted = relay.capacity * 2 if relay.capacity else 64
        grown = realloc(relay.bodies, wanted * sizeof(Body *))
        if grown == NULL:
            return False
        relay.bodies = <Body **>grown
        grown = realloc(relay.unused, wanted * sizeof(uint32_t))
        if grown == NULL:
            return False
        relay.unused = <uint32_t *>grown
        for number in range(relay.capacity, wanted):
            relay.bodies[number] = NULL
            # In reverse, so that the lowest number is given out first.
            relay.unused[relay.unused_count] = wanted - 1 - (number - relay.capacity)
            relay.unused_count += 1
        relay.capacity = wanted
    relay.unused_count -= 1
    body.number = relay.unused[relay.unused_count]
    relay.bodies[body.number] = body
    relay.generation += 1
    if relay.generation == 0:
        relay.generation = 1
    body.generation = relay.generation
    return True


cdef void free_slot(Relay *relay, Body *body) noexcept:
    relay.bodies[body.number] = NULL
    relay.unused[relay.unused_count] = body.number
    relay.unused_count += 1
    free_body(body)


cdef void free_body(Body *body) noexcept:
    Py_DECREF(<BodyReader>body.reader)
    free(body.unsent)
    free(body.record)
    free(body.end)
    free(body)
