# What a client does with each message that it pulled: a part of `_engine.pyx`, which includes it.
#
# `PulledReader` stands for four functions of `rmq.client.message_view`. It knows a record with two IPv4 hosts
# whose body is not compressed, and properties that differ from those of the message before in nothing but
# their unique key, in ASCII; everything else, and everything damaged, it leaves to the functions in Python.

from cpython.dict cimport PyDict_Copy, PyDict_GetItem, PyDict_SetItem
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_INCREF

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

cdef enum:
    COMPRESSED_FLAG = 1
    HOST_FLAGS = 0x30
    RECORD_LEAST = 91  # a record without body, topic and properties

cdef class PulledReader:
    cdef PyTypeObject* kind
    cdef object kind_kept, alike, read_body, read_properties, read_id, unique_key
    cdef uint32_t magic
    cdef Py_ssize_t buffer, at, body_slot, properties_slot, topic_at, window, size, queue_offset, broker_name
    # As in AlikeProperties: what is before and after the unique key, and the map of the message before.
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
        """Where the record of a message begins in its buffer, of `size` bytes; -1 for none that is plain."""
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
        """Its properties."""
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
        """Read by Python, which remembers it for the next one."""
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
