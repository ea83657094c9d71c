"""docs/requirements.md and the `req` marks of the tests say the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import requirements_map as page


@pytest.fixture(scope="module")
def rows() -> dict[str, page.Row]:
    return page.read_rows(page.PAGE.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def marks() -> dict[str, list[str]]:
    return page.collect_marks(page.TESTS)


def test_every_id_has_one_row(rows: dict[str, page.Row]) -> None:
    wanted = [f"{letter}{n}" for letter, last in page.LAST.items() for n in range(1, last + 1)]
    assert list(rows) == wanted
    assert {row.status for row in rows.values()} <= set(page.STATUSES)


def test_every_mark_names_a_row(rows: dict[str, page.Row], marks: dict[str, list[str]]) -> None:
    assert len(marks) > 10
    unknown = {id_: tests for id_, tests in marks.items() if id_ not in rows}
    assert not unknown, f"marks with ids that docs/requirements.md does not know: {unknown}"


def test_what_is_built_is_tested(rows: dict[str, page.Row], marks: dict[str, list[str]]) -> None:
    bare = [id_ for id_, row in rows.items() if row.status != "later" and not marks.get(id_)]
    assert not bare, f"said to be there, but no test is marked with: {bare}"


def test_the_page_lists_the_tests_that_there_are(marks: dict[str, list[str]]) -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.read_listed(text) == {id_: sorted(tests) for id_, tests in marks.items()}, (
        "the list of tests is out of date: python tools/requirements_map.py --write"
    )


def test_marks_are_found_where_pytest_allows_them(tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text(
        "import pytest\n"
        "pytestmark = [pytest.mark.req('S1')]\n"
        "@pytest.mark.req('S2', 'S3')\n"
        "def test_a(): ...\n"
        "@pytest.mark.req('S4')\n"
        "class TestB:\n"
        "    @pytest.mark.parametrize('n', [pytest.param(1, marks=pytest.mark.req('S5'))])\n"
        "    def test_c(self, n): ...\n"
        "def helper(): ...\n"
    )
    a, c = "test_x.py::test_a", "test_x.py::TestB::test_c"
    assert page.collect_marks(tmp_path) == {
        **{"S1": [a, c], "S2": [a], "S3": [a]},
        **{"S4": [c], "S5": [c]},
    }
