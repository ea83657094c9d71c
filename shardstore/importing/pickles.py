"""Pickles as data: the few instructions that files of tensors need, and nothing that runs code.

Contract: `load` interprets a pickle by itself, without Python's unpickler. Globals become what the
caller's table says, anything else is refused by name before it is looked up; only what the table
marks as a `Rebuild` can be called. Work and memory are bounded by the pickle's length (values may
be shared, so whoever walks through them has to bound that too). Whatever the bytes are,
`PickleRefused` is all that is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

PICKLE_BYTES_MAX = 64 << 20
_INT_BYTES_MAX = 16
_MARK = object()


class PickleRefused(ValueError):
    """What stands in the pickle, and why it is not followed."""


@dataclass(frozen=True, slots=True)
class Rebuild:
    """Stands for a callable of the pickle's; `make` gets its arguments."""

    name: str
    make: Callable[..., Any]


class Attributes(dict[Any, Any]):
    """A dict that the pickle may give attributes to; they are ignored."""


def load(data: bytes, table: Mapping[str, Any], persistent: Callable[[Any], Any]) -> Any:
    """The value that a pickle describes. `table` maps "module.name" to what stands for it."""
    if len(data) > PICKLE_BYTES_MAX:
        raise PickleRefused(f"it has {len(data)} bytes, at most {PICKLE_BYTES_MAX} are read")
    import pickletools  # late, as commands have to start quickly

    machine = _Machine(table, persistent)
    try:
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name == "STOP":
                return machine.result()
            machine.step(opcode.name, argument)
    except PickleRefused:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
        raise PickleRefused(f"it is damaged: {type(error).__name__}: {str(error)[:80]}") from None
    raise PickleRefused("it ends without saying so")


class _Machine:
    """A stack and a memo, as pickle has them."""

    def __init__(self, table: Mapping[str, Any], persistent: Callable[[Any], Any]) -> None:
        self._table = table
        self._persistent = persistent
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def result(self) -> Any:
        if len(self._stack) != 1:
            raise PickleRefused("it is damaged: the stack is not empty at its end")
        return self._stack[0]

    def step(self, name: str, argument: Any) -> None:
        if name in _CONSTANTS:
            make = _CONSTANTS[name]
            self._stack.append(make() if callable(make) else make)
        elif name in _LITERALS:
            if isinstance(argument, int) and argument.bit_length() > 8 * _INT_BYTES_MAX:
                raise PickleRefused(f"an integer of {argument.bit_length()} bits")
            self._stack.append(argument)
        elif name in _ACTIONS:
            _ACTIONS[name](self, argument)
        else:
            raise PickleRefused(f"the instruction {name}, which tensors do not need")

    # ------------------------------------------------------------------ instructions

    def nothing(self, _: Any) -> None:
        """Framing and the protocol's number."""

    def mark(self, _: Any) -> None:
        self._stack.append(_MARK)

    def put(self, index: Any) -> None:
        self._memo[int(index)] = self._top()

    def memoize(self, _: Any) -> None:
        self._memo[len(self._memo)] = self._top()

    def get(self, index: Any) -> None:
        self._stack.append(self._memo[int(index)])

    def names(self, argument: str) -> None:
        module, _, name = argument.partition(" ")
        self._global(module, name)

    def stack_global(self, _: Any) -> None:
        name, module = self._pop(), self._pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise PickleRefused("a global whose name is no string")
        self._global(module, name)

    def build(self, _: Any) -> None:
        self._pop()
        if not isinstance(self._top(), Attributes):
            raise PickleRefused(f"attributes for {_kind(self._top())}")

    def reduce(self, _: Any) -> None:
        arguments, made_by = self._pop(), self._pop()
        if not isinstance(made_by, Rebuild) or not isinstance(arguments, tuple):
            raise PickleRefused(f"a call of {_kind(made_by)}")
        try:
            self._stack.append(made_by.make(*arguments))
        except TypeError:
            raise PickleRefused(f"a call of {made_by.name} with other arguments") from None

    def persistent_id(self, _: Any) -> None:
        self._stack.append(self._persistent(self._pop()))

    def append(self, _: Any) -> None:
        value = self._pop()
        self._list().append(value)

    def appends(self, _: Any) -> None:
        values = self._to_mark()
        self._list().extend(values)

    def set_item(self, _: Any) -> None:
        value, key = self._pop(), self._pop()
        self._set(key, value)

    def set_items(self, _: Any) -> None:
        values = self._to_mark()
        for key, value in zip(values[::2], values[1::2], strict=True):
            self._set(key, value)

    def tuple_of(self, count: int) -> None:
        values = [self._pop() for _ in range(count)]
        self._stack.append(tuple(reversed(values)))

    def tuple_to_mark(self, _: Any) -> None:
        values = self._to_mark()
        self._stack.append(tuple(values))

    # ------------------------------------------------------------------ insides

    def _global(self, module: str, name: str) -> None:
        full = f"{module}.{name}"
        if full not in self._table:
            raise PickleRefused(f"{full[:200]!r}, which is not allowed: files of tensors need none")
        self._stack.append(self._table[full])

    def _set(self, key: Any, value: Any) -> None:
        # Nothing nested: hashing what a pickle nested a million deep would end the process.
        if key is not None and type(key) not in (str, int, float, bool):
            raise PickleRefused(f"a dict with {_kind(key)} as key")
        target = self._top()
        if not isinstance(target, dict):
            raise PickleRefused(f"an item for {_kind(target)}")
        target[key] = value

    def _list(self) -> list[Any]:
        target = self._top()
        if not isinstance(target, list):
            raise PickleRefused(f"an element for {_kind(target)}")
        return target

    def _to_mark(self) -> list[Any]:
        at = len(self._stack) - 1
        while self._stack[at] is not _MARK:
            at -= 1
            if at < 0:
                raise PickleRefused("it is damaged: no mark on the stack")
        values = self._stack[at + 1 :]
        del self._stack[at:]
        return values

    def _top(self) -> Any:
        return self._stack[-1]

    def _pop(self) -> Any:
        value = self._stack.pop()
        if value is _MARK:
            raise PickleRefused("it is damaged: a mark instead of a value")
        return value


def _kind(value: Any) -> str:
    return value.name if isinstance(value, Rebuild) else f"a {type(value).__name__}"


_CONSTANTS: dict[str, Any] = {
    "NONE": None,
    "NEWTRUE": True,
    "NEWFALSE": False,
    "EMPTY_TUPLE": (),
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
}
_LITERALS = {
    *("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "INT", "LONG", "BINFLOAT", "FLOAT"),
    *("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "UNICODE"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BINSTRING", "SHORT_BINSTRING", "STRING"),
}
_ACTIONS: dict[str, Callable[[_Machine, Any], None]] = {
    "PROTO": _Machine.nothing,
    "FRAME": _Machine.nothing,
    "MARK": _Machine.mark,
    "PUT": _Machine.put,
    "BINPUT": _Machine.put,
    "LONG_BINPUT": _Machine.put,
    "MEMOIZE": _Machine.memoize,
    "GET": _Machine.get,
    "BINGET": _Machine.get,
    "LONG_BINGET": _Machine.get,
    "GLOBAL": _Machine.names,
    "STACK_GLOBAL": _Machine.stack_global,
    "BUILD": _Machine.build,
    "REDUCE": _Machine.reduce,
    "BINPERSID": _Machine.persistent_id,
    "APPEND": _Machine.append,
    "APPENDS": _Machine.appends,
    "SETITEM": _Machine.set_item,
    "SETITEMS": _Machine.set_items,
    "TUPLE": _Machine.tuple_to_mark,
    "TUPLE1": lambda machine, _: machine.tuple_of(1),
    "TUPLE2": lambda machine, _: machine.tuple_of(2),
    "TUPLE3": lambda machine, _: machine.tuple_of(3),
}
