"""A damaged store, salvaged; the salvage crashes, and is done again or finished by an opening.

The damaged store lies beside the place of the judged one and moves there when its salvage is
through: until then no store is there, and what is damaged is this module's to judge. At any moment
a reader is refused or sees the state that the salvage has to bring back; every salvage ends in that
state, whatever crashes it follows; each file that was there is there, or in quarantine. Copies of
the files lie on the same disk, where no crash changes them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

from shardstore.errors import CorruptionError, ShardStoreError
from shardstore.format.frames import BLOCK
from shardstore.format.names import RAW, segment_file
from shardstore.fs.faulty import FaultyFileSystem
from shardstore.fs.protocol import FileSystem
from shardstore.fsck import fsck
from shardstore.refs import Ref
from shardstore.salvage import look, salvage
from shardstore.store import Store
from shardstore.wal.reader import read_bytes, read_log
from tests.crash.ghost import EMPTY, NO_STORE, PART, GhostState
from tests.crash.oracle import ROOT, Observed, Violation, observe
from tests.crash.world import SETTINGS, CrashFileSystem, World, has_store
from tests.support.stores import tree

DAMAGED, ORIGINAL, SPOILT = "/damaged", "/original", "/spoilt"
KEPT = ("objects", "wal", "STORE")
LOST = "lost"
"""The flavour of what cannot come back: its bytes are no other's."""

Damage = Callable[[CrashFileSystem], None]


def _after_first() -> GhostState:
    return EMPTY.committed(1, "", ("a", "b"), ()).named("s1")


class SalvageWorld(World):
    """Objects are damaged: of the head, which goes back a step, of one snapshot of two, and the
    manifest of the other, whose step the log has whole."""

    after: ClassVar[GhostState] = replace(
        _after_first().committed(2, "", ("a", "b"), ()).named("s2").deleted("s1"),
        previous=None,
        undo=(),
    )
    """What the salvage has to bring back."""

    @staticmethod
    def make(maker: World) -> list[str]:
        """The store, whole; the files that are to be damaged, and where: `PATH@OFFSET`."""
        maker.commit("a", "b")
        maker.snapshot("s1")
        maker.commit("a", "b")
        maker.snapshot("s2")
        maker.commit("a", "b", flavour=LOST)
        manifest = maker.store._session.state.snapshots["s2"].reference.file
        places = [_object_of(maker.fs, ref) for ref in (Ref.head, Ref.name("s1"))]
        return [*places, f"{ROOT}/{manifest}@{BLOCK + 20}"]

    def prepare(self) -> None:
        """Make the store, damage it, and note what there is; all of it is durable."""
        maker = World(self.fs, (NO_STORE,))
        maker.open()
        places = self.make(maker)
        maker.close()
        for place in places:
            _flip(self.fs, *place.split("@"))
        for name in KEPT:
            _copy(self.fs, f"{ROOT}/{name}", f"{ORIGINAL}/{name}")
        for path in {place.split("@")[0] for place in places}:
            _copy(self.fs, path, f"{SPOILT}/{path.rpartition('/')[2]}")
        self.fs.rename(ROOT, DAMAGED)
        self.fs.sync_directory("/")
        if self._is_back(self.fs):
            raise Violation("nothing is damaged")

    def open(self, storage_format: str = RAW, *, create: bool = False) -> Observed:
        is_new = not has_store(self.fs)
        if is_new:
            self._repair()
            self._move()
        observed = super().open(storage_format)
        if is_new:
            _check_kept(self.fs, ROOT)
        _check_spoilt(self.fs)
        return observed

    def _repair(self) -> None:
        """Once more to the end, of a copy. The store itself goes on with an opening, where that is
        possible; otherwise it is salvaged too."""
        self._salvage(FaultyFileSystem(twin := self.fs.kill()), twin)
        if not self._is_back(self.fs):
            self.faulty = FaultyFileSystem(self.fs)
            self._rules("salvage")
            self._salvage(self.faulty, self.fs)

    def _salvage(self, through: FileSystem, fs: CrashFileSystem) -> None:
        try:
            salvage(through, DAMAGED)
            again = look(fs, DAMAGED)
            found = fsck(fs, DAMAGED, deep=True).findings
        except ShardStoreError as error:
            raise Violation(f"cannot be salvaged: {type(error).__name__}: {error}") from error
        if again.needed:
            raise Violation(f"another salvage would be needed: {again.lines()}")
        if damage := [finding.line() for finding in found if finding.is_damage]:
            raise Violation(f"salvaged, and damaged: {damage[0]}")
        if not self._is_back(fs):
            raise Violation("salvaged, and refused by readers")
        _check_kept(fs, DAMAGED)

    def _is_back(self, fs: CrashFileSystem) -> bool:
        """Whether a reader sees what the salvage has to bring back; otherwise it is refused."""
        try:
            with Store.open(DAMAGED, "r", fs=fs, settings=SETTINGS) as store:
                found = observe(store)
        except CorruptionError:
            return False
        except Violation as error:
            if isinstance(error.__cause__, CorruptionError):
                return False
            raise
        if not found.is_state(self.after):
            raise Violation(f"expected {self.after} or a refusal, found {found}")
        return True

    def _move(self) -> None:
        """To where it is judged."""
        self.ghost = self.cut = (NO_STORE, self.after)
        self.fs.rename(DAMAGED, ROOT)
        self.fs.sync_directory("/")
        self.ghost = self.cut = (self.after,)


class LogSalvageWorld(SalvageWorld):
    """The last record of the log, and STORE."""

    after: ClassVar[GhostState] = replace(
        _after_first().committed(2, "", ("a", "b"), ()).committed(3, "", ("a",), ()), previous=None
    )

    @staticmethod
    def make(maker: World) -> list[str]:
        maker.commit("a", "b")
        maker.snapshot("s1")
        maker.commit("a", "b")
        maker.reopen()
        maker.commit("a")
        maker.commit("a", "b", flavour=LOST)
        segment = read_log(maker.fs, ROOT).segment
        last = next(r for r in reversed(segment.records) if r.body["type"] == "commit")
        path = f"{ROOT}/{segment_file(segment.index)}"
        return [f"{path}@{last.frame.offset + 200}", f"{ROOT}/STORE@20"]


def start_damaged(world: World) -> None:
    assert isinstance(world, SalvageWorld)
    world.prepare()


def repair(world: World) -> None:
    """The salvage, and work in what it gave back."""
    world.open()
    world.commit("a", "b")
    world.commit("b")


def _object_of(fs: CrashFileSystem, ref: Ref) -> str:
    with Store.open(ROOT, "r", fs=fs, settings=SETTINGS) as store:
        path = f"{ROOT}/{store._find(ref).manifest['a', PART].file}"
    return f"{path}@{fs.stat(path).size - 1}"


def _flip(fs: CrashFileSystem, path: str, at: str) -> None:
    file, byte = fs.open(path, "write"), bytearray(1)
    file.pread(int(at), byte)
    file.pwrite(int(at), bytes([byte[0] ^ 0xFF]))
    file.datasync()
    file.close()


def _copy(fs: CrashFileSystem, source: str, target: str) -> None:
    """A file or a directory, durably."""
    above = target.rpartition("/")[0]
    if above and not _exists(fs, above):
        fs.make_directory(above)
        fs.sync_directory("/")
    if fs.stat(source).is_directory:
        for name in fs.list_directory(source):
            _copy(fs, f"{source}/{name}", f"{target}/{name}")
        return
    file = fs.open(target, "create")
    file.pwrite(0, read_bytes(fs, source))
    file.datasync()
    file.close()
    fs.sync_directory(above)
    fs.sync_directory(above.rpartition("/")[0] or "/")


def _exists(fs: CrashFileSystem, path: str) -> bool:
    try:
        fs.stat(path)
    except FileNotFoundError:
        return False
    return True


def _check_kept(fs: CrashFileSystem, root: str) -> None:
    """Every file has the bytes that it had, or they are in quarantine."""
    now = tree(fs, root)
    aside = _aside(now)
    for path, content in tree(fs, ORIGINAL).items():
        same = now.get(path.replace(ORIGINAL, root), b"").rstrip(b"\0")
        if content.rstrip(b"\0") not in {same, *aside}:
            raise Violation(f"{path} is not kept")


def _check_spoilt(fs: CrashFileSystem) -> None:
    """Whatever is done later: the quarantine has a copy of everything that was damaged."""
    aside = _aside(tree(fs, ROOT))
    for path, content in tree(fs, SPOILT).items():
        if content.rstrip(b"\0") not in aside:
            raise Violation(f"no copy of {path} is in quarantine")


def _aside(files: dict[str, bytes]) -> set[bytes]:
    return {content.rstrip(b"\0") for path, content in files.items() if "/quarantine/" in path}
