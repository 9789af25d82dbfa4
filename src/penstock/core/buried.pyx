# The buried messages of a channel (R24): they failed too often or expired, or a client buried them.
#
#     chunks   [ 512 burials | 512 | 310 | ... ]     ascending by index
#
# A burial is 24 bytes.  Chunks grow by a quarter, so a message takes about 30 bytes, whatever the
# order in which messages are buried.  Names of clients and texts are kept once each, in bounded
# tables; when a table is full, further ones are not remembered.
#
# A snapshot for the journal shares the chunks, and a chunk is copied before its first change after
# that.  So the loop takes a snapshot of a million messages in microseconds, and a disk thread
# encodes it.
#
# Invariants (check):
#   1. Indexes ascend over all chunks; no chunk is empty.
#   2. count and the counts by reason are those of the chunks.
#   3. A name is kept exactly as long as a burial uses it.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Malloc, PyMem_Realloc
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint16_t, uint64_t
from libc.string cimport memcpy, memmove

from penstock.core.bytes cimport load_i64, load_u16, store_u16, store_u64

ATTEMPTS = 1
BURY = 2
EXPIRED = 3
REASONS = {ATTEMPTS: "attempts", BURY: "bury", EXPIRED: "expired"}

cdef enum:
    CHUNK_COUNT_MAX = 512
    RECORD_SIZE = 23
    CLIENT_COUNT_MAX = 1024
    TEXT_COUNT_MAX = 4096
    # Of a name or a text, in bytes.  With these a journal record of a whole chunk stays under its
    # limit of 256 KiB.
    NAME_SIZE_MAX = 128
    TEXT_MAX = 255
    # Burials that one call of take() examines, so that a rare reason cannot hold the loop.
    SCAN_COUNT_MAX = 65536

TEXT_SIZE_MAX = TEXT_MAX


cdef class Chunk:
    def __dealloc__(self):
        PyMem_Free(self.items)


cdef Chunk make_chunk(Burial* items, int32_t count, int32_t room, int64_t stamp):
    cdef Chunk chunk = Chunk.__new__(Chunk)
    chunk.items = <Burial*>PyMem_Malloc(max(1, room) * sizeof(Burial))
    if chunk.items == NULL:
        raise MemoryError
    if count:
        memcpy(chunk.items, items, count * sizeof(Burial))
    chunk.count = count
    chunk.room = room
    chunk.stamp = stamp
    return chunk


cdef int resize(Chunk chunk, int32_t room) except -1:
    cdef Burial* items = <Burial*>PyMem_Realloc(chunk.items, room * sizeof(Burial))
    if items == NULL:
        raise MemoryError
    chunk.items = items
    chunk.room = room
    return 0


cdef int32_t place_in(Chunk chunk, int64_t index) noexcept:
    # The first item at or above ``index``.
    cdef int32_t low = 0, high = chunk.count, middle
    while low < high:
        middle = (low + high) >> 1
        if chunk.items[middle].index < index:
            low = middle + 1
        else:
            high = middle
    return low


cdef str cut_text(str text, Py_ssize_t size_max):
    # At most ``size_max`` bytes of UTF-8.
    cdef bytes data = text.encode("utf-8", "replace")
    return text if len(data) <= size_max else data[:size_max].decode("utf-8", "ignore")


cdef class Names:
    """A bounded table of strings that are counted; number 0 stands for none."""

    def __cinit__(self, Py_ssize_t count_max):
        self.counts = <uint32_t*>PyMem_Calloc(count_max, sizeof(uint32_t))
        if self.counts == NULL:
            raise MemoryError
        self.names = [""]
        self.numbers = {}
        self.free_numbers = []
        self.count_max = count_max

    def __dealloc__(self):
        PyMem_Free(self.counts)

    cdef uint16_t acquire(self, str name) except? 0:
        cdef Py_ssize_t number
        if not name:
            return 0
        found = self.numbers.get(name)
        if found is not None:
            number = found
        elif self.free_numbers:
            number = self.free_numbers.pop()
            self.names[number] = name
            self.numbers[name] = number
        elif len(self.names) < self.count_max:
            number = len(self.names)
            self.names.append(name)
            self.numbers[name] = number
        else:
            return 0
        self.counts[number] += 1
        return <uint16_t>number

    cdef int release(self, uint16_t number) except -1:
        if not number:
            return 0
        self.counts[number] -= 1
        if not self.counts[number]:
            del self.numbers[self.names[number]]
            self.names[number] = ""
            self.free_numbers.append(number)
        return 0


cdef class Buried:
    """Buried messages by index."""

    def __cinit__(self):
        self.chunks = []
        self.clients = Names(CLIENT_COUNT_MAX)
        self.texts = Names(TEXT_COUNT_MAX)

    def __dealloc__(self):
        PyMem_Free(self.pending)

    def __len__(self):
        return self.count

    def __contains__(self, int64_t index):
        return self.find(index) != NULL

    # ---- reading

    @property
    def reason_counts(self):
        """Messages by reason."""
        return {name: self.counts[reason] for reason, name in REASONS.items()}

    def count_of(self, int reason):
        """Messages with this reason; 0: all."""
        return self.counts[reason] if reason else self.count

    @property
    def size(self):
        """Bytes of memory, without those of the names."""
        cdef Py_ssize_t size = 8 * self.pending_room
        for chunk in self.chunks:
            size += (<Chunk>chunk).room * sizeof(Burial) + 64
        return size

    def get(self, int64_t index):
        """(index, reason, text, attempts, buried_ns, client), or None."""
        cdef Burial* item = self.find(index)
        return None if item == NULL else self._shown(item[0])

    def _shown(self, Burial item):
        return (item.index, REASONS.get(item.reason, "?"), self.texts.names[item.text],
                item.attempts, item.buried_ns, self.clients.names[item.client])

    def page(self, int64_t after, Py_ssize_t count_max, int reason=0):
        """What get() returns, of up to ``count_max`` messages above the index ``after``."""
        cdef list found = []
        cdef Py_ssize_t place = 0, at = 0
        cdef Chunk chunk
        if not self.seek(after + 1, &place, &at):
            return found
        while place < len(self.chunks) and len(found) < count_max:
            chunk = <Chunk>self.chunks[place]
            while at < chunk.count and len(found) < count_max:
                if not reason or chunk.items[at].reason == reason:
                    found.append(self._shown(chunk.items[at]))
                at += 1
            place += 1
            at = 0
        return found

    def between(self, int64_t start, int64_t end, Py_ssize_t count_max):
        """Indexes in start..end, or None if there are more than ``count_max``."""
        cdef list found = []
        cdef Py_ssize_t place = 0, at = 0
        cdef Chunk chunk
        if not self.seek(start, &place, &at):
            return found
        while place < len(self.chunks):
            chunk = <Chunk>self.chunks[place]
            while at < chunk.count:
                if chunk.items[at].index >= end:
                    return found
                if len(found) == count_max:
                    return None
                found.append(chunk.items[at].index)
                at += 1
            place += 1
            at = 0
        return found

    def count_between(self, int64_t start, int64_t end):
        """How many lie in start..end."""
        cdef Py_ssize_t first = 0, at = 0, last = 0, end_at = 0, i, count
        if end <= start or not self.seek(start, &first, &at):
            return 0
        if not self.seek(end, &last, &end_at):
            last = len(self.chunks)
            end_at = 0
        if first == last:
            return end_at - at
        count = (<Chunk>self.chunks[first]).count - at + end_at
        for i in range(first + 1, last):
            count += (<Chunk>self.chunks[i]).count
        return count

    def has_between(self, int64_t start, int64_t end):
        """Whether any lies in start..end."""
        cdef Py_ssize_t place = 0, at = 0
        return self.seek(start, &place, &at) and (<Chunk>self.chunks[place]).items[at].index < end

    cdef int64_t next(self, int64_t index) noexcept:
        # The first buried index at or above ``index``; INT64_MAX if there is none.
        cdef Py_ssize_t place = 0, at = 0
        if not self.seek(index, &place, &at):
            return INT64_MAX
        return (<Chunk>self.chunks[place]).items[at].index

    cdef Py_ssize_t chunk_of(self, int64_t index) noexcept:
        # The last chunk that begins at or below ``index``; 0 if there is none.
        cdef Py_ssize_t low = 0, high = len(self.chunks), middle
        while low < high:
            middle = (low + high) >> 1
            if (<Chunk>self.chunks[middle]).items[0].index <= index:
                low = middle + 1
            else:
                high = middle
        return max(0, low - 1)

    cdef Burial* find(self, int64_t index) noexcept:
        cdef Chunk chunk
        cdef int32_t at
        if not self.count:
            return NULL
        chunk = <Chunk>self.chunks[self.chunk_of(index)]
        at = place_in(chunk, index)
        return &chunk.items[at] if at < chunk.count and chunk.items[at].index == index else NULL

    cdef bint seek(self, int64_t index, Py_ssize_t* place, Py_ssize_t* at) noexcept:
        # The first burial at or above ``index``; False if there is none.
        cdef Chunk chunk
        if not self.count:
            return False
        place[0] = self.chunk_of(index)
        chunk = <Chunk>self.chunks[place[0]]
        at[0] = place_in(chunk, index)
        if at[0] == chunk.count:
            place[0] += 1
            at[0] = 0
        return place[0] < len(self.chunks)

    # ---- changing

    def put(self, int64_t index, int attempts, int reason, int64_t buried_ns, str client="",
            str text=""):
        """Bury a message; one that is buried already is replaced."""
        self.add(index, attempts, reason, buried_ns, client, text)

    cdef int add(self, int64_t index, int attempts, int reason, int64_t buried_ns, str client,
                 str text) except -1:
        cdef Burial item
        cdef int64_t after
        if not 0 < reason < REASON_COUNT:
            raise ValueError(f"no reason {reason}")
        if self.find(index) != NULL:
            self.take(index, index + 1, 1, 0, NULL, &after)
        if self.pending_count == self.pending_room:
            self._grow_pending()
        item.index = index
        item.buried_ns = buried_ns
        item.attempts = <uint16_t>min(attempts, 65535)
        item.reason = <uint8_t>reason
        item.client = self.clients.acquire(cut_text(client, NAME_SIZE_MAX) if client else client)
        item.text = self.texts.acquire(cut_text(text, TEXT_MAX) if text else text)
        self.insert(&item)
        self.pending[self.pending_count] = index
        self.pending_count += 1
        return 0

    def _grow_pending(self):
        cdef Py_ssize_t room = max(64, 2 * self.pending_room)
        cdef int64_t* pending = <int64_t*>PyMem_Realloc(self.pending, room * sizeof(int64_t))
        if pending == NULL:
            raise MemoryError
        self.pending = pending
        self.pending_room = room

    cdef int insert(self, Burial* item) except -1:
        cdef Py_ssize_t place = self.chunk_of(item.index), last = len(self.chunks) - 1
        cdef Chunk chunk
        cdef int32_t at, half
        if last < 0:
            self.chunks.append(make_chunk(NULL, 0, 8, self.stamp))
        chunk = self.writable(place)
        if chunk.count == CHUNK_COUNT_MAX:
            if place == last and chunk.items[chunk.count - 1].index < item.index:
                # Messages are mostly buried in order: keep full chunks full.
                chunk = make_chunk(NULL, 0, 8, self.stamp)
                self.chunks.append(chunk)
            else:
                half = chunk.count // 2
                upper = make_chunk(
                    chunk.items + half, chunk.count - half, chunk.count - half, self.stamp)
                self.chunks.insert(place + 1, upper)
                chunk.count = half
                resize(chunk, half)
                if item.index > (<Chunk>upper).items[0].index:
                    chunk = <Chunk>upper
        if chunk.count == chunk.room:
            resize(chunk, min(CHUNK_COUNT_MAX, chunk.room + max(8, chunk.room // 4)))
        at = place_in(chunk, item.index)
        memmove(chunk.items + at + 1, chunk.items + at, (chunk.count - at) * sizeof(Burial))
        chunk.items[at] = item[0]
        chunk.count += 1
        self.count += 1
        self.counts[item.reason] += 1
        return 0

    cdef Chunk writable(self, Py_ssize_t place):
        cdef Chunk chunk = <Chunk>self.chunks[place]
        if chunk.stamp != self.stamp:
            chunk = make_chunk(chunk.items, chunk.count, chunk.room, self.stamp)
            self.chunks[place] = chunk
        return chunk

    cdef int forget(self, Burial* item) except -1:
        self.count -= 1
        self.counts[item.reason] -= 1
        self.clients.release(item.client)
        self.texts.release(item.text)
        return 0

    cdef Py_ssize_t take(self, int64_t start, int64_t end, Py_ssize_t count_max, int reason,
                         int64_t* indexes, int64_t* after) except -1:
        # Remove up to ``count_max`` messages in start..end, with a reason those with it.  Returns
        # how many; their indexes go to ``indexes`` unless it is NULL, and ``after`` is where to
        # continue: ``end`` or higher when nothing is left.
        cdef Py_ssize_t place = 0, at = 0, taken = 0, seen = 0, kept
        cdef Chunk chunk
        after[0] = end
        if not self.seek(start, &place, &at):
            return 0
        while place < len(self.chunks):
            chunk = <Chunk>self.chunks[place]
            if at < chunk.count and chunk.items[at].index >= end:
                break
            if taken >= count_max or seen >= SCAN_COUNT_MAX:
                after[0] = chunk.items[at].index
                break
            chunk = self.writable(place)
            kept = at
            while at < chunk.count:
                if chunk.items[at].index >= end or taken >= count_max:
                    break
                seen += 1
                if reason and chunk.items[at].reason != reason:
                    chunk.items[kept] = chunk.items[at]
                    kept += 1
                else:
                    if indexes != NULL:
                        indexes[taken] = chunk.items[at].index
                    self.forget(&chunk.items[at])
                    taken += 1
                at += 1
            if at < chunk.count and chunk.items[at].index < end:
                after[0] = chunk.items[at].index
            memmove(chunk.items + kept, chunk.items + at, (chunk.count - at) * sizeof(Burial))
            at = chunk.count - at
            chunk.count = <int32_t>(kept + at)
            if at:
                self.tidy(place)
                break
            if chunk.count:
                place += 1
            else:
                del self.chunks[place]
        return taken

    cdef int tidy(self, Py_ssize_t place) except -1:
        # Join a chunk that has become small with the next one; give memory back.
        cdef Chunk chunk = <Chunk>self.chunks[place]
        cdef Chunk other
        if place + 1 < len(self.chunks):
            other = <Chunk>self.chunks[place + 1]
            if chunk.count + other.count <= CHUNK_COUNT_MAX // 2:
                if chunk.room < chunk.count + other.count:
                    resize(chunk, chunk.count + other.count)
                memcpy(chunk.items + chunk.count, other.items, other.count * sizeof(Burial))
                chunk.count += other.count
                del self.chunks[place + 1]
        if chunk.room > 2 * chunk.count + 8:
            resize(chunk, chunk.count + 8)
        return 0

    def remove(self, int64_t start, int64_t end=-1, Py_ssize_t count_max=INT64_MAX, int reason=0):
        """Remove one message, or those in start..end; returns how many."""
        cdef int64_t after = start
        cdef Py_ssize_t count = 0, taken
        if end < 0:
            end = start + 1
        while after < end and count < count_max:
            count += self.take(after, end, count_max - count, reason, NULL, &after)
        return count

    def keep(self, runs):
        """Remove what is not in ``runs``, which ascend; returns how many were removed."""
        cdef int64_t at = 0
        cdef Py_ssize_t count = 0
        for start, end in runs:
            count += self.remove(at, start) if at < start else 0
            at = end
        return count + self.remove(at, INT64_MAX)

    # ---- journal

    def drain(self):
        """The messages buried since the last call, as bodies of BURIED records."""
        cdef list bodies = []
        cdef Chunk some = make_chunk(NULL, 0, CHUNK_COUNT_MAX, 0)
        cdef Burial* item
        cdef Py_ssize_t i
        for i in range(self.pending_count):
            item = self.find(self.pending[i])
            if item == NULL:
                continue
            some.items[some.count] = item[0]
            some.count += 1
            if some.count == CHUNK_COUNT_MAX:
                bodies.append(encode(some, self.clients.names, self.texts.names))
                some.count = 0
        if some.count:
            bodies.append(encode(some, self.clients.names, self.texts.names))
        self.pending_count = 0
        if self.pending_room > 4096:
            PyMem_Free(self.pending)
            self.pending = NULL
            self.pending_room = 0
        return bodies

    def snapshot(self):
        """The table as it is now, to be encoded later, on any thread; it becomes the new state."""
        self.stamp += 1
        self.pending_count = 0
        return Snapshot(list(self.chunks), list(self.clients.names), list(self.texts.names))

    def load(self, bytes body not None):
        """Add the messages of a BURIED record's body; raises ValueError if it is damaged."""
        cdef const unsigned char* p = <const unsigned char*>PyBytes_AS_STRING(body)
        cdef const unsigned char* end = p + len(body)
        cdef list names = [""]
        cdef Py_ssize_t i, count
        cdef int client, text
        if len(body) < 2:
            raise ValueError("a BURIED record is cut")
        count = load_u16(p)
        p += 2
        for i in range(count):
            if p >= end or p + 1 + p[0] > end:
                raise ValueError("a BURIED record is cut")
            names.append(PyBytes_FromStringAndSize(<const char*>p + 1, p[0]).decode())
            p += 1 + p[0]
        if p == end or (end - p) % RECORD_SIZE:
            raise ValueError("a BURIED record is cut")
        while p < end:
            client = load_u16(p + 19)
            text = load_u16(p + 21)
            if client > count or text > count or not 0 < p[18] < REASON_COUNT:
                raise ValueError("a BURIED record is wrong")
            self.add(load_i64(p), load_u16(p + 16), p[18], load_i64(p + 8), names[client],
                     names[text])
            p += RECORD_SIZE
        self.pending_count = 0

    def indexes(self):
        """All indexes; for tests and small tables."""
        return [item[0] for item in self.page(-1, self.count)]

    def check(self):
        """Assert the invariants above."""
        cdef Py_ssize_t count = 0
        cdef int64_t before = -1
        cdef int32_t i
        cdef Chunk chunk
        clients, texts, reasons = {}, {}, {}
        for one in self.chunks:
            chunk = one
            assert 0 < chunk.count <= chunk.room <= CHUNK_COUNT_MAX
            for i in range(chunk.count):
                assert before < chunk.items[i].index
                before = chunk.items[i].index
                for counts, number in ((clients, chunk.items[i].client),
                                       (texts, chunk.items[i].text),
                                       (reasons, chunk.items[i].reason)):
                    counts[number] = counts.get(number, 0) + 1
            count += chunk.count
        assert count == self.count
        for reason in REASONS:
            assert reasons.get(reason, 0) == self.counts[reason]
        for names, counts in ((self.clients, clients), (self.texts, texts)):
            assert sorted((<Names>names).numbers.values()) == sorted(n for n in counts if n)
            for name, number in (<Names>names).numbers.items():
                assert (<Names>names).names[number] == name
                assert (<Names>names).counts[<Py_ssize_t>number] == counts[number]


cdef class Snapshot:
    """A table at one moment."""

    cdef list chunks
    cdef list clients
    cdef list texts

    def __init__(self, list chunks not None, list clients not None, list texts not None):
        self.chunks = chunks
        self.clients = clients
        self.texts = texts

    def __iter__(self):
        """Bodies of BURIED records."""
        for chunk in self.chunks:
            yield encode(chunk, self.clients, self.texts)


cdef bytes encode(Chunk chunk, list clients, list texts):
    # count u16 | names: (size u8, bytes) ... | burials: index u64, buried_ns i64, attempts u16,
    # reason u8, client u16, text u16; the last two are 1-based places among the names.
    cdef dict client_places = {}
    cdef dict text_places = {}
    cdef list names = []
    cdef int32_t i
    cdef bytes burials = PyBytes_FromStringAndSize(NULL, RECORD_SIZE * chunk.count)
    cdef unsigned char* p = <unsigned char*>PyBytes_AS_STRING(burials)
    cdef Burial* item
    for i in range(chunk.count):
        item = &chunk.items[i]
        store_u64(p, <uint64_t>item.index)
        store_u64(p + 8, <uint64_t>item.buried_ns)
        store_u16(p + 16, item.attempts)
        p[18] = item.reason
        store_u16(p + 19, place_of(item.client, clients, client_places, names))
        store_u16(p + 21, place_of(item.text, texts, text_places, names))
        p += RECORD_SIZE
    encoded = [name.encode() for name in names]
    head = [bytes((len(name),)) + name for name in encoded]
    return b"".join([len(names).to_bytes(2, "big"), *head, burials])


cdef uint16_t place_of(uint16_t number, list known, dict places, list names) except? 0:
    if not number:
        return 0
    place = places.get(number)
    if place is None:
        names.append(known[number])
        place = places[number] = len(names)
    return <uint16_t>place
