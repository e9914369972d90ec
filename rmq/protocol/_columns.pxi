# Many records as the buffers of Arrow arrays: a part of `_engine.pyx`, which includes this file.
#
# `find_records` and `read_columns` replace `rmq.spark.formats.records.find_records` and the work of `Records` in that
# module, for records with two IPv4 hosts. Damaged, malformed and rare records go to the functions in Python.

from cpython.ref cimport Py_DECREF, Py_INCREF
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdlib cimport free, malloc

cdef extern from "Python.h":
    int _PyBytes_Resize(PyObject** it, Py_ssize_t size) except -1

cdef enum:
    TOPICS = 1
    BODIES = 2
    PAIRS = 4
    UNREPEATED = 8
    PAIRS_MOST = 64  # properties of a record that are compared with each other
    KEYS_MOST = 8  # names of properties in a request
    ID_SIZE = 32  # characters of a message id made of a host and an offset

cdef struct Place:
    const char* body
    const char* topic
    const char* text
    int32_t body_size
    int32_t topic_size
    int32_t text_size

cdef class Texts:
    """Values one after the other, and the end of each."""

    cdef bytes ends, content, there
    cdef int32_t* end
    cdef char* start
    cdef char* at
    cdef uint8_t* valid
    cdef Py_ssize_t count, nulls

    def __cinit__(self, Py_ssize_t values, Py_ssize_t room, bint may_lack):
        self.ends = PyBytes_FromStringAndSize(NULL, 4 * (values + 1))
        self.content = PyBytes_FromStringAndSize(NULL, room)
        self.end = <int32_t*>PyBytes_AS_STRING(self.ends)
        self.end[0] = 0
        self.start = self.at = PyBytes_AS_STRING(self.content)
        if may_lack:
            self.there = bytes((values + 7) // 8)
            self.valid = <uint8_t*>PyBytes_AS_STRING(self.there)

    cdef inline void add(self, const char* p, Py_ssize_t size) noexcept:
        memcpy(self.at, p, size)
        self.at += size
        self.count += 1
        self.end[self.count] = <int32_t>(self.at - self.start)

    cdef tuple taken(self):
        """(bits of the values that exist, or None for all; number of missing values; ends; bytes)"""
        cdef Py_ssize_t size = self.at - self.start
        cdef PyObject* content = <PyObject*>self.content
        Py_INCREF(self.content)
        self.content = None
        self.start = self.at = NULL
        _PyBytes_Resize(&content, size)
        found = <bytes>content
        Py_DECREF(found)
        return self.there if self.nulls else None, self.nulls, self.ends[: 4 * (self.count + 1)], found


def find_records(data, Py_ssize_t at, Py_ssize_t end, uint32_t magic, Py_ssize_t least):
    """The places of consecutive records from `at` on that begin before `end`, as 64-bit numbers of this machine,
    and the place after the last record."""
    cdef Py_buffer buffer
    cdef const char* base
    cdef Py_ssize_t room, count = 0, size
    cdef int64_t* places
    PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE)
    try:
        base = <const char*>buffer.buf
        end = min(end, buffer.len - least + 1)
        if at < 0 or at >= end:
            return b"", at
        room = (end - at) // least + 1
        places = <int64_t*>malloc(8 * room)
        if places == NULL:
            raise MemoryError
        try:
            while at < end:
                size = <int32_t>get32(base + at)
                if get32(base + at + 4) != magic or size < least or size > buffer.len - at:
                    break
                places[count] = at
                count += 1
                at += size
            return PyBytes_FromStringAndSize(<char*>places, 8 * count), at
        finally:
            free(places)
    finally:
        PyBuffer_Release(&buffer)


def read_columns(data, bytes starts, uint32_t magic, uint32_t left, list numbers, int wanted, list names):
    """Columns of the records of `data` that begin at the places `starts`, as from `find_records`; None if a record
    is not whole, not plain or not in UTF-8, or if the places do not ascend. `left` are the bits of the sys flag
    that no plain record has.

    `numbers` are fields, as (place in the record, bytes, factor): a field with a factor becomes a number of this
    machine times the factor, within the bounds of 64 bits; a field with factor 0 keeps its bytes. `wanted` is a
    sum of 1 (topics), 2 (bodies), 4 (names and values of all properties) and 8 (None if a record has a name
    twice). `names` are the properties whose last values the caller wants, as (name, True to put a message id in
    place of a missing value).

    The result is (the bytes of each field, topics, bodies, (ends of each record's pairs, names, values), values
    of each name); texts are (bits of the values that exist or None, number of missing values, ends, bytes).
    """
    cdef Py_buffer buffer
    cdef Py_ssize_t count = PyBytes_GET_SIZE(starts) // 8
    cdef Place* places = <Place*>malloc(max(count, 1) * sizeof(Place))
    if places == NULL:
        raise MemoryError
    try:
        PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE)
        try:
            return columns_of(
                <const char*>buffer.buf, buffer.len, starts, magic, left, numbers, wanted, names, places
            )
        finally:
            PyBuffer_Release(&buffer)
    finally:
        free(places)


cdef columns_of(
    const char* base, Py_ssize_t length, bytes starts, uint32_t magic, uint32_t left, list numbers, int wanted,
    list names, Place* places,
):
    cdef const int64_t* start = <const int64_t*>PyBytes_AS_STRING(starts)
    cdef Py_ssize_t count = PyBytes_GET_SIZE(starts) // 8
    cdef int64_t bodies = 0, topics = 0, texts = 0, room
    cdef list fields, values
    cdef Keys keys
    cdef Texts topic = None, body = None, pair_names = None, pair_values = None
    cdef bytes pairs = None
    cdef int32_t* pair_end = NULL
    cdef Py_ssize_t i
    if not lay_out(base, length, start, count, magic, left, places, &bodies, &topics, &texts):
        return None
    fields = [field_of(base, start, count, at, size, factor) for at, size, factor in numbers]
    if wanted & TOPICS:
        topic = Texts(count, topics, False)
        for i in range(count):
            topic.add(places[i].topic, places[i].topic_size)
        if has_high_bits(topic.start, topic.at - topic.start) and not are_utf8(topic):
            return None
    if wanted & BODIES:
        body = Texts(count, bodies, False)
        for i in range(count):
            body.add(places[i].body, places[i].body_size)
    values = [Texts(count, texts + (ID_SIZE * count if or_id else 0), True) for _, or_id in names]
    if wanted & PAIRS or values:
        keys = Keys(names, values)
        if wanted & PAIRS:
            # A property takes at least four bytes, the last property three.
            room = texts // 4 + count
            pair_names, pair_values = Texts(room, texts, False), Texts(room, texts, False)
            pairs = PyBytes_FromStringAndSize(NULL, 4 * (count + 1))
            pair_end = <int32_t*>PyBytes_AS_STRING(pairs)
            pair_end[0] = 0
        for i in range(count):
            if not is_utf8(places[i].text, places[i].text_size):
                return None
            if not split(&places[i], pair_names, pair_values, wanted & UNREPEATED, keys):
                return None
            if pair_end != NULL:
                pair_end[i + 1] = <int32_t>pair_names.count
            keys.add(base + start[i])
    return (
        fields,
        None if topic is None else topic.taken(),
        None if body is None else body.taken(),
        None if pairs is None else (pairs, pair_names.taken(), pair_values.taken()),
        [(<Texts>each).taken() for each in values],
    )


cdef bint lay_out(
    const char* base, Py_ssize_t length, const int64_t* start, Py_ssize_t count, uint32_t magic, uint32_t left,
    Place* places, int64_t* bodies, int64_t* topics, int64_t* texts,
) noexcept nogil:
    """Find the parts of each record, and the total size of each part; False if a record is not plain."""
    cdef int64_t at, end = 0
    cdef Py_ssize_t i, size, taken
    cdef Place* place
    cdef const char* p
    for i in range(count):
        at, place = start[i], places + i
        if at < end or at > length - RECORD_LEAST:
            return False
        p = base + at
        size = <int32_t>get32(p)
        if get32(p + 4) != magic or size < RECORD_LEAST or size > length - at or get32(p + 36) & left:
            return False
        end = at + size
        place.body_size = <int32_t>get32(p + HEAD - 4)
        if place.body_size < 0 or place.body_size > size - RECORD_LEAST:
            return False
        place.body = p + HEAD
        place.topic = place.body + place.body_size + 1
        place.topic_size = <uint8_t>(place.topic - 1)[0]
        taken = RECORD_LEAST + place.body_size + place.topic_size
        if taken > size:
            return False
        place.text = place.topic + place.topic_size + 2
        place.text_size = get16(place.text - 2)
        if place.text_size > 0x7FFF or taken + place.text_size != size:
            return False
        bodies[0] += place.body_size
        topics[0] += place.topic_size
        texts[0] += place.text_size
    return bodies[0] <= 0x7FFFFFFF and texts[0] + count * ID_SIZE <= 0x7FFFFFFF


cdef bytes field_of(
    const char* base, const int64_t* start, Py_ssize_t count, Py_ssize_t at, Py_ssize_t size, int64_t factor
):
    """A field of four or eight bytes of each record."""
    cdef int64_t most = 0x7FFFFFFFFFFFFFFF // factor if factor else 0
    cdef int64_t number
    cdef bytes found
    cdef char* out
    cdef Py_ssize_t i
    if size not in (4, 8) or not 0 <= at <= RECORD_LEAST - size:
        raise ValueError("no field of a record")
    found = PyBytes_FromStringAndSize(NULL, size * count)
    out = PyBytes_AS_STRING(found)
    for i in range(count):
        if factor == 0:
            memcpy(out + size * i, base + start[i] + at, size)
        elif size == 4:
            (<uint32_t*>out)[i] = get32(base + start[i] + at) * <uint32_t>factor
        else:
            number = <int64_t>get64(base + start[i] + at)
            (<int64_t*>out)[i] = max(min(number, most), -most) * factor if factor != 1 else number
    return found


cdef bint has_high_bits(const char* p, Py_ssize_t size) noexcept nogil:
    """True if the text has bytes beyond ASCII."""
    cdef uint64_t bits = 0, high = 0x80808080, word
    cdef Py_ssize_t i = 0
    high |= high << 32
    while i + 8 <= size:
        memcpy(&word, p + i, 8)
        bits |= word
        i += 8
    while i < size:
        bits |= <uint8_t>p[i]
        i += 1
    return (bits & high) != 0


cdef bint is_utf8(const char* p, Py_ssize_t size) except -1:
    if has_high_bits(p, size):
        try:
            PyUnicode_DecodeUTF8(p, size, NULL)
        except UnicodeDecodeError:
            return False
    return True


cdef bint are_utf8(Texts texts) except -1:
    """True if each text is UTF-8 by itself: two texts may be UTF-8 together, and neither alone."""
    cdef Py_ssize_t i
    for i in range(texts.count):
        if not is_utf8(texts.start + texts.end[i], texts.end[i + 1] - texts.end[i]):
            return False
    return True


cdef inline const char* next_pair(const char* p, const char* end, const char** name_end, const char** pair_end) noexcept nogil:
    """The place of the next property that has a name and a value, or NULL; `p` is before `end`."""
    cdef const char* stop
    cdef const char* middle
    while p < end:
        stop = <const char*>memchr(p, 2, end - p)
        if stop == NULL:
            stop = end
        middle = <const char*>memchr(p, 1, stop - p)
        if middle != NULL and middle > p and stop > middle + 1:
            name_end[0], pair_end[0] = middle, stop
            return p
        p = stop + 1
    return NULL


cdef bint split(Place* place, Texts names, Texts values, bint unrepeated, Keys keys) noexcept:
    """Read the properties of a record; False if the record must have no name twice and has one, or has too many
    names to compare. `names` and `values` get all properties unless they are None, `keys` its own names."""
    cdef const char* p
    cdef const char* end = place.text + place.text_size
    cdef const char* middle = NULL
    cdef const char* stop = NULL
    cdef const char* other
    cdef bint are_kept = names is not None
    cdef Py_ssize_t first = names.count if are_kept else 0, i, length
    p = next_pair(place.text, end, &middle, &stop)
    while p != NULL:
        length = middle - p
        for i in range(keys.count):
            if keys.keys[i].name_size == length and memcmp(p, keys.keys[i].name, length) == 0:
                keys.keys[i].value, keys.keys[i].size = middle + 1, stop - middle - 1
        if are_kept:
            if unrepeated:
                if names.count - first >= PAIRS_MOST:
                    return False
                for i in range(first, names.count):
                    other = names.start + names.end[i]
                    if names.end[i + 1] - names.end[i] == length and memcmp(other, p, length) == 0:
                        return False
            names.add(p, length)
            values.add(middle + 1, stop - middle - 1)
        p = next_pair(stop + 1, end, &middle, &stop)
    return True


cdef struct Key:
    const char* name
    Py_ssize_t name_size
    const char* value  # the record's last value of this name; NULL: none
    Py_ssize_t size
    bint or_id

cdef class Keys:
    """The names of properties whose values a caller wants, and the texts that get the values."""

    cdef Key keys[KEYS_MOST]
    cdef Py_ssize_t count
    cdef list kept, values

    def __cinit__(self, list names, list values):
        if len(names) > KEYS_MOST:
            raise ValueError("too many names")
        self.kept, self.values, self.count = names, values, len(names)
        cdef Py_ssize_t i
        cdef bytes name
        for i in range(self.count):
            name, or_id = names[i]
            self.keys[i].name, self.keys[i].name_size = PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name)
            self.keys[i].value, self.keys[i].or_id = NULL, or_id

    cdef void add(self, const char* record) noexcept:
        """Add the values that were found in this record."""
        cdef Py_ssize_t i
        cdef Texts found
        for i in range(self.count):
            found = <Texts>self.values[i]
            if self.keys[i].value != NULL:
                found.add(self.keys[i].value, self.keys[i].size)
                self.keys[i].value = NULL
            elif self.keys[i].or_id:
                add_id(found, record)
            else:
                found.nulls += 1
                found.add(NULL, 0)
                continue
            found.valid[(found.count - 1) >> 3] |= 1 << ((found.count - 1) & 7)


cdef void add_id(Texts found, const char* record) noexcept:
    """Add the message id of a record without a unique key: the host of the broker, and the physical offset."""
    cdef char digits[ID_SIZE]
    hexadecimal(get64(record + HEAD - 24), digits)
    hexadecimal(get64(record + 28), digits + 16)
    found.add(digits, ID_SIZE)
