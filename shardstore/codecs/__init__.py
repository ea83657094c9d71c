"""Tensors to bytes and back. `raw` is the face; numpy's and torch's sides are asked for late.

A side is a module with `describe` (dtype and shape, or a refusal by name), `begin_copy` (fill
memory with a tensor's bytes) and `view` (a tensor over memory): `numpy_side` here, and
`shardstore.torch`, which is imported only where a torch tensor or view is at hand.
"""

from __future__ import annotations

from shardstore.errors import InvalidTensorError

PIECE_BYTES = 256 << 10
"""Copying and hashing go in steps of about this size, so that hashing finds the bytes in cache."""


def refusal(where: str, found: str, advice: str) -> InvalidTensorError:
    """The error for a tensor that cannot be stored exactly; `where` names shard, part, tensor."""
    return InvalidTensorError(f"{where}: found {found}, which cannot be stored exactly; {advice}")
