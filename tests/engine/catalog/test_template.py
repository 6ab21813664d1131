"""The life of a template: every move that is allowed, and the sentence for every one that is not."""

from __future__ import annotations

import pytest

from engine.catalog.template import STATUSES, after, check_publish, check_start
from engine.errors import Refused

MOVES = {
    ("draft", "activate"): "active",
    ("active", "pause"): "paused",
    ("active", "archive"): "archived",
    ("paused", "activate"): "active",
    ("paused", "archive"): "archived",
}


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("deed", ["activate", "pause", "archive"])
def test_every_pair_is_decided(status: str, deed: str) -> None:
    """What is not in the table above is refused; archived is the end."""
    if (status, deed) in MOVES:
        assert after(status, deed) == MOVES[status, deed]
    else:
        with pytest.raises(Refused, match=f"^cannot {deed} a template that is {status}; it has to be "):
            after(status, deed)


def test_unknown_words_are_refused() -> None:
    """Neither an unknown deed nor an unknown status moves anything."""
    with pytest.raises(Refused, match="knows no 'delete'"):
        after("active", "delete")
    with pytest.raises(Refused, match="knows no 'activate'"):
        after("gone", "activate")


@pytest.mark.parametrize(
    ("status", "sentence"),
    [
        ("draft", "workflow 'x' is draft and starts no runs (activate it first)"),
        ("paused", "workflow 'x' is paused and starts no runs (activate it again first)"),
        ("archived", "workflow 'x' is archived and starts no runs (publish a new version)"),
    ],
)
def test_only_an_active_template_starts_runs(status: str, sentence: str) -> None:
    """The others say what to do."""
    check_start("active", "x")
    with pytest.raises(Refused) as caught:
        check_start(status, "x")
    assert str(caught.value) == sentence


def test_a_version_names_one_content_for_ever() -> None:
    """New is stored, the same again is nothing, another content under the same version is refused."""
    assert check_publish(None, "1", None, b"a")
    assert not check_publish("active", "1", b"a", b"a")
    with pytest.raises(Refused, match="version 1 is published already with other content"):
        check_publish("draft", "1", b"a", b"b")
