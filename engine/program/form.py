"""The form of a task: what an author may ask of people, who may answer and sign, and which answers fit; every fault names its field."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from engine.canonical import digest
from engine.errors import AuthorError
from engine.gate.reducer import hidden_character
from engine.limits import (
    approval_seconds_max,
    approval_seconds_min,
    int_max,
    task_answer_bytes_max,
    task_chars_max,
    task_fields_max,
    task_groups_max,
    task_line_chars_max,
    task_options_max,
    task_text_chars_max,
    task_title_chars_max,
)

KINDS = ("text", "long_text", "choice", "integer", "decimal", "date", "yes_no")
deadline_seconds_default = 86_400
label_chars_max = 150
option_chars_max = 75  # Slack's
signers_max = 9  # of one group
strange_shown_max = 10
_name = re.compile(r"[a-z][a-z0-9_]{0,39}")
OPERATORS = "level:4"  # no group but everybody of level 4 and above: who is asked to mend something
_group = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_integer = re.compile(r"-?[0-9]{1,16}")
_decimal = re.compile(r"-?[0-9]{1,15}(\.[0-9]{1,9})?")
_date = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_form_keys = ("title", "text", "fields", "groups", "deadline_s")
_field_keys = {"text": ("max_chars",), "long_text": ("max_chars",), "choice": ("options",)}
_yes_no = {"yes": True, "no": False}


class FormInvalid(AuthorError):
    """The author must act: a task's form cannot be shown to anybody; the field that is wrong is named by its place in the form."""

    code = "invalid_form"


@dataclass(frozen=True, slots=True)
class Field:
    """One question."""

    name: str
    label: str
    kind: str
    required: bool
    max_chars: int  # of a text
    options: tuple[str, ...]  # of a choice


@dataclass(frozen=True, slots=True)
class SignOff:
    """Who must sign an answer: so many different people of these groups."""

    groups: tuple[str, ...]
    counts: tuple[tuple[str, int], ...]

    @property
    def keys(self) -> int:
        """How many people sign."""
        return max(1, sum(count for _, count in self.counts))


@dataclass(frozen=True, slots=True)
class Form:
    """What people are asked, as its author wrote it."""

    title: str
    text: str
    fields: tuple[Field, ...]
    groups: tuple[str, ...]
    deadline_s: int
    sign_off: SignOff | None
    digest: bytes  # of exactly what the author wrote


def form_from(value: Mapping[str, Any]) -> Form:
    """The form of a task's `form` and `sign_off`; FormInvalid at the first fault."""
    given = _keyed(value["form"], "form", _form_keys)
    fields = _list(given.get("fields"), "fields", task_fields_max)
    found = tuple(_field(one, f"fields[{n}]") for n, one in enumerate(fields))
    names = [one.name for one in found]
    for n, name in enumerate(names):
        if name in names[:n]:
            _invalid(f"fields[{n}].name", f"{name!r} stands twice")
    return Form(
        title=_words(given.get("title"), "title", task_title_chars_max),
        text=_words(given.get("text", ""), "text", task_text_chars_max, blank=True),
        fields=found,
        groups=(OPERATORS,) if given.get("groups") == [OPERATORS] else _groups(given.get("groups"), "groups"),
        deadline_s=_number(
            given.get("deadline_s", deadline_seconds_default), "deadline_s", approval_seconds_min, approval_seconds_max
        ),
        sign_off=_sign_off(value["sign_off"]),
        digest=digest("twokeys/task-form/v1", {"form": value["form"], "sign_off": value["sign_off"]}),
    )


def check_groups(form: Form, known: Mapping[str, Any]) -> None:
    """FormInvalid when a group is nobody's: nobody could ever answer."""
    signers = form.sign_off.groups if form.sign_off else ()
    for place, groups in (("groups", form.groups), ("sign_off.groups", signers)):
        for group in groups:
            if group not in known and group != OPERATORS:
                _invalid(place, f"there is no group {group!r} here")


def read_answer(form: Form, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The answer that this says, every field present and None where nothing was given; and what is wrong with it, by field."""
    known = {one.name: one for one in form.fields}
    strange = sorted(name for name in given if name not in known)
    faults = dict.fromkeys(strange[:strange_shown_max], "The form has no such field.")
    answer: dict[str, Any] = {}
    for one in form.fields:
        try:
            answer[one.name] = _read(one, given.get(one.name))
        except ValueError as error:
            faults[one.name] = str(error)[:1].upper() + str(error)[1:] + "."
    sizes = {name: len(value.encode()) for name, value in answer.items() if type(value) is str}
    if sum(sizes.values()) > task_answer_bytes_max:
        # Said at the longest, which is the one to shorten.
        faults[max(sizes, key=lambda name: sizes[name])] = (
            f"All texts together have at most {task_answer_bytes_max:,} bytes."
        )
    return answer, faults


def shown(answer: Mapping[str, Any]) -> dict[str, str]:
    """An answer as people read it and as a signature binds it."""
    words = {True: "yes", False: "no", None: ""}
    return {
        name: words[value] if value is None or type(value) is bool else str(value) for name, value in answer.items()
    }


# --- one field of an answer -----------------------------------------------------------------------------------------------


def _read(one: Field, given: Any) -> Any:
    """The value of one field; ValueError says to whoever answers what is wrong."""
    if type(given) is str:
        given = _clean(given)
    if given is None or given == "":
        if one.required:
            raise ValueError("this is needed")
        return None
    if one.kind == "yes_no":
        if type(given) is bool:
            return given
        if type(given) is str and given in _yes_no:
            return _yes_no[given]
        raise ValueError("say yes or no")
    if one.kind in ("integer", "decimal") and type(given) is int:
        given = str(given)
    if type(given) is not str:
        raise ValueError("this is not what the field asks for")
    return _readers[one.kind](one, given)


def _clean(text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("this holds half a character") from None
    if "\x00" in text:
        raise ValueError("this holds a character that cannot be stored")
    return text.replace("\r\n", "\n").strip()


def _read_text(one: Field, given: str) -> str:
    if one.kind == "text" and "\n" in given:
        raise ValueError("this takes one line")
    if len(given) > one.max_chars:
        raise ValueError(f"at most {one.max_chars:,} characters; this has {len(given):,}")
    return given


def _read_choice(one: Field, given: str) -> str:
    if given not in one.options:
        raise ValueError("choose one of the options")
    return given


def _read_integer(one: Field, given: str) -> int:
    if not _integer.fullmatch(given) or abs(int(given)) > int_max:
        raise ValueError("write a whole number, such as 12")
    return int(given)


def _read_decimal(one: Field, given: str) -> str:
    if not _decimal.fullmatch(given):
        raise ValueError("write a number, such as 12 or 12.50")
    return given


def _read_date(one: Field, given: str) -> str:
    try:
        if not _date.fullmatch(given):
            raise ValueError
        datetime.date.fromisoformat(given)
    except ValueError:
        raise ValueError("write a date as year-month-day, such as 2026-08-21") from None
    return given


_readers = {
    "text": _read_text,
    "long_text": _read_text,
    "choice": _read_choice,
    "integer": _read_integer,
    "decimal": _read_decimal,
    "date": _read_date,
}


# --- what an author wrote -------------------------------------------------------------------------------------------------


def _field(value: Any, place: str) -> Field:
    kind = value.get("kind", "text") if type(value) is dict else "text"
    if type(kind) is not str or kind not in KINDS:
        _invalid(f"{place}.kind", f"is one of {', '.join(KINDS)}")
    given = _keyed(value, place, ("name", "label", "kind", "required", *_field_keys.get(kind, ())))
    name = given.get("name")
    if type(name) is not str or not _name.fullmatch(name):
        _invalid(f"{place}.name", "is 1-40 of a-z 0-9 _, first a letter")
    required = given.get("required", True)
    if type(required) is not bool:
        _invalid(f"{place}.required", "is true or false")
    chars_max = task_chars_max if kind == "long_text" else task_line_chars_max
    return Field(
        name=name,
        label=_line(given.get("label", name), f"{place}.label", label_chars_max),
        kind=kind,
        required=required,
        max_chars=_number(given.get("max_chars", chars_max), f"{place}.max_chars", 1, chars_max),
        options=_options(given.get("options"), f"{place}.options") if kind == "choice" else (),
    )


def _options(value: Any, place: str) -> tuple[str, ...]:
    found = [
        _line(one, f"{place}[{n}]", option_chars_max) for n, one in enumerate(_list(value, place, task_options_max))
    ]
    if len(set(found)) != len(found):
        _invalid(place, "names an option twice")
    return tuple(found)


def _sign_off(value: Any) -> SignOff | None:
    if value is None:
        return None
    if type(value) is list:
        return SignOff(_groups(value, "sign_off"), ())
    given = _keyed(value, "sign_off", ("groups", "counts"))
    groups = _groups(given.get("groups"), "sign_off.groups")
    counts = given.get("counts", {})
    if type(counts) is not dict or not set(counts) <= set(groups):
        _invalid("sign_off.counts", "is a map from groups of sign_off.groups to how many of each sign")
    return SignOff(
        groups,
        tuple((name, _number(counts[name], f"sign_off.counts.{name}", 1, signers_max)) for name in sorted(counts)),
    )


def _groups(value: Any, place: str) -> tuple[str, ...]:
    found = _list(value, place, task_groups_max)
    for n, one in enumerate(found):
        if type(one) is not str or not _group.fullmatch(one):
            _invalid(f"{place}[{n}]", "is the name of a group")
    return tuple(sorted(set(found)))


def _keyed(value: Any, place: str, names: tuple[str, ...]) -> dict[str, Any]:
    if type(value) is not dict:
        _invalid(place, f"is a map with {', '.join(names)}")
    if strange := sorted(set(value) - set(names)):
        _invalid(f"{place}.{strange[0][:60]}", f"is not known; there is {', '.join(names)}")
    return value


def _list(value: Any, place: str, most: int) -> list[Any]:
    if type(value) is not list or not 1 <= len(value) <= most:
        _invalid(place, f"is a list of 1 to {most}")
    return value


def _words(value: Any, place: str, most: int, *, blank: bool = False) -> str:
    if type(value) is not str or not (blank or value.strip()) or len(value) > most or "\x00" in value:
        _invalid(place, f"is a text of {'up to' if blank else '1 to'} {most:,} characters")
    return value


def _line(value: Any, place: str, most: int) -> str:
    text = _words(value, place, most)
    if hidden_character.search(text) or text != text.strip():
        _invalid(place, "is one line, without control or hidden characters and blank ends")
    return text


def _number(value: Any, place: str, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        _invalid(place, f"is a whole number from {least} to {most}")
    return value


def _invalid(place: str, reason: str) -> NoReturn:
    raise FormInvalid(reason, field=place)
