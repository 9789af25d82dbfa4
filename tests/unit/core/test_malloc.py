"""Freed memory is kept for the next batch."""

import platform

from penstock.core.malloc import keep_freed_memory


def test_glibc_takes_the_settings() -> None:
    assert keep_freed_memory() == (platform.libc_ver()[0] == "glibc")
