"""Pure functions of the store's reading side, remembered while it is crashed a million times.

Most images of one exploration share most of their frames and headers. What these functions make of
bytes depends on the bytes alone and is changed by nobody, so that taking it from memory leaves the
real code under test everywhere else. Breaking one of them is the damage suites' business.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from shardstore import objects
from shardstore.format import frames, headers
from shardstore.fsck import object_check, scan
from shardstore.wal import deferred, follower, reader

_ENTRIES = 20_000


def _remembered(function: Callable[..., Any]) -> Callable[..., Any]:
    return functools.lru_cache(maxsize=_ENTRIES)(function)


def _header_of_bytes() -> Callable[..., Any]:
    inner = _remembered(headers.parse_header)

    def parse_header(region: Any, *, file: str, file_size: int | None = None) -> Any:
        return inner(bytes(region), file=file, file_size=file_size)

    return parse_header


@contextmanager
def remembering() -> Iterator[None]:
    """While it lasts, and with fewer looks for garbage: images are shared and live long."""
    parse_frame, parse_header = _remembered(frames.parse_frame), _header_of_bytes()
    before = gc.get_threshold()
    with ExitStack() as stack:
        for module in (frames, reader, follower, scan):
            stack.enter_context(patch.object(module, "parse_frame", parse_frame))
        for module in (objects, object_check):
            stack.enter_context(patch.object(module, "parse_header", parse_header))
        decode = _remembered(deferred.decode_record)
        stack.enter_context(patch.object(reader, "decode_record", decode))
        gc.set_threshold(200_000, 20, 20)
        try:
            yield
        finally:
            gc.set_threshold(*before)
