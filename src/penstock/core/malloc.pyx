# malloc tuning (mallopt): keep freed memory instead of returning it to the kernel.
#
# A batch is about ten kilobytes, allocated and freed a thousand times a second.  By default glibc
# trims its heap at 128 KiB, and each batch faults its pages in again: 6 % of the CPU of publishing.
# Other C libraries are left alone.

cdef extern from *:
    """
    #include <stdlib.h>
    #if defined(__GLIBC__)
    #include <malloc.h>
    static int tune_malloc(int keep, int pad, int map) {
        return mallopt(M_TRIM_THRESHOLD, keep) && mallopt(M_TOP_PAD, pad)
            && mallopt(M_MMAP_THRESHOLD, map);
    }
    #else
    static int tune_malloc(int keep, int pad, int map) { return 0; }
    #endif
    """
    int tune_malloc(int keep, int pad, int map)

KEPT_SIZE = 32 << 20
PAD_SIZE = 1 << 20
MAPPED_SIZE_MIN = 4 << 20


def keep_freed_memory():
    """Keep up to 32 MiB of freed memory for reuse; return whether this C library can."""
    return tune_malloc(KEPT_SIZE, PAD_SIZE, MAPPED_SIZE_MIN) != 0
