# How the C library keeps freed memory.
#
# A batch is some ten kilobytes, made and freed a thousand times a second.  glibc gives the top of
# its heap back to the kernel at 128 KiB, so that each batch would fault its pages in anew: 6 % of
# the CPU of publishing.  Other C libraries are left as they are.

cdef extern from *:
    """
    #include <stdlib.h>
    #if defined(__GLIBC__)
    #include <malloc.h>
    static int tune_heap(int keep, int pad, int map) {
        return mallopt(M_TRIM_THRESHOLD, keep) && mallopt(M_TOP_PAD, pad)
            && mallopt(M_MMAP_THRESHOLD, map);
    }
    #else
    static int tune_heap(int keep, int pad, int map) { (void)keep; (void)pad; (void)map; return 0; }
    #endif
    """
    int tune_heap(int keep, int pad, int map)

KEPT_SIZE = 32 << 20
PAD_SIZE = 1 << 20
MAPPED_SIZE_MIN = 4 << 20


def keep_freed_memory():
    """Keep up to 32 MiB of freed memory for the next batches; whether this C library can."""
    return tune_heap(KEPT_SIZE, PAD_SIZE, MAPPED_SIZE_MIN) != 0
