KEPT_SIZE: int
PAD_SIZE: int
MAPPED_SIZE_MIN: int

def keep_freed_memory() -> bool: ...
