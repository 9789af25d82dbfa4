# Where the fields of stored and sent bytes lie.  Integers are big-endian (core/bytes.pxd).
# docs/storage-format.md explains each field.
#
# Message frame, 34 bytes and the body; a frame in the log is the frame that consumers receive:
#
#     0 size u32 of what follows | 4 type u32 = 2 | 8 timestamp_ns i64 | 16 attempts u16 | 18 id, 16
#     34 body
#     id: (node_id << 54 | index) as 16 lower-case hexadecimal digits
#
# Batch of a log, 56 bytes and the payload:
#
#     0 magic "PSB1" | 4 header crc u32 | 8 payload size u32 | 12 payload crc u32
#     16 first index i64 | 24 count u32 | 28 flags u16 | 30 channel u16 | 32 append_ns i64
#     40 publish_ns i64 | 48 origin i64 | 56 payload
#     payload: `count` frames back to back; with flag 1, `count` ordinals u32 after them
#     origin:  with flag 1 the slot the messages were deferred in, with flag 2 the staging and part,
#              with flags 1 and 4 the channel the messages were moved from (storage/moved.py)
#     channel: part of that; otherwise 0
#
# Record of a slot file, 56 bytes, the topic name and the body:
#
#     0 magic "PSD1" | 4 header crc u32 | 8 size u32 of the whole record | 12 body crc u32
#     16 ordinal u32 | 20 topic size u8, zeros | 24 instance u64 | 32 timestamp_ns i64
#     40 due_ns i64 | 48 stamp i64 | 56 topic name, then the body
#
# Header and trailer of a segment file are in storage/segment_format.py.

cdef enum:
    FRAME_TYPE = 4
    FRAME_TIMESTAMP = 8
    FRAME_ATTEMPTS = 16
    FRAME_ID = 18
    FRAME_HEADER = 34           # where the body starts
    FRAME_TYPE_RESPONSE = 0
    FRAME_TYPE_ERROR = 1
    FRAME_TYPE_MESSAGE = 2
    ID_SIZE = 16
    ID_INDEX_BITS = 54          # the low bits of an id; the node id has the other 10

cdef enum:
    BATCH_CRC = 4               # of BATCH_SIZE up to BATCH_HEADER
    BATCH_SIZE = 8
    BATCH_PAYLOAD_CRC = 12
    BATCH_FIRST = 16
    BATCH_COUNT = 24
    BATCH_FLAGS = 28
    BATCH_APPEND_NS = 32
    BATCH_PUBLISH_NS = 40
    BATCH_ORIGIN = 48
    BATCH_HEADER = 56           # where the payload starts
    ORDINAL_SIZE = 4
    FLAG_ORIGINS = 1            # ordinals after the frames
    FLAG_STAGED = 2             # never with another one
    FLAG_MOVED = 4              # always with FLAG_ORIGINS, so that readers find the frames' end

cdef enum:
    SLOT_CRC = 4                # of the slot's number, and of SLOT_SIZE up to the topic's end
    SLOT_SIZE = 8
    SLOT_BODY_CRC = 12
    SLOT_ORDINAL = 16
    SLOT_TOPIC_SIZE = 20
    SLOT_INSTANCE = 24
    SLOT_TIMESTAMP = 32
    SLOT_DUE = 40
    SLOT_STAMP = 48
    SLOT_HEADER = 56            # where the topic name starts

cdef enum:
    SEGMENT_HEADER = 64         # where the first batch of a segment file starts
