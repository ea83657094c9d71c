"""Each check of a digest, chain hash or manifest is left out once, and a damage test notices.

Goal: no check is there for nothing, none can be lost unseen, and none is forgotten here. Method:
see `checks` and `left_out`.
"""

from __future__ import annotations

import pytest

from tests.crash.checks import CHECKS, NO_CHECKS, caught
from tests.crash.left_out import Site, left_out, sites


@pytest.mark.req("S11", "S12")
def test_every_condition_that_compares_digests_is_listed() -> None:
    listed = {check.site.place for check in CHECKS}
    assert sites() - listed - NO_CHECKS.keys() == set()
    assert NO_CHECKS.keys() <= sites() - listed


@pytest.mark.req("S11", "S12")
@pytest.mark.parametrize("name", [check.name for check in CHECKS])
def test_the_loss_of_a_check_is_caught(name: str) -> None:
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    assert caught()[name], f"no test notices that this is left out: {name}"


def test_a_condition_is_left_out_and_comes_back() -> None:
    from shardstore.format.names import check_ref_name

    site = Site("format/names.py", "check_ref_name", "name == 'head'")
    with pytest.raises(Exception, match="head"):
        check_ref_name("head")
    with left_out(site):
        assert check_ref_name("head") == "head"
    with pytest.raises(Exception, match="head"):
        check_ref_name("head")
    with pytest.raises(AssertionError, match="0 times"), left_out(Site(*site.place, "name == 'x'")):
        pass
