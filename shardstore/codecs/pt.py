"""Objects as files of torch.save (FORMAT.md section 5.3).

Contract: a file is one dict: `__metadata__` to the label, then name to tensor, each with a storage
of its own that is just as long as the tensor. It is loaded with weights_only, after the caller
compared its digest with the reference. Torch is imported when the first such file is made or
loaded; whatever the bytes are, `load` raises nothing but CorruptionError.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from shardstore.errors import CorruptionError, MissingLibraryError
from shardstore.format.digests import Bytes
from shardstore.format.fields import check_name, parse_label
from shardstore.format.names import PT
from shardstore.format.placement import (
    METADATA_KEY,
    ObjectLabel,
    ObjectLayout,
    label_fields,
)

if TYPE_CHECKING:
    import torch


def save(
    view: memoryview, layout: ObjectLayout, label: ObjectLabel, digests: Sequence[str]
) -> memoryview:
    """The whole file, of tensors that stand in `view` as `layout` says."""
    side = torch_side("written")
    # Strings of its own: the pickle is shorter where two values are one object, as chance has it,
    # and a slot is only written again by a file of the same size.
    fields = json.loads(json.dumps(label_fields(label, digests, PT)))
    members: dict[str, Any] = {METADATA_KEY: fields}
    # A view's storage is its own bytes alone, so that no tensor brings its neighbours along.
    for entry in layout.tensors:
        memory, spec = view[entry.begin : entry.end], entry.spec
        members[spec.name] = side.view(memory, spec.dtype, spec.shape, writable=False)
    stream = io.BytesIO()
    side.torch.save(members, stream)
    return stream.getbuffer()


def load(
    data: Bytes, *, file: str
) -> tuple[ObjectLabel, tuple[str, ...], Mapping[str, torch.Tensor]]:
    """Label, declared digests and tensors of a file."""
    side = torch_side("read")
    try:
        loaded = side.torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except Exception as error:
        # Unpicklers, archives and torch itself raise errors of every kind over bytes like these.
        raise _wrong(
            f"torch cannot load it: {type(error).__name__}", file, "a dict", "none"
        ) from error
    if not isinstance(loaded, dict) or METADATA_KEY not in loaded:
        raise _wrong("this is not an object's file", file, METADATA_KEY, type(loaded).__name__)
    label, digests = parse_label(loaded.pop(METADATA_KEY), PT, file)
    size = 0
    for name, tensor in loaded.items():
        check_name("tensor", name, file)
        if type(tensor) is not side.torch.Tensor:
            raise _wrong(f"{name!r} is no tensor", file, "a tensor", type(tensor).__name__)
        size += tensor.numel() * tensor.element_size()
    if size > len(data):
        # An expanded tensor could claim any size.
        raise _wrong("tensors that the file cannot hold", file, f"{len(data)} bytes", size)
    return label, digests, loaded


def torch_side(doing: str) -> Any:
    """Torch's side of the store, or MissingLibraryError."""
    try:
        import shardstore.torch as torch_side
    except ImportError as error:
        raise MissingLibraryError(
            f"objects of format 'pt' are {doing} with PyTorch, which cannot be imported ({error}); "
            "install it: pip install 'shardstore[train]', or convert the store where it is"
        ) from error
    return torch_side


def _wrong(what: str, file: str, expected: Any, found: Any) -> CorruptionError:
    return CorruptionError(what, file=file, offset=0, expected=expected, found=found)
