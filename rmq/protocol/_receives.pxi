# Answers to gRPC's ReceiveMessage: a part of `_engine.pyx`, which includes this file.
#
# `plain_records` finds the records that doors can give to their clients as they are stored. `CallMessages` writes such a record as a
# ReceiveMessageResponse, as `rmq_grpc.encoding.received` does. It takes records whose properties are printable ASCII with each name
# once, with a unique key, and without those of delayed messages, transactions, traces and dead letters.

cdef enum:
    RECORD_PAIRS = 48  # properties of a plain record
    MESSAGE_PARTS = 22  # constant parts of a message
    MESSAGE_ROOM = 640  # bytes of a message beside its texts and its handle

cdef int64_t LATEST_MS = 1LL << 46

cdef enum:  # the constant parts, in their order
    OF_RECEIVED = 0
    OF_TOPIC = 1
    OF_NAME = 2
    OF_PROPERTY = 3
    OF_SYSTEM = 4
    OF_BODY = 5
    OF_TAG = 6
    OF_KEYS = 7
    OF_HANDLE = 8
    OF_ID = 9
    OF_DIGEST = 10
    OF_NORMAL = 11
    OF_FIFO = 12
    OF_BORN = 13
    OF_BORN_HOST = 14
    OF_STORED = 15
    OF_STORE_HOST = 16
    OF_OFFSET = 17
    OF_QUEUE = 18
    OF_INVISIBLE = 19
    OF_ATTEMPT = 20
    OF_GROUP = 21


cdef bint is_whole(const char* record, Py_ssize_t room, uint32_t magic) noexcept nogil:
    """True for a good record with two IPv4 hosts whose body is not compressed, in so many bytes."""
    cdef Py_ssize_t size, length, at
    if room < RECORD_LEAST:
        return 0
    size, length = <int32_t>get32(record), <int32_t>get32(record + 84)
    if get32(record + 4) != magic or not RECORD_LEAST <= size <= room or get32(record + 36) & (HOST_FLAGS | COMPRESSED_FLAG):
        return 0
    if not 0 <= length <= size - RECORD_LEAST:
        return 0
    at = HEAD + length + 1 + <uint8_t>record[HEAD + length]
    if at + 2 > size or get16(record + at) != <uint32_t>(size - at - 2) or size - at - 2 > 0x7fff:
        return 0
    return rmq_crc(<const uint8_t*>record + HEAD, length, FOLDS) & 0x7fffffff == get32(record + 8)


def plain_records(bytes data, uint32_t magic):
    """See the stub."""
    cdef const char* start = PyBytes_AS_STRING(data)
    cdef Py_ssize_t at = 0, end = PyBytes_GET_SIZE(data)
    cdef list found = []
    while at < end and is_whole(start + at, end - at, magic):
        found.append((at, <int64_t>get64(start + at + 20), <int64_t>get64(start + at + 28), <int32_t>get32(start + at + 84)))
        at += <int32_t>get32(start + at)
    return found, at


cdef inline bint named(Part name, const char* text, Py_ssize_t size) noexcept nogil:
    return name.size == size and memcmp(name.at, text, size) == 0

cdef inline bint is_one_of(bytes names, Part name) noexcept:
    return is_listed(name.at, name.size, PyBytes_AS_STRING(names), PyBytes_GET_SIZE(names))

cdef inline Py_ssize_t varint_size(uint64_t value) noexcept nogil:
    cdef Py_ssize_t size = 1
    while value > 127:
        size += 1
        value >>= 7
    return size

cdef inline char* put_sized(char* p, Part key, const char* text, Py_ssize_t size) noexcept nogil:
    """Write a field of so many bytes."""
    return put_text(put_varint(put_text(p, key.at, key.size), <uint64_t>size), text, size)

cdef char* put_time(char* p, Part key, int64_t ms) noexcept nogil:
    """Write a Timestamp or Duration; a zero is left out."""
    cdef char* data
    p = put_text(p, key.at, key.size)
    data = p + 1
    if ms // 1000:
        data[0] = 0x08
        data = put_varint(data + 1, <uint64_t>(ms // 1000))
    if ms % 1000:
        data[0] = 0x10
        data = put_varint(data + 1, <uint64_t>(ms % 1000 * 1_000_000))
    p[0] = <char>(data - p - 1)
    return data

cdef char* put_host(char* p, Part key, const char* host) noexcept nogil:
    """Write an IPv4 address and port of a record as text."""
    cdef char text[40]
    cdef int size = 0, i
    for i in range(4):
        size += decimal(<uint8_t>host[i], text + size)
        text[size] = c":" if i == 3 else c"."
        size += 1
    size += decimal(<int32_t>get32(host + 4), text + size)
    return put_sized(p, key, text, size)

cdef int64_t number_of(Part text) noexcept nogil:
    """The number of a property; 0 for none, and for text that is none."""
    cdef int64_t value = 0
    cdef Py_ssize_t i
    if not 0 < text.size < 18:
        return 0
    for i in range(text.size):
        if not c"0" <= text.at[i] <= c"9":
            return 0
        value = value * 10 + (text.at[i] - c"0")
    return value


cdef class CallMessages:
    """Records as the messages of an answer. `silent` are properties that clients do not see, `special` those of
    records that are not plain."""

    cdef tuple kept
    cdef Part parts[MESSAGE_PARTS]
    cdef bytes silent, special
    cdef object md5
    cdef char* out
    cdef Py_ssize_t room

    def __cinit__(self):
        self.out = NULL

    def __dealloc__(self):
        PyMem_Free(self.out)

    def __init__(self, tuple parts, silent, special, md5):
        cdef int i
        if len(parts) != MESSAGE_PARTS:
            raise ValueError("a message has 22 parts")
        self.kept, self.md5 = parts, md5
        for i in range(MESSAGE_PARTS):
            part = <bytes?>parts[i]
            if len(part) > (16 if i in (OF_DIGEST, OF_NORMAL, OF_FIFO) else 2):
                raise ValueError("a part is too long")
            self.parts[i] = Part(PyBytes_AS_STRING(part), PyBytes_GET_SIZE(part))
        self.silent, self.special = listed(silent), listed(special)

    cdef inline char* put(self, char* p, int part) noexcept:
        return put_text(p, self.parts[part].at, self.parts[part].size)

    def message(self, bytes data, Py_ssize_t at, str handle, int64_t attempt, int64_t invisible_ms):
        """See the stub."""
        cdef const char* record
        cdef const char* p
        cdef const char* end
        cdef const char* stop
        cdef Part names[RECORD_PAIRS]
        cdef Part values[RECORD_PAIRS]
        cdef Part tags = Part(NULL, 0), keys = Part(NULL, 0), key = Part(NULL, 0), group = Part(NULL, 0)
        cdef Part born = Part(NULL, 0), host = Part(NULL, 0), topic, lease
        cdef Py_ssize_t size, length, room, total
        cdef bint is_users[RECORD_PAIRS]
        cdef int count = 0
        cdef Py_ssize_t i, j
        cdef int64_t born_ms, stored_ms
        cdef char* head
        cdef char* system
        cdef char* out
        if not 0 <= at <= PyBytes_GET_SIZE(data) - RECORD_LEAST or not PyUnicode_IS_COMPACT_ASCII(handle):
            return None
        record = PyBytes_AS_STRING(data) + at
        size, length = <int32_t>get32(record), <int32_t>get32(record + 84)
        if not RECORD_LEAST <= size <= PyBytes_GET_SIZE(data) - at or not 0 <= length <= size - RECORD_LEAST:
            return None
        lease = Part(<const char*>PyUnicode_DATA(handle), PyUnicode_GET_LENGTH(handle))
        p = record + HEAD + length
        end = record + size
        topic = Part(p + 1, <uint8_t>p[0])
        p = topic.at + topic.size + 2
        if p > end or not is_ascii(topic):
            return None
        # The properties: all printable, each name once.
        while p < end:
            stop = <const char*>memchr(p, 2, end - p)
            if stop == NULL:
                stop = end
            if count == RECORD_PAIRS:
                return None
            names[count].at = p
            p = <const char*>memchr(p, 1, stop - p)
            if p == NULL:
                return None
            names[count].size = p - names[count].at
            values[count] = Part(p + 1, stop - p - 1)
            if not (names[count].size and values[count].size and is_ascii(names[count]) and is_ascii(values[count])):
                return None
            count += 1
            p = stop + 1
        for i in range(count):
            for j in range(i):
                if names[i].size == names[j].size and memcmp(names[i].at, names[j].at, names[i].size) == 0:
                    return None
        born_ms, stored_ms = <int64_t>get64(record + 40), <int64_t>get64(record + 56)
        for i in range(count):
            is_users[i] = 0
            if named(names[i], b"TAGS", 4):
                tags = values[i]
            elif named(names[i], b"KEYS", 4):
                keys = values[i]
            elif named(names[i], b"UNIQ_KEY", 8):
                key = values[i]
            elif named(names[i], b"BORN_TIMESTAMP", 14):
                born = values[i]
            elif named(names[i], b"__BORNHOST", 10):
                host = values[i]
            elif named(names[i], b"__SHARDINGKEY", 13):
                group = values[i]
            elif is_one_of(self.special, names[i]):
                return None
            else:
                is_users[i] = not is_one_of(self.silent, names[i])
        if number_of(born):
            born_ms = number_of(born)
        if key.size == 0 or not (
            0 <= born_ms < LATEST_MS and 0 <= stored_ms < LATEST_MS and 0 <= invisible_ms < LATEST_MS
        ):
            return None
        # Another thread may run while a long body is hashed, so `out` is written behind it.
        digest = self.md5(PyBytes_FromStringAndSize(record + HEAD, length)).hexdigest()
        if not PyUnicode_CheckExact(digest) or not PyUnicode_IS_COMPACT_ASCII(digest) or PyUnicode_GET_LENGTH(digest) != 32:
            raise ValueError("a digest has 32 digits")
        room = 2 * (size - length) + lease.size + MESSAGE_ROOM  # a key of one letter takes 4 bytes with its blank
        if self.room < 2 * room:
            PyMem_Free(self.out)
            self.room = 0
            self.out = <char*>PyMem_Malloc(2 * room)
            if self.out == NULL:
                raise MemoryError
            self.room = 2 * room
        head = self.put(self.out, OF_TOPIC)
        head = put_varint(head, <uint64_t>(self.parts[OF_NAME].size + varint_size(topic.size) + topic.size))
        head = put_sized(head, self.parts[OF_NAME], topic.at, topic.size)
        for i in range(count):
            if is_users[i]:
                total = varint_size(names[i].size) + names[i].size + varint_size(values[i].size) + values[i].size + 2
                head = put_varint(self.put(head, OF_PROPERTY), <uint64_t>total)
                head[0] = 0x0a
                head = put_text(put_varint(head + 1, <uint64_t>names[i].size), names[i].at, names[i].size)
                head[0] = 0x12
                head = put_text(put_varint(head + 1, <uint64_t>values[i].size), values[i].at, values[i].size)
        system = out = self.out + room
        if group.size:
            out = put_sized(out, self.parts[OF_GROUP], group.at, group.size)
        if tags.size:
            out = put_sized(out, self.parts[OF_TAG], tags.at, tags.size)
        i = 0
        while i < keys.size:
            j = i
            while j < keys.size and keys.at[j] != c" ":
                j += 1
            if j > i:
                out = put_sized(out, self.parts[OF_KEYS], keys.at + i, j - i)
            i = j + 1
        if lease.size:
            out = put_sized(out, self.parts[OF_HANDLE], lease.at, lease.size)
        out = put_sized(out, self.parts[OF_ID], key.at, key.size)
        out = self.put(out, OF_DIGEST)
        for i in range(32):
            out[i] = (<const char*>PyUnicode_DATA(digest))[i]
            if out[i] >= c"a":
                out[i] -= 32
        out = self.put(out + 32, OF_FIFO if group.size else OF_NORMAL)
        out = put_time(out, self.parts[OF_BORN], born_ms)
        if host.size:
            out = put_sized(out, self.parts[OF_BORN_HOST], host.at, host.size)
        else:
            out = put_host(out, self.parts[OF_BORN_HOST], record + 48)
        out = put_time(out, self.parts[OF_STORED], stored_ms)
        out = put_host(out, self.parts[OF_STORE_HOST], record + 64)
        out = put_varint(self.put(out, OF_OFFSET), get64(record + 20))
        if get32(record + 12):
            out = put_varint(self.put(out, OF_QUEUE), <uint64_t><int64_t><int32_t>get32(record + 12))
        if lease.size:
            out = put_time(out, self.parts[OF_INVISIBLE], invisible_ms)
        out = put_varint(self.put(out, OF_ATTEMPT), <uint64_t>attempt)
        head = put_varint(self.put(head, OF_SYSTEM), <uint64_t>(out - system))
        return self.joined(head, system, out - system, record + HEAD, length)

    cdef bytes joined(self, char* head, char* system, Py_ssize_t system_size, const char* body, Py_ssize_t length):
        """The field of a message of which `head` is the end of the first part."""
        cdef char start[32]
        cdef char middle[32]
        cdef char* p
        cdef char* q = middle
        cdef Py_ssize_t total = (head - self.out) + system_size + length
        if length:
            q = put_varint(self.put(q, OF_BODY), <uint64_t>length)
        total += q - middle
        p = put_varint(self.put(start, OF_RECEIVED), <uint64_t>total)
        made = PyBytes_FromStringAndSize(NULL, (p - start) + total)
        p = put_text(PyBytes_AS_STRING(made), start, p - start)
        p = put_text(p, self.out, head - self.out)
        p = put_text(p, system, system_size)
        p = put_text(p, middle, q - middle)
        put_text(p, body, length)
        return made
