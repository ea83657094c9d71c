"""Optimizer state of one shard of a run directory: AdamW's moments, under the names used here.

Contract: whatever a file calls them, the part becomes `m.<name>` and `v.<name>` for each parameter
and `step`, the number of applied updates, as a trainer on this store has them. A state that lacks a
moment, has one of another shape, or counts differently from parameter to parameter is refused. What
is not AdamW's stays as it is, with a warning.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence

from shardstore.errors import ForeignFileError
from shardstore.format.placement import TensorSpec
from shardstore.importing.contents import Contents, ForeignTensor, constant

STEP = "step"
_ROLES = {"exp_avg": "m", "m": "m", "exp_avg_sq": "v", "v": "v", STEP: STEP}
_WRAPPERS = {"state", "optimizer", "optim", "optimizer_state", "optimizer_state_dict", "adamw"}
_NUMBERS = {"F32": "<f", "F64": "<d", "I64": "<q", "I32": "<i"}
_SCALAR = TensorSpec(name=STEP, dtype="I64", shape=())

Names = Mapping[str, str]
"""What a parameter is called in its file -> here, in the file's order."""


def initial(params: Sequence[ForeignTensor]) -> tuple[ForeignTensor, ...]:
    """The state before the first update, as a shard has it that was never touched."""
    zeros = (
        constant(TensorSpec(name=f"{role}.{p.name}", dtype="F32", shape=p.spec.shape), b"\0")
        for p in params
        for role in ("m", "v")
    )
    return (*zeros, constant(_SCALAR, bytes(8)))


def translate(
    contents: Contents, params: Sequence[ForeignTensor], names: Names
) -> tuple[tuple[ForeignTensor, ...], int | None, list[str]]:
    """The part's tensors, the count of updates (None where there is none), and warnings."""
    found = _by_role(contents)
    path = contents.file.path
    if not found["m"] and not found["v"]:
        told = f"{path}: no AdamW state; its tensors are taken as they are"
        return contents.tensors, _step(contents, found[STEP]), [told]
    lookup, warnings = _lookup(contents, params, names, found["m"])
    tensors: list[ForeignTensor] = []
    for param in params:
        for role in ("m", "v"):
            moment = _moment(path, param, found[role], lookup, role)
            tensors.append(moment.renamed(f"{role}.{param.name}"))
    spare = len(found["m"]) + len(found["v"]) - len(tensors)
    if spare:
        raise ForeignFileError(
            f"it has {spare} moments of parameters that the shard does not have", file=path
        )
    step = _step(contents, found[STEP])
    if step is None:
        raise ForeignFileError("it does not say how many updates it has seen (step)", file=path)
    return (*tensors, constant(_SCALAR, struct.pack("<q", step))), step, warnings


def _by_role(contents: Contents) -> dict[str, dict[str, ForeignTensor]]:
    """Tensors by role and by what they are the moment of."""
    found: dict[str, dict[str, ForeignTensor]] = {"m": {}, "v": {}, STEP: {}}
    for tensor in contents.tensors:
        role, key = _role(tensor.name)
        if role is not None:
            found[role][key] = tensor
    return found


def _role(name: str) -> tuple[str | None, str]:
    words = name.split(".")
    while len(words) > 1 and words[0] in _WRAPPERS:
        words = words[1:]
    if words[-1] in _ROLES and len(words) > 1:
        return _ROLES[words[-1]], ".".join(words[:-1])
    if words[0] in _ROLES:
        return _ROLES[words[0]], ".".join(words[1:])
    return None, name


def _lookup(
    contents: Contents,
    params: Sequence[ForeignTensor],
    names: Names,
    moments: Mapping[str, ForeignTensor],
) -> tuple[dict[str, str], list[str]]:
    """What the moments are keyed by -> the parameter."""
    if not all(key.isdecimal() for key in moments):
        return {**names, **{name: name for name in names.values()}}, []
    groups = _groups(contents)
    shapes = {param.name: param.spec.shape for param in params}
    order = list(names.values())
    warnings = []
    if len(groups) > 1:
        order.sort(key=lambda name: len(shapes[name]) < 2)  # stable: matrices, then vectors
        warnings.append(
            f"{contents.file.path}: moments are numbered in {len(groups)} groups; matrices are "
            "taken to come before vectors, as their shapes allow"
        )
    keys = [key for group in groups for key in group] or sorted(moments, key=int)
    if len(keys) != len(order):
        raise contents.file.wrong("it numbers other parameters", len(order), len(keys))
    return dict(zip(keys, order, strict=True)), warnings


def _groups(contents: Contents) -> list[list[str]]:
    """Numbers of parameters by group, as torch's optimizers write them."""
    groups: dict[str, list[str]] = {}
    for name, value in contents.values.items():
        words = name.split(".")
        if words[-4:-3] == ["param_groups"] and words[-2] == "params":
            groups.setdefault(words[-3], []).append(str(value))
    return list(groups.values())


def _moment(
    path: str,
    param: ForeignTensor,
    moments: Mapping[str, ForeignTensor],
    lookup: Mapping[str, str],
    role: str,
) -> ForeignTensor:
    mine = [moment for key, moment in moments.items() if lookup.get(key) == param.name]
    if len(mine) != 1:
        raise ForeignFileError(
            f"moments {role} of parameter {param.name!r}", file=path, expected=1, found=len(mine)
        )
    if mine[0].spec.shape != param.spec.shape:
        raise ForeignFileError(
            f"{mine[0].name!r} has another shape than parameter {param.name!r}", file=path,
            expected=list(param.spec.shape), found=list(mine[0].spec.shape),
        )  # fmt: skip
    return mine[0]


def _step(contents: Contents, tensors: Mapping[str, ForeignTensor]) -> int | None:
    """The count that all parameters of the shard agree on."""
    numbers = {_number(contents, tensor) for tensor in tensors.values()}
    numbers |= set(_plain_steps(contents))
    if len(numbers) > 1:
        raise contents.file.wrong(
            "its parameters disagree about how many updates they have seen",
            "one step", sorted(numbers)[:10], "it is no state of one step",
        )  # fmt: skip
    if not numbers:
        return None
    number = numbers.pop()
    if number != int(number) or not 0 <= number < 2**63:
        raise contents.file.wrong("its step is no count", "an integer from 0 on", number)
    return int(number)


def _number(contents: Contents, tensor: ForeignTensor) -> float:
    form = _NUMBERS.get(tensor.spec.dtype)
    if form is None or tensor.spec.nbytes != struct.calcsize(form):
        raise contents.file.wrong(
            f"{tensor.name!r} is no count", "one number", f"{tensor.spec.dtype} {tensor.spec.shape}"
        )
    (number,) = struct.unpack(form, tensor.bytes())
    if number != number or abs(number) == float("inf"):
        raise contents.file.wrong(f"{tensor.name!r} is no count", "one number", number)
    return float(number) if isinstance(number, float) else int(number)


def _plain_steps(contents: Contents) -> Iterable[float]:
    for name, value in contents.values.items():
        if _role(name)[0] == STEP and type(value) in (int, float):
            assert isinstance(value, int | float)
            yield value
