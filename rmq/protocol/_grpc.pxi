# Plain sends of gRPC: a part of `_engine.pyx`, which includes this file.
#
# A SendMessageRequest of `apache.rocketmq.v2` is read from protobuf's bytes into a row of a run, as a send of RocketMQ's own
# protocol is. It is plain with one message for a topic that is open, of type NORMAL or FIFO, whose body is not packed, with
# texts of printable ASCII and with each field at most once. All else is left to Python, which defines the right result:
# `rmq_grpc.messages.to_store` and `rmq.broker.produce.append.Append.message`.

cdef enum:
    PROPERTIES_OF_A_CALL = 16  # user properties of a plain message
    KEYS_OF_A_CALL = 16
    TEXTS_OF_A_CALL = 4096  # bytes of user properties, tag and keys: so many are allowed in any encoding
    ID_MAX = 64  # bytes of a plain message id
    CALL_GROUP_MAX = 63  # bytes of a message group
    SEND_PARTS = 7  # constant parts of an answer

cdef struct CallSend:
    Part topic, body, tag, id, born_host, group
    Part keys[KEYS_OF_A_CALL]
    Part names[PROPERTIES_OF_A_CALL]
    Part values[PROPERTIES_OF_A_CALL]
    int keys_count, properties_count
    int64_t born


cdef inline const char* read_varint(const char* p, const char* end, uint64_t* out) noexcept nogil:
    """Read a varint of at most nine bytes; NULL for another."""
    cdef uint64_t value = 0
    cdef int shift = 0
    while p < end and shift < 63:
        value |= <uint64_t>(<uint8_t>p[0] & 0x7f) << shift
        if not <uint8_t>p[0] & 0x80:
            out[0] = value
            return p + 1
        p += 1
        shift += 7
    return NULL

cdef inline const char* read_sized(const char* p, const char* end, Part* part) noexcept nogil:
    """Read a length and so many bytes; NULL if they are not all there."""
    cdef uint64_t size = 0
    p = read_varint(p, end, &size)
    if p == NULL or size > <uint64_t>(end - p):
        return NULL
    part.at, part.size = p, <Py_ssize_t>size
    return p + size

cdef inline const char* read_plain(const char* p, const char* end, Part* part) noexcept nogil:
    """Read a text of printable ASCII; NULL for another."""
    p = read_sized(p, end, part)
    return p if p != NULL and is_ascii(part[0]) else NULL

cdef inline bint has(Part part, char c) noexcept nogil:
    return part.size > 0 and memchr(part.at, c, part.size) != NULL

cdef inline int compared(Part one, Part other) noexcept nogil:
    """The order of two texts by their bytes: negative, 0 or positive."""
    cdef int order = memcmp(one.at, other.at, min(one.size, other.size))
    return order if order else (one.size > other.size) - (one.size < other.size)

cdef bint read_resource(Part part, Part* name) noexcept nogil:
    cdef const char* p = part.at
    cdef const char* end = p + part.size
    cdef Part ignored
    cdef int seen = 0
    while p < end:
        if p[0] == 0x0a and not seen & 1:
            seen |= 1
            p = read_plain(p + 1, end, &ignored)
        elif p[0] == 0x12 and not seen & 2:
            seen |= 2
            p = read_plain(p + 1, end, name)
        else:
            return 0
        if p == NULL:
            return 0
    return name.size > 0

cdef bint read_property(Part part, CallSend* send) noexcept nogil:
    """Read an entry of the user properties into its place by the order of the names."""
    cdef const char* p = part.at
    cdef const char* end = p + part.size
    cdef Part name = Part(NULL, 0), value = Part(NULL, 0)
    cdef int seen = 0, i = send.properties_count, order
    if i == PROPERTIES_OF_A_CALL:
        return 0
    while p < end:
        if p[0] == 0x0a and not seen & 1:
            seen |= 1
            p = read_plain(p + 1, end, &name)
        elif p[0] == 0x12 and not seen & 2:
            seen |= 2
            p = read_plain(p + 1, end, &value)
        else:
            return 0
        if p == NULL:
            return 0
    if name.size == 0:
        return 0
    if value.at == NULL:
        value.at = name.at
    while i:
        order = compared(name, send.names[i - 1])
        if order == 0:
            return 0
        if order > 0:
            break
        send.names[i], send.values[i] = send.names[i - 1], send.values[i - 1]
        i -= 1
    send.names[i], send.values[i] = name, value
    send.properties_count += 1
    return 1

cdef bint read_time(Part part, int64_t* ms) noexcept nogil:
    """Read a Timestamp of this century as milliseconds."""
    cdef const char* p = part.at
    cdef const char* end = p + part.size
    cdef uint64_t seconds = 0, nanos = 0
    cdef int seen = 0
    while p < end:
        if p[0] == 0x08 and not seen & 1:
            seen |= 1
            p = read_varint(p + 1, end, &seconds)
        elif p[0] == 0x10 and not seen & 2:
            seen |= 2
            p = read_varint(p + 1, end, &nanos)
        else:
            return 0
        if p == NULL:
            return 0
    if seconds >= <uint64_t>1 << 33 or nanos >= 1_000_000_000:
        return 0
    ms[0] = <int64_t>(seconds * 1000 + nanos // 1_000_000)
    return 1

cdef bint read_digest(Part part) noexcept nogil:
    """True for a digest that can be read; nobody looks at it."""
    cdef const char* p = part.at
    cdef const char* end = p + part.size
    cdef Part ignored
    cdef uint64_t number = 0
    while p < end:
        if p[0] == 0x08:
            p = read_varint(p + 1, end, &number)
        elif p[0] == 0x12:
            p = read_plain(p + 1, end, &ignored)
        else:
            return 0
        if p == NULL or number > 0x7fffffff:
            return 0
    return 1

cdef bint read_system(Part part, CallSend* send) noexcept nogil:
    """Read the properties that have fields of their own."""
    cdef const char* p = part.at
    cdef const char* end = p + part.size
    cdef Part text
    cdef uint64_t number = 0
    cdef uint32_t seen = 0
    cdef int field, kind
    while p < end:
        if <uint8_t>p[0] & 0x80:  # a field from 16 on: its key has two bytes
            if end - p < 2 or <uint8_t>p[1] != 1:
                return 0
            field, kind = 16 | (p[0] >> 3 & 15), p[0] & 7
            p += 2
        else:
            field, kind = p[0] >> 3, p[0] & 7
            p += 1
        if field != 2:
            if seen >> field & 1:
                return 0
            seen |= 1u << field
        if kind == 0:
            p = read_varint(p, end, &number)
            # The encoding IDENTITY, the types NORMAL and FIFO, or none; the queue's number is nobody's.
            if p == NULL or not (
                (field == 5 and number <= 1) or (field == 6 and number <= 2) or (field == 13 and number <= 0x7fffffff)
            ):
                return 0
            continue
        if kind != 2:
            return 0
        if field == 4 or field == 7:
            p = read_sized(p, end, &text)
            if p == NULL or not (read_digest(text) if field == 4 else read_time(text, &send.born)):
                return 0
            continue
        p = read_plain(p, end, &text)
        if p == NULL:
            return 0
        if field == 1:
            send.tag = text
        elif field == 2:
            if text.size == 0:
                continue
            if send.keys_count == KEYS_OF_A_CALL or has(text, c' '):
                return 0
            send.keys[send.keys_count] = text
            send.keys_count += 1
        elif field == 3:
            send.id = text
        elif field == 8:
            send.born_host = text
        elif field == 17:
            send.group = text
        elif field != 10:
            return 0
    return 1

cdef bint read_send(const char* p, const char* end, CallSend* send) noexcept nogil:
    """Read a plain SendMessageRequest, whose single message fills it."""
    cdef Part part, topic = Part(NULL, 0), system = Part(NULL, 0)
    cdef int seen = 0, i
    cdef Py_ssize_t size
    if p >= end or p[0] != 0x0a:
        return 0
    p = read_sized(p + 1, end, &part)
    if p != end:
        return 0
    p = part.at
    while p < end:
        if p[0] == 0x12:
            p = read_sized(p + 1, end, &part)
            if p == NULL or not read_property(part, send):
                return 0
        elif p[0] == 0x0a and not seen & 1:
            seen |= 1
            p = read_sized(p + 1, end, &topic)
        elif p[0] == 0x1a and not seen & 2:
            seen |= 2
            p = read_sized(p + 1, end, &system)
        elif p[0] == 0x22 and not seen & 4:
            seen |= 4
            p = read_sized(p + 1, end, &send.body)
        else:
            return 0
        if p == NULL:
            return 0
    if seen != 7 or send.body.size == 0 or not (read_resource(topic, &send.topic) and read_system(system, send)):
        return 0
    if not 0 < send.id.size <= ID_MAX or has(send.id, c' '):
        return 0
    if send.group.size > CALL_GROUP_MAX or (send.group.size and send.group.at[0] == c' '):
        return 0
    if has(send.tag, c'|') or (send.tag.size and send.tag.at[0] == c' '):
        return 0
    size = send.tag.size
    for i in range(send.properties_count):
        size += send.names[i].size + send.values[i].size
    for i in range(send.keys_count):
        size += send.keys[i].size
    return size <= TEXTS_OF_A_CALL

cdef inline char* put_property(char* p, const char* name, Py_ssize_t name_size, Part value) noexcept nogil:
    """Write a property, and a separator behind it."""
    p = put_text(p, name, name_size)
    p[0] = 1
    p = put_text(p + 1, value.at, value.size)
    p[0] = 2
    return p + 1

cdef int32_t queue_of_group(Part group, int32_t queues) noexcept nogil:
    """The queue of a message group: see `rmq_grpc.messages.queue_of`."""
    cdef uint64_t state = <uint64_t><int64_t>java_hash(group.at, group.size)
    cdef int64_t chosen = 0, following
    cdef double fraction
    while True:
        state = 2862933555777941757ULL * state + 1
        fraction = <double>(<int64_t>(state >> 33) + 1) / 2147483648.0
        following = <int64_t>(<double>(chosen + 1) / fraction)
        if not 0 <= following < queues:
            return <int32_t>chosen
        chosen = following

cdef inline char* put_frame(char* p, Py_ssize_t size, int kind, int flags, int32_t stream_id) noexcept nogil:
    """Write the head of a frame of HTTP/2."""
    put32(p, <uint32_t>(size << 8) | kind)
    p[4] = <char>flags
    put32(p + 5, <uint32_t>stream_id)
    return p + 9

cdef inline char* put_varint(char* p, uint64_t value) noexcept nogil:
    while value > 127:
        p[0] = <char>(value & 127 | 128)
        p += 1
        value >>= 7
    p[0] = <char>value
    return p + 1


cdef class CallSends:
    """Plain sends of gRPC, for topics that are open in `lanes`. `reserved` are names that no property of an application
    may have."""

    cdef Lanes lanes
    cdef bytes rare

    def __init__(self, Lanes lanes, reserved):
        self.lanes = lanes
        self.rare = listed(reserved) + lanes.rare

    def begin(self, bytes data):
        """See the stub."""
        cdef Lanes lanes = self.lanes
        cdef SendRun run
        if not lanes.is_open or not lanes.open_topics:
            return None
        run = SendRun()
        run.data = data
        run.number = lanes.runs = lanes.runs + 1
        run.generation = lanes.generation
        return run

    def take(self, SendRun run, Py_ssize_t begin, Py_ssize_t end, int32_t call, int64_t turn, int64_t now, bytes host):
        """See the stub."""
        cdef const char* base = PyBytes_AS_STRING(run.data)
        cdef CallSend send
        cdef Row* row
        cdef char* text
        cdef char* p
        cdef char born[24]
        cdef Part part
        cdef int i
        cdef int32_t queues, queue_id, place
        cdef Py_ssize_t room
        if not 0 <= begin <= end <= PyBytes_GET_SIZE(run.data) or run.generation != self.lanes.generation:
            return False
        send.keys_count = send.properties_count = 0
        send.born = 0
        send.topic = send.body = send.tag = send.id = send.born_host = send.group = Part(NULL, 0)
        if not read_send(base + begin, base + end, &send):
            return False
        for i in range(send.properties_count):
            if is_rare(send.names[i].at, send.names[i].size, PyBytes_AS_STRING(self.rare), PyBytes_GET_SIZE(self.rare)):
                return False
        if send.born_host.size == 0:
            send.born_host = Part(PyBytes_AS_STRING(host), PyBytes_GET_SIZE(host))
            if send.born_host.size == 0 or not is_ascii(send.born_host):
                return False
        found = self.lanes.open_topics.get(PyBytes_FromStringAndSize(send.topic.at, send.topic.size))
        if found is None:
            return False
        queues = found
        queue_id = queue_of_group(send.group, queues) if send.group.size else <int32_t>(turn % queues)
        place = self.lanes.place_of(run, send.topic, queue_id)
        if place < 0:
            return False
        # All texts, for each property the separators, and the names of the system's.
        room = (end - begin) - send.body.size + send.topic.size + send.born_host.size + 256
        run.reserve(room)
        text = run.texts + run.texts_size
        p = text
        for i in range(send.properties_count):
            p = put_property(p, send.names[i].at, send.names[i].size, send.values[i])
        row = &run.rows[run.count]
        row.key_at = run.texts_size + (p - text) + 9
        row.key_size = <uint32_t>send.id.size
        p = put_property(p, b"UNIQ_KEY", 8, send.id)
        p = put_property(p, b"__BORNHOST", 10, send.born_host)
        part.at = &born[0]
        part.size = decimal(send.born if send.born else now, &born[0])
        p = put_property(p, b"BORN_TIMESTAMP", 14, part)
        p = put_property(p, b"PGROUP", 6, send.topic)
        if send.group.size:
            p = put_property(p, b"__SHARDINGKEY", 13, send.group)
        row.keys_at = row.keys_size = 0
        if send.keys_count:
            p = put_text(p, b"KEYS\x01", 5)
            row.keys_at = run.texts_size + (p - text)
            for i in range(send.keys_count):
                p = put_text(p, send.keys[i].at, send.keys[i].size)
                p[0] = c' '
                p += 1
            row.keys_size = <uint32_t>(p - text + run.texts_size - row.keys_at - 1)
            p[-1] = 2
        row.code = 0
        if send.tag.size:
            row.code = java_hash(send.tag.at, send.tag.size)
            p = put_property(p, b"TAGS", 4, send.tag)
        row.text_at = run.texts_size
        row.text_size = <uint32_t>(p - text - 1)  # without the last separator
        if row.text_size > TEXT_MAX:
            return False
        row.body_at, row.body_size = send.body.at - base, <uint32_t>send.body.size
        row.frame_at = 0
        row.born, row.position, row.queue_offset = now, 0, 0
        row.lane, row.opaque, row.binary = place, call, 0
        row.sys_flag = row.flag = row.reconsumed = 0
        run.largest = max(run.largest, send.body.size)
        run.bodies += send.body.size
        run.texts_size += row.text_size
        run.count += 1
        return True

    def answers(self, SendRun run, tuple given):
        """See the stub."""
        cdef const char* parts[SEND_PARTS]
        cdef Py_ssize_t sizes[SEND_PARTS]
        cdef Py_ssize_t i, fixed = 128, size, total = 0, entry
        cdef char* buffer
        cdef char* p
        cdef char* data
        cdef char offset[16]
        cdef Py_ssize_t offset_size
        cdef Row* row
        if len(given) != SEND_PARTS:
            raise ValueError("an answer has seven parts")
        for i in range(SEND_PARTS):
            part = <bytes?>given[i]
            parts[i], sizes[i] = PyBytes_AS_STRING(part), PyBytes_GET_SIZE(part)
            fixed += sizes[i]
        buffer = <char*>PyMem_Malloc(run.count * (fixed + ID_MAX) + 1)
        if buffer == NULL:
            raise MemoryError
        p = buffer
        for i in range(run.count):
            row = &run.rows[i]
            p = put_frame(p, sizes[0], 1, 4, row.opaque)
            p = put_text(p, parts[0], sizes[0])
            offset_size = put_varint(offset, <uint64_t>row.queue_offset) - offset
            entry = sizes[3] + sizes[4] + 1 + (row.key_size > 127) + row.key_size
            if row.queue_offset:
                entry += sizes[5] + offset_size
            data = p
            p = put_text(p + 14, parts[1], sizes[1])
            p = put_varint(put_text(p, parts[2], sizes[2]), entry)
            p = put_text(p, parts[3], sizes[3])
            p = put_varint(put_text(p, parts[4], sizes[4]), row.key_size)
            p = put_text(p, run.texts + row.key_at, row.key_size)
            if row.queue_offset:
                p = put_text(put_text(p, parts[5], sizes[5]), offset, offset_size)
            size = p - data - 9
            put_frame(data, size, 0, 0, row.opaque)
            data[9] = 0
            put32(data + 10, <uint32_t>(size - 5))
            total += size
            p = put_frame(p, sizes[6], 1, 5, row.opaque)
            p = put_text(p, parts[6], sizes[6])
        try:
            return PyBytes_FromStringAndSize(buffer, p - buffer), total
        finally:
            PyMem_Free(buffer)
