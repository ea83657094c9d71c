"""What differs between two commits: parts and tensors by digest, and by value on request.

Contract: tensors are compared by name, dtype, shape and digest, from verified headers; no data is
read for that. Values are read, verified, and compared in double precision (integers exactly), in
pieces, so that memory stays near one part of each commit. numpy is imported only then.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from shardstore.format.layout import DTYPE_SIZES
from shardstore.refs import Ref
from shardstore.store import Store
from shardstore.views import Commit, TensorInfo

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

_PIECE_ELEMENTS = 1 << 20


@dataclass(slots=True, kw_only=True)
class Change:
    """One tensor that is not the same on both sides."""

    kind: Literal["added", "removed", "changed"]
    shard: str
    part: str
    tensor: str
    before: str | None
    """dtype and shape."""
    after: str | None
    bytes: int
    """On the newer side, of a removed tensor on the older one."""
    max_abs: float | None = None
    """Greatest absolute difference of two finite values, where values were compared."""
    not_finite: int | None = None
    """Places where a NaN or an infinity stands on one side and not, or not the same, on the
    other."""

    @property
    def comparable(self) -> bool:
        """Same dtype and shape: values can be told apart one by one."""
        return self.before == self.after


@dataclass(slots=True, kw_only=True)
class Difference:
    """What is different between two commits of a store, `before` and `after`."""

    before: Commit
    after: Commit
    changes: list[Change] = field(default_factory=list)
    """Sorted by shard, part, tensor."""
    tensors_same: int = 0
    bytes_same: int = 0
    bytes_different: int = 0

    @property
    def same(self) -> bool:
        """Whether both hold the same tensors, part for part: their state digests are then equal."""
        return not self.changes and not self.parts_added and not self.parts_removed

    @property
    def parts_added(self) -> list[tuple[str, str]]:
        return sorted(self.after.parts - self.before.parts)

    @property
    def parts_removed(self) -> list[tuple[str, str]]:
        return sorted(self.before.parts - self.after.parts)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "before": {"step": self.before.step, "seq": self.before.seq},
            "after": {"step": self.after.step, "seq": self.after.seq},
            "same": self.same,
            "parts_added": [list(part) for part in self.parts_added],
            "parts_removed": [list(part) for part in self.parts_removed],
            "changes": [asdict(change) for change in self.changes],
            "tensors_same": self.tensors_same,
            "bytes_same": self.bytes_same,
            "bytes_different": self.bytes_different,
        }


def compare(
    store: Store, before: Ref | str, after: Ref | str, *, values: bool = False
) -> Difference:
    """Compare two commits of one store."""
    # By number from here on: a name may be moved, a head may go on.
    result = Difference(before=store.commit_of(before), after=store.commit_of(after))
    refs = Ref.seq(result.before.seq), Ref.seq(result.after.seq)
    old, new = ({_key(row): row for row in store.tensors(ref)} for ref in refs)
    for key in sorted({*old, *new}):
        _add(result, old.get(key), new.get(key))
    if values:
        _compare_values(store, refs, result.changes)
    return result


def _key(row: TensorInfo) -> tuple[str, str, str]:
    return row.shard, row.part, row.tensor


def _add(result: Difference, old: TensorInfo | None, new: TensorInfo | None) -> None:
    row = new or old
    assert row is not None
    size = math.prod(row.shape) * DTYPE_SIZES[row.dtype]
    before, after = _kind(old), _kind(new)
    if old and new and before == after and old.digest == new.digest:
        result.tensors_same += 1
        result.bytes_same += size
        return
    result.bytes_different += size
    result.changes.append(
        Change(
            kind="changed" if old and new else "added" if new else "removed",
            shard=row.shard,
            part=row.part,
            tensor=row.tensor,
            before=before,
            after=after,
            bytes=size,
        )
    )


def _kind(row: TensorInfo | None) -> str | None:
    return None if row is None else f"{row.dtype} {list(row.shape)}"


def _compare_values(store: Store, refs: tuple[Ref, Ref], changes: Iterable[Change]) -> None:
    by_part: dict[tuple[str, str], list[Change]] = {}
    for change in changes:
        if change.kind == "changed" and change.comparable:
            by_part.setdefault((change.shard, change.part), []).append(change)
    for part, wanted in by_part.items():
        with store.load(*part, refs[0]) as old, store.load(*part, refs[1]) as new:
            dtypes = {spec.name: spec.dtype for spec in new.specs}
            for change in wanted:
                found = largest_difference(
                    old.raw(change.tensor), new.raw(change.tensor), dtypes[change.tensor]
                )
                change.max_abs, change.not_finite = found


def largest_difference(old: memoryview, new: memoryview, dtype: str) -> tuple[float, int]:
    """Greatest absolute difference of finite values of two tensors' bytes, and the number of
    places where only one side is finite or both are not and differ."""
    import numpy as np

    largest, odd = 0.0, 0
    with np.errstate(all="ignore"):  # infinities and NaN are what is looked for
        for one, other in zip(_pieces(old, dtype), _pieces(new, dtype), strict=True):
            equal = (one == other) | ((one != one) & (other != other))
            if one.dtype.kind in "iu":
                # The true difference fits the unsigned type whatever the signs are.
                unsigned = np.dtype(f"u{one.dtype.itemsize}")
                distance = np.maximum(one, other).astype(unsigned)
                distance -= np.minimum(one, other).astype(unsigned)
                finite = ~equal
            else:
                distance = np.abs(other - one)
                finite = np.isfinite(distance) & ~equal
                odd += int(np.count_nonzero(~finite & ~equal))
            if finite.any():
                largest = max(largest, float(distance[finite].max()))
    return largest, odd


def _pieces(data: memoryview, dtype: str) -> Iterator[Array]:
    step = _PIECE_ELEMENTS * DTYPE_SIZES[dtype]
    for at in range(0, len(data), step):
        yield _widened(data[at : at + step], dtype)


def _widened(data: memoryview, dtype: str) -> Array:
    """The values exactly, in a type that numpy computes with."""
    import numpy as np

    match dtype:
        case "BF16":
            upper = np.frombuffer(data, "<u2").astype(np.uint32) << 16
            return upper.view(np.float32).astype(np.float64)
        case "F8_E5M2":
            return (
                (np.frombuffer(data, np.uint8).astype(np.uint16) << 8)
                .view(np.float16)
                .astype(np.float64)
            )
        case "F8_E4M3":
            return _e4m3(np.frombuffer(data, np.uint8))
        case "BOOL":
            return np.frombuffer(data, np.uint8)
        case "C64":
            return np.frombuffer(data, "<c8").astype(np.complex128)
    kind = {"F": "f", "I": "i", "U": "u"}[dtype[0]]
    values: Array = np.frombuffer(data, f"<{kind}{DTYPE_SIZES[dtype]}")
    return values.astype(np.float64) if kind == "f" else values


def _e4m3(codes: Array) -> Array:
    """No infinities, one NaN of each sign."""
    import numpy as np

    exponent, mantissa = (codes >> 3 & 0xF).astype(np.float64), (codes & 0x7).astype(np.float64)
    normal = (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    values = np.where(exponent == 0, mantissa * 2.0**-9, normal)
    values[(codes & 0x7F) == 0x7F] = np.nan
    signed: Array = np.where(codes & 0x80, -values, values)
    return signed
