# A client's work for each message that it pulls, or sends by a pipeline: a part of `_engine.pyx`, which includes
# this file.
#
# `PulledReader` replaces four functions of `rmq.client.consume.message_view`. It reads a record with two IPv4 hosts
# whose body is not compressed, and whose properties differ from the properties of the message before in the unique
# key only, in ASCII. All other records, and damaged records, go to the functions in Python. `BatchBody` takes
# messages whose texts are ASCII, that have no delay and are not compressed; Python encodes all other messages.

from cpython.bytes cimport PyBytes_CheckExact
from cpython.dict cimport PyDict_CheckExact, PyDict_Copy, PyDict_GetItem, PyDict_Next, PyDict_SetItem, PyDict_Size
from cpython.object cimport PyObject, PyTypeObject
from cpython.set cimport PySet_Contains
from cpython.tuple cimport PyTuple_CheckExact, PyTuple_GET_SIZE
from cpython.unicode cimport PyUnicode_CheckExact, PyUnicode_GET_LENGTH

cdef extern from *:
    """
    #include <structmember.h>

    /* Where a slot of __slots__ lies in its objects; 0 for anything else. */
    static Py_ssize_t rmq_slot_offset(PyObject *descriptor, PyTypeObject *owner) {
        PyMemberDescrObject *slot = (PyMemberDescrObject *)descriptor;
        if (!Py_IS_TYPE(descriptor, &PyMemberDescr_Type) || slot->d_member->type != T_OBJECT_EX
            || !PyType_IsSubtype(owner, PyDescr_TYPE(slot)))
            return 0;
        return slot->d_member->offset;
    }
    #define rmq_slot(object, offset) (*(PyObject **)((char *)(object) + (offset)))
    static void rmq_fill(PyObject *object, Py_ssize_t offset, PyObject *value) {
        Py_XSETREF(rmq_slot(object, offset), Py_NewRef(value));
    }
    """
    Py_ssize_t rmq_slot_offset(object descriptor, PyTypeObject* owner)
    PyObject* rmq_slot(object it, Py_ssize_t offset)
    void rmq_fill(object it, Py_ssize_t offset, object value)

cdef extern from "Python.h":
    bint PyObject_TypeCheck(object it, PyTypeObject* kind)
    bint PyType_IsSubtype(PyTypeObject* one, PyTypeObject* other)
    object PyType_GenericAlloc(PyTypeObject* kind, Py_ssize_t count)
    Py_ssize_t PyLong_AsSsize_t(object it) except? -1
    bint PyLong_CheckExact(object it)
    int64_t PyLong_AsLongLongAndOverflow(object it, int* overflow) except? -1
    bint PyUnicode_IS_COMPACT_ASCII(object it)
    void* PyUnicode_DATA(object it)
    PyObject* PyTuple_GET_ITEM(object it, Py_ssize_t at)
    PyTypeObject* Py_TYPE(object it)

cdef enum:
    COMPRESSED_FLAG = 1
    HOST_FLAGS = 0x30
    RECORD_LEAST = 91  # a record without body, topic and properties

cdef class PulledReader:
    cdef PyTypeObject* kind
    cdef object kind_kept, alike, read_body, read_properties, read_id, unique_key
    cdef uint32_t magic
    cdef Py_ssize_t buffer, at, body_slot, properties_slot, topic_at, window, size, queue_offset, broker_name
    # As in AlikeProperties: the text before and after the unique key, and the map of the message before.
    cdef bytes before, after
    cdef dict last

    def __init__(self, kind, alike, unique_key, uint32_t magic):
        if not isinstance(kind, type):
            raise TypeError("kind is a class")
        self.kind_kept = kind
        self.kind = <PyTypeObject*>kind
        self.alike, self.unique_key, self.magic = alike, unique_key, magic
        self.read_body, self.read_properties = kind.body.fget, kind.properties.fget
        self.read_id = kind.message_id.fget
        self.buffer, self.at = self.slot("_buffer"), self.slot("_at")
        self.body_slot, self.properties_slot = self.slot("_body"), self.slot("_properties")
        self.topic_at, self.window, self.size = self.slot("_topic_at"), self.slot("window"), self.slot("size")
        self.queue_offset, self.broker_name = self.slot("queue_offset"), self.slot("broker_name")

    cdef Py_ssize_t slot(self, name) except 0:
        cdef Py_ssize_t offset = rmq_slot_offset(getattr(self.kind_kept, name), self.kind)
        if offset <= 0:
            raise TypeError(f"{name} is no slot of {self.kind_kept.__name__}")
        return offset

    def messages(self, bytes buffer, broker_name, window, kind):
        cdef list found = []
        cdef const char* start = PyBytes_AS_STRING(buffer)
        cdef Py_ssize_t at = 0, end = PyBytes_GET_SIZE(buffer)
        cdef int64_t queue_offset, last = -1
        cdef Py_ssize_t size
        cdef object message
        if not isinstance(kind, type) or not PyType_IsSubtype(<PyTypeObject*>kind, self.kind):
            raise TypeError("kind is no class of pulled messages")
        while end - at >= RECORD_LEAST:
            size = <int32_t>get32(start + at)
            queue_offset = <int64_t>((<uint64_t>get32(start + at + 20) << 32) | get32(start + at + 24))
            if (
                get32(start + at + 4) != self.magic
                or not RECORD_LEAST <= size <= end - at
                or queue_offset <= last
            ):
                break
            last = queue_offset
            message = PyType_GenericAlloc(<PyTypeObject*>kind, 0)
            rmq_fill(message, self.buffer, buffer)
            rmq_fill(message, self.at, at)
            rmq_fill(message, self.body_slot, None)
            rmq_fill(message, self.properties_slot, None)
            rmq_fill(message, self.topic_at, 0)
            rmq_fill(message, self.window, window)
            rmq_fill(message, self.size, size)
            rmq_fill(message, self.queue_offset, queue_offset)
            rmq_fill(message, self.broker_name, broker_name)
            found.append(message)
            at += size
        return found, at

    cdef Py_ssize_t place(self, message, const char** start, Py_ssize_t* size) except -2:
        """The place of a message's record in its buffer of `size` bytes; -1 for a record that is not plain."""
        cdef PyObject* buffer = rmq_slot(message, self.buffer)
        cdef PyObject* number = rmq_slot(message, self.at)
        cdef Py_ssize_t at
        if buffer == NULL or number == NULL or not isinstance(<object>buffer, bytes):
            return -1
        if not isinstance(<object>number, int):
            return -1
        at = PyLong_AsSsize_t(<object>number)
        start[0] = PyBytes_AS_STRING(<object>buffer)
        size[0] = PyBytes_GET_SIZE(<object>buffer)
        if at < 0 or at > size[0] - RECORD_LEAST or get32(start[0] + at + 36) & HOST_FLAGS:
            return -1
        return at

    def body(self, message):
        cdef PyObject* known
        cdef const char* start
        cdef Py_ssize_t total, at, body_at, length
        cdef bytes body
        if not PyObject_TypeCheck(message, self.kind):
            raise TypeError("not a pulled message")
        known = rmq_slot(message, self.body_slot)
        if known != NULL and <object>known is not None:
            return <object>known
        if known == NULL:
            return self.read_body(message)
        at = self.place(message, &start, &total)
        if at < 0 or get32(start + at + 36) & COMPRESSED_FLAG:
            return self.read_body(message)
        length = <int32_t>get32(start + at + 84)
        body_at = at + HEAD
        if not 0 <= length <= total - body_at:
            return self.read_body(message)
        if rmq_crc(<const uint8_t*>start + body_at, length, FOLDS) & 0x7fffffff != get32(start + at + 8):
            return self.read_body(message)
        body = PyBytes_FromStringAndSize(start + body_at, length)
        rmq_fill(message, self.topic_at, body_at + length)
        rmq_fill(message, self.body_slot, body)
        return body

    cdef object map_of(self, message):
        """The properties of a message."""
        cdef PyObject* known = rmq_slot(message, self.properties_slot)
        cdef const char* start
        cdef const char* p
        cdef Py_ssize_t total, at, size, length, left, before, after, i
        cdef PyObject* number
        if known == NULL:
            return self.read_properties(message)
        if <object>known is not None:
            return <object>known
        if self.last is None:
            return self.learn(message)
        at = self.place(message, &start, &total)
        number = rmq_slot(message, self.size)
        if at < 0 or number == NULL or not isinstance(<object>number, int):
            return self.learn(message)
        size = PyLong_AsSsize_t(<object>number)
        length = <int32_t>get32(start + at + 84)
        if size > total - at or not 0 <= length <= size - RECORD_LEAST:
            return self.learn(message)
        p = start + at + HEAD + length
        left = size - HEAD - length - 1 - <uint8_t>p[0]  # behind the topic
        p += 1 + <uint8_t>p[0]
        if left < 2 or left - 2 != <Py_ssize_t>get16(p):
            return self.learn(message)
        p += 2
        left -= 2
        before, after = PyBytes_GET_SIZE(self.before), PyBytes_GET_SIZE(self.after)
        if (
            left <= before + after
            or memcmp(p, PyBytes_AS_STRING(self.before), before) != 0
            or memcmp(p + left - after, PyBytes_AS_STRING(self.after), after) != 0
        ):
            return self.learn(message)
        p += before
        left -= before + after
        for i in range(left):
            if not 0x20 <= p[i] < 0x7f:
                return self.learn(message)
        found = PyDict_Copy(self.last)
        PyDict_SetItem(found, self.unique_key, PyUnicode_DecodeASCII(p, left, NULL))
        rmq_fill(message, self.properties_slot, found)
        return found

    cdef object learn(self, message):
        """Read the properties in Python, and remember them for the next message."""
        found = self.read_properties(message)
        before = self.alike._before
        if isinstance(before, bytes):
            self.before, self.after, self.last = before, self.alike._after, self.alike._last
        return found

    def properties(self, message):
        if not PyObject_TypeCheck(message, self.kind):
            raise TypeError("not a pulled message")
        return self.map_of(message)

    def message_id(self, message):
        cdef PyObject* found
        if not PyObject_TypeCheck(message, self.kind):
            raise TypeError("not a pulled message")
        properties = self.map_of(message)
        if isinstance(properties, dict):
            found = PyDict_GetItem(properties, self.unique_key)
            if found != NULL and <object>found:
                return <object>found
        return self.read_id(message)

cdef enum:
    BODY_MOST = 1 << 30

cdef class BatchBody:
    """The body of a batch send, which grows."""

    cdef PyTypeObject* kind
    cdef object kind_kept, reserved
    cdef bytes topic
    cdef object topic_kept, wait_store
    cdef Py_ssize_t topic_slot, body_slot, tags_slot, keys_slot, properties_slot, flag_slot, level_slot
    cdef Py_ssize_t wait_slot, at_slot, delay_slot
    cdef Py_ssize_t least, most, used, room
    cdef char* out
    cdef readonly int count

    def __cinit__(self):
        self.out = NULL

    def __dealloc__(self):
        PyMem_Free(self.out)

    def __init__(self, kind, reserved, str topic, bint wait_store, Py_ssize_t body_most, Py_ssize_t most):
        if not isinstance(kind, type) or not isinstance(reserved, frozenset):
            raise TypeError("kind is a class, reserved a frozenset")
        self.kind_kept, self.reserved = kind, reserved
        self.kind = <PyTypeObject*>kind
        self.topic_kept, self.wait_store = topic, bool(wait_store)
        self.least, self.most = min(body_most, BODY_MOST), min(most, BODY_MOST)
        self.topic_slot, self.body_slot = self.slot("topic"), self.slot("body")
        self.tags_slot, self.keys_slot = self.slot("tags"), self.slot("keys")
        self.properties_slot, self.flag_slot = self.slot("properties"), self.slot("flag")
        self.level_slot, self.wait_slot = self.slot("delay_level"), self.slot("wait_store")
        self.at_slot, self.delay_slot = self.slot("deliver_at_ms"), self.slot("delay_ms")

    cdef Py_ssize_t slot(self, name) except 0:
        cdef Py_ssize_t offset = rmq_slot_offset(getattr(self.kind_kept, name), self.kind)
        if offset <= 0:
            raise TypeError(f"{name} is no slot of {self.kind_kept.__name__}")
        return offset

    cdef int make_room(self, Py_ssize_t more) except -1:
        cdef Py_ssize_t room = max(self.used + more, 2 * self.room, 4096)
        cdef char* out
        if self.used + more > self.room:
            out = <char*>PyMem_Realloc(self.out, room)
            if out == NULL:
                raise MemoryError()
            self.out, self.room = out, room
        return 0

    cdef Py_ssize_t text(self, PyObject* it, char* out, Py_ssize_t room, int least) noexcept:
        """Write an ASCII text without characters under `least`; return its size, -1 for another or too long text."""
        cdef const char* p
        cdef Py_ssize_t i, size
        if it == NULL or not PyUnicode_CheckExact(<object>it) or not PyUnicode_IS_COMPACT_ASCII(<object>it):
            return -1
        p = <const char*>PyUnicode_DATA(<object>it)
        size = PyUnicode_GET_LENGTH(<object>it)
        if size > room:
            return -1
        for i in range(size):
            if not least <= p[i] < 0x7f:
                return -1
        memcpy(out, p, size)
        return size

    cdef Py_ssize_t pair(self, const char* name, Py_ssize_t size, PyObject* value, char* out, Py_ssize_t room) noexcept:
        """Write a property and the separator behind it; return their size, -1 for a property that is not plain."""
        cdef Py_ssize_t length
        if room < size + 2:
            return -1
        memcpy(out, name, size)
        out[size] = 1
        length = self.text(value, out + size + 1, room - size - 2, 0x20)
        if length <= 0:
            return -1
        out[size + 1 + length] = 2
        return size + length + 2

    cdef Py_ssize_t properties(self, message, PyObject* unique_id, char* out) noexcept:
        """Write the properties text of a message, of at most TEXT_MAX bytes; return its size, -1 if it is not plain."""
        cdef PyObject* own = rmq_slot(message, self.properties_slot)
        cdef PyObject* keys = rmq_slot(message, self.keys_slot)
        cdef PyObject* tags = rmq_slot(message, self.tags_slot)
        cdef PyObject* name
        cdef PyObject* value
        cdef Py_ssize_t at = 0, place = 0, size, i
        cdef Py_ssize_t has_own, has_keys
        cdef bint has_tags
        if own == NULL or keys == NULL or tags == NULL:
            return -1
        if not PyDict_CheckExact(<object>own) or not PyTuple_CheckExact(<object>keys):
            return -1
        has_own, has_keys = PyDict_Size(<object>own), PyTuple_GET_SIZE(<object>keys)
        if <object>tags is not None and not PyUnicode_CheckExact(<object>tags):
            return -1
        has_tags = <object>tags is not None and PyUnicode_GET_LENGTH(<object>tags) > 0
        if not (has_own or has_keys or has_tags):
            at = self.pair(b"UNIQ_KEY", 8, unique_id, out, TEXT_MAX - 10)
            if at < 0:
                return -1
            memcpy(out + at, b"WAIT\x01true" if self.wait_store else b"WAIT\x01false", 10)
            return at + (9 if self.wait_store else 10)
        while PyDict_Next(<object>own, &place, &name, &value):
            size = self.text(name, out + at, TEXT_MAX - at - 1, 0x20)
            if size <= 0 or PySet_Contains(self.reserved, <object>name) != 0:
                return -1
            at += size
            out[at] = 1
            at += 1
            size = self.text(value, out + at, TEXT_MAX - at - 1, 0x20)
            if size < 0:
                return -1
            at += size
            out[at] = 2
            at += 1
        if has_keys:
            if TEXT_MAX - at < 5:
                return -1
            memcpy(out + at, b"KEYS\x01", 5)
            at += 5
            for i in range(has_keys):
                size = self.text(PyTuple_GET_ITEM(<object>keys, i), out + at, TEXT_MAX - at - 1, 0x21)
                if size <= 0:
                    return -1
                at += size
                out[at] = c" "
                at += 1
            out[at - 1] = 2
        if has_tags:
            size = self.pair(b"TAGS", 4, tags, out + at, TEXT_MAX - at)
            if size < 0:
                return -1
            at += size
        if TEXT_MAX - at < 11:
            return -1
        if self.wait_store:
            memcpy(out + at, b"WAIT\x01true\x02", 10)
            at += 10
        else:
            memcpy(out + at, b"WAIT\x01false\x02", 11)
            at += 11
        size = self.pair(b"UNIQ_KEY", 8, unique_id, out + at, TEXT_MAX - at)
        return -1 if size < 0 else at + size - 1

    cdef bint is_plain(self, message):
        cdef PyObject* topic = rmq_slot(message, self.topic_slot)
        cdef PyObject* wait = rmq_slot(message, self.wait_slot)
        cdef PyObject* level = rmq_slot(message, self.level_slot)
        cdef PyObject* at = rmq_slot(message, self.at_slot)
        cdef PyObject* delay = rmq_slot(message, self.delay_slot)
        if topic == NULL or wait == NULL or level == NULL or at == NULL or delay == NULL:
            return 0
        if not (<object>at is None and <object>delay is None and <object>wait is self.wait_store):
            return 0
        if not PyLong_CheckExact(<object>level) or <object>level != 0:
            return 0
        return topic == <PyObject*>self.topic_kept or (
            PyUnicode_CheckExact(<object>topic) and <object>topic == self.topic_kept
        )

    cdef Py_ssize_t fits(self, Py_ssize_t size):
        return self.count == 0 or self.used + size <= self.most

    def add(self, message, str unique_id):
        cdef PyObject* body
        cdef PyObject* flag
        cdef Py_ssize_t length, size
        cdef int64_t number
        cdef int overflow = 0
        cdef char* out
        if Py_TYPE(message) != self.kind or not self.is_plain(message):
            return -1
        body, flag = rmq_slot(message, self.body_slot), rmq_slot(message, self.flag_slot)
        if body == NULL or not PyBytes_CheckExact(<object>body):
            return -1
        if flag == NULL or not PyLong_CheckExact(<object>flag):
            return -1
        number = PyLong_AsLongLongAndOverflow(<object>flag, &overflow)
        length = PyBytes_GET_SIZE(<object>body)
        if overflow or not -2147483648LL <= number <= 2147483647LL or not 0 < length < self.least:
            return -1
        self.make_room(22 + length + TEXT_MAX)
        out = self.out + self.used
        size = self.properties(message, <PyObject*>unique_id, out + 22 + length)
        if size < 0:
            return -1
        if not self.fits(22 + length + size):
            return 0
        self.write(out, <int32_t>number, <object>body, length, size)
        return self.used

    cdef void write(self, char* out, int32_t flag, object body, Py_ssize_t length, Py_ssize_t size) noexcept:
        """Write a message around its properties text, which is written already."""
        put32(out, <uint32_t>(22 + length + size))
        put64(out + 4, 0)
        put32(out + 12, <uint32_t>flag)
        put32(out + 16, <uint32_t>length)
        memcpy(out + 20, PyBytes_AS_STRING(body), length)
        out[20 + length] = <char>(size >> 8)
        out[21 + length] = <char>size
        self.used += 22 + length + size
        self.count += 1

    def add_encoded(self, bytes message):
        cdef Py_ssize_t size = PyBytes_GET_SIZE(message)
        if size > BODY_MOST:
            raise ValueError("the message is too large")
        if not self.fits(size):
            return 0
        self.make_room(size)
        memcpy(self.out + self.used, PyBytes_AS_STRING(message), size)
        self.used += size
        self.count += 1
        return self.used

    def take(self):
        body = PyBytes_FromStringAndSize(self.out, self.used)
        self.used = self.count = 0
        return body
