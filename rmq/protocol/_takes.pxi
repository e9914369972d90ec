# Runs of plain pops and acknowledgements of batches: a part of `_engine.pyx`, which includes this file.
#
# Consumers send the same pop all the time: only the opaque, the time of birth and the name of the attempt change. So a
# header of one of these requests with zeros in place of the numbers, and no name, is the key of a lane, which the
# broker opens with the values that it has read from the header. `TakeLanes.read` reads a queue's messages and writes
# the answer to a pop around them.

cdef enum:
    TAKE_HEADER_MAX = 1024  # bytes of a plain header
    TAKE_BODY_MAX = 65536  # bytes of a plain acknowledgement
    TAKE_COUNT_MAX = 65536  # messages of a plain pop
    TAKE_PARTS = 8  # constant parts of an answer's header


cdef inline bint begins_a_take(const char* p, const char* end) noexcept nogil:
    if end - p < 15:
        return 0
    return memcmp(p, b'{"code":200050,', 15) == 0 or memcmp(p, b'{"code":200151,', 15) == 0


cdef Py_ssize_t take_key(const char* p, Py_ssize_t size, char* key, int32_t* opaque) noexcept nogil:
    """Write a header with 0 in place of its opaque and its `bornTime`, and without its `attemptId`; return the bytes,
    0 for a header with other characters than printable ASCII, with escapes, or with one of these numbers twice or in
    another form."""
    cdef const char* end = p + size
    cdef const char* rest
    cdef char* out = key
    cdef Part born, ignored_text
    cdef int64_t ignored = 0
    cdef bint has_opaque = 0, has_born = 0
    if size > TAKE_HEADER_MAX:
        return 0
    while p < end:
        if not 0x20 <= p[0] < 0x7f or p[0] == c'\\':
            return 0
        if p[0] == c'"':
            rest = after(p, end, b'"opaque":', 9)
            if rest != NULL:
                p = digits(rest, end, opaque)
                if has_opaque or p == NULL:
                    return 0
                has_opaque = 1
                out = put_text(out, b'"opaque":0', 10)
                continue
            rest = after(p, end, b'"bornTime":"', 12)
            if rest != NULL:
                p = quoted(rest, end, &born, 0)
                if has_born or p == NULL or not number64(born, &ignored):
                    return 0
                has_born = 1
                out = put_text(out, b'"bornTime":"0"', 14)
                continue
            rest = after(p, end, b'"attemptId":"', 13)
            if rest != NULL:
                p = quoted(rest, end, &ignored_text, 0)
                if p == NULL:
                    return 0
                out = put_text(out, b'"attemptId":""', 14)
                continue
        out[0] = p[0]
        out += 1
        p += 1
    return out - key if has_opaque else 0


cdef class TakeRun:
    """Consecutive plain pops and acknowledgements of a chunk."""

    cdef readonly list rows
    cdef readonly int flag
    cdef readonly int64_t generation
    cdef bytes data
    cdef list places

    def __len__(self):
        return len(self.rows)

    @property
    def count(self):
        return len(self.rows)

    def commands(self, Py_ssize_t first=0):
        cdef Py_ssize_t at
        cdef const char* base = PyBytes_AS_STRING(self.data)
        commands = []
        for at in self.places[first:]:
            commands += frames.split_frames(self.data[at : at + 4 + get32(base + at)], 0x7FFFFFFF)[0]
        return commands


cdef class TakeLanes(Choice):
    """Lanes of plain takes by the key of their header; the choice for the pop that is being answered."""

    cdef dict table
    cdef list wanted
    cdef readonly bint is_open
    cdef readonly int64_t generation
    cdef tuple parts
    cdef int64_t small_bytes
    cdef dict ahead  # by queue: its `cuts`, an offset, and the units of its files from there on
    cdef char* head
    cdef Py_ssize_t head_room

    def __init__(self, tuple parts, int64_t small_bytes):
        if len(parts) != TAKE_PARTS or not all(type(part) is bytes for part in parts):
            raise ValueError("a head has eight parts")
        self.parts, self.small_bytes = parts, small_bytes
        self.table, self.wanted, self.ahead = {}, [], {}

    def __dealloc__(self):
        PyMem_Free(self.head)

    def __len__(self):
        return len(self.table)

    def add(self, bytes key, lane):
        self.table[key] = lane

    def remove(self, bytes key):
        self.table.pop(key, None)

    def reset(self, bint is_open):
        self.clear()
        self.is_open = is_open

    def clear(self):
        self.table.clear()
        self.ahead.clear()
        self.generation += 1

    @property
    def wants_more(self):
        return bool(self.wanted)

    def take_wanted(self):
        wanted, self.wanted = self.wanted, []
        return wanted

    cdef TakeRun begin(self, bytes data):
        cdef TakeRun run = TakeRun()
        run.data, run.rows, run.places, run.generation = data, [], [], self.generation
        return run

    cdef int take(self, TakeRun run, const char* base, Py_ssize_t at, uint32_t header_size, Py_ssize_t stop) except -1:
        """Take a frame into a run, if it has a lane."""
        cdef char text[TAKE_HEADER_MAX + 16]
        cdef int32_t opaque = 0
        cdef const char* body = base + at + 8 + header_size
        cdef Py_ssize_t size = take_key(base + at + 8, header_size, text, &opaque), body_size = base + stop - body
        if size == 0 or body_size > TAKE_BODY_MAX:
            return 0
        key = PyBytes_FromStringAndSize(text, size)
        lane = self.table.get(key)
        if lane is None:
            if len(self.wanted) < WANTED_MAX:
                self.wanted.append(key)
            return 0
        run.rows.append((lane, opaque, PyBytes_FromStringAndSize(body, body_size)))
        run.places.append(at)
        return 1

    def read(self, queue, log, tuple bounds, int64_t offset, int64_t most, tuple numbers):
        """See the stub."""
        cdef int64_t memory = bounds[0], log_start = log.start, log_end = log.end
        cdef Limits limits = Limits(
            min(most, <int64_t>bounds[1]), bounds[2], min(most, <int64_t>bounds[3]), bounds[4], log_end - memory
        )
        cdef Py_buffer buffer
        cdef Py_ssize_t head_size
        cdef int64_t start, left, per_file = queue.units_per_file
        if <int64_t>queue.trimmed_to < log_start or offset < <int64_t>queue.start or not 0 < most <= TAKE_COUNT_MAX:
            return None
        if per_file <= 0 or offset % per_file + most > per_file:  # a read ends at the end of a file
            return None
        units, start = queue.tail, queue.tail_start
        if offset < start:
            units, start = self.units_of_files(queue, offset, most)
        PyObject_GetBuffer(units, &buffer, PyBUF_SIMPLE)
        try:
            left = buffer.len // 20 - (offset - start)
            if left < most:
                return None
            self.choose(
                <const char*>buffer.buf + (offset - start) * 20, most, log_start, log_end, limits, NULL, -1, None
            )
        finally:
            PyBuffer_Release(&buffer)
        if self.found != most or self.looked != most:
            return None
        head_size = self.write_head(<int64_t>queue.queue_id, offset, most, numbers)
        buffers = self.buffers(log.file_view, self.small_bytes, COPIED_MAX, self.head, head_size)
        return None if buffers is None else (self.total, buffers)

    cdef tuple units_of_files(self, queue, int64_t offset, int64_t most):
        """Units with those from `offset` on, and the offset of the first. One read serves several pops."""
        cdef int64_t cuts = queue.cuts, first
        cdef bytes units
        kept = self.ahead.get(queue)
        if kept is not None and <int64_t>kept[0] == cuts:
            first, units = kept[1], kept[2]
            if first <= offset and offset + most <= first + PyBytes_GET_SIZE(units) // 20:
                return units, first
        elif len(self.ahead) >= AHEAD_LANES:
            self.ahead.clear()
        units = bytes(queue.units(offset, max(most, <int64_t>UNITS_AHEAD)))
        self.ahead[queue] = cuts, offset, units
        return units, offset

    cdef Py_ssize_t write_head(
        self, int64_t queue_id, int64_t offset, int64_t most, tuple given
    ) except -1:
        """Write the head of an answer; return its size."""
        cdef Py_ssize_t room = 8 + 21 * (most + TAKE_PARTS), i
        cdef int64_t numbers[TAKE_PARTS - 1]
        cdef int64_t k
        cdef bytes part
        cdef void* more
        cdef char* p
        numbers[0], numbers[1], numbers[2], numbers[3] = given[0], given[1], queue_id, offset
        numbers[4], numbers[5], numbers[6] = queue_id, offset, given[2]
        for i in range(TAKE_PARTS):
            room += PyBytes_GET_SIZE(<bytes>self.parts[i])
        if room > self.head_room:
            more = PyMem_Realloc(self.head, room)
            if more == NULL:
                raise MemoryError
            self.head, self.head_room = <char*>more, room
        p = self.head + 8
        for i in range(TAKE_PARTS):
            part = <bytes>self.parts[i]
            p = put_text(p, PyBytes_AS_STRING(part), PyBytes_GET_SIZE(part))
            if i < TAKE_PARTS - 1:
                p += decimal(numbers[i], p)
            if i == 5:
                for k in range(1, most):
                    p[0] = c','
                    p += 1 + decimal(offset + k, p + 1)
        put32(self.head, <uint32_t>(p - self.head - 4 + self.total))
        put32(self.head + 4, <uint32_t>(p - self.head - 8))
        return p - self.head
