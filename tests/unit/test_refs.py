"""Refs: names, steps and sequence numbers, on the current line, on another, and on several."""

from __future__ import annotations

from typing import Any

import pytest

from shardstore import Ref
from shardstore.errors import AmbiguousRefError, RefNotFoundError
from tests.support.stores import commit, expected, open_store, values


@pytest.mark.parametrize(
    ("text", "ref"),
    [
        ("head", Ref.head), ("best", Ref.name("best")), ("step:12", Ref.step(12)),
        ("seq:40", Ref.seq(40)),
    ],
)  # fmt: skip
def test_a_ref_is_spelled_one_way(text: str, ref: Ref) -> None:
    assert Ref.parse(text) == ref
    assert str(ref) == text


@pytest.mark.parametrize("text", ["step:", "step:x", "step:-1", "seq:1.0", "name:best", ":", "a:1"])
def test_what_is_no_ref_is_refused(text: str) -> None:
    with pytest.raises(RefNotFoundError, match="not a ref"):
        Ref.parse(text)


@pytest.mark.parametrize("ref", [Ref.head, "head", "main", "best", Ref.step(1), Ref.seq(2)])
def test_nothing_answers_on_an_empty_store(ref: Any) -> None:
    with open_store() as store, pytest.raises(RefNotFoundError):
        store.commit_of(ref)


def test_plain_strings_are_names() -> None:
    with open_store() as store:
        made = commit(store, 12)
        store.snapshot("best")
        for ref in ("head", "main", "best", Ref.head, Ref.step(12), Ref.seq(made.seq)):
            assert store.commit_of(ref).id == made.id
        for text in ("12", "step:12", f"seq:{made.seq}"):
            with pytest.raises(RefNotFoundError):
                store.commit_of(text)


def test_what_is_no_longer_kept_is_not_found_and_the_kept_steps_are_listed() -> None:
    with open_store() as store:
        made = [commit(store, step) for step in (1, 2, 3)]
        for ref in (Ref.step(1), Ref.seq(made[0].seq)):
            with pytest.raises(RefNotFoundError, match="kept steps: 2, 3"):
                store.commit_of(ref)


def test_a_step_means_the_newest_commit_on_the_current_line() -> None:
    with open_store() as store:
        commit(store, 5, value=1)
        second = commit(store, 5, value=2)
        assert store.commit_of(Ref.step(5)).id == second.id


def test_a_step_on_the_line_before_a_rewind_is_still_on_the_line() -> None:
    with open_store() as store:
        commit(store, 1)
        store.snapshot("one")
        commit(store, 2)
        store.snapshot("two")
        left = commit(store, 3)
        store.rewind("two")
        again = commit(store, 3, value=30)
        assert store.commit_of(Ref.step(1)).seq == store.commit_of("one").seq
        assert store.commit_of(Ref.step(3)).id == again.id  # not the other line's, though kept
        assert store.commit_of(Ref.seq(left.seq)).id == left.id


def test_a_step_that_only_one_other_line_has_is_found_there() -> None:
    with open_store() as store:
        commit(store, 1)
        store.snapshot("one")
        commit(store, 2)
        left = commit(store, 3)
        store.rewind("one")
        assert store.commit_of(Ref.step(3)).id == left.id
        store.rewind(Ref.step(3))
        assert values(store) == expected(3)


def test_a_step_on_several_other_lines_is_an_error_that_lists_them() -> None:
    with open_store() as store:
        commit(store, 1)
        store.snapshot("one")
        first = commit(store, 7, value=2)
        store.snapshot("first")
        store.rewind("one")
        second = commit(store, 7, value=3)
        store.rewind("one")
        with pytest.raises(AmbiguousRefError, match=f"seq:{first.seq}, seq:{second.seq};"):
            store.commit_of(Ref.step(7))
        third = commit(store, 7, value=4)
        assert store.commit_of(Ref.step(7)).id == third.id


def test_after_an_undo_the_old_line_is_the_current_one() -> None:
    with open_store() as store:
        commit(store, 1)
        store.snapshot("one")
        old = commit(store, 2, value=2)
        store.rewind("one")
        commit(store, 2, value=5)
        store.undo()
        assert store.head is not None and store.head.id == old.id
        assert store.commit_of(Ref.step(2)).id == old.id
        new = commit(store, 2, value=6)
        assert store.commit_of(Ref.step(2)).id == new.id


def test_lines_survive_an_opening() -> None:
    from shardstore.fs.memory import MemoryFileSystem

    fs = MemoryFileSystem()
    with open_store(fs) as store:
        commit(store, 1)
        store.snapshot("one")
        commit(store, 2, value=2)
        store.snapshot("old")
        store.rewind("one")
        new = commit(store, 2, value=5)
    for mode in ("r", "r+", "r"):
        with open_store(fs, mode) as store:
            assert store.commit_of(Ref.step(2)).id == new.id
