"""The files of objects on their way into slots: opened, synced, closed, and given back.

Contract: a file stays open until its object is synced or given up, for only the descriptor that
wrote tells of a failed write-back; beyond `OPEN_FILES_MAX` the oldest are synced early. A failed
sync is the object's error for good: asked again, it is raised again, and the slot is never written
any more (rule 8). A slot goes back to the table once, when all of the object's I/O has ended.
"""

from __future__ import annotations

from contextlib import suppress

from shardstore.context import Context
from shardstore.format.names import RAW, slot_file
from shardstore.fs.calls import close_quietly
from shardstore.slots import SlotTable
from shardstore.staged import StagedObject, settle

OPEN_FILES_MAX = 128


class SlotFiles:
    """See the module's docstring. Any thread may call, but for `limit`."""

    def __init__(self, context: Context, slots: SlotTable) -> None:
        self._context = context
        self._slots = slots
        self._unsynced: list[StagedObject] = []
        """Objects whose file may be open, oldest first; their digests are on the way."""

    def note(self, staged: StagedObject) -> None:
        """The object was handed over: from here on `limit` may sync and close its file."""
        with self._context.mutex:
            self._unsynced.append(staged)

    def open(self, staged: StagedObject) -> None:
        """Give the object a slot and open its file; a failure is the object's error."""
        if staged.file is not None or staged.error is not None:
            return
        context, size, storage_format = self._context, staged.size, staged.storage_format
        with context.mutex:  # together, so that a slot in use always has an owner
            slot, create = self._slots.reserve(size, storage_format)
            staged.slot, staged.created = slot, create
        path = context.path(slot_file(slot, storage_format))
        context.trace("stage", slot=slot, create=create, size=size)
        try:
            staged.file = context.fs.open(
                path, "create" if create else "write", direct=storage_format == RAW
            )
        except OSError as error:
            with context.mutex:
                staged.error, staged.slot = error, -1
                self._slots.release([slot])
            return
        if create:
            with context.mutex:
                self._slots.created(slot, size, storage_format)

    def limit(self) -> None:
        """Sync and close the oldest files, so that one more may be opened. On the thread that
        stages only: it waits for the finishing one."""
        while True:
            with self._context.mutex:
                if len(self._unsynced) < OPEN_FILES_MAX:
                    return
                staged = self._unsynced[0]
            settle(staged)
            with suppress(OSError):  # it stays the object's error
                self.sync(staged)
            self.close(staged)

    def sync(self, staged: StagedObject) -> None:
        """Make the bytes durable. Raises OSError, then and whenever asked again; the slot is never
        written again."""
        with staged.lock:
            if staged.error is not None:
                raise staged.error
            if staged.synced or staged.file is None:
                return
            try:
                staged.file.datasync()
            except OSError as error:
                staged.error = error
                with self._context.mutex:
                    self._slots.retire(staged.slot)
                raise
            staged.synced = True

    def close(self, staged: StagedObject) -> None:
        """Close the object's file."""
        with staged.lock:
            file, staged.file = staged.file, None
            if file is not None:
                close_quietly(file)
        with self._context.mutex:
            if staged in self._unsynced:
                self._unsynced.remove(staged)

    def close_all(self) -> None:
        """Close every file; nothing is in flight."""
        for staged in list(self._unsynced):
            self.close(staged)

    def give_back(self, staged: StagedObject) -> None:
        """Close the file; the slot is free. Nothing of the object is in flight."""
        self.close(staged)
        broken = staged.error is not None and staged.created
        with self._context.mutex:  # together, so that a slot without an owner is free
            slot, staged.slot = staged.slot, -1
            if broken:  # shorter than its size: never a slot
                self._slots.retire(slot)
            else:
                self._slots.release([slot])
        if broken and slot >= 0:
            with suppress(OSError):
                self._context.fs.unlink(self._context.path(slot_file(slot, staged.storage_format)))
