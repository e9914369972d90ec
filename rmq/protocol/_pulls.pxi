# Runs of plain pulls: a part of `_engine.pyx`, which includes this file.
#
# A plain pull is a PULL_MESSAGE in JSON, in ASCII without escapes, from a queue that has a lane for its group
# and expression, and from an offset that the queue holds. `PullLanes.answer` replaces `Pull.pull` of
# rmq.broker.consume.pull for pulls that find messages. At any other pull it stops, and the rest of the run takes
# the slower path. Before each pull the engine checks the facts on which the lane was opened. Units and ranges of
# the log are bytes of files: the engine compares them with the ends of log, file and buffer before it reads.

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_CheckExact, PyByteArray_GET_SIZE
from libc.stdlib cimport qsort

cdef enum:
    PULLS_MAX = 32  # pulls of a run
    PASS_BYTES = 131072  # bytes of messages that end a pass, as cold messages are read from the disk
    COPIED_MAX = 16384  # most bytes of messages that are copied behind their header in any case
    ANSWER_MAX = 0x3FFFFFFF  # most bytes of an answer
    UNITS_AHEAD = 1024  # units that are read from a queue's files at once
    AHEAD_LANES = 256  # lanes that keep such units
    PULL_KEY_MAX = 512  # bytes of the names and the expression of a lane
    PULL_FLAGS = 7
    PULL_COMMITS = 1
    PULL_BRINGS_EXPRESSION = 4
    HEAD_NUMBERS = 128  # bytes of lengths and numbers in a head, at most

cdef enum:
    PULL_GROUP = 0
    PULL_TOPIC = 1
    PULL_EXPRESSION = 2
    PULL_TYPE = 3
    PULL_QUEUE = 4
    PULL_OFFSET = 5
    PULL_MOST = 6
    PULL_SYS_FLAG = 7
    PULL_COMMIT = 8
    PULL_SUSPEND = 9
    PULL_VERSION = 10
    PULL_CREATED = 11
    PULL_BNAME = 12
    PULL_FIELDS = 13
    PULL_NEEDED = 0b11111110011  # group, topic, and queue to version

cdef struct PullHeader:
    Part fields[PULL_FIELDS]
    uint32_t found
    int32_t opaque
    Part language

cdef struct PullRow:
    int64_t offset
    int64_t commit_offset
    int64_t version
    int64_t created_ms
    int64_t count  # messages of the answer; `size` are their bytes
    int64_t size
    Py_ssize_t frame_at
    int32_t most
    int32_t sys_flag
    int32_t opaque
    int32_t lane
    bint is_of_topic  # the pull has created_ms

cdef extern from "Python.h":
    PyObject* PyBytes_FromStringAndSize_ "PyBytes_FromStringAndSize"(const char* text, Py_ssize_t size)
    char* bytes_data "PyBytes_AS_STRING"(PyObject* it) nogil
    int _PyBytes_Resize(PyObject** it, Py_ssize_t size) except -1
    void release_bytes "Py_DECREF"(PyObject* it)
    void release_any_bytes "Py_XDECREF"(PyObject* it)

cdef inline bint begins_a_pull(const char* p, const char* end) noexcept nogil:
    if end - p < 12:
        return 0
    return memcmp(p, b'{"code":11,"', 12) == 0 or memcmp(p, b'{"code":361,', 12) == 0

cdef int pull_name(const char* p, Py_ssize_t size) noexcept nogil:
    """The field of a pull with this name; -1 for another name."""
    if size == 5:
        if memcmp(p, b"topic", 5) == 0:
            return PULL_TOPIC
        if memcmp(p, b"bname", 5) == 0:
            return PULL_BNAME
    elif size == 7:
        if memcmp(p, b"queueId", 7) == 0:
            return PULL_QUEUE
        if memcmp(p, b"sysFlag", 7) == 0:
            return PULL_SYS_FLAG
    elif size == 10:
        if memcmp(p, b"maxMsgNums", 10) == 0:
            return PULL_MOST
        if memcmp(p, b"subVersion", 10) == 0:
            return PULL_VERSION
    elif size == 11:
        if memcmp(p, b"queueOffset", 11) == 0:
            return PULL_OFFSET
    elif size == 12:
        if memcmp(p, b"commitOffset", 12) == 0:
            return PULL_COMMIT
        if memcmp(p, b"subscription", 12) == 0:
            return PULL_EXPRESSION
    elif size == 13:
        if memcmp(p, b"consumerGroup", 13) == 0:
            return PULL_GROUP
    elif size == 14:
        if memcmp(p, b"expressionType", 14) == 0:
            return PULL_TYPE
    elif size == 17:
        if memcmp(p, b"rmqTopicCreatedMs", 17) == 0:
            return PULL_CREATED
    elif size == 20:
        if memcmp(p, b"suspendTimeoutMillis", 20) == 0:
            return PULL_SUSPEND
    return -1

cdef const char* read_pull_fields(const char* p, const char* end, PullHeader* header) noexcept nogil:
    """Read the fields; return the place after them, NULL for fields that no plain pull has."""
    cdef Part name
    cdef int field
    p = after(p, end, b"{", 1)
    while True:
        p = after(p, end, b'"', 1)
        if p != NULL:
            p = quoted(p, end, &name, 0)
        p = after(p, end, b':"', 2)
        if p == NULL:
            return NULL
        field = pull_name(name.at, name.size)
        if field < 0 or header.found >> field & 1:
            return NULL
        header.found |= 1u << field
        p = quoted(p, end, &header.fields[field], 0)
        if p == NULL or p >= end:
            return NULL
        if p[0] == c"}":
            return p + 1
        p = after(p, end, b",", 1)

cdef bint read_pull(const char* p, const char* end, PullHeader* header) noexcept nogil:
    """Read the header of a pull that wants an answer, whose members may come in any order."""
    cdef Part name, text
    cdef int32_t code = 0, flag = 0, version = 0
    cdef int seen = 0, which
    header.found = 0
    header.opaque = 0
    p = after(p, end, b"{", 1)
    while True:
        p = after(p, end, b'"', 1)
        if p != NULL:
            p = quoted(p, end, &name, 0)
        p = after(p, end, b":", 1)
        if p == NULL:
            return 0
        which = top_name(name.at, name.size)
        if which == 0 or which == TOP_REMARK or seen & which:
            return 0
        seen |= which
        if which == TOP_CODE:
            p = digits(p, end, &code)
        elif which == TOP_FLAG:
            p = digits(p, end, &flag)
        elif which == TOP_OPAQUE:
            p = digits(p, end, &header.opaque)
        elif which == TOP_VERSION:
            p = digits(p, end, &version)
        elif which == TOP_EXT:
            p = read_pull_fields(p, end, header)
        else:
            p = after(p, end, b'"', 1)
            if p != NULL:
                p = quoted(p, end, &text, 0)
            if p != NULL and which == TOP_LANGUAGE:
                header.language = text
        if p == NULL or p >= end:
            return 0
        if p[0] == c"}":
            break
        p = after(p, end, b",", 1)
    return (
        p + 1 == end
        and (code == 11 or code == 361)
        and flag == 0
        and seen & TOP_LANGUAGE
        and seen & TOP_OPAQUE
        and header.found & PULL_NEEDED == PULL_NEEDED
    )

cdef inline bint number64(Part part, int64_t* out) noexcept nogil:
    return number(part, -0x7FFFFFFFFFFFFFFF, 0x7FFFFFFFFFFFFFFF, out)

cdef int compare_codes(const void* one, const void* other) noexcept nogil:
    cdef int64_t a = (<const int64_t*>one)[0], b = (<const int64_t*>other)[0]
    return (a > b) - (a < b)

cdef inline bint has_code(const int64_t* codes, Py_ssize_t count, int64_t code) noexcept nogil:
    cdef Py_ssize_t low = 0, middle
    while low < count:
        middle = (low + count) // 2
        if codes[middle] == code:
            return 1
        if codes[middle] < code:
            low = middle + 1
        else:
            count = middle
    return 0


cdef class PullLane:
    """A queue as a group reads it, and the facts on which the lane was opened."""

    cdef object queue, key, group_name, topic_name, group, topic, expression, subscription, model
    cdef bytes name  # the lane's key in the table of lanes
    cdef int64_t version, created_ms, suggested, suggested_when_slow, units_per_file
    cdef int64_t* codes  # of the tags that match, ascending
    cdef Py_ssize_t code_count  # -1: all messages match
    cdef int32_t queue_id
    cdef object units  # units read from the queue's files, from the offset `first` on
    cdef int64_t first, cuts
    cdef int64_t calls, count, size  # since `take_counts`
    cdef int64_t run  # the last run with this lane
    cdef int32_t place  # the lane's place among the lanes of that run

    def __dealloc__(self):
        PyMem_Free(self.codes)


cdef class PullRun:
    """Consecutive plain pulls of a chunk."""

    cdef readonly Py_ssize_t count
    cdef readonly int flag
    cdef readonly bint commits
    cdef bytes data
    cdef list lanes
    cdef int64_t generation, number
    cdef Py_ssize_t language_at, language_size
    cdef PullRow rows[PULLS_MAX]

    def __len__(self):
        return self.count

    @property
    def language(self):
        cdef const char* base = PyBytes_AS_STRING(self.data)
        return PyUnicode_DecodeASCII(base + self.language_at, self.language_size, NULL)

    def commands(self, Py_ssize_t first=0):
        cdef Py_ssize_t i, at
        cdef const char* base = PyBytes_AS_STRING(self.data)
        commands = []
        for i in range(max(0, first), self.count):
            at = self.rows[i].frame_at
            commands += frames.split_frames(self.data[at : at + 4 + get32(base + at)], 0x7FFFFFFF)[0]
        return commands

    def committed(self, Py_ssize_t first, Py_ssize_t stop):
        cdef Py_ssize_t i
        cdef PullRow* row
        cdef PullLane lane
        found = []
        for i in range(max(0, first), min(stop, self.count)):
            row = &self.rows[i]
            if row.sys_flag & PULL_COMMITS:
                lane = <PullLane>self.lanes[row.lane]
                found.append((i, lane.group_name, lane.topic_name, lane.queue_id, row.commit_offset))
        return found

    def given(self, Py_ssize_t first, Py_ssize_t stop):
        cdef Py_ssize_t i
        cdef PullRow* row
        cdef PullLane lane
        found = []
        for i in range(max(0, first), min(stop, self.count)):
            row = &self.rows[i]
            lane = <PullLane>self.lanes[row.lane]
            found.append((lane.topic_name, lane.group_name, lane.queue_id, row.count, row.size))
        return found


cdef class PullLanes(Choice):
    """Queues that plain pulls may read, by group, topic, queue id and expression; the choice for the pull that is
    being answered."""

    cdef dict table
    cdef list wanted, touched, with_units
    cdef readonly bint is_open
    cdef bint reads_slaves
    cdef tuple parts  # of a head, around its numbers
    cdef object readable_end
    cdef int64_t scan_units, small_bytes
    cdef int64_t generation, runs
    # During a pass:
    cdef object log
    cdef int64_t log_start, log_end
    cdef object view  # view of the log's file that begins at `view_first`
    cdef Py_buffer buffer
    cdef bint has_buffer
    cdef int64_t view_first
    # Copied answers: a bytes object that is not full yet; NULL without any
    cdef PyObject* joined
    cdef Py_ssize_t joined_size, joined_room

    def __init__(self, tuple parts, readable_end, int64_t scan_units, int64_t small_bytes):
        if len(parts) != 6 or not all(type(part) is bytes for part in parts):
            raise ValueError("a head has six parts")
        self.parts, self.readable_end, self.scan_units, self.small_bytes = parts, readable_end, scan_units, small_bytes
        self.table = {}
        self.wanted, self.touched, self.with_units = [], [], []
        self.is_open = self.reads_slaves = False
        self.has_buffer = 0

    def __dealloc__(self):
        release_any_bytes(self.joined)

    def __len__(self):
        return len(self.table)

    def add(
        self,
        queue,
        tuple key,
        str group_name,
        group,
        topic,
        expression,
        subscription,
        model,
        int64_t version,
        codes,
    ):
        cdef PullLane lane = PullLane()
        cdef Py_ssize_t i = 0
        lane.queue, lane.key, lane.group_name, lane.topic_name = queue, key, group_name, key[0]
        lane.queue_id = key[1]
        lane.group, lane.topic, lane.subscription, lane.model = group, topic, subscription, model
        lane.version, lane.created_ms = version, topic.created_ms
        lane.suggested, lane.suggested_when_slow = group.broker_id, group.which_broker_when_consume_slowly
        lane.units_per_file = queue.units_per_file
        lane.code_count = -1
        lane.run = -1
        lane.units = None
        if codes is not None:
            lane.codes = <int64_t*>PyMem_Malloc(max(1, len(codes)) * sizeof(int64_t))
            if lane.codes == NULL:
                raise MemoryError
            for code in codes:
                lane.codes[i] = code
                i += 1
            lane.code_count = i
            qsort(lane.codes, i, sizeof(int64_t), compare_codes)
        name, topic_name = group_name.encode("ascii"), lane.topic_name.encode("ascii")
        text = b"" if expression is None else expression.encode("ascii")
        lane.expression = expression
        lane.name = _pull_key(name, topic_name, text, lane.queue_id, expression is not None)
        self.table[lane.name] = lane

    def reset(self, bint is_open, bint reads_slaves):
        self.clear()
        self.is_open, self.reads_slaves = is_open, reads_slaves

    def clear(self):
        self.table.clear()
        self.with_units = []
        self.generation += 1

    @property
    def wants_more(self):
        return bool(self.wanted)

    def take_wanted(self):
        wanted, self.wanted = self.wanted, []
        return wanted

    # -- bytes to runs --

    cdef PullRun begin(self, bytes data):
        cdef PullRun run = PullRun()
        run.data, run.lanes = data, []
        run.number = self.runs = self.runs + 1
        run.generation = self.generation
        return run

    cdef int take(
        self, PullRun run, const char* base, Py_ssize_t at, uint32_t header_size, Py_ssize_t stop
    ) except -1:
        """Take a frame into a run, if it is a plain pull that is likely to find messages."""
        cdef PullHeader header
        cdef PullRow* row
        cdef PullLane lane
        cdef const char* p = base + at + 8
        cdef int32_t queue_id = 0, most = 0, sys_flag = 0
        cdef int64_t ignored = 0, end
        cdef Part empty
        cdef bint is_own
        if run.count >= PULLS_MAX or p + header_size != base + stop:
            return 0
        if not read_pull(p, p + header_size, &header):
            return 0
        row = &run.rows[run.count]
        row.commit_offset = row.version = row.created_ms = row.count = row.size = 0
        if not (
            number32(header.fields[PULL_QUEUE], &queue_id)
            and number64(header.fields[PULL_OFFSET], &row.offset)
            and number32(header.fields[PULL_MOST], &most)
            and number32(header.fields[PULL_SYS_FLAG], &sys_flag)
            and number64(header.fields[PULL_COMMIT], &row.commit_offset)
            and number64(header.fields[PULL_SUSPEND], &ignored)
            and number64(header.fields[PULL_VERSION], &row.version)
        ):
            return 0
        row.is_of_topic = header.found >> PULL_CREATED & 1
        if row.is_of_topic and not number64(header.fields[PULL_CREATED], &row.created_ms):
            return 0
        if sys_flag & ~PULL_FLAGS or queue_id < 0 or row.offset < 0:
            return 0
        if run.count and (
            header.language.size != run.language_size
            or memcmp(header.language.at, base + run.language_at, run.language_size) != 0
        ):
            return 0
        empty.at, empty.size = base, 0
        is_own = sys_flag & PULL_BRINGS_EXPRESSION != 0
        if not is_own or not header.found >> PULL_EXPRESSION & 1:
            header.fields[PULL_EXPRESSION] = empty
        if not is_own or not header.found >> PULL_TYPE & 1:
            header.fields[PULL_TYPE] = empty
        lane = self.lane_of(&header, queue_id, is_own)
        if lane is None:
            return 0
        end = lane.queue.end
        if not lane.queue.start <= row.offset < end:
            return 0
        if lane.run != run.number:
            lane.run = run.number
            lane.place = <int32_t>len(run.lanes)
            run.lanes.append(lane)
        row.lane = lane.place
        row.frame_at = at
        row.most, row.sys_flag, row.opaque = most, sys_flag, header.opaque
        if run.count == 0:
            run.language_at, run.language_size = header.language.at - base, header.language.size
        if sys_flag & PULL_COMMITS:
            run.commits = 1
        run.count += 1
        return 1

    cdef PullLane lane_of(self, PullHeader* header, int32_t queue_id, bint is_own):
        """The lane of a pull; None without one."""
        cdef Part* group = &header.fields[PULL_GROUP]
        cdef Part* topic = &header.fields[PULL_TOPIC]
        cdef Part* text = &header.fields[PULL_EXPRESSION]
        cdef Part* kind = &header.fields[PULL_TYPE]
        if group.size + topic.size + text.size + kind.size > PULL_KEY_MAX or topic.size == 0:
            return None
        # No type means TAG, and other types of expressions have no lanes.
        if kind.size and (kind.size != 3 or memcmp(kind.at, b"TAG", 3) != 0):
            return None
        key = _pull_key_of(group, topic, queue_id, is_own, text)
        found = self.table.get(key)
        if found is None:
            if len(self.wanted) < WANTED_MAX:
                expression = ascii_text(text) if is_own else None
                self.wanted.append((ascii_text(group), ascii_text(topic), queue_id, expression))
            return None
        return <PullLane>found

    # -- runs to answers --

    def answer(self, PullRun run, Py_ssize_t at, tuple tables, dict queues, log, tuple bounds, reach):
        """See the stub."""
        cdef int64_t served = 0, limit = 0x7FFFFFFFFFFFFFFF
        cdef list out = []
        groups, topics, members_of, unconfirmed = tables
        if run.generation != self.generation or at < 0:
            return at, out
        self.log = log
        self.log_start, self.log_end = log.start, log.end
        if reach is not None:
            limit = reach
        self.joined_size = 0  # the object of a pass that failed is used again
        try:
            while at < run.count and served < PASS_BYTES:
                if not self.answer_one(
                    run, &run.rows[at], groups, topics, members_of, unconfirmed, queues, bounds, limit, out
                ):
                    break
                served += run.rows[at].size
                at += 1
        finally:
            self.close_file()
            self.log = None
        self.flush(out)
        return at, out

    cdef bint holds(self, PullLane lane, groups, topics, members_of) except -1:
        """True if the facts on which the lane was opened have not changed."""
        if groups.get(lane.group_name) is not lane.group or topics.get(lane.topic_name) is not lane.topic:
            return 0
        if lane.subscription is None:
            return 1
        members = members_of(lane.group_name)
        return (
            members is not None
            and members.subscriptions.get(lane.topic_name) is lane.subscription
            and members.message_model == lane.model
        )

    cdef int drop(self, PullLane lane) except -1:
        """Close a lane whose facts have changed, and ask for it again."""
        if self.table.get(lane.name) is lane:
            del self.table[lane.name]
            if len(self.wanted) < WANTED_MAX:
                self.wanted.append((lane.group_name, lane.topic_name, lane.queue_id, lane.expression))
        return 0

    cdef bint answer_one(
        self,
        PullRun run,
        PullRow* row,
        groups,
        topics,
        members_of,
        dict unconfirmed,
        dict queues,
        tuple bounds,
        int64_t reach,
        list out,
    ) except -1:
        """Answer one pull; False if the pull must take the slower path."""
        cdef PullLane lane = <PullLane>run.lanes[row.lane]
        cdef int64_t start, end, stop, suggested
        cdef int64_t memory = bounds[0]
        cdef Py_ssize_t joined = self.joined_size
        queue = lane.queue
        if not self.holds(lane, groups, topics, members_of) or queues.get(lane.key) is not queue:
            self.drop(lane)
            return 0
        if row.is_of_topic and row.created_ms != lane.created_ms:
            return 0
        if lane.subscription is not None and row.version > lane.version:
            return 0
        start, end = queue.start, queue.end
        if <int64_t>queue.trimmed_to < self.log_start or not start <= row.offset < end:
            return 0
        stop = end
        try:
            if reach < self.log_end:
                stop = self.readable_end(queue, reach)
                if row.offset >= stop or stop > end:
                    return 0
            if not self.choose_units(lane, row, stop, bounds) or self.status != FOUND:
                return 0
            suggested = 0
            if self.reads_slaves:
                suggested = lane.suggested
                if self.log_end - self.last > memory:
                    suggested = lane.suggested_when_slow
            if not self.put_answer(row, suggested, start, stop, out):
                return 0
        except MemoryError:  # nothing of this pass is sent
            raise
        except Exception:  # the slower path meets the same error, and answers it
            self.joined_size = joined
            return 0
        if stop < end:
            unconfirmed[lane.key] = None
        row.count, row.size = self.found, self.total
        if lane.calls == 0:
            self.touched.append(lane)
        lane.calls += 1
        lane.count += self.found
        lane.size += self.total
        return 1

    cdef bint choose_units(self, PullLane lane, PullRow* row, int64_t stop, tuple bounds) except -1:
        """Choose messages from the units of a queue below the offset `stop`; False without units."""
        cdef int64_t count_in_memory = bounds[1], bytes_in_memory = bounds[2]
        cdef int64_t count_in_disk = bounds[3], bytes_in_disk = bounds[4]
        cdef int64_t count = min(<int64_t>row.most, <int64_t>bounds[5]), size = bounds[6]
        cdef Limits limits = Limits(
            min(count, count_in_memory), min(size, bytes_in_memory),
            min(count, count_in_disk), min(size, bytes_in_disk),
            self.log_end - <int64_t>bounds[0],
        )
        cdef int64_t wanted, there, tail_start, at
        cdef int tried
        cdef int64_t boundary = row.offset - row.offset % lane.units_per_file + lane.units_per_file
        cdef const char* p
        queue = lane.queue
        wanted = max(self.scan_units, count)
        if lane.code_count < 0:
            wanted = min(wanted, max(count_in_memory, count_in_disk) + 1)
        wanted = min(wanted, min(stop, boundary) - row.offset)
        if wanted <= 0:
            return 0
        tail_start = queue.tail_start
        if row.offset >= tail_start:
            tail = queue.tail
            at = (row.offset - tail_start) * 20
            if not PyByteArray_CheckExact(tail) or at + wanted * 20 > PyByteArray_GET_SIZE(tail):
                return 0
            self.choose_of(lane, PyByteArray_AS_STRING(tail) + at, wanted, limits)
            return 1
        for tried in range(2):
            there = self.units_ahead(lane, row.offset, wanted)
            if there <= 0:
                return 0
            p = PyBytes_AS_STRING(lane.units) + (row.offset - lane.first) * 20
            self.choose_of(lane, p, min(there, wanted), limits)
            if self.looked < there or there >= wanted:
                break
            lane.units = None  # all units that were read ahead are used
        return 1

    cdef int choose_of(self, PullLane lane, const char* p, int64_t count, Limits limits) except -1:
        return self.choose(
            p, count, self.log_start, self.log_end, limits, lane.codes, lane.code_count, None
        )

    cdef int64_t units_ahead(self, PullLane lane, int64_t offset, int64_t wanted) except -1:
        """The number of units from an offset on in `lane.units`; without any, read units from the files."""
        cdef int64_t there
        cdef int64_t cuts = lane.queue.cuts
        if lane.units is not None and lane.cuts == cuts and offset >= lane.first:
            there = PyBytes_GET_SIZE(lane.units) // 20 - (offset - lane.first)
            if there > 0:
                return there
        lane.units = None
        if len(self.with_units) >= AHEAD_LANES:
            for other in self.with_units:
                (<PullLane>other).units = None
            self.with_units = []
        units = bytes(lane.queue.units(offset, max(wanted, UNITS_AHEAD)))
        there = PyBytes_GET_SIZE(units) // 20
        if there:
            lane.units, lane.first, lane.cuts = units, offset, cuts
            self.with_units.append(lane)
        return there

    cdef bint put_answer(
        self, PullRow* row, int64_t suggested, int64_t start, int64_t stop, list out
    ) except -1:
        """Put head and messages of an answer behind the answers before; False if a range is in no file."""
        cdef Py_ssize_t i, joined = self.joined_size
        cdef int64_t begin, end
        cdef char* p
        cdef bint is_copied
        if self.total > ANSWER_MAX:
            return 0
        is_copied = self.total <= COPIED_MAX or (
            self.range_count > 1 and self.total < self.small_bytes * self.range_count
        )
        self.put_head(row, suggested, start, stop, self.total if is_copied else 0)
        if is_copied:
            for i in range(self.range_count):
                begin, end = self.ranges[i].start, self.ranges[i].stop
                if not self.open_file(begin, end):
                    self.joined_size = joined
                    return 0
                p = bytes_data(self.joined) + self.joined_size
                memcpy(p, <const char*>self.buffer.buf + (begin - self.view_first), end - begin)
                self.joined_size += end - begin
            return 1
        views = []
        for i in range(self.range_count):
            begin, end = self.ranges[i].start, self.ranges[i].stop
            if not self.open_file(begin, end):
                self.joined_size = joined
                return 0
            views.append(self.view[begin - self.view_first : end - self.view_first])
        self.flush(out)
        out += views
        return 1

    cdef int put_head(
        self, PullRow* row, int64_t suggested, int64_t start, int64_t stop, int64_t more
    ) except -1:
        """Put the head of an answer, with room for `more` bytes behind it."""
        cdef Py_ssize_t i, room = HEAD_NUMBERS + more
        cdef char* p
        cdef char* head
        cdef bytes part
        cdef int64_t numbers[5]
        numbers[0], numbers[1], numbers[2] = suggested, stop, row.offset + self.looked
        numbers[3], numbers[4] = start, row.opaque
        for i in range(6):
            room += PyBytes_GET_SIZE(<bytes>self.parts[i])
        if self.joined == NULL:
            self.joined = PyBytes_FromStringAndSize_(NULL, room)
            if self.joined == NULL:
                raise MemoryError
            self.joined_room = room
        elif self.joined_size + room > self.joined_room:
            room = 2 * (self.joined_size + room)
            self.joined_room = 0  # if the resize fails, the object is gone
            _PyBytes_Resize(&self.joined, room)
            self.joined_room = room
        head = bytes_data(self.joined) + self.joined_size
        p = head + 8
        for i in range(6):
            part = <bytes>self.parts[i]
            p = put_text(p, PyBytes_AS_STRING(part), PyBytes_GET_SIZE(part))
            if i < 5:
                p += decimal(numbers[i], p)
        put32(head, <uint32_t>(p - head - 4 + self.total))
        put32(head + 4, <uint32_t>(p - head - 8))
        self.joined_size += p - head
        return 0

    cdef int flush(self, list out) except -1:
        cdef PyObject* joined
        if self.joined_size:
            if self.joined_size != self.joined_room:
                _PyBytes_Resize(&self.joined, self.joined_size)
            joined, self.joined = self.joined, NULL
            self.joined_size = 0
            answers = <object>joined
            release_bytes(joined)
            out.append(answers)
        return 0

    cdef bint open_file(self, int64_t begin, int64_t end) except -1:
        """Open the view of the log's file with these bytes; False if no single file has all of them."""
        if not self.has_buffer or not self.view_first <= begin < self.view_first + self.buffer.len:
            self.close_file()
            first, view = self.log.file_view(begin)
            PyObject_GetBuffer(view, &self.buffer, PyBUF_SIMPLE)
            self.view, self.view_first, self.has_buffer = view, first, 1
        return self.view_first <= begin <= end <= self.view_first + self.buffer.len

    cdef int close_file(self) except -1:
        if self.has_buffer:
            self.has_buffer = 0
            PyBuffer_Release(&self.buffer)
        self.view = None
        return 0

    def take_counts(self):
        cdef PullLane lane
        found = []
        for lane in self.touched:
            found.append((lane.group_name, lane.topic_name, lane.calls, lane.count, lane.size))
            lane.calls = lane.count = lane.size = 0
        self.touched = []
        return found


cdef bytes _pull_key_of(Part* group, Part* topic, int32_t queue_id, bint is_own, Part* text):
    cdef Py_ssize_t size = group.size + topic.size + text.size
    cdef char* p
    key = PyBytes_FromStringAndSize(NULL, size + 7)
    p = PyBytes_AS_STRING(key)
    p = put_text(p, group.at, group.size)
    p[0] = 0
    p = put_text(p + 1, topic.at, topic.size)
    p[0] = 0
    p[1] = is_own
    put32(p + 2, <uint32_t>queue_id)
    put_text(p + 6, text.at, text.size)
    p[6 + text.size] = 0
    return key


cdef bytes _pull_key(bytes group, bytes topic, bytes text, int32_t queue_id, bint is_own):
    cdef Part parts[3]
    parts[0].at, parts[0].size = PyBytes_AS_STRING(group), PyBytes_GET_SIZE(group)
    parts[1].at, parts[1].size = PyBytes_AS_STRING(topic), PyBytes_GET_SIZE(topic)
    parts[2].at, parts[2].size = PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text)
    return _pull_key_of(&parts[0], &parts[1], queue_id, is_own, &parts[2])
