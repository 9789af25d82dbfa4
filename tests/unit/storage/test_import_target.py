"""Where an import goes: all of it or nothing, and never into what is in use."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import CorruptError, LockedError, StorageError
from penstock.storage.files import Files
from penstock.storage.import_nsqd import import_nsqd
from penstock.storage.node import load_node
from tests.support.go_queues import GoPath, message
from tests.unit.storage.imported import open_target, take


@pytest.fixture
def source(tmp_path: Path) -> GoPath:
    return GoPath(tmp_path / "go")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "target"


def nothing_left(target: Path) -> bool:
    return not target.exists() or not list(target.rglob("*import*"))


def test_other_topics_of_the_target_stay(source: GoPath, target: Path, tmp_path: Path) -> None:
    first = GoPath(tmp_path / "first")
    first.queue("old", [message(1)])
    take(first, target)
    floor = 1 << 53
    load_node(Files(), f"{target}/penstock/node.json").raise_floor(Files(), floor)
    source.queue("new", [message(2)])
    take(source, target)
    found = open_target(target)
    assert found["old"].bodies == [b"body-1"] and found["new"].bodies == [b"body-2"]
    assert min(found["new"].frames) >= floor, "indexes never come back"
    assert nothing_left(target)


def test_a_topic_that_exists_is_refused_and_nothing_is_taken(source: GoPath, target: Path) -> None:
    source.queue("a", [message(1)])
    take(source, target)
    source.queue("b", [message(2)])
    for dry_run in (False, True):
        with pytest.raises(StorageError, match="has topics of these names already: a"):
            take(source, target, dry_run=dry_run)
    assert sorted(open_target(target)) == ["a"]
    assert nothing_left(target)


def test_a_dry_run_reports_the_same_and_touches_nothing(source: GoPath, target: Path) -> None:
    source.metadata({"t": ["a", "b"]})
    source.queue("t", [message(9)])
    source.queue("t:a", [message(1), message(2, attempts=1)])
    source.queue("t:b", [message(1)])
    source.data_file("t:b", 0).open("ab").write(b"xx")
    dry = take(source, target, dry_run=True)
    assert not target.exists()
    real = take(source, target)
    assert dry.topics == real.topics and dry.damage == real.damage and dry.notes == real.notes
    assert dry.dry_run and not real.dry_run


@pytest.mark.parametrize("place", [".", "inside", "inside/deeper", "../go"])
def test_the_target_must_lie_outside_of_the_source(source: GoPath, place: str) -> None:
    source.queue("t", [message(1)])
    with pytest.raises(StorageError, match="must be outside the source"):
        take(source, source.folder / place)


def test_a_symbolic_link_to_the_source_is_no_other_folder(source: GoPath, target: Path) -> None:
    source.queue("t", [message(1)])
    target.symlink_to(source.folder)
    with pytest.raises(StorageError, match="must be outside the source"):
        take(source, target)


def test_a_target_with_queues_of_its_own_is_refused(source: GoPath, target: Path) -> None:
    source.queue("t", [message(1)])
    GoPath(target).queue("u", [message(1)])
    for dry_run in (False, True):
        with pytest.raises(StorageError, match="holds queue files of a Go nsqd"):
            take(source, target, dry_run=dry_run)
    assert len(list(target.iterdir())) == 2


def test_a_source_in_use_is_refused(source: GoPath, target: Path) -> None:
    source.queue("t", [message(1)])
    owner = Files()
    owner.lock(str(source.folder))
    with pytest.raises(LockedError, match="in use by a running nsqd: stop it first"):
        take(source, target)
    owner.close()
    assert not target.exists()
    take(source, target)


def test_a_target_in_use_is_refused_and_left_alone(source: GoPath, target: Path) -> None:
    source.queue("t", [message(1)])
    staged = target / "penstock" / "import" / "of another"
    staged.mkdir(parents=True)
    owner = Files()
    owner.lock(str(target))
    with pytest.raises(LockedError):
        take(source, target)
    assert staged.exists()
    owner.close()


def test_a_folder_that_is_no_data_path_is_refused(source: GoPath, target: Path) -> None:
    with pytest.raises(StorageError, match="is not a data path of nsqd"):
        take(source, target)
    with pytest.raises(FileNotFoundError):
        import_nsqd(f"{source.folder}/none", str(target), node_id=1)
    assert not target.exists()


def test_metadata_that_cannot_be_parsed_is_refused(source: GoPath, target: Path) -> None:
    source.queue("t", [message(1)])
    (source.folder / "nsqd.dat").write_bytes(b'{"topics":[')
    with pytest.raises(CorruptError, match="move it away"):
        take(source, target)
    assert not target.exists()


@pytest.mark.parametrize("existing", [False, True])
@pytest.mark.parametrize("failing", ["append", "sync", "rename"])
def test_a_failure_at_any_step_leaves_nothing_or_all(
    source: GoPath,
    target: Path,
    tmp_path: Path,
    existing: bool,
    failing: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each call of one kind fails in turn, as with a full disk, until none is left to fail."""
    source.metadata({"t": ["a"], "u": ["b"]})
    source.queue("t:a", [message(1), message(2, attempts=1)])
    source.queue("u:b", [message(3)])
    if existing:
        first = GoPath(tmp_path / "first")
        first.queue("old", [message(9)])
        take(first, target)
    before = sorted(target.rglob("*"))
    original = getattr(Files, failing)
    for place in range(100):
        calls = iter(range(1000))

        def fail(self: Files, *arguments: object, place: int = place, calls=calls) -> object:  # type: ignore[no-untyped-def]
            if next(calls) == place:
                raise OSError(28, "No space left on device")
            return original(self, *arguments)

        with monkeypatch.context() as patch:
            broken = type("Broken", (Files,), {failing: fail})
            patch.setattr("penstock.storage.import_nsqd.Files", broken)
            try:
                take(source, target)
                break
            except OSError:
                pass
        if failing == "rename" and existing and place > 0:
            break  # the import was committed; the next start moves the rest
        assert sorted(target.rglob("*")) == before
    assert place > 0
    found = open_target(target)
    assert set(found) == {"t", "u"} | ({"old"} if existing else set())
    assert nothing_left(target)


def test_an_import_that_was_cut_off_is_taken_up_or_removed_at_start(
    source: GoPath, target: Path
) -> None:
    source.queue("t", [message(1)])
    source.queue("u", [message(2)])
    take(source, target)
    own = target / "penstock"
    # As if the machine had gone down between the renames of a committed import...
    (own / "imported").mkdir()
    (moved,) = (own / "topics").glob("u~*")
    moved.rename(own / "imported" / moved.name)
    # ...and as if another import had not come to its end.
    (own / "import" / "topics" / "v~0000000000000001").mkdir(parents=True)
    assert sorted(open_target(target)) == ["t", "u"]
    assert nothing_left(target)
