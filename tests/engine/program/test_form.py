"""Forms of tasks: read strictly with the place of each fault, and answers checked field by field."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.canonical import encode, jcs
from engine.program.form import KINDS, Form, FormInvalid, SignOff, check_groups, form_from, read_answer, shown

GUIDE = Path(__file__).parents[3] / "docs" / "workflows.md"
FIELDS = [
    {"name": "cause", "label": "What was the cause?", "kind": "text", "max_chars": 20},
    {"name": "story", "kind": "long_text", "required": False},
    {"name": "where", "kind": "choice", "options": ["Berlin", "Ulm"]},
    {"name": "count", "kind": "integer"},
    {"name": "cost", "kind": "decimal", "required": False},
    {"name": "day", "kind": "date", "required": False},
    {"name": "again", "kind": "yes_no"},
]
FORM: dict[str, Any] = {"title": "Close the incident", "text": "Please.", "fields": FIELDS, "groups": ["oncall"]}
GOOD = {
    "cause": " disk ",
    "where": "Ulm",
    "count": "12",
    "again": "no",
    "story": "a\r\nb",
    "cost": "12.50",
    "day": "2026-08-21",
}


def made(sign_off: Any = None, **changed: Any) -> Form:
    return form_from({"form": {**FORM, **changed}, "sign_off": sign_off})


def test_a_form_says_what_its_author_wrote_and_its_digest_binds_all_of_it() -> None:
    form = made()
    assert [one.kind for one in form.fields] == list(KINDS)
    assert (form.deadline_s, form.groups, form.sign_off) == (86_400, ("oncall",), None)
    assert [one.required for one in form.fields] == [True, False, True, True, False, False, True]
    assert [one.label for one in form.fields][:2] == ["What was the cause?", "story"]
    others = [made(title="Other"), made(["ops"]), made(deadline_s=60), made(groups=["ops"]), made(fields=FIELDS[:2])]
    assert len({form.digest, *(one.digest for one in others)}) == 6
    assert made(["b", "a"]).sign_off == SignOff(("a", "b"), ())
    signed = made({"groups": ["a", "b"], "counts": {"a": 2, "b": 1}}).sign_off
    assert signed is not None
    assert signed.keys == 3


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"titel": "x"}, "form.titel"),
        ({"title": ""}, "title"),
        ({"title": " "}, "title"),
        ({"title": 1}, "title"),
        ({"title": "x" * 151}, "title"),
        ({"text": "x" * 2_001}, "text"),
        ({"text": None}, "text"),
        ({"fields": []}, "fields"),
        ({"fields": {}}, "fields"),
        ({"fields": [{"name": f"n{n}"} for n in range(21)]}, "fields"),
        ({"fields": ["name"]}, "fields[0]"),
        ({"fields": [{"name": "a"}, {"name": "a"}]}, "fields[1].name"),
        ({"fields": [{"name": "A b"}]}, "fields[0].name"),
        ({"fields": [{}]}, "fields[0].name"),
        ({"fields": [{"name": "a", "kind": "file"}]}, "fields[0].kind"),
        ({"fields": [{"name": "a", "kind": ["text"]}]}, "fields[0].kind"),
        ({"fields": [{"name": "a", "label": "two\nlines"}]}, "fields[0].label"),
        ({"fields": [{"name": "a", "label": "a\u202eb"}]}, "fields[0].label"),
        ({"fields": [{"name": "a", "required": 1}]}, "fields[0].required"),
        ({"fields": [{"name": "a", "max_chars": 301}]}, "fields[0].max_chars"),
        ({"fields": [{"name": "a", "max_chars": True}]}, "fields[0].max_chars"),
        ({"fields": [{"name": "a", "options": ["x"]}]}, "fields[0].options"),
        ({"fields": [{"name": "a", "kind": "date", "max_chars": 5}]}, "fields[0].max_chars"),
        ({"fields": [{"name": "a", "kind": "choice"}]}, "fields[0].options"),
        ({"fields": [{"name": "a", "kind": "choice", "options": ["x", "x"]}]}, "fields[0].options"),
        ({"fields": [{"name": "a", "kind": "choice", "options": ["x" * 76]}]}, "fields[0].options[0]"),
        ({"fields": [{"name": "a", "kind": "choice", "options": [" x"]}]}, "fields[0].options[0]"),
        ({"groups": []}, "groups"),
        ({"groups": "oncall"}, "groups"),
        ({"groups": ["On Call"]}, "groups[0]"),
        ({"groups": [f"g{n}" for n in range(11)]}, "groups"),
        ({"deadline_s": 59}, "deadline_s"),
        ({"deadline_s": 604_801}, "deadline_s"),
        ({"deadline_s": "1"}, "deadline_s"),
        ({"sign_off": []}, "sign_off"),
        ({"sign_off": "ops"}, "sign_off"),
        ({"sign_off": {"groups": ["a"], "keys": 1}}, "sign_off.keys"),
        ({"sign_off": {"groups": ["a"], "counts": {"b": 1}}}, "sign_off.counts"),
        ({"sign_off": {"groups": ["a"], "counts": {"a": 0}}}, "sign_off.counts.a"),
        ({"sign_off": {}}, "sign_off.groups"),
    ],
)
def test_a_bad_form_is_refused_at_the_place_of_its_fault(changed: dict[str, Any], field: str) -> None:
    sign_off = changed.pop("sign_off", None)
    with pytest.raises(FormInvalid) as caught:
        made(sign_off, **changed)
    assert (caught.value.code, caught.value.field) == ("invalid_form", field)


def test_the_form_of_the_guide_is_one() -> None:
    (text,) = re.findall(r"```py\n(.*?)```", GUIDE.read_text("utf-8"), flags=re.DOTALL)
    (call,) = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    form, sign_off = (
        eval(ast.unparse(part), {"input": {"number": "7"}}) for part in (call.args[0], call.keywords[0].value)
    )
    made = form_from({"form": form, "sign_off": sign_off})
    assert (made.title, len(made.fields), made.deadline_s) == ("What happened to 7?", 5, 3_600)


def test_a_group_that_nobody_has_is_a_fault_of_the_form() -> None:
    check_groups(made(["ops"]), {"oncall": 1, "ops": 1})
    for form, field in ((made(), "groups"), (made(["none"], groups=["ops"]), "sign_off.groups")):
        with pytest.raises(FormInvalid) as caught:
            check_groups(form, {"ops": 1})
        assert caught.value.field == field


def test_an_answer_has_every_field_in_its_own_type() -> None:
    answer, faults = read_answer(made(), GOOD)
    assert faults == {}
    assert answer == {
        "cause": "disk", "story": "a\nb", "where": "Ulm", "count": 12, "cost": "12.50", "day": "2026-08-21", "again": False,
    }  # fmt: skip
    assert read_answer(made(), {**GOOD, "count": 12, "cost": 12, "again": False}) == ({**answer, "cost": "12"}, {})
    few, faults = read_answer(made(), {name: GOOD[name] for name in ("cause", "where", "count", "again")})
    assert faults == {}
    assert (few["story"], few["cost"], few["day"]) == (None, None, None)
    assert shown(few) == {
        "cause": "disk",
        "story": "",
        "where": "Ulm",
        "count": "12",
        "cost": "",
        "day": "",
        "again": "no",
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cause", ""), ("cause", None), ("cause", "  "), ("cause", "x" * 21), ("cause", "a\nb"), ("cause", 7), ("cause", ["x"]),
        ("cause", "\ud800"), ("cause", "a\x00"), ("story", "x" * 3_001), ("where", "Bonn"), ("where", "1"), ("where", 0),
        ("count", "1.5"), ("count", "9" * 16), ("count", "9" * 5_000), ("count", True), ("count", 2**53), ("count", "١٢"), ("count", 1.0),
        ("cost", "12,50"), ("cost", "1e9"), ("cost", "NaN"), ("day", "2026-02-30"), ("day", "21.08.2026"), ("day", "2026-W01-1"),
        ("again", "maybe"), ("again", 1), ("again", None), ("colour", "red"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_said_at_its_field_and_nowhere_else(name: str, value: Any) -> None:
    _, faults = read_answer(made(), {**GOOD, name: value})
    assert list(faults) == [name]


def test_texts_together_are_bounded_and_unknown_fields_do_not_flood_the_answer() -> None:
    form = made(fields=[{"name": f"n{n}", "kind": "long_text"} for n in range(8)])
    answer = {f"n{n}": "x" * (2_400 + n) for n in range(8)}
    assert list(read_answer(form, answer)[1]) == ["n7"]
    assert list(read_answer(form, {**answer, "n7": ""})[1]) == ["n7"]
    assert len(read_answer(made(), {**GOOD, **{f"x{n}": 1 for n in range(1_000)}})[1]) == 10


@given(
    st.dictionaries(
        st.sampled_from([*(str(one["name"]) for one in FIELDS), "other"]),
        st.none() | st.booleans() | st.integers() | st.text(),
    )
)
def test_whatever_is_given_an_answer_without_faults_can_be_stored(value: dict[str, Any]) -> None:
    answer, faults = read_answer(made(), value)
    if not faults:
        encode(answer)
        jcs(answer)
        assert read_answer(made(), answer) == (answer, {})
