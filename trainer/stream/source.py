"""Where shards come from and go to, as the executor sees it.

The source lives inside one open transaction; it neither begins nor commits one. `trainer.state`
implements it on a store. Every tensor handed out belongs to the source: after the context of
`load`, or after `stage`, the executor holds no reference to it.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from torch import Tensor


class Checkout(Protocol):
    """Exclusive, writable tensors of one part with the bytes of the parent commit."""

    @property
    def shard(self) -> str: ...

    @property
    def part(self) -> str: ...

    @property
    def tensors(self) -> Mapping[str, Tensor]: ...


class ShardSource(Protocol):
    """Loads, checks out and stages parts of shards, on the host."""

    def load(self, shard: str, part: str) -> AbstractContextManager[Mapping[str, Tensor]]:
        """Tensors to read, never to write, while the context is open."""
        ...

    def checkout(self, shard: str, part: str) -> Checkout:
        """Tensors to change; given back by `stage`, or thrown away when the transaction aborts."""
        ...

    def stage(self, checkout: Checkout) -> None:
        """Take the changed tensors into the transaction; the checkout is dead afterwards."""
        ...
