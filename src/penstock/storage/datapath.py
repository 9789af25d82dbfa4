# The files and folders of a data path.
#
#     nsqd.dat                                      metadata.py
#     penstock.node.json                            node.py: the second copy of node.json
#     penstock/node.json  penstock/reserve          node.py, reserve.py
#     penstock/damage.json                          damage.py
#     penstock/patterns.json  penstock.patterns.json   patterns.py, and its second copy
#     penstock/drain.json  penstock.drain.json      drain.py, and its second copy
#     penstock/topics/<topic>~<instance, 16 hex digits>/
#                     <base>.log  <base>[-n].side  journal  *.corrupt
#     penstock/topics/<topic>~<instance>.deleted/   being removed
#     penstock/deferred/  penstock/deferred.counts  slots.py, slot_counts.py
#     penstock/staging/  penstock/staging.notes     staging.py, ledger.py; staging_notes.py
#     penstock/import/                              an import that was not finished: removed
#     penstock/imported/                            topics of one that was: moved to topics/
#
# A topic's name is at most 64 of [.a-zA-Z0-9_-], so `~` is a safe separator, and the suffix makes
# "." and ".." harmless.  A re-created topic has another instance, so another folder: files of the
# old one are never used for the new one (R6).

from __future__ import annotations

import re
from typing import NamedTuple

from penstock.errors import StorageError
from penstock.storage.files import Files

DELETED = ".deleted"

_LEFTOVER = re.compile(
    r"(nsqd\.dat|(penstock\.)?(node|patterns|drain)\.json(\.bad)?|damage\.json|deferred\.counts"
    r"|staging\.notes)"
    r"\.[0-9a-f]{12}\.tmp"
)
_FOLDER = re.compile(r"([.a-zA-Z0-9_-]{1,64})~([0-9a-f]{16})")


class TopicFolder(NamedTuple):
    """A topic's folder, parsed from its name."""

    topic: str
    instance: int
    path: str


class DataPath:
    """The layout under one folder.  All methods may block."""

    def __init__(self, files: Files, root: str) -> None:
        self.files = files
        self.root = str(root).rstrip("/") or "/"
        self.metadata = f"{self.root}/nsqd.dat"
        self.own = f"{self.root}/penstock"
        self.node = f"{self.own}/node.json"
        # In another folder, so that it survives a removal of penstock/.
        self.node_copy = f"{self.root}/penstock.node.json"
        self.damage = f"{self.own}/damage.json"
        self.patterns = f"{self.own}/patterns.json"
        self.patterns_copy = f"{self.root}/penstock.patterns.json"
        self.drain = f"{self.own}/drain.json"
        self.drain_copy = f"{self.root}/penstock.drain.json"
        self.reserve = f"{self.own}/reserve"
        self.topics = f"{self.own}/topics"
        self.deferred = f"{self.own}/deferred"
        self.staging = f"{self.own}/staging"
        self.staging_notes = f"{self.own}/staging.notes"
        self.importing = f"{self.own}/import"
        self.imported = f"{self.own}/imported"
        self.made: list[str] = []  # folders that open() created
        self._places: dict[str, tuple[int, int] | None] = {}

    def open(self) -> None:
        """Lock the data path, create missing folders and remove leftovers of a crash.

        The folders of deleted topics stay, empty, until nsqd.dat does not list them any more.
        """
        self.files.lock(self.root)
        self.refuse_queues()
        folders = (self.topics, self.deferred, self.staging)
        for folder in folders:
            if not self.files.exists(folder):
                self.files.make_folder(folder)
                self.made.append(folder)
        # Names made by a killed process are used from now on, so they must be durable.
        for folder in (self.root, self.own, *folders):
            self.files.sync_folder(folder)
        self.adopt_imported()
        self.clean()
        places = (self.root, self.own, *folders)
        self._places = {folder: self.files.place(folder) for folder in places}

    def displaced(self) -> str:
        """A folder of the data path that was removed or replaced since open(); "" if none was."""
        for folder, place in self._places.items():
            if self.files.place(folder) != place:
                return folder
        return ""

    def refuse_queues(self) -> None:
        """Refuse a folder with a Go nsqd's queues: messages in them would be left behind."""
        found = [name for name in self.files.list(self.root) if ".diskqueue." in name]
        if found:
            # Imported only if needed: this runs at every start.
            from penstock.storage.diskqueue import is_queue_file

            found = [name for name in found if is_queue_file(name)]
        if found:
            more = f" and {len(found) - 1} more" if len(found) > 1 else ""
            raise StorageError(
                f"{self.root} holds queue files of a Go nsqd ({found[0]}{more}): import them"
                f" with `penstock import-nsqd --from {self.root} --to DIR`, then start nsqd on DIR"
            )

    def commit_import(self, folder: str) -> None:
        """Take over the topics in ``folder`` atomically, by one rename."""
        self.files.sync_folder(folder)
        self.files.rename(folder, self.imported)
        self.files.sync_folder(self.own)
        self.adopt_imported()

    def adopt_imported(self) -> None:
        """Move the topics of a committed import to topics/; can be repeated after a crash."""
        if not self.files.exists(self.imported):
            return
        for name in self.files.list(self.imported):
            self.files.rename(f"{self.imported}/{name}", f"{self.topics}/{name}")
        self.files.sync_folder(self.topics)
        self.files.remove_tree(self.imported)

    def topic_folder(self, topic: str, instance: int) -> str:
        folder = f"{topic}~{instance:016x}"
        if _FOLDER.fullmatch(folder) is None:
            raise ValueError(f"{folder!r} is not the name of a topic's folder")
        return f"{self.topics}/{folder}"

    def create_topic(self, topic: str, instance: int) -> str:
        """Create the folder of a new topic instance, durably; return its path."""
        folder = self.topic_folder(topic, instance)
        self.files.make_folder(folder)
        self.files.sync_folder(self.topics)
        return folder

    def topic_folders(self) -> list[TopicFolder]:
        """The folders of all topics that are not deleted."""
        found = (parse_folder(f"{self.topics}/{name}") for name in self.files.list(self.topics))
        return [folder for folder in found if folder is not None]

    def delete_topic(self, folder: str) -> str:
        """Rename a topic's folder to .deleted, durably; return the new path, for remove().

        After an error it is renamed back, unless that fails too.
        """
        gone = folder + DELETED
        self.files.rename(folder, gone)
        try:
            self.files.sync_folder(self.topics)
        except OSError:
            self.files.rename(gone, folder)
            raise
        return gone

    def deleted_topics(self) -> list[TopicFolder]:
        """Folders that delete_topic() renamed and that are not removed yet."""
        names = [name for name in self.files.list(self.topics) if name.endswith(DELETED)]
        found = (parse_folder(f"{self.topics}/{name.removesuffix(DELETED)}") for name in names)
        return [f._replace(path=f.path + DELETED) for f in found if f is not None]

    def empty(self, gone: str) -> None:
        """Unlink the files of a deleted topic; the folder stays as a tombstone."""
        for name in self.files.list(gone):
            self.files.unlink(f"{gone}/{name}")

    def remove(self, gone: str) -> None:
        """Remove the folder of a deleted topic."""
        self.files.remove_tree(gone)

    def clean(self) -> None:
        """Remove leftovers of deleted topics, imports and temporary files."""
        self.files.remove_tree(self.importing)
        for deleted in self.deleted_topics():
            self.empty(deleted.path)
        for folder in (self.root, self.own):
            for name in self.files.list(folder):
                if _LEFTOVER.fullmatch(name):
                    self.files.unlink(f"{folder}/{name}")


def parse_folder(path: str) -> TopicFolder | None:
    """Parse the name of a topic's folder; None if it is not one."""
    match = _FOLDER.fullmatch(path.rpartition("/")[2])
    if match is None:
        return None
    return TopicFolder(match[1], int(match[2], 16), path)
