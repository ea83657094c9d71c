"""New files: complete and synced under another name before they get their own, or not there.

Contract: `NewFiles` refuses what exists, at the beginning and again when it names its files;
leaving it without `publish` removes what it wrote, and what the system refused becomes a
StorageError.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from types import TracebackType

from shardstore.errors import NameTakenError
from shardstore.fs.calls import close_quietly, storage_error, unlink_quietly
from shardstore.fs.protocol import Bytes, File
from shardstore.fs.system import local_file_system


class NewFile:
    """A file being written, from its beginning on or at any place."""

    def __init__(self, path: str, temporary: str, file: File) -> None:
        self.path = path
        self.temporary = temporary
        self.failure: OSError | None = None
        """Why a write failed: a library that writes here may raise something else for it."""
        self._file = file
        self._at = 0

    def write(self, data: Bytes) -> int:
        """Append, as libraries expect of a file."""
        with memoryview(data) as view:
            size = view.nbytes
        self.write_at(self._at, data)
        self._at += size
        return size

    def write_at(self, offset: int, data: Bytes) -> None:
        try:
            self._file.pwrite(offset, data)
        except OSError as error:
            self.failure = error
            raise

    def flush(self) -> None:
        """Nothing is held back."""

    def finish(self) -> None:
        """All of it is there: make it durable under its other name."""
        self._file.datasync()
        self._file.close()

    def give_up(self) -> None:
        close_quietly(self._file)


class NewFiles:
    """The files of one export, below one directory, which is made if need be."""

    def __init__(self, directory: str, names: Iterable[str], needed: int = 0) -> None:
        """NameTakenError where one of the files is there already. `needed` are the bytes of all,
        for the message where they find no room."""
        self._fs = local_file_system()
        self._directory = directory.rstrip("/") or "/"
        self._files: list[NewFile] = []
        self._needed = needed
        self._made: list[str] = []
        self._published: list[str] = []
        for name in names:
            self._refuse(f"{self._directory}/{name}")

    def open(self, name: str) -> NewFile:
        """Begin a file; `name` is relative to the directory."""
        path = f"{self._directory}/{name}"
        folder, last = os.path.split(path)
        self._make_directories(folder)
        temporary = f"{folder}/.{last[:150]}.{self._fs.process()[0]}.partial"
        file = NewFile(path, temporary, self._fs.open(temporary, "replace"))
        self._files.append(file)
        return file

    def publish(self) -> None:
        """Give every file its name, in the order in which they were begun."""
        for file in self._files:
            try:
                self._fs.rename(file.temporary, file.path)
            except FileExistsError:
                self._refuse(file.path)
                raise
            self._published.append(file.path)
        for folder in sorted(
            {os.path.dirname(file.path) for file in self._files} | self._parents()
        ):
            self._fs.sync_directory(folder)
        self._files.clear()

    def __enter__(self) -> NewFiles:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        failed = [file.failure for file in self._files if file.failure is not None]
        if isinstance(error, OSError):
            failed.append(error)
        for file in self._files:
            file.give_up()
            unlink_quietly(self._fs, file.temporary)
        for path in self._published if self._files else ():
            unlink_quietly(self._fs, path)
        self._files.clear()
        if failed and error is not None:  # what is free counts without what was just removed
            raise storage_error(
                self._fs, self._directory, "exporting", failed[0], needed=self._needed
            ) from error

    def _parents(self) -> set[str]:
        return {os.path.dirname(folder) or "." for folder in self._made}

    def _make_directories(self, folder: str) -> None:
        missing = []
        while folder and not os.path.isdir(folder):
            missing.append(folder)
            folder = os.path.dirname(folder)
        for path in reversed(missing):
            self._fs.make_directory(path)
            self._made.append(path)

    def _refuse(self, path: str) -> None:
        if os.path.lexists(path):
            raise NameTakenError(
                f"{path} exists and is not overwritten; move it away, or export somewhere else"
            )
