"""How long work says how far it has got: the types, and telling nobody."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

Advance = Callable[[int], None]
"""Called with the bytes of each piece of work that is done."""
Progress = Callable[[int], AbstractContextManager[Advance]]
"""Called with the bytes of all that is to be done."""


def silent(_total: int) -> AbstractContextManager[Advance]:
    """Tells nobody."""
    return nullcontext(lambda _count: None)
