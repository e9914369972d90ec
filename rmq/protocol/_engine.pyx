# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The compiled engine: the functions that `_engine.pyi` declares and `rmq.protocol.engine` chooses.

The engine handles the plain case of a send only: a header in the form that clients write, in ASCII, with
WAIT=true, to a queue that has a lane. All other cases go to the functions in Python, which define the right
result. Bytes of a peer lie between two pointers, `p` and `end`: the engine compares with `end` before each
read. Each limit in this file is a value at which the Python functions still take the plain path.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE

from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.unicode cimport PyUnicode_DecodeASCII
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy

from rmq.message import java_hash as java_text_hash
from rmq.protocol import frames

cdef extern from *:
    """
    #include <stddef.h>
    #include <stdint.h>
    #include <string.h>

    static const char *const rmq_names[20] = {
        "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n",
        "AccessKey", "RmqNonce", "RmqProof", "RmqTime", "SecurityToken", "Signature",
    };
    static const int rmq_name_sizes[20] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 9, 8, 8, 7, 13, 9};

    static uint32_t rmq_crc_table[8][256];

    static void rmq_crc_start(void) {
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t c = i;
            for (int k = 0; k < 8; k++) c = c & 1 ? 0xEDB88320u ^ (c >> 1) : c >> 1;
            rmq_crc_table[0][i] = c;
        }
        for (int t = 1; t < 8; t++)
            for (uint32_t i = 0; i < 256; i++)
                rmq_crc_table[t][i] =
                    rmq_crc_table[0][rmq_crc_table[t - 1][i] & 255] ^ (rmq_crc_table[t - 1][i] >> 8);
    }

    /* Eight bytes at a time, each by a table of its own ("slicing by 8"). `c` is the inverted CRC so far. */
    static uint32_t rmq_crc_bytes(const uint8_t *p, size_t n, uint32_t c) {
        for (; n >= 8; p += 8, n -= 8) {
            uint32_t low = c ^ ((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24);
            c = rmq_crc_table[7][low & 255] ^ rmq_crc_table[6][low >> 8 & 255]
              ^ rmq_crc_table[5][low >> 16 & 255] ^ rmq_crc_table[4][low >> 24]
              ^ rmq_crc_table[3][p[4]] ^ rmq_crc_table[2][p[5]] ^ rmq_crc_table[1][p[6]] ^ rmq_crc_table[0][p[7]];
        }
        for (; n; p++, n--) c = rmq_crc_table[0][(c ^ *p) & 255] ^ (c >> 8);
        return c;
    }

    #if defined(__x86_64__) && defined(__GNUC__)
    #include <immintrin.h>
    /* Sixty-four bytes at a time by carry-less multiplication: V. Gopal and others, "Fast CRC Computation for
       Generic Polynomials Using PCLMULQDQ", Intel, 2009; the constants are those for 0xEDB88320, reflected.
       `n` is 64 or more, and a multiple of 16. */
    __attribute__((target("pclmul,sse4.1")))
    static __m128i rmq_crc_step(__m128i x, __m128i k, __m128i next) {
        return _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(x, k, 0x00), _mm_clmulepi64_si128(x, k, 0x11)), next);
    }
    __attribute__((target("pclmul,sse4.1")))
    static uint32_t rmq_crc_fold(const uint8_t *p, size_t n, uint32_t c) {
        const __m128i far = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4);
        const __m128i near = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
        const __m128i last = _mm_set_epi64x(0, 0x0163cd6124);
        const __m128i poly = _mm_set_epi64x(0x01f7011641, 0x01db710641);
        const __m128i mask = _mm_setr_epi32(~0, 0, ~0, 0);
        __m128i x[4];
        for (int i = 0; i < 4; i++) x[i] = _mm_loadu_si128((const __m128i *)(p + 16 * i));
        x[0] = _mm_xor_si128(x[0], _mm_cvtsi32_si128((int)c));
        for (p += 64, n -= 64; n >= 64; p += 64, n -= 64)
            for (int i = 0; i < 4; i++)
                x[i] = rmq_crc_step(x[i], far, _mm_loadu_si128((const __m128i *)(p + 16 * i)));
        __m128i a = rmq_crc_step(x[0], near, x[1]);
        a = rmq_crc_step(a, near, x[2]);
        a = rmq_crc_step(a, near, x[3]);
        for (; n >= 16; p += 16, n -= 16) a = rmq_crc_step(a, near, _mm_loadu_si128((const __m128i *)p));
        a = _mm_xor_si128(_mm_srli_si128(a, 8), _mm_clmulepi64_si128(a, near, 0x10));
        a = _mm_xor_si128(_mm_srli_si128(a, 4), _mm_clmulepi64_si128(_mm_and_si128(a, mask), last, 0x00));
        __m128i b = _mm_clmulepi64_si128(_mm_and_si128(a, mask), poly, 0x10);
        b = _mm_clmulepi64_si128(_mm_and_si128(b, mask), poly, 0x00);
        return (uint32_t)_mm_extract_epi32(_mm_xor_si128(a, b), 1);
    }
    static int rmq_crc_folds(void) {
        return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
    }
    #else
    static uint32_t rmq_crc_fold(const uint8_t *p, size_t n, uint32_t c) { return rmq_crc_bytes(p, n, c); }
    static int rmq_crc_folds(void) { return 0; }
    #endif

    static uint32_t rmq_crc(const uint8_t *p, size_t n, int folds) {
        uint32_t c = ~0u;
        if (folds && n >= 64) {
            size_t most = n & ~(size_t)15;
            c = rmq_crc_fold(p, most, c);
            p += most;
            n -= most;
        }
        return ~rmq_crc_bytes(p, n, c);
    }
    """
    const char *rmq_names[20]
    const int rmq_name_sizes[20]
    void rmq_crc_start() nogil
    int rmq_crc_folds() nogil
    uint32_t rmq_crc(const uint8_t* p, size_t n, int folds) nogil

rmq_crc_start()
cdef int FOLDS = rmq_crc_folds()

SEAM = 17

cdef enum:
    LETTERS = 14  # a to n: the short names of a send's fields
    TEXT = 8  # the short name of the properties
    ACCESS_KEY = 14  # the fields of a signature, in their order; they are signed before the short names
    NONCE = 15
    PROOF = 16
    TIME = 17
    TOKEN = 18
    SIGNATURE = 19
    FIELDS = 20
    NEEDED = 0b1111111111  # a to j
    TEXT_MAX = 8000  # characters of properties; from 8191 on Python makes further checks
    WANTED_MAX = 1024  # lanes that a caller gets to open at once: as many as a chunk has frames
    HEAD = 88  # bytes before the body, in a record with two IPv4 hosts

cdef enum:  # kinds of runs
    NO_RUN = 0
    SENDS = 1
    PULLS = 2
    TAKES = 3

cdef struct Part:
    const char* at
    Py_ssize_t size

cdef struct Header:
    Part fields[FIELDS]
    uint32_t found
    int32_t opaque

cdef struct Row:
    int64_t born
    int64_t position
    int64_t queue_offset
    Py_ssize_t frame_at  # in the chunk; body_at too
    Py_ssize_t body_at
    Py_ssize_t text_at  # in the texts; key_at and keys_at too
    Py_ssize_t key_at
    Py_ssize_t keys_at
    uint32_t size  # of the record
    uint32_t body_size
    uint32_t text_size
    uint32_t key_size
    uint32_t keys_size
    int32_t lane
    int32_t opaque
    int32_t sys_flag
    int32_t flag
    int32_t reconsumed
    int32_t code
    int32_t binary
    Py_ssize_t given_at  # signature or proof, in the chunk; nonce_at and time_at too
    Py_ssize_t nonce_at
    Py_ssize_t time_at
    Py_ssize_t signed_at  # the signed part of the header, in the signed texts
    uint32_t signed_size
    uint32_t given_size
    uint32_t nonce_size  # 0: the send has no proof
    uint32_t time_size

cdef struct Marks:
    Py_ssize_t key_at, keys_at, size
    uint32_t key_size, keys_size
    int32_t code

# ---- numbers ----

cdef inline uint32_t get32(const char* p) noexcept nogil:
    cdef const uint8_t* b = <const uint8_t*>p
    return (<uint32_t>b[0] << 24) | (<uint32_t>b[1] << 16) | (<uint32_t>b[2] << 8) | b[3]

cdef inline uint32_t get16(const char* p) noexcept nogil:
    cdef const uint8_t* b = <const uint8_t*>p
    return (<uint32_t>b[0] << 8) | b[1]

cdef inline uint64_t get64(const char* p) noexcept nogil:
    return (<uint64_t>get32(p) << 32) | get32(p + 4)

cdef inline void put32(char* p, uint32_t v) noexcept nogil:
    p[0] = <char>(v >> 24)
    p[1] = <char>(v >> 16)
    p[2] = <char>(v >> 8)
    p[3] = <char>v

cdef inline void put64(char* p, uint64_t v) noexcept nogil:
    put32(p, <uint32_t>(v >> 32))
    put32(p + 4, <uint32_t>v)

cdef bint number(Part t, int64_t least, int64_t most, int64_t* out) noexcept nogil:
    """Read a number in the form of `str`, of at most 18 digits; False for another text or a number out of bounds."""
    cdef int64_t v = 0
    cdef Py_ssize_t i = 0
    cdef bint minus = t.size > 0 and t.at[0] == c'-'
    if minus:
        i = 1
    if t.size <= i or t.size - i > 18 or (t.at[i] == c'0' and (minus or t.size > 1)):
        return 0
    while i < t.size:
        if not c'0' <= t.at[i] <= c'9':
            return 0
        v = v * 10 + (t.at[i] - c'0')
        i += 1
    if minus:
        v = -v
    out[0] = v
    return least <= v <= most

cdef inline bint number32(Part t, int32_t* out) noexcept nogil:
    cdef int64_t v = 0
    if not number(t, -2147483648LL, 2147483647LL, &v):
        return 0
    out[0] = <int32_t>v
    return 1

cdef int decimal(int64_t value, char* out) noexcept nogil:
    cdef char text[20]
    cdef int n = 0, i, begin = 0
    cdef uint64_t v = <uint64_t>value
    if value < 0:
        out[0] = c'-'
        begin = 1
        v = ~v + 1
    while True:
        text[n] = <char>(c'0' + v % 10)
        n += 1
        v //= 10
        if v == 0:
            break
    for i in range(n):
        out[begin + i] = text[n - 1 - i]
    return begin + n

cdef inline void hexadecimal(uint64_t v, char* out) noexcept nogil:
    cdef int i
    for i in range(16):
        out[15 - i] = b"0123456789ABCDEF"[v & 15]
        v >>= 4

cdef inline int32_t java_hash(const char* p, Py_ssize_t n) noexcept nogil:
    cdef uint32_t h = 0
    cdef Py_ssize_t i
    for i in range(n):
        h = 31 * h + <uint8_t>p[i]
    return <int32_t>h

# ---- headers ----

cdef int signing_name(const char* p, Py_ssize_t size) noexcept nogil:
    """The field of a signature with this name; 0 for another name."""
    if size == 9:
        if memcmp(p, b"AccessKey", 9) == 0:
            return ACCESS_KEY
        if memcmp(p, b"Signature", 9) == 0:
            return SIGNATURE
    elif size == 8:
        if memcmp(p, b"RmqNonce", 8) == 0:
            return NONCE
        if memcmp(p, b"RmqProof", 8) == 0:
            return PROOF
    elif size == 7:
        if memcmp(p, b"RmqTime", 7) == 0:
            return TIME
    elif size == 13 and memcmp(p, b"SecurityToken", 13) == 0:
        return TOKEN
    return 0

cdef inline const char* after(const char* p, const char* end, const char* text, Py_ssize_t size) noexcept nogil:
    """The place after `text`, if `text` is at `p`; otherwise NULL, as for a NULL `p`."""
    if p == NULL or end - p < size or memcmp(p, text, size) != 0:
        return NULL
    return p + size

cdef inline const char* quoted(const char* p, const char* end, Part* part, bint escapes) noexcept nogil:
    """Read a JSON text of ASCII characters from behind its first quote; return the place after its last quote.
    `escapes`: the text may have escapes, which this function does not check."""
    cdef char c
    part.at = p
    while p < end:
        c = p[0]
        if c == c'"':
            part.size = p - part.at
            return p + 1
        if c == c'\\':
            if not escapes or end - p < 2:
                return NULL
            p += 1
            c = p[0]
        if not 0x20 <= c < 0x7f:
            return NULL
        p += 1
    return NULL

cdef inline const char* digits(const char* p, const char* end, int32_t* out) noexcept nogil:
    """Read a number outside of quotes; return the place after it."""
    cdef Part part
    if p == NULL:
        return NULL
    part.at = p
    while p < end and (c'0' <= p[0] <= c'9' or p[0] == c'-'):
        p += 1
    part.size = p - part.at
    return p if number32(part, out) else NULL

cdef bint read_json(const char* p, const char* end, Header* header, bint may_sign) noexcept nogil:
    """Read a header in the JSON form of Java's clients, with the short names in any order. `may_sign`: the header
    may have the fields of a signature."""
    cdef Part part
    cdef int letter
    cdef int32_t version
    p = after(p, end, b'{"code":310,"extFields":{', 25)
    if p == NULL:
        return 0
    while True:
        if end - p < 5 or p[0] != c'"':
            return 0
        if p[2] == c'"':
            letter = p[1] - c'a'
            if not 0 <= letter < LETTERS or p[3] != c':' or p[4] != c'"':
                return 0
            p += 5
        elif may_sign:
            p = quoted(p + 1, end, &part, 0)
            if p == NULL or end - p < 2 or p[0] != c':' or p[1] != c'"':
                return 0
            letter = signing_name(part.at, part.size)
            if letter == 0:
                return 0
            p += 2
        else:
            return 0
        if header.found >> letter & 1:
            return 0
        header.found |= 1u << letter
        p = quoted(p, end, &header.fields[letter], letter == TEXT)
        if p == NULL or p >= end:
            return 0
        if p[0] == c'}':
            break
        if p[0] != c',':
            return 0
        p += 1
    p = after(p, end, b'},"flag":0,"language":"', 23)
    if p != NULL:
        p = quoted(p, end, &part, 0)
    p = digits(after(p, end, b',"opaque":', 10), end, &header.opaque)
    p = after(p, end, b',"serializeTypeCurrentRPC":"', 28)
    if p != NULL:
        p = quoted(p, end, &part, 0)
    p = digits(after(p, end, b',"version":', 11), end, &version)
    return p != NULL and end - p == 1 and p[0] == c'}'

cdef bint read_binary(const char* p, const char* end, Header* header, bint may_sign) noexcept nogil:
    """Read a header in the ROCKETMQ form with one-letter names and without a remark; `may_sign` as for
    `read_json`."""
    cdef int letter
    cdef uint32_t size, name_size
    if end - p < 21 or get16(p) != 310 or get32(p + 9) != 0 or get32(p + 13) != 0:
        return 0
    header.opaque = <int32_t>get32(p + 5)
    if get32(p + 17) != <uint64_t>(end - p - 21):
        return 0
    p += 21
    while p < end:
        if end - p < 7:
            return 0
        name_size = get16(p)
        if name_size == 1:
            letter = p[2] - c'a'
            if not 0 <= letter < LETTERS:
                return 0
        elif may_sign and end - p >= <Py_ssize_t>name_size + 6:
            letter = signing_name(p + 2, name_size)
            if letter == 0:
                return 0
        else:
            return 0
        size = get32(p + 2 + name_size)
        p += 6 + name_size
        if header.found >> letter & 1 or size > <uint64_t>(end - p):
            return 0
        header.found |= 1u << letter
        header.fields[letter].at = p
        header.fields[letter].size = size
        p += size
    return 1

cdef bint is_ascii(Part part) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(part.size):
        if not 0x20 <= part.at[i] < 0x7f:
            return 0
    return 1

cdef inline bint is_false(Header* header, int letter) noexcept nogil:
    """True if the field is missing or has the value false."""
    if not header.found >> letter & 1:
        return 1
    return header.fields[letter].size == 5 and memcmp(header.fields[letter].at, b"false", 5) == 0

# ---- properties ----

cdef bytes listed(names):
    """Names as one text, each after its length."""
    return b"".join(bytes([len(name)]) + name.encode() for name in sorted(names))

cdef inline bint is_listed(const char* name, Py_ssize_t size, const char* names, Py_ssize_t names_size) noexcept nogil:
    """True if a name is in a text of `listed`."""
    cdef const char* end = names + names_size
    while names < end:
        if <uint8_t>names[0] == size and memcmp(names + 1, name, size) == 0:
            return 1
        names += 1 + <uint8_t>names[0]
    return 0

cdef bint is_rare(const char* name, Py_ssize_t size, const char* rare, Py_ssize_t rare_size) noexcept nogil:
    """True if a name is in `rare`, which is of `listed`. A name that ends in WAIT is rare, too: readers of WAIT search
    for its bytes, and would find them in that name."""
    return is_listed(name, size, rare, rare_size) or (size > 4 and memcmp(name + size - 4, b"WAIT", 4) == 0)

cdef bint read_text(
    Part text, bint escaped, char* out, Marks* marks, const char* rare, Py_ssize_t rare_size
) noexcept nogil:
    """Write a properties text to `out` in its stored form, without WAIT=true, and find the values for queue and
    index. False for a text that is not plain. `out` has room for the text."""
    cdef const char* p = text.at
    cdef const char* end = p + text.size
    cdef Py_ssize_t at = 0, start = 0, middle = -1, name, value
    cdef bint waits = 0, is_last = 0
    cdef char c = 0
    marks.key_size = marks.keys_size = 0
    marks.key_at = marks.keys_at = 0
    marks.code = 0
    while True:
        is_last = p >= end
        if not is_last:
            c = p[0]
            p += 1
            if escaped and c == c'\\':
                if end - p < 5 or memcmp(p, b"u000", 4) != 0 or not (p[4] == c'1' or p[4] == c'2'):
                    return 0
                c = <char>(p[4] - c'0')
                p += 5
        if not is_last and c != 2:
            if c == 1:
                if middle >= 0:
                    return 0
                middle = at
            elif not 0x20 <= c < 0x7f:
                return 0
            out[at] = c
            at += 1
            continue
        if at == start and is_last and start > 0:
            break  # the text ends with a separator
        name, value = middle - start, at - middle - 1
        if middle < 0 or name <= 0 or value <= 0:
            return 0
        if name == 4 and memcmp(out + start, b"WAIT", 4) == 0:
            if start == 0 or waits or value != 4 or memcmp(out + middle + 1, b"true", 4) != 0:
                return 0
            waits = 1
            at = start - 1
        elif name == 4 and memcmp(out + start, b"TAGS", 4) == 0:
            marks.code = java_hash(out + middle + 1, value)
        elif name == 4 and memcmp(out + start, b"KEYS", 4) == 0:
            marks.keys_at = middle + 1
            marks.keys_size = <uint32_t>value
        elif name == 8 and memcmp(out + start, b"UNIQ_KEY", 8) == 0:
            marks.key_at = middle + 1
            marks.key_size = <uint32_t>value
        elif is_rare(out + start, name, rare, rare_size):
            return 0
        if is_last:
            break
        out[at] = 2
        at += 1
        start = at
        middle = -1
    marks.size = at
    return at > 0


cdef Py_ssize_t unescaped_size(Part* text, bint escaped) noexcept nogil:
    cdef Py_ssize_t i, size = text.size
    if escaped:
        for i in range(text.size):
            if text.at[i] == c'\\':  # an escape has six characters, see read_text, and stands for one
                size -= 5
    return size

cdef char* unescaped(Part* text, bint escaped, char* out) noexcept nogil:
    """Write a text that `read_text` has found plain; return the place after it."""
    cdef const char* p = text.at
    cdef const char* end = p + text.size
    if not escaped:
        memcpy(out, p, text.size)
        return out + text.size
    while p < end:
        if p[0] == c'\\':
            out[0] = <char>(p[5] - c'0')
            p += 6
        else:
            out[0] = p[0]
            p += 1
        out += 1
    return out

# ---- runs ----

cdef class Lane:
    """A queue that accepts plain sends."""

    cdef object queue
    cdef object topic
    cdef bytes name  # the topic
    cdef bytes stored_name  # the topic after its length
    cdef int32_t queue_id
    cdef int32_t sys_flag
    cdef uint32_t key_hash  # hash of the text before a key in the index
    cdef int64_t run  # the last run with this lane
    cdef int32_t place  # the lane's place among the lanes of that run
    cdef int64_t next, count, size  # of the runs that are being put
    cdef int64_t batch  # the batch of these runs
    cdef char* unit  # the place of the lane's next unit


cdef class SendRun:
    """Consecutive plain sends of a chunk."""

    cdef readonly Py_ssize_t count
    cdef readonly Py_ssize_t largest
    cdef readonly int flag
    cdef bytes data
    cdef list lanes
    cdef Row* rows
    cdef Py_ssize_t room
    cdef char* texts
    cdef Py_ssize_t texts_size, texts_room
    cdef Py_ssize_t bodies
    cdef int64_t number, generation
    cdef Py_ssize_t last_lane
    cdef bint may_sign
    cdef Part sender  # the name of the account of all sends
    cdef char* signed_texts
    cdef Py_ssize_t signed_size, signed_room

    def __cinit__(self):
        self.lanes = []

    def __dealloc__(self):
        PyMem_Free(self.rows)
        PyMem_Free(self.texts)
        PyMem_Free(self.signed_texts)

    cdef int reserve(self, Py_ssize_t text_size) except -1:
        cdef void* more
        cdef Py_ssize_t room
        if self.count == self.room:
            room = max(8, 2 * self.room)
            more = PyMem_Realloc(self.rows, room * sizeof(Row))
            if more == NULL:
                raise MemoryError
            self.rows = <Row*>more
            self.room = room
        if self.texts_size + text_size > self.texts_room:
            room = max(1024, 2 * (self.texts_size + text_size))
            more = PyMem_Realloc(self.texts, room)
            if more == NULL:
                raise MemoryError
            self.texts = <char*>more
            self.texts_room = room
        return 0

    def __len__(self):
        return self.count

    @property
    def account(self):
        return self.sender.at[: self.sender.size].decode("ascii") if self.sender.size else None

    def topics(self):
        cdef Lane lane
        return list({lane.topic: None for lane in self.lanes})

    def signed(self):
        cdef Py_ssize_t i
        cdef Row* row
        cdef const char* base = PyBytes_AS_STRING(self.data)
        cdef char* p
        found = []
        if self.sender.size == 0:
            return found
        for i in range(self.count):
            row = &self.rows[i]
            content = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>row.signed_size + row.body_size)
            p = PyBytes_AS_STRING(content)
            memcpy(p, self.signed_texts + row.signed_at, row.signed_size)
            memcpy(p + row.signed_size, base + row.body_at, row.body_size)
            given = PyBytes_FromStringAndSize(base + row.given_at, row.given_size)
            if row.nonce_size:
                found.append(
                    (
                        content,
                        given,
                        base[row.nonce_at : row.nonce_at + row.nonce_size].decode("ascii"),
                        base[row.time_at : row.time_at + row.time_size].decode("ascii"),
                    )
                )
            else:
                found.append((content, given, "", ""))
        return found

    cdef int sign(self, Row* row, Header* header, const char* base) except -1:
        """Note the signed part of a header, and its signature or proof; 0 if the run has another sender, or the
        signature is not in the form of clients. rmq.protocol.auth.signature defines the signed part."""
        cdef uint32_t found = header.found
        cdef bint is_proved = found >> PROOF & 1
        cdef bint is_named = found >> ACCESS_KEY & 1
        cdef Part* name = &header.fields[ACCESS_KEY]
        cdef Part* given
        cdef Py_ssize_t room = 29 + 4, i = 0, n = 0, size
        cdef int field, k
        cdef char* p
        cdef char* lengths
        cdef void* more
        row.given_at = row.nonce_at = row.time_at = row.signed_at = 0
        row.given_size = row.nonce_size = row.time_size = row.signed_size = 0
        if self.count == 0:
            self.sender.size = 0
        elif is_named != (self.sender.size > 0) or (
            is_named
            and (name.size != self.sender.size or memcmp(name.at, self.sender.at, name.size) != 0)
        ):
            return 0
        if not is_named:
            return found >> LETTERS == 0
        for field in range(ACCESS_KEY, FIELDS):
            if found >> field & 1 and not is_ascii(header.fields[field]):
                return 0
        if is_proved:
            given = &header.fields[PROOF]
            if not (found >> NONCE & 1 and found >> TIME & 1):
                return 0
            if header.fields[NONCE].size == 0 or header.fields[TIME].size == 0:
                return 0
        else:
            given = &header.fields[SIGNATURE]
            if not found >> SIGNATURE & 1:
                return 0
        if name.size == 0 or given.size == 0:
            return 0
        for field in range(FIELDS):
            if found >> field & 1:
                room += header.fields[field].size + 24
                n += 1
        if self.signed_size + room > self.signed_room:
            more = PyMem_Realloc(self.signed_texts, max(2048, 2 * (self.signed_size + room)))
            if more == NULL:
                raise MemoryError
            self.signed_texts = <char*>more
            self.signed_room = max(2048, 2 * (self.signed_size + room))
        p = self.signed_texts + self.signed_size
        if is_proved:
            memcpy(p, b"rmq request 1", 13)
            put32(p + 13, 310)
            put32(p + 17, 0)
            put64(p + 21, row.body_size)
            lengths = p + 29
            n -= 1 + (found >> SIGNATURE & 1)
            p = lengths + 4 + 4 * n
            for k in range(FIELDS):
                field = (k + LETTERS) % FIELDS
                if not found >> field & 1 or field == PROOF or field == SIGNATURE:
                    continue
                size = unescaped_size(&header.fields[field], field == TEXT and not row.binary)
                put32(lengths + 4 + 4 * i, <uint32_t>size)
                i += 1
                size = decimal(rmq_name_sizes[field], p)
                p += size
                p[0] = c':'
                memcpy(p + 1, rmq_names[field], rmq_name_sizes[field])
                p += 1 + rmq_name_sizes[field]
                p[0] = c','
                p += 1
            put32(lengths, <uint32_t>(p - lengths - 4 - 4 * n))
            row.nonce_at = header.fields[NONCE].at - base
            row.nonce_size = <uint32_t>header.fields[NONCE].size
            row.time_at = header.fields[TIME].at - base
            row.time_size = <uint32_t>header.fields[TIME].size
        for k in range(FIELDS):
            field = (k + LETTERS) % FIELDS
            if found >> field & 1 and field != SIGNATURE and field != PROOF:
                p = unescaped(&header.fields[field], field == TEXT and not row.binary, p)
        row.given_at = given.at - base
        row.given_size = <uint32_t>given.size
        row.signed_at = self.signed_size
        row.signed_size = <uint32_t>(p - self.signed_texts - self.signed_size)
        self.signed_size += row.signed_size
        self.sender = name[0]
        return 1

    def placed(self):
        cdef Py_ssize_t i
        return [
            ((<Lane>self.lanes[self.rows[i].lane]).queue_id, self.rows[i].position, self.rows[i].queue_offset)
            for i in range(self.count)
        ]

    def commands(self):
        """The sends as single commands."""
        cdef Py_ssize_t i, at
        cdef const char* base = PyBytes_AS_STRING(self.data)
        commands = []
        for i in range(self.count):
            at = self.rows[i].frame_at
            commands += frames.split_frames(self.data[at : at + 4 + get32(base + at)], 0x7FFFFFFF)[0]
        return commands

    def replies(self, tuple json_parts, bytes binary_fields, int32_t language, int32_t version):
        """The frames of the responses: each send is stored."""
        cdef const char* parts[5]
        cdef Py_ssize_t sizes[5]
        cdef Py_ssize_t i, json_size = 0, size, fields_size = PyBytes_GET_SIZE(binary_fields)
        cdef const char* fields = PyBytes_AS_STRING(binary_fields)
        cdef Row* row
        cdef Lane lane
        cdef char* buffer
        cdef char* p
        cdef char* start
        cdef char queue_text[24]
        cdef char offset_text[24]
        cdef int queue_size, offset_size
        for i in range(5):
            part = json_parts[i]
            parts[i] = PyBytes_AS_STRING(<bytes?>part)
            sizes[i] = PyBytes_GET_SIZE(part)
            json_size += sizes[i]
        # Three numbers of at most 20 characters, the hexadecimal one, the head, the names of two fields.
        size = max(json_size, fields_size) + 128 + 64
        buffer = <char*>PyMem_Malloc(size * self.count)
        if buffer == NULL:
            raise MemoryError
        p = buffer
        for i in range(self.count):
            row = &self.rows[i]
            lane = <Lane>self.lanes[row.lane]
            queue_size = decimal(lane.queue_id, queue_text)
            offset_size = decimal(row.queue_offset, offset_text)
            start = p
            if row.binary:
                size = fields_size + 16 + 9 + 4 + queue_size + 13 + 4 + offset_size
                put32(p, <uint32_t>(size + 25))
                put32(p + 4, 0x01000000u | <uint32_t>(size + 21))
                p[8] = p[9] = 0
                p[10] = <char>language
                p[11] = <char>(version >> 8)
                p[12] = <char>version
                put32(p + 13, <uint32_t>row.opaque)
                put32(p + 17, 1)
                put32(p + 21, 0)
                put32(p + 25, <uint32_t>size)
                p += 29
                memcpy(p, fields, fields_size)
                p += fields_size
                hexadecimal(<uint64_t>row.position, p)
                p += 16
                memcpy(p, b"\0\x07queueId", 9)
                put32(p + 9, queue_size)
                memcpy(p + 13, queue_text, queue_size)
                p += 13 + queue_size
                memcpy(p, b"\0\x0bqueueOffset", 13)
                put32(p + 13, offset_size)
                memcpy(p + 17, offset_text, offset_size)
                p += 17 + offset_size
                continue
            p += 8
            memcpy(p, parts[0], sizes[0])
            p += sizes[0]
            memcpy(p, queue_text, queue_size)
            p += queue_size
            memcpy(p, parts[1], sizes[1])
            p += sizes[1]
            hexadecimal(<uint64_t>row.position, p)
            p += 16
            memcpy(p, parts[2], sizes[2])
            p += sizes[2]
            memcpy(p, offset_text, offset_size)
            p += offset_size
            memcpy(p, parts[3], sizes[3])
            p += sizes[3]
            p += decimal(row.opaque, p)
            memcpy(p, parts[4], sizes[4])
            p += sizes[4]
            put32(start, <uint32_t>(p - start - 4))
            put32(start + 4, <uint32_t>(p - start - 8))
        try:
            return PyBytes_FromStringAndSize(buffer, p - buffer)
        finally:
            PyMem_Free(buffer)


cdef class Lanes:
    """The queues that accept plain sends, by topic and queue id."""

    cdef dict table
    cdef dict open_topics  # the number of queues by the name of a topic, for sends of doors
    cdef public bytes suffix
    cdef public bint is_indexed, is_open, is_signed
    cdef PullLanes pulls
    cdef TakeLanes takes
    cdef bytes rare, store_host
    cdef int32_t host_flag, born_v6_flag, sender_flags
    cdef set wanted
    cdef int64_t runs, generation, batches
    cdef list pending, touched  # the runs that are being put, and their lanes

    def __init__(
        self,
        rare,
        bytes store_host,
        int32_t host_flag,
        int32_t born_v6_flag,
        int32_t sender_flags,
        PullLanes pulls=None,
        TakeLanes takes=None,
    ):
        self.pulls, self.takes = pulls, takes
        self.table, self.open_topics = {}, {}
        self.wanted = set()
        self.pending, self.touched = [], []
        self.suffix = b""
        self.is_indexed = self.is_open = True
        self.is_signed = False
        self.rare = listed(rare)
        self.store_host = store_host
        self.host_flag, self.born_v6_flag, self.sender_flags = host_flag, born_v6_flag, sender_flags

    def add(self, queue, int32_t sys_flag):
        cdef Lane lane = Lane()
        lane.queue = queue
        lane.topic = queue.topic
        lane.name = queue.topic_bytes[1:]
        lane.stored_name = queue.topic_bytes
        lane.queue_id = queue.queue_id
        lane.sys_flag = sys_flag
        lane.key_hash = before_key(PyBytes_AS_STRING(lane.name), PyBytes_GET_SIZE(lane.name))
        lane.run = lane.batch = -1
        self.table[_key(lane.name, lane.queue_id)] = lane

    def clear(self):
        self.table.clear()
        self.open_topics.clear()
        self.generation += 1

    def open_topic(self, str topic, int32_t queues):
        if queues <= 0:
            raise ValueError("a topic without queues")
        self.open_topics[topic.encode()] = queues

    def is_open_topic(self, str topic):
        return topic.encode() in self.open_topics

    def take_wanted(self):
        wanted, self.wanted = self.wanted, set()
        return wanted

    @property
    def wants_more(self):
        return bool(self.wanted)

    # -- bytes to runs --

    def split(self, bytes data, Py_ssize_t max_frame, Py_ssize_t max_header, Py_ssize_t most):
        """Split frames as `split_frames` does, with one value for each run of plain sends, pulls or takes, and count
        the frames."""
        cdef const char* base = PyBytes_AS_STRING(data)
        cdef const char* p
        cdef Py_ssize_t at = 0, end = PyBytes_GET_SIZE(data), stop, others_at = 0, count = 0
        cdef uint32_t length, word, header
        cdef SendRun run = None
        cdef PullRun pull_run = None
        cdef TakeRun take_run = None
        cdef bint reads = self.pulls is not None and self.pulls.is_open
        cdef bint takes = self.takes is not None and self.takes.is_open
        cdef int kind, last = NO_RUN  # of the frame, and of the run that it may continue
        found = []
        if not self.is_open or (not self.table and end >= 8 and not _begins_a_send(base + 8, base + end)):
            if end < 8 or not (
                (reads and begins_a_pull(base + 8, base + end)) or (takes and begins_a_take(base + 8, base + end))
            ):
                commands, at = frames.split_frames(data, max_frame, max_header, most)
                return commands, at, len(commands)
        while count < most and end - at >= 8:
            length, word = get32(base + at), get32(base + at + 4)
            header = word & 0xFFFFFF
            if length > <uint64_t>max_frame or header > <uint64_t>max_header or header + 4 > length:
                frames.split_frames(data[at:], max_frame, max_header, 1)  # raises
            stop = at + 4 + <Py_ssize_t>length
            if stop > end:
                break
            kind = NO_RUN
            p = base + at + 8
            if word >> 24 <= 1 and self.is_open and _begins_a_send(p, p + header):
                if run is None:
                    run = SendRun()
                    run.data = data
                    run.number = self.runs = self.runs + 1
                    run.generation = self.generation
                if self.take(run, base, at, header, stop, word >> 24):
                    kind = SENDS
            elif reads and word >> 24 == 0 and begins_a_pull(p, p + header):
                if pull_run is not None and pull_run.count == PULLS_MAX:
                    found.append(pull_run)
                    pull_run, last = None, NO_RUN
                if pull_run is None:
                    pull_run = self.pulls.begin(data)
                if self.pulls.take(pull_run, base, at, header, stop):
                    kind = PULLS
            elif takes and word >> 24 == 0 and begins_a_take(p, p + header):
                if take_run is None:
                    take_run = self.takes.begin(data)
                if self.takes.take(take_run, base, at, header, stop):
                    kind = TAKES
            if kind != last:  # a run ends here, or begins, or both
                if last == SENDS:
                    found.append(run)
                    run = None
                elif last == PULLS:
                    found.append(pull_run)
                    pull_run = None
                elif last == TAKES:
                    found.append(take_run)
                    take_run = None
                if kind and others_at < at:
                    found += frames.split_frames(data[others_at:at], max_frame, max_header)[0]
                last = kind
            if kind:
                others_at = stop
            count += 1
            at = stop
        if last:
            found.append(run if last == SENDS else pull_run if last == PULLS else take_run)
        if others_at == 0 and at:
            found = frames.split_frames(data, max_frame, max_header, most)[0]
        elif others_at < at:
            found += frames.split_frames(data[others_at:at], max_frame, max_header)[0]
        if end - at >= 4:
            frames.frame_size(data, at, max_frame)
        return found, at, count

    cdef int take(
        self, SendRun run, const char* base, Py_ssize_t at, uint32_t header_size, Py_ssize_t stop, int binary
    ) except -1:
        """Take a frame into a run, if it is a plain send."""
        cdef Header header
        cdef Marks marks
        cdef int64_t born = 0
        cdef int32_t queues, queue_id, sys_flag, flag, reconsumed, ignored, place
        cdef const char* p = base + at + 8
        cdef const char* end = p + header_size
        cdef Row* row
        header.found = 0
        header.opaque = 0
        cdef bint is_signed = self.is_signed
        if not (
            read_binary(p, end, &header, is_signed) if binary else read_json(p, end, &header, is_signed)
        ):
            return 0
        if header.found & NEEDED != NEEDED:
            return 0
        if not (
            number32(header.fields[3], &queues)
            and number32(header.fields[4], &queue_id)
            and number32(header.fields[5], &sys_flag)
            and number(header.fields[6], -0x7FFFFFFFFFFFFFFF, 0x7FFFFFFFFFFFFFFF, &born)
            and number32(header.fields[7], &flag)
            and number32(header.fields[9], &reconsumed)
            and is_false(&header, 10)
            and (not header.found >> 11 & 1 or number32(header.fields[11], &ignored))
            and is_false(&header, 12)
        ):
            return 0
        if sys_flag & ~self.sender_flags or header.fields[8].size > TEXT_MAX:
            return 0
        if binary and not (
            is_ascii(header.fields[0])
            and is_ascii(header.fields[1])
            and is_ascii(header.fields[2])
            and (not header.found >> 13 & 1 or is_ascii(header.fields[13]))
        ):
            return 0
        run.reserve(header.fields[8].size)
        if not read_text(
            header.fields[8],
            not binary,
            run.texts + run.texts_size,
            &marks,
            PyBytes_AS_STRING(self.rare),
            PyBytes_GET_SIZE(self.rare),
        ):
            return 0
        row = &run.rows[run.count]
        row.body_at = at + 8 + header_size
        row.body_size = <uint32_t>(stop - row.body_at)
        row.binary = binary
        if is_signed and not run.sign(row, &header, base):
            return 0
        place = self.place_of(run, header.fields[1], queue_id)
        if place < 0:
            return 0
        row.born = born
        row.position = row.queue_offset = 0
        row.frame_at = at
        row.text_at = run.texts_size
        row.text_size = <uint32_t>marks.size
        row.key_at = run.texts_size + marks.key_at
        row.key_size = marks.key_size
        row.keys_at = run.texts_size + marks.keys_at
        row.keys_size = marks.keys_size
        row.code = marks.code
        row.lane = place
        row.opaque = header.opaque
        row.sys_flag = sys_flag
        row.flag = flag
        row.reconsumed = reconsumed
        run.largest = max(run.largest, <Py_ssize_t>row.body_size)
        run.bodies += row.body_size
        run.texts_size += marks.size
        run.count += 1
        return 1

    cdef int place_of(self, SendRun run, Part topic, int32_t queue_id) except -2:
        """The place of a queue's lane among the lanes of the run; -1 if the queue has no lane."""
        cdef Py_ssize_t n = len(run.lanes), guess = run.last_lane, i
        cdef Lane lane
        for i in range(2):  # first guesses: the lane of the last send, and the next lane of the run
            if guess < n:
                lane = <Lane>run.lanes[guess]
                if (
                    lane.queue_id == queue_id
                    and PyBytes_GET_SIZE(lane.name) == topic.size
                    and memcmp(PyBytes_AS_STRING(lane.name), topic.at, topic.size) == 0
                ):
                    run.last_lane = guess
                    return <int>guess
            guess = guess + 1 if guess + 1 < n else 0
        if topic.size > 127 or queue_id < 0:
            return -1
        name = PyBytes_FromStringAndSize(topic.at, topic.size)
        found = self.table.get(_key(name, queue_id))
        if found is None:
            if len(self.wanted) < WANTED_MAX:
                self.wanted.add((name.decode("ascii"), queue_id))
            return -1
        lane = <Lane>found
        if lane.run != run.number:
            lane.run = run.number
            lane.place = <int32_t>n
            run.lanes.append(lane)
        run.last_lane = lane.place
        return lane.place

    # -- runs to records --

    def put(self, SendRun run, queues, int64_t position, int64_t left, int64_t now, bytes born_host):
        """The records of a run, for the log at `position`; None if the run must take the slower path. `queues` has
        all queues by (topic, queue id). More runs may follow, then `commit` or `rollback`."""
        cdef Py_ssize_t born_size = len(born_host), store_size = PyBytes_GET_SIZE(self.store_host)
        cdef Py_ssize_t suffix_size = PyBytes_GET_SIZE(self.suffix), i, fixed, total, size, name_size, text_size
        cdef const char* base = PyBytes_AS_STRING(run.data)
        cdef const char* suffix = PyBytes_AS_STRING(self.suffix)
        cdef const char* born = PyBytes_AS_STRING(born_host)
        cdef const char* stored = PyBytes_AS_STRING(self.store_host)
        cdef int32_t hosts = self.host_flag | (self.born_v6_flag if born_size == 20 else 0)
        cdef Lane lane
        cdef Row* row
        cdef char* p
        if run.generation != self.generation:
            return None
        for lane in run.lanes:
            if queues.get((lane.topic, lane.queue_id)) is not lane.queue:
                return None
        fixed = HEAD - 16 + born_size + store_size + 2 + 1 + suffix_size
        total = run.bodies + run.texts_size + run.count * fixed
        for i in range(run.count):
            total += PyBytes_GET_SIZE((<Lane>run.lanes[run.rows[i].lane]).stored_name)
        if total + 8 > left:
            return None
        for lane in run.lanes:
            if lane.batch != self.batches:
                lane.batch = self.batches
                lane.next = lane.queue.next
                lane.count = lane.size = 0
                self.touched.append(lane)
        data = PyBytes_FromStringAndSize(NULL, total)
        p = PyBytes_AS_STRING(data)
        for i in range(run.count):
            row = &run.rows[i]
            lane = <Lane>run.lanes[row.lane]
            name_size = PyBytes_GET_SIZE(lane.stored_name)
            text_size = row.text_size + 1 + suffix_size
            size = fixed + row.body_size + name_size + row.text_size
            row.size = <uint32_t>size
            row.position = position
            row.queue_offset = lane.next + lane.count
            lane.count += 1
            lane.size += size
            put32(p, <uint32_t>size)
            put32(p + 4, 0xDAA320A7u)
            put32(p + 8, rmq_crc(<const uint8_t*>base + row.body_at, row.body_size, FOLDS) & 0x7FFFFFFFu)
            put32(p + 12, <uint32_t>lane.queue_id)
            put32(p + 16, <uint32_t>row.flag)
            put64(p + 20, <uint64_t>row.queue_offset)
            put64(p + 28, <uint64_t>position)
            put32(p + 36, <uint32_t>(row.sys_flag | lane.sys_flag | hosts))
            put64(p + 40, <uint64_t>row.born)
            p += 48
            memcpy(p, born, born_size)
            p += born_size
            put64(p, <uint64_t>now)
            p += 8
            memcpy(p, stored, store_size)
            p += store_size
            put32(p, <uint32_t>row.reconsumed)
            put64(p + 4, 0)
            put32(p + 12, row.body_size)
            p += 16
            memcpy(p, base + row.body_at, row.body_size)
            p += row.body_size
            memcpy(p, PyBytes_AS_STRING(lane.stored_name), name_size)
            p += name_size
            p[0] = <char>(text_size >> 8)
            p[1] = <char>text_size
            p += 2
            memcpy(p, run.texts + row.text_at, row.text_size)
            p += row.text_size
            p[0] = 2
            memcpy(p + 1, suffix, suffix_size)
            p += 1 + suffix_size
            position += size
        assert p == PyBytes_AS_STRING(data) + total
        self.pending.append(run)
        return data

    def counts(self):
        """(topic, messages, bytes) of the lanes of the runs that are being put."""
        cdef Lane lane
        return [(lane.topic, lane.count, lane.size) for lane in self.touched]

    def rollback(self):
        self.pending, self.touched = [], []
        self.batches += 1

    def commit(self, int64_t now):
        """Note that the runs are in the log; return (units of each queue, rows for the index)."""
        cdef list runs = self.pending
        cdef SendRun run
        cdef Py_ssize_t i
        cdef Row* row
        cdef Marks marks
        cdef Lane lane
        cdef Rows rows = Rows() if self.is_indexed else None
        units = []
        for lane in self.touched:
            piece = PyBytes_FromStringAndSize(NULL, lane.count * 20)
            units.append((lane.queue, lane.count, piece))
            lane.unit = PyBytes_AS_STRING(piece)
        for run in runs:
            for i in range(run.count):
                row = &run.rows[i]
                lane = <Lane>run.lanes[row.lane]
                put_unit(lane.unit, row.position, row.size, row.code)
                lane.unit += 20
                if rows is not None and (row.key_size or row.keys_size):
                    marks.key_at, marks.key_size = row.key_at, row.key_size
                    marks.keys_at, marks.keys_size = row.keys_at, row.keys_size
                    if rows.add_keys(lane.key_hash, run.texts, &marks, row.position, now):
                        rows.records += 1
        self.rollback()
        return units, rows


cdef inline bytes _key(bytes name, int32_t queue_id):
    cdef Py_ssize_t size = PyBytes_GET_SIZE(name)
    key = PyBytes_FromStringAndSize(NULL, size + 4)
    memcpy(PyBytes_AS_STRING(key), PyBytes_AS_STRING(name), size)
    put32(PyBytes_AS_STRING(key) + size, <uint32_t>queue_id)
    return key


cdef inline bint _begins_a_send(const char* p, const char* end) noexcept nogil:
    """True if a header, in either form, may be the header of SEND_MESSAGE_V2."""
    if end - p < 12:
        return 0
    return memcmp(p, b'{"code":310,', 12) == 0 or get16(p) == 310


# ---- the index ----

cdef extern from "Python.h":
    bint PyUnicode_IS_ASCII(object text)
    const uint8_t* PyUnicode_1BYTE_DATA(object text)


cdef inline uint32_t before_key(const char* topic, Py_ssize_t size) noexcept nogil:
    """The hash of a topic in ASCII and of the `#` between topic and key."""
    return 31 * <uint32_t>java_hash(topic, size) + c'#'


cdef inline void put_unit(char* unit, int64_t position, uint32_t size, int32_t code) noexcept nogil:
    put64(unit, <uint64_t>position)
    put32(unit + 8, size)
    put64(unit + 12, <uint64_t><int64_t>code)


cdef struct KeyRow:
    int64_t offset
    int64_t timestamp
    uint32_t key_hash
    uint32_t record  # number of the row's record


cdef class Rows:
    """Rows for the index, in the order of the log, of `records` records; a record may have no rows."""

    cdef readonly Py_ssize_t records
    cdef KeyRow* rows
    cdef Py_ssize_t count, room
    cdef Rows owner  # the object that owns the memory; None: this object

    def __dealloc__(self):
        if self.owner is None:
            PyMem_Free(self.rows)

    cdef int add(self, uint32_t key_hash, int64_t offset, int64_t timestamp) except -1:
        cdef KeyRow* row
        cdef void* more
        if self.count == self.room:
            more = PyMem_Realloc(self.rows, max(16, 2 * self.room) * sizeof(KeyRow))
            if more == NULL:
                raise MemoryError
            self.rows = <KeyRow*>more
            self.room = max(16, 2 * self.room)
        row = &self.rows[self.count]
        row.offset, row.timestamp = offset, timestamp
        # Java's abs(), with 0 for the smallest number, which has no absolute value
        row.key_hash = key_hash if key_hash < 0x80000000u else (0u - key_hash) & 0x7FFFFFFFu
        row.record = <uint32_t>self.records
        self.count += 1
        return 0

    cdef int add_keys(
        self, uint32_t before, const char* text, Marks* marks, int64_t offset, int64_t timestamp
    ) except -1:
        """Add the index rows of a record: its unique key, then its keys, which are separated by blanks. Return the
        number of rows."""
        cdef const char* p = text + marks.keys_at
        cdef const char* end = p + marks.keys_size
        cdef const char* stop
        cdef Py_ssize_t count = self.count
        if marks.key_size:
            self.add(add_to_hash(before, text + marks.key_at, marks.key_size), offset, timestamp)
        while p < end:
            stop = <const char*>memchr(p, c' ', end - p)
            if stop == NULL:
                stop = end
            if stop > p:
                self.add(add_to_hash(before, p, stop - p), offset, timestamp)
            p = stop + 1
        return <int>(self.count - count)

    cdef Rows part(self, Py_ssize_t first, Py_ssize_t stop):
        cdef Rows part = Rows()
        part.owner = self if self.owner is None else self.owner
        part.rows = self.rows + first
        part.count = part.room = stop - first
        return part

    def split(self, Py_ssize_t records):
        """The rows of the first `records` records, and the other rows."""
        cdef Py_ssize_t at = 0, i
        cdef Rows first, rest
        records = max(0, min(records, self.records))
        while at < self.count and self.rows[at].record < <uint32_t>records:
            at += 1
        first, rest = self.part(0, at), self.part(at, self.count)
        first.records, rest.records = records, self.records - records
        for i in range(rest.count):
            rest.rows[i].record -= <uint32_t>records
        return first, rest

    def __len__(self):
        return self.count

    def __getitem__(self, at):
        cdef Py_ssize_t i
        cdef KeyRow* row
        if isinstance(at, slice):
            start, stop, step = at.indices(self.count)
            if step != 1:
                raise ValueError("rows have no steps")
            return self.part(start, max(start, stop))
        i = at + self.count if at < 0 else at
        if not 0 <= i < self.count:
            raise IndexError
        row = &self.rows[i]
        return row.key_hash, row.offset, row.timestamp


cdef inline uint32_t add_to_hash(uint32_t h, const char* p, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(n):
        h = 31 * h + <uint8_t>p[i]
    return h


def key_rows(entries):
    """Same as `rmq.store.files.index.KeyHash.rows`; entries may be rows already."""
    cdef uint32_t h, before = 0
    cdef str topic, last = None, key
    cdef tuple keys
    cdef Rows given, rows = Rows()
    cdef Py_ssize_t i
    if len(entries) == 1 and isinstance(entries[0], Rows):
        return entries[0]
    for entry in entries:
        if isinstance(entry, Rows):
            given = <Rows>entry
            for i in range(given.count):
                rows.add(given.rows[i].key_hash, given.rows[i].offset, given.rows[i].timestamp)
            continue
        topic, keys, offset, timestamp = entry
        if topic is not last:
            last = topic
            if PyUnicode_IS_ASCII(topic):
                before = before_key(<const char*>PyUnicode_1BYTE_DATA(topic), len(topic))
        for key in keys:
            if PyUnicode_IS_ASCII(topic) and PyUnicode_IS_ASCII(key):
                h = add_to_hash(before, <const char*>PyUnicode_1BYTE_DATA(key), len(key))
            else:
                h = java_text_hash(f"{topic}#{key}") & 0xFFFFFFFF
            rows.add(h, offset, timestamp)
    return rows


def pack_entries(view, Rows rows, int64_t count, int64_t used, int64_t slots, int64_t begin, int64_t entries_at):
    """Same as `rmq.store.files.index.pack_entries`."""
    cdef Py_buffer buffer
    cdef char* base
    cdef char* at
    cdef char* slot
    cdef KeyRow* row
    cdef Py_ssize_t i
    cdef int64_t seconds, last
    if slots <= 0 or count < 0:
        raise ValueError("an index file without slots")
    PyObject_GetBuffer(view, &buffer, PyBUF_WRITABLE)
    try:
        if buffer.len < entries_at + (count + rows.count) * 20 or entries_at < 40 + 4 * slots:
            raise ValueError("entries past the end of an index file")
        base = <char*>buffer.buf
        at = base + entries_at + count * 20
        for i in range(rows.count):
            row = &rows.rows[i]
            slot = base + 40 + (row.key_hash % slots) * 4
            last = <int32_t>get32(slot)
            if not 0 < last <= count:
                last = 0
                used += 1
            seconds = 0
            if begin > 0 and row.timestamp > begin:
                seconds = min((row.timestamp - begin) // 1000, 0x7FFFFFFF)
            put32(at, row.key_hash)
            put64(at + 4, <uint64_t>row.offset)
            put32(at + 12, <uint32_t>seconds)
            put32(at + 16, <uint32_t>last)
            put32(slot, <uint32_t>count)
            at += 20
            count += 1
    finally:
        PyBuffer_Release(&buffer)
    return count, used


# ---- batches ----

cdef bint find_marks(const char* text, Py_ssize_t size, Marks* marks) noexcept nogil:
    """Find the values for queue and index, as `property_value` does; False for a text that is not ASCII or has a
    NUL."""
    cdef const char* p = text
    cdef const char* end = text + size
    cdef const char* stop
    cdef Py_ssize_t i
    for i in range(size):
        if not 0 < <uint8_t>text[i] < 0x80:
            return 0
    marks.key_size = marks.keys_size = 0
    marks.key_at = marks.keys_at = 0
    marks.code = 0
    while p < end:
        stop = <const char*>memchr(p, 2, end - p)
        if stop == NULL:
            stop = end
        if stop - p > 9 and memcmp(p, b"UNIQ_KEY\x01", 9) == 0:
            marks.key_at = p - text + 9
            marks.key_size = <uint32_t>(stop - p - 9)
        elif stop - p > 5 and memcmp(p, b"TAGS\x01", 5) == 0:
            marks.code = java_hash(p + 5, stop - p - 5)
        elif stop - p > 5 and memcmp(p, b"KEYS\x01", 5) == 0:
            marks.keys_at = p - text + 5
            marks.keys_size = <uint32_t>(stop - p - 5)
        p = stop + 1
    return 1


def build_batch(
    bytes batch,
    bytes suffix,
    tuple place,
    tuple born,
    tuple stored,
    int32_t reconsumed,
    bytes topic,
    bint is_indexed,
    bint is_marked,
):
    """Build a batch as `rmq.protocol.record.build_batch` does; return (bytes, positions, units, rows for the
    index), or None for a batch that is left to Python. `is_marked`: the suffix has tags or keys."""
    cdef const char* base = PyBytes_AS_STRING(batch)
    cdef const char* suffix_at = PyBytes_AS_STRING(suffix)
    cdef const char* topic_at = PyBytes_AS_STRING(topic)
    cdef int32_t queue_id = place[0], sys_flag = place[3]
    cdef int64_t queue_offset = place[1], position = place[2], born_at = born[0], now = stored[0]
    cdef bytes born_host = born[1], store_host = stored[1]
    cdef const char* born_bytes = PyBytes_AS_STRING(born_host)
    cdef const char* store_bytes = PyBytes_AS_STRING(store_host)
    cdef Py_ssize_t born_size = PyBytes_GET_SIZE(born_host), store_size = PyBytes_GET_SIZE(store_host)
    cdef Py_ssize_t suffix_size = PyBytes_GET_SIZE(suffix), topic_size = PyBytes_GET_SIZE(topic)
    cdef Py_ssize_t end = PyBytes_GET_SIZE(batch), at = 0, total = 0, fixed, text_size, after_size, size, count = 0
    cdef int64_t length
    cdef uint32_t before
    cdef Rows rows = Rows() if is_indexed else None
    cdef char* unit
    cdef const char* p
    cdef const char* text
    cdef char* o
    cdef char* text_at
    cdef Marks marks
    for size in range(topic_size):
        if topic_at[size] & 0x80:
            return None
    before = before_key(topic_at + 1, topic_size - 1)
    fixed = HEAD - 16 + born_size + store_size + topic_size + 2
    while at < end:  # check the whole batch before a record is built
        if end - at < 22:
            return None
        size, length = <int32_t>get32(base + at), <int32_t>get32(base + at + 16)
        if length < 0 or length > end - at - 22:
            return None
        text_size = get16(base + at + 20 + length)
        if text_size + suffix_size > TEXT_MAX or size != 22 + length + text_size or size > end - at:
            return None
        text = base + at + 22 + length
        total += fixed + length + text_size + suffix_size + (text_size > 0 and text[text_size - 1] != 2)
        at += size
        count += 1
    units = PyBytes_FromStringAndSize(NULL, count * 20)
    unit = PyBytes_AS_STRING(units)
    data = PyBytes_FromStringAndSize(NULL, total)
    o = PyBytes_AS_STRING(data)
    positions = []
    at = 0
    while at < end:
        p = base + at
        length = <int32_t>get32(p + 16)
        text_size = get16(p + 20 + length)
        text = p + 22 + length
        after_size = suffix_size + (text_size > 0 and text[text_size - 1] != 2)
        size = fixed + length + text_size + after_size
        positions.append(position)
        put32(o, <uint32_t>size)
        put32(o + 4, 0xDAA320A7u)
        put32(o + 8, rmq_crc(<const uint8_t*>p + 20, length, FOLDS) & 0x7FFFFFFFu)
        put32(o + 12, <uint32_t>queue_id)
        memcpy(o + 16, p + 12, 4)
        put64(o + 20, <uint64_t>queue_offset)
        put64(o + 28, <uint64_t>position)
        put32(o + 36, <uint32_t>sys_flag)
        put64(o + 40, <uint64_t>born_at)
        o += 48
        memcpy(o, born_bytes, born_size)
        o += born_size
        put64(o, <uint64_t>now)
        o += 8
        memcpy(o, store_bytes, store_size)
        o += store_size
        put32(o, <uint32_t>reconsumed)
        put64(o + 4, 0)
        put32(o + 12, <uint32_t>length)
        o += 16
        memcpy(o, p + 20, length)
        o += length
        memcpy(o, topic_at, topic_size)
        o += topic_size
        o[0] = <char>((text_size + after_size) >> 8)
        o[1] = <char>(text_size + after_size)
        o += 2
        text_at = o
        memcpy(o, text, text_size)
        o += text_size
        if after_size > suffix_size:
            o[0] = 2
            o += 1
        memcpy(o, suffix_at, suffix_size)
        o += suffix_size
        if not find_marks(text_at, text_size + after_size if is_marked else text_size, &marks):
            return None
        put_unit(unit, position, <uint32_t>size, marks.code)
        unit += 20
        if rows is not None:
            rows.add_keys(before, text_at, &marks, position, now)
            rows.records += 1
        queue_offset += 1
        position += size
        at += 22 + length + text_size
    assert o == PyBytes_AS_STRING(data) + total
    return data, positions, units, rows


def batch_ids(bytes prefix, list positions):
    """The offset message ids of a batch, separated by commas."""
    cdef Py_ssize_t size = PyBytes_GET_SIZE(prefix), count = len(positions)
    cdef char* p
    if not count:
        return b""
    ids = PyBytes_FromStringAndSize(NULL, count * (size + 17) - 1)
    p = PyBytes_AS_STRING(ids)
    for i in range(count):
        if i:
            p[0] = c','
            p += 1
        memcpy(p, PyBytes_AS_STRING(prefix), size)
        hexadecimal(<uint64_t><int64_t>positions[i], p + size)
        p += size + 16
    return ids


# ---- pulls ----

cdef enum:
    NO_MATCH = 0
    REMOVING = 1
    FOUND = 2

cdef struct Range:
    int64_t start, stop


cdef struct Limits:  # how many messages a pull gets, and how many of them from before the position `old`
    int64_t count, size, old_count, old_size, old


cdef class Choice:
    """The messages that a pull gets of a queue's units: `found` messages of `total` bytes, in `ranges` of the log.
    `looked` units were looked at, `last` is the position of the last of them."""

    cdef Range* ranges
    cdef Py_ssize_t range_count, range_room
    cdef int64_t found, total, looked, last
    cdef int status

    def __dealloc__(self):
        PyMem_Free(self.ranges)

    cdef int choose(
        self,
        const char* p,
        int64_t count,
        int64_t log_start,
        int64_t log_end,
        Limits limits,
        const int64_t* codes,
        Py_ssize_t code_count,
        matches,
    ) except -1:
        """Choose from `count` units those whose code is one of `code_count` sorted codes; with a negative count those
        that `matches`, and without it all."""
        cdef int64_t physical = 0, size, found = 0, total = 0, looked = 0, start = -1, stop = -1
        cdef int64_t old = limits.old, most = limits.count, most_old = limits.old_count
        cdef bint is_old, is_filtered = code_count >= 0 or matches is not None
        cdef int status = NO_MATCH
        self.range_count = 0
        while looked < count:
            physical = <int64_t>get64(p)
            size = <int32_t>get32(p + 8)
            if found:
                is_old = physical < old
                if found >= (most_old if is_old else most):
                    break
                if size > (limits.old_size if is_old else limits.size) - total:
                    break
            looked += 1
            p += 20
            if is_filtered and not (
                has_code(codes, code_count, <int64_t>get64(p - 8))
                if code_count >= 0
                else matches(<int64_t>get64(p - 8))
            ):
                if not found:
                    status = NO_MATCH
                continue
            if physical < log_start or size <= 0 or physical > log_end - size:
                if not found:
                    status = REMOVING
                continue
            if physical != stop:  # not adjacent; a file's first record never is: a blank ends the file before it
                if found:
                    self.add_range(start, stop)
                start = physical
            stop = physical + size
            found += 1
            total += size
            status = FOUND
        if found:
            self.add_range(start, stop)
        self.status, self.found, self.total, self.looked, self.last = status, found, total, looked, physical
        return 0

    cdef list buffers(self, file_view, int64_t small, int64_t copied, const char* head, Py_ssize_t head_size):
        """A head, and the bytes of the ranges. There is one copy of all of them for at most `copied` bytes, and for
        several ranges that are `small` on average. None if a range lies in no single file."""
        cdef Py_buffer buffer
        cdef Py_ssize_t i = 0, size
        cdef int64_t first
        cdef Range* one
        cdef char* p = NULL
        cdef list found = []
        if self.total <= copied or (self.range_count > 1 and self.total < small * self.range_count):
            data = PyBytes_FromStringAndSize(NULL, head_size + self.total)
            p = put_text(PyBytes_AS_STRING(data), head, head_size)
            found.append(data)
        elif head_size:
            found.append(PyBytes_FromStringAndSize(head, head_size))
        while i < self.range_count:
            first, view = file_view(self.ranges[i].start)
            PyObject_GetBuffer(view, &buffer, PyBUF_SIMPLE)
            try:
                if not first <= self.ranges[i].start < first + buffer.len:
                    return None
                while i < self.range_count and first <= self.ranges[i].start < first + buffer.len:
                    one = &self.ranges[i]
                    size = one.stop - one.start
                    if one.stop > first + buffer.len:
                        return None
                    if p == NULL:
                        found.append(view[one.start - first : one.stop - first])
                    else:
                        memcpy(p, <const char*>buffer.buf + (one.start - first), size)
                        p += size
                    i += 1
            finally:
                PyBuffer_Release(&buffer)
        return found

    cdef int add_range(self, int64_t start, int64_t stop) except -1:
        cdef void* more
        cdef Py_ssize_t room
        if self.range_count == self.range_room:
            room = max(256, 2 * self.range_room)
            more = PyMem_Realloc(self.ranges, room * sizeof(Range))
            if more == NULL:
                raise MemoryError
            self.ranges = <Range*>more
            self.range_room = room
        self.ranges[self.range_count].start = start
        self.ranges[self.range_count].stop = stop
        self.range_count += 1
        return 0


def read(
    units, int64_t log_start, int64_t log_end, int64_t old, tuple most, tuple most_old, matches, file_view, int64_t small
):
    """See the stub."""
    cdef Py_buffer buffer
    cdef Limits limits = Limits(most[0], most[1], most_old[0], most_old[1], old)
    cdef Choice chosen = Choice()
    PyObject_GetBuffer(units, &buffer, PyBUF_SIMPLE)
    try:
        chosen.choose(<const char*>buffer.buf, buffer.len // 20, log_start, log_end, limits, NULL, -1, matches)
    finally:
        PyBuffer_Release(&buffer)
    buffers = chosen.buffers(file_view, small, -1, NULL, 0)
    return chosen.status, chosen.found, chosen.total, chosen.looked, chosen.last, buffers


def place_in(mapping, view):
    """The place in a mapping where the bytes of a view begin; -1 if some of the bytes are outside of the mapping."""
    cdef Py_buffer whole, part
    cdef Py_ssize_t at
    PyObject_GetBuffer(mapping, &whole, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(view, &part, PyBUF_SIMPLE)
        try:
            at = <const char*>part.buf - <const char*>whole.buf
            return at if 0 <= at <= whole.len - part.len else -1
        finally:
            PyBuffer_Release(&part)
    finally:
        PyBuffer_Release(&whole)

include "_client.pxi"
include "_pulls.pxi"
include "_takes.pxi"
include "_grpc.pxi"
include "_receives.pxi"
include "_frames.pxi"
include "_columns.pxi"
include "_copies.pxi"
