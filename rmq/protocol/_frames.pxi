# Frames of a client, in and out: a part of `_engine.pyx`, which includes this file.
#
# `AnswerReader` replaces `rmq.protocol.frames.split_frames`. It reads responses with a JSON header in the form of
# our brokers and Java's, with texts of printable ASCII without escapes; all other frames go to Python.
# `frame_send` replaces `rmq.client.produce.outgoing.SendTemplate.framed`.

cdef enum:
    TOP_CODE = 1
    TOP_EXT = 2
    TOP_FLAG = 4
    TOP_LANGUAGE = 8
    TOP_OPAQUE = 16
    TOP_REMARK = 32
    TOP_FORM = 64
    TOP_VERSION = 128

cdef inline int top_name(const char* p, Py_ssize_t size) noexcept nogil:
    """The member of a header with this name; 0 for another name."""
    if size == 4:
        if memcmp(p, b"code", 4) == 0:
            return TOP_CODE
        if memcmp(p, b"flag", 4) == 0:
            return TOP_FLAG
    elif size == 6:
        if memcmp(p, b"opaque", 6) == 0:
            return TOP_OPAQUE
        if memcmp(p, b"remark", 6) == 0:
            return TOP_REMARK
    elif size == 7:
        if memcmp(p, b"version", 7) == 0:
            return TOP_VERSION
    elif size == 8:
        if memcmp(p, b"language", 8) == 0:
            return TOP_LANGUAGE
    elif size == 9:
        if memcmp(p, b"extFields", 9) == 0:
            return TOP_EXT
    elif size == 23:
        if memcmp(p, b"serializeTypeCurrentRPC", 23) == 0:
            return TOP_FORM
    return 0

cdef inline object ascii_text(Part* part):
    return PyUnicode_DecodeASCII(part.at, part.size, NULL)

cdef class AnswerReader:
    """Split the bytes of a client's connection into responses."""

    cdef PyTypeObject* kind
    cdef object kind_kept, other_language, json_form
    cdef bytes last_language
    cdef object last_language_text
    cdef Py_ssize_t ext, raw, body, code, flag, header, language, opaque, remark, form, version

    def __init__(self, kind, str other_language, json_form):
        if not isinstance(kind, type):
            raise TypeError("kind is a class")
        self.kind_kept, self.other_language, self.json_form = kind, other_language, json_form
        self.kind = <PyTypeObject*>kind
        self.last_language, self.last_language_text = b"", ""
        self.ext, self.raw, self.body = self.slot("_ext"), self.slot("_raw"), self.slot("body")
        self.code, self.flag, self.header = self.slot("code"), self.slot("flag"), self.slot("header")
        self.language, self.opaque = self.slot("language"), self.slot("opaque")
        self.remark, self.form, self.version = self.slot("remark"), self.slot("serialization"), self.slot("version")

    cdef Py_ssize_t slot(self, name) except 0:
        cdef Py_ssize_t offset = rmq_slot_offset(getattr(self.kind_kept, name), self.kind)
        if offset <= 0:
            raise TypeError(f"{name} is no slot of {self.kind_kept.__name__}")
        return offset

    def split(self, bytes data, Py_ssize_t max_frame, Py_ssize_t max_header, Py_ssize_t most):
        """Split frames as `split_frames` does, and count the frames."""
        cdef const char* base = PyBytes_AS_STRING(data)
        cdef Py_ssize_t at = 0, end = PyBytes_GET_SIZE(data), stop, others_at = 0, count = 0
        cdef uint32_t length, word, header
        cdef list found = []
        while count < most and end - at >= 8:
            length, word = get32(base + at), get32(base + at + 4)
            header = word & 0xFFFFFF
            if length > <uint64_t>max_frame or header > <uint64_t>max_header or header + 4 > length:
                frames.split_frames(data[at:], max_frame, max_header, 1)  # raises
            stop = at + 4 + <Py_ssize_t>length
            if stop > end:
                break
            command = self.read(base + at + 8, base + at + 8 + header, base + stop) if word >> 24 == 0 else None
            if command is not None:
                if others_at < at:
                    found += frames.split_frames(data[others_at:at], max_frame, max_header)[0]
                found.append(command)
                others_at = stop
            count += 1
            at = stop
        if others_at < at:
            found += frames.split_frames(data[others_at:at], max_frame, max_header)[0]
        if end - at >= 4:
            frames.frame_size(data, at, max_frame)
        return found, at, count

    cdef object read(self, const char* p, const char* end, const char* stop):
        """The response with this header, whose body ends at `stop`; None for another frame."""
        cdef Part name, text, remark
        cdef int32_t code = 0, flag = 0, opaque = 0, version = 0
        cdef int seen = 0, which
        cdef const char* body = end
        cdef object ext = None, language = self.other_language
        remark.at, remark.size = p, 0
        p = after(p, end, b"{", 1)
        while True:
            p = after(p, end, b'"', 1)
            if p != NULL:
                p = quoted(p, end, &name, 0)
            p = after(p, end, b":", 1)
            if p == NULL:
                return None
            which = top_name(name.at, name.size)
            if which == 0 or seen & which:
                return None
            seen |= which
            if which == TOP_CODE:
                p = digits(p, end, &code)
            elif which == TOP_FLAG:
                p = digits(p, end, &flag)
            elif which == TOP_OPAQUE:
                p = digits(p, end, &opaque)
            elif which == TOP_VERSION:
                p = digits(p, end, &version)
            elif which == TOP_EXT:
                ext = {}
                p = self.read_texts(p, end, <dict>ext)
            else:
                p = after(p, end, b'"', 1)
                if p != NULL:
                    p = quoted(p, end, &text, 0)
                if p != NULL and which == TOP_REMARK:
                    remark = text
                elif p != NULL and which == TOP_LANGUAGE:
                    language = self.language_of(&text)
            if p == NULL or p >= end:
                return None
            if p[0] == c"}":
                break
            p = after(p, end, b",", 1)
        # Requests are left to Python: a reader of the request's code may build more than a plain command.
        if p + 1 != end or not seen & TOP_CODE or not flag & 1 or code == 10 or code == 11 or code == 15:
            return None
        if code == 310 or code == 320:
            return None
        command = PyType_GenericAlloc(self.kind, 0)
        rmq_fill(command, self.ext, ext)
        rmq_fill(command, self.raw, b"")
        rmq_fill(command, self.body, PyBytes_FromStringAndSize(body, stop - body))
        rmq_fill(command, self.code, code)
        rmq_fill(command, self.flag, flag)
        rmq_fill(command, self.header, None)
        rmq_fill(command, self.language, language)
        rmq_fill(command, self.opaque, opaque)
        rmq_fill(command, self.remark, ascii_text(&remark) if seen & TOP_REMARK else None)
        rmq_fill(command, self.form, self.json_form)
        rmq_fill(command, self.version, version)
        return command

    cdef object language_of(self, Part* text):
        if (
            PyBytes_GET_SIZE(self.last_language) != text.size
            or memcmp(PyBytes_AS_STRING(self.last_language), text.at, text.size) != 0
        ):
            self.last_language = PyBytes_FromStringAndSize(text.at, text.size)
            self.last_language_text = ascii_text(text)
        return self.last_language_text

    cdef const char* read_texts(self, const char* p, const char* end, dict ext) except? NULL:
        """Read an object of texts; return the place after it, NULL for another value."""
        cdef Part name, value
        p = after(p, end, b"{", 1)
        if p != NULL and p < end and p[0] == c"}":
            return p + 1
        while True:
            p = after(p, end, b'"', 1)
            if p != NULL:
                p = quoted(p, end, &name, 0)
            p = after(p, end, b':"', 2)
            if p != NULL:
                p = quoted(p, end, &value, 0)
            if p == NULL or p >= end:
                return NULL
            PyDict_SetItem(ext, ascii_text(&name), ascii_text(&value))
            if p[0] == c"}":
                return p + 1
            p = after(p, end, b",", 1)


cdef Py_ssize_t escaped_size(const char* p, Py_ssize_t size) noexcept nogil:
    """The size of an ASCII text in JSON; -1 for other texts, and for rare escapes."""
    cdef Py_ssize_t i, more = 0
    cdef char c
    for i in range(size):
        c = p[i]
        if c == c'"' or c == c"\\":
            more += 1
        elif c == 1 or c == 2:
            more += 5
        elif not 0x20 <= c < 0x7f:
            return -1
    return size + more

cdef char* escaped(const char* p, Py_ssize_t size, char* out) noexcept nogil:
    cdef Py_ssize_t i
    cdef char c
    for i in range(size):
        c = p[i]
        if c == c'"' or c == c"\\":
            out[0] = c"\\"
            out[1] = c
            out += 2
        elif c < 0x20:
            memcpy(out, b"\\u000", 5)
            out[5] = <char>(c"0" + c)
            out += 6
        else:
            out[0] = c
            out += 1
    return out

cdef inline char* put_text(char* out, const char* text, Py_ssize_t size) noexcept nogil:
    memcpy(out, text, size)
    return out + size

def frame_send(tuple ends, tuple numbers, str properties, bint is_batch, int64_t opaque, bytes body):
    """See the stub."""
    cdef bytes start = ends[0], before = ends[1], after_all = ends[2], end = ends[3]
    cdef int64_t code = numbers[0], sys_flag = numbers[1], now_ms = numbers[2], flag = numbers[3]
    cdef char code_text[24]
    cdef char sys_flag_text[24]
    cdef char now_text[24]
    cdef char flag_text[24]
    cdef char opaque_text[24]
    cdef int code_size, sys_flag_size, now_size, flag_size, opaque_size
    cdef Py_ssize_t size, text_size, header, total
    cdef const char* text
    cdef char* p
    if not PyUnicode_IS_COMPACT_ASCII(properties):
        return None
    text, size = <const char*>PyUnicode_DATA(properties), PyUnicode_GET_LENGTH(properties)
    text_size = escaped_size(text, size)
    if text_size < 0:
        return None
    code_size, sys_flag_size = decimal(code, code_text), decimal(sys_flag, sys_flag_text)
    now_size, flag_size = decimal(now_ms, now_text), decimal(flag, flag_text)
    opaque_size = decimal(opaque, opaque_text)
    header = PyBytes_GET_SIZE(start) + code_size + PyBytes_GET_SIZE(before) + sys_flag_size + 7 + now_size + 7
    header += flag_size + 7 + text_size + 27 + (4 if is_batch else 5) + 1 + PyBytes_GET_SIZE(after_all)
    header += opaque_size + PyBytes_GET_SIZE(end)
    total = 8 + header + PyBytes_GET_SIZE(body)
    if header > 0xFFFFFF or total > 0x7FFFFFFF:
        return None
    frame = PyBytes_FromStringAndSize(NULL, total)
    p = PyBytes_AS_STRING(frame)
    put32(p, <uint32_t>(total - 4))
    put32(p + 4, <uint32_t>header)
    p = put_text(p + 8, PyBytes_AS_STRING(start), PyBytes_GET_SIZE(start))
    p = put_text(p, code_text, code_size)
    p = put_text(p, PyBytes_AS_STRING(before), PyBytes_GET_SIZE(before))
    p = put_text(p, sys_flag_text, sys_flag_size)
    p = put_text(p, b'","g":"', 7)
    p = put_text(p, now_text, now_size)
    p = put_text(p, b'","h":"', 7)
    p = put_text(p, flag_text, flag_size)
    p = put_text(p, b'","i":"', 7)
    p = escaped(text, size, p)
    p = put_text(p, b'","j":"0","k":"false","m":"', 27)
    p = put_text(p, b"true" if is_batch else b"false", 4 if is_batch else 5)
    p = put_text(p, b'"', 1)
    p = put_text(p, PyBytes_AS_STRING(after_all), PyBytes_GET_SIZE(after_all))
    p = put_text(p, opaque_text, opaque_size)
    p = put_text(p, PyBytes_AS_STRING(end), PyBytes_GET_SIZE(end))
    p = put_text(p, PyBytes_AS_STRING(body), PyBytes_GET_SIZE(body))
    if p != PyBytes_AS_STRING(frame) + total:
        raise AssertionError("a frame of another size")
    return frame
