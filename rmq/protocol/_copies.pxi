# Records that a slave copied from its master's log: `read_run` does in one pass what `rmq.store.files.scan.parse`
# and the making of units and index entries do for each record. It stops before the first record that is not plain
# or not good, which goes to the functions in Python.

cdef enum:
    PREPARED_FLAG = 4  # half messages, and with a second bit what was rolled back: both are rare
    BORN_V6_FLAG = 0x10
    STORE_V6_FLAG = 0x20

cdef struct Copied:
    int64_t position
    uint32_t size
    int32_t code
    Py_ssize_t queue

cdef class CopiedQueue:
    """The records of one queue in a run."""

    cdef bytes name
    cdef int32_t queue_id
    cdef uint32_t before_key
    cdef Py_ssize_t place
    cdef int64_t first, next
    cdef bytes units
    cdef char* unit


cdef class CopiedQueues:
    """The queues of a run, in the order of their first records."""

    cdef list queues
    cdef dict places
    cdef object rare
    cdef Py_ssize_t last

    def __cinit__(self, rare):
        self.queues, self.places, self.rare = [], {}, rare

    cdef CopiedQueue of(self, const char* topic, Py_ssize_t size, int32_t queue_id, int64_t queue_offset):
        """The queue of a record; None for a record that is not plain."""
        cdef Py_ssize_t guess = self.last, i, n = len(self.queues)
        cdef CopiedQueue queue
        for i in range(2):  # first guesses: the queue of the last record, and the next queue of the run
            if guess < n:
                queue = <CopiedQueue>self.queues[guess]
                if (
                    queue.queue_id == queue_id
                    and PyBytes_GET_SIZE(queue.name) == size
                    and memcmp(PyBytes_AS_STRING(queue.name), topic, size) == 0
                ):
                    self.last = guess
                    return queue
            guess = guess + 1 if guess + 1 < n else 0
        name = PyBytes_FromStringAndSize(topic, size)
        key = _key(name, queue_id)
        found = self.places.get(key)
        if found is None:
            for i in range(size):
                if topic[i] == c"/" or not 0 < <uint8_t>topic[i] < 0x80:
                    return None
            if name in (b"", b".", b"..") or name in self.rare:
                return None
            queue = CopiedQueue()
            queue.name, queue.queue_id, queue.place = name, queue_id, n
            queue.before_key = before_key(topic, size)
            queue.first = queue.next = queue_offset
            self.queues.append(queue)
            self.places[key] = queue
        else:
            queue = <CopiedQueue>found
        self.last = queue.place
        return queue


def read_run(bytes data, Py_ssize_t at, int64_t start, rare, bint check_crc, bint with_rows):
    """The plain records from byte `at` on of `data`, which begins at the physical offset `start`; None without
    one. Return (place after them, store time of the last, (topic, queue id, first queue offset, number, units) of
    each queue, rows for the index or None)."""
    cdef Py_ssize_t end = PyBytes_GET_SIZE(data), count = 0, size, head, body_size, topic_size, text_size, i
    cdef const char* base = PyBytes_AS_STRING(data)
    cdef const char* p
    cdef const char* topic
    cdef const char* text
    cdef int64_t queue_offset, stored = 0
    cdef int32_t queue_id
    cdef uint32_t sys_flag
    cdef Marks marks
    cdef CopiedQueue queue
    cdef CopiedQueues queues
    cdef Rows rows
    cdef Copied* copied
    if not 0 <= at <= end - RECORD_LEAST or get32(base + at + 4) != 0xDAA320A7u:
        return None
    queues = CopiedQueues(rare)
    rows = Rows() if with_rows else None
    copied = <Copied*>PyMem_Malloc(((end - at) // RECORD_LEAST) * sizeof(Copied))
    if copied == NULL:
        raise MemoryError
    try:
        while end - at >= RECORD_LEAST:
            p = base + at
            size = <int32_t>get32(p)
            if get32(p + 4) != 0xDAA320A7u or not RECORD_LEAST <= size <= end - at:
                break
            queue_id, queue_offset, sys_flag = <int32_t>get32(p + 12), <int64_t>get64(p + 20), get32(p + 36)
            if <int64_t>get64(p + 28) != start + at or queue_id < 0 or not 0 <= queue_offset < 1LL << 62:
                break
            if sys_flag & PREPARED_FLAG:
                break
            head = HEAD + (12 if sys_flag & BORN_V6_FLAG else 0) + (12 if sys_flag & STORE_V6_FLAG else 0)
            if head > size:
                break
            body_size = <int32_t>get32(p + head - 4)
            if body_size < 0 or body_size > size - head - 3:
                break
            topic = p + head + body_size + 1
            topic_size = <uint8_t>topic[-1]
            text_size = size - head - body_size - 3 - topic_size
            text = topic + topic_size + 2
            if text_size < 0 or get16(text - 2) != <uint32_t>text_size:
                break
            if check_crc and rmq_crc(<const uint8_t*>p + head, body_size, FOLDS) & 0x7FFFFFFFu != get32(p + 8):
                break
            if not find_marks(text, text_size, &marks):
                break
            queue = queues.of(topic, topic_size, queue_id, queue_offset)
            if queue is None or queue.next != queue_offset:
                break
            queue.next += 1
            stored = <int64_t>get64(p + (68 if sys_flag & BORN_V6_FLAG else 56))
            copied[count].position, copied[count].size = start + at, <uint32_t>size
            copied[count].code, copied[count].queue = marks.code, queue.place
            if rows is not None and rows.add_keys(queue.before_key, text, &marks, start + at, stored):
                rows.records += 1
            count += 1
            at += size
        if not count:
            return None
        for queue in queues.queues:
            queue.units = PyBytes_FromStringAndSize(NULL, 20 * (queue.next - queue.first))
            queue.unit = PyBytes_AS_STRING(queue.units)
        for i in range(count):
            queue = <CopiedQueue>queues.queues[copied[i].queue]
            put_unit(queue.unit, copied[i].position, copied[i].size, copied[i].code)
            queue.unit += 20
    finally:
        PyMem_Free(copied)
    made = [
        (queue.name.decode("ascii"), queue.queue_id, queue.first, queue.next - queue.first, queue.units)
        for queue in queues.queues
    ]
    return at, stored, made, rows if rows is not None and rows.count else None
