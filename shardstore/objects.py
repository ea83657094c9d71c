"""Reading objects out of their slots, verified: bytes that are not what the manifest says never
become tensors.

Errors name store, step, shard, part, file and offset. Nothing here knows whether a commit is still
kept; `session` turns damage into StepMovedOnError where the writer has moved on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice

from shardstore.buffers import Buffer
from shardstore.errors import CorruptionError
from shardstore.format.layout import (
    DataCheck,
    ObjectHeader,
    check_size,
    header_length,
    object_digest,
    parse_header,
)
from shardstore.format.manifest import ObjectRef, Part
from shardstore.format.names import ALL_FORMATS
from shardstore.fs.calls import close_quietly, storage_error
from shardstore.fs.protocol import File, FileSystem
from shardstore.jobs import Job
from shardstore.workers import InlineWorkers, Workers

PIECE_BYTES = 16 * 1024 * 1024


class ObjectReader:
    """Reads the objects of one store. Any thread may call."""

    def __init__(
        self,
        fs: FileSystem,
        root: str,
        workers: Workers | None = None,
        piece_bytes: int = PIECE_BYTES,
    ) -> None:
        self._fs = fs
        self.root = root
        self.workers = workers or InlineWorkers()
        self._piece_bytes = piece_bytes

    def read(self, part: Part, reference: ObjectRef, step: int, buffer: Buffer) -> ObjectHeader:
        """Fill the buffer with the whole raw object and verify every byte.

        Pieces are read ahead; each is digested while the next ones arrive.
        """
        path, what = self.describe(part, reference, step)
        file = self.open(path, what, reference, direct=buffer.aligned)
        view = buffer.view[: reference.size]
        check = _Check(view, part, reference, path, what)
        try:
            for end in self._arriving(file, view, what):
                check.advance(end)
        except OSError as error:
            raise storage_error(self._fs, self.root, "reading an object", error) from error
        finally:
            close_quietly(file)
        return check.header()

    def fill(self, path: str, what: str, reference: ObjectRef, buffer: Buffer) -> memoryview:
        """The bytes of an object's file, whatever they are, in the buffer."""
        file = self.open(path, what, reference, direct=False)
        view = buffer.view[: reference.size]
        try:
            deque(self._arriving(file, view, what), maxlen=0)
        except OSError as error:
            raise storage_error(self._fs, self.root, "reading an object", error) from error
        finally:
            close_quietly(file)
        return view

    def beginning(self, path: str, what: str, reference: ObjectRef, count: int) -> memoryview:
        """The first `count` bytes of an object's file, or all where there are fewer."""
        file = self.open(path, what, reference, direct=False)
        data = memoryview(bytearray(min(count, reference.size)))
        try:
            file.pread(0, data)
        except OSError as error:
            raise storage_error(self._fs, self.root, "reading an object", error) from error
        finally:
            close_quietly(file)
        return data

    def _arriving(self, file: File, view: memoryview, what: str) -> Iterator[int]:
        """Reads the file into `view`; yields up to where it is there, in order."""
        starts = iter(range(0, len(view), self._piece_bytes))
        jobs: deque[tuple[int, int, Job[int]]] = deque()

        def submit(count: int) -> None:
            for start in islice(starts, count):
                end = min(len(view), start + self._piece_bytes)
                job = self.workers.io(file.pread, start, view[start:end])
                jobs.append((start, end, job))

        submit(self.workers.depth)
        try:
            while jobs:
                start, end, job = jobs.popleft()
                count = job.result()
                if count != end - start:  # else what the buffer held before would be checked
                    raise CorruptionError(
                        f"{what}: the file was cut off while it was read", file=file.path,
                        offset=start + count, expected=len(view), found=start + count,
                    )  # fmt: skip
                submit(1)
                yield end
        finally:
            for _, _, job in jobs:  # they write into the buffer
                with suppress(OSError):
                    job.result()

    def read_header(self, part: Part, reference: ObjectRef, step: int) -> ObjectHeader:
        """Read and verify a raw object's header region only."""
        path, what = self.describe(part, reference, step)
        file = self.open(path, what, reference, direct=False)
        try:
            first = bytearray(8)
            file.pread(0, first)
            with naming(what):
                size = header_length(first, file=path, file_size=reference.size)
            region = bytearray(size)
            file.pread(0, region)
        except OSError as error:
            raise storage_error(self._fs, self.root, "reading an object", error) from error
        finally:
            close_quietly(file)
        return check_header(memoryview(region), part, reference, path, what)

    def describe(self, part: Part, reference: ObjectRef, step: int) -> tuple[str, str]:
        """The object's path, and what it is in words."""
        what = f"object of shard {part[0]!r} part {part[1]!r} at step {step} of store {self.root}"
        path = f"{self.root}/{reference.file}"
        if reference.format not in ALL_FORMATS:
            raise CorruptionError(
                f"{what}: storage format", file=path, expected=ALL_FORMATS, found=reference.format
            )
        return path, what

    def open(self, path: str, what: str, reference: ObjectRef, *, direct: bool) -> File:
        """The file of an object, which has to be as long as its reference says."""
        try:
            file = self._fs.open(path, "read", direct=direct)
        except FileNotFoundError:
            raise CorruptionError(f"{what}: the file is missing", file=path) from None
        except OSError as error:
            raise storage_error(self._fs, self.root, "opening an object", error) from error
        try:
            found = file.size()
        except OSError as error:
            close_quietly(file)
            raise storage_error(self._fs, self.root, "reading an object", error) from error
        if found != reference.size:
            close_quietly(file)
            raise CorruptionError(
                f"{what}: size", file=path, offset=min(found, reference.size),
                expected=reference.size, found=found,
            )  # fmt: skip
        return file


class _Check:
    """Verifies an object while it arrives: header region, then tensors and padding."""

    def __init__(
        self, view: memoryview, part: Part, reference: ObjectRef, path: str, what: str
    ) -> None:
        self._view = view
        self._part = part
        self._reference = reference
        self._path = path
        self._what = what
        self._data: DataCheck | None = None
        self._checked = 0
        """Where the data's check has got to."""
        self._header: ObjectHeader | None = None

    def advance(self, end: int) -> None:
        """Raises CorruptionError for the first damage before `end`."""
        with naming(self._what):
            size = header_length(self._view[:8], file=self._path, file_size=len(self._view))
        if self._data is None:
            if end < size:
                return
            region = self._view[:size]
            self._header = check_header(region, self._part, self._reference, self._path, self._what)
            with naming(self._what):
                check_size(self._header.layout, len(self._view), self._path)
            self._data = DataCheck(self._header, file=self._path)
        with naming(self._what):
            for error in self._data.feed(self._checked, self._view[self._checked : end]):
                raise error
        self._checked = end

    def header(self) -> ObjectHeader:
        assert self._header is not None
        return self._header


def check_object(
    data: memoryview, part: Part, reference: ObjectRef, path: str, what: str
) -> ObjectHeader:
    """Verify an object's bytes against its reference, or CorruptionError with the place."""
    check = _Check(data, part, reference, path, what)
    check.advance(len(data))
    return check.header()


@contextmanager
def naming(what: str) -> Iterator[None]:
    """Damage found in bytes alone is told with the object that they should be."""
    try:
        yield
    except CorruptionError as error:
        raise CorruptionError(
            f"{what}: {error.what}",
            file=error.file,
            offset=error.offset,
            expected=error.expected,
            found=error.found,
        ) from None


def check_header(
    region: memoryview, part: Part, reference: ObjectRef, path: str, what: str
) -> ObjectHeader:
    """Verify a header region against the reference that the manifest holds."""
    found = object_digest(region)
    if found != reference.digest:
        raise CorruptionError(
            f"{what}: digest of the header", file=path, offset=0, expected=reference.digest,
            found=found,
        )  # fmt: skip
    with naming(what):
        header = parse_header(region, file=path)
    names = (header.label.shard, header.label.part)
    if names != part:
        raise CorruptionError(
            f"{what}: names in the header", file=path, offset=0, expected=part, found=names
        )
    return header
