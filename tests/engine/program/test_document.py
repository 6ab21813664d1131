"""The YAML door: what is read, what is refused, and where each fault stands."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.program.document import read_document
from engine.program.faults import DefinitionInvalid


def faults_of(text: str | bytes) -> list[str]:
    """Every fault as `line:column: message`, whether the reader could go on or not."""
    raw = text if isinstance(text, bytes) else text.encode()
    try:
        found = read_document(raw, "f.yaml").faults
    except DefinitionInvalid as error:
        found = list(error.faults)
    return [str(fault).removeprefix("f.yaml:") for fault in found]


def test_plain_scalars_mean_one_thing() -> None:
    """Whole numbers, true, false and null are typed; everything that YAML readers disagree about is text or a fault."""
    text = "a: 1\nb: [-5, 0777, 12:30:45, 2026-01-01, 1_000, 0x1F, null, ~, , true, false, 'true', y]\non: x\n".replace(
        "~, ,", "~,"
    )
    assert read_document(text.encode(), "f").value == {
        "a": 1,
        "b": [-5, "0777", "12:30:45", "2026-01-01", "1_000", "0x1F", None, None, True, False, "true", "y"],
        "on": "x",
    }


def test_positions_are_those_of_values_and_of_keys() -> None:
    """Line and column from 1, in characters, by JSON pointer."""
    document = read_document("é: 'ü'\nb:\n  - c/d: 1\n".encode(), "f")
    assert document.positions["/é"] == (1, 4)
    assert document.positions["/b/0"] == (3, 5)
    assert document.positions["/b/0/c~1d"] == (3, 10)
    assert document.keys["/b/0/c~1d"] == (3, 5)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a: 1\na: 2", "2:1: the key 'a' stands twice; first in line 1"),
        ("a: {b: 1, b: 2}", "1:11: the key 'b' stands twice; first in line 1"),
        ("a: yes", "1:4: yes may be read in two ways; write it in quotes"),
        ("a: Off", "1:4: Off may be read in two ways; write it in quotes"),
        ("a: True", "1:4: True may be read in two ways; write true, or put it in quotes"),
        ("a: NULL", "1:4: NULL may be read in two ways; write null, or put it in quotes"),
        ("a: -.inf", "1:4: -.inf may be read in two ways; write it in quotes"),
        ("a: .nan", "1:4: .nan may be read in two ways; write it in quotes"),
        ("a: nan", "1:4: nan may be read in two ways; write it in quotes"),
        ("v: 1.10", "1:4: 1.10 is a fraction; write it in quotes"),
        ("v: 1e400", "1:4: 1e400 is a fraction; write it in quotes"),
        ("a: 9007199254740992", "1:4: a whole number is below 2^53 in size; write it in quotes"),
        ("a: " + "9" * 5000, "1:4: a whole number is below 2^53 in size; write it in quotes"),
        ("a: &x 1", "1:4: anchors are not read; take out &x"),
        ("a: *x", "1:4: aliases are not read; write the value of *x out"),
        ("a: !!python/object:os.system 1", "1:4: tags are not read; take out !!python/object:os.system"),
        ("<<: {a: 1}", "1:1: merge keys are not read; write the keys out"),
        ("'': 1", "1:1: a key is not empty"),
        ('a: "\\0"', "1:4: text may not hold the character NUL"),
        ("? [a]\n: b", "1:3: a key is plain text"),
        ("a: 1\n---\nb: 2", "2:1: one document to a file; take out the line ---"),
        ("", "1:1: the file is empty"),
        ("a:\n\tb: 1", "2:1: a tab indents this line; indent with spaces"),
        ("a: b: c", "1:5: a ': ' is not expected here; put the text before or around it in quotes"),
        ("a: 'x", "1:6: not YAML: found unexpected end of stream"),
        ("a: @x", "1:4: not YAML: found character that cannot start any token"),
        ("\ufeffa: 1", "1:1: the character U+FEFF may not stand in a file; take it out"),
        ("a: 1\nb: \x07", "2:4: the character U+0007 may not stand in a file; take it out"),
        (b"a: 1\nb: \xff", "2:4: this byte is not UTF-8"),
        (b"a: 1\nb: \xed\xa0\x80", "2:4: this byte is not UTF-8"),
        ("[" * 40, "1:33: nested deeper than 32"),
        ("- " * 5000, "1:65: nested deeper than 32"),
        ("[" + "1," * 20_000 + "]", "1:40000: the file has more than 20000 values"),
        (b"x" * 10_485_760, "1:1: the file is 10485760 bytes; at most 262144 are read"),
    ],
)
def test_each_fault_has_its_place_and_its_sentence(text: str | bytes, wanted: str) -> None:
    """One example file a fault, with the exact message."""
    assert faults_of(text) == [wanted]


def test_a_billion_laughs_is_a_handful_of_faults() -> None:
    """Anchors and aliases are refused, not expanded, and each is named."""
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    lines += [
        f"{name}: &{name} [" + ", ".join([f"*{before}"] * 9) + "]"
        for before, name in zip("abcdefgh", "bcdefghi", strict=True)
    ]
    started = time.monotonic()
    found = faults_of("\n".join(lines))
    assert found[0] == "1:4: anchors are not read; take out &a"
    assert "2:4: anchors are not read; take out &b" in found
    assert "2:8: aliases are not read; write the value of *a out" in found
    assert time.monotonic() - started < 1


def test_all_faults_come_at_once() -> None:
    """What can be passed over does not hide what follows."""
    assert faults_of("a: yes\nb: 1.5\na: &x 1\n") == [
        "1:4: yes may be read in two ways; write it in quotes",
        "2:4: 1.5 is a fraction; write it in quotes",
        "3:1: the key 'a' stands twice; first in line 1",
        "3:4: anchors are not read; take out &x",
    ]


def test_a_refused_key_does_not_change_its_first() -> None:
    """The second of two equal keys is a fault and its value is dropped, with everything below it."""
    document = read_document(b"a: {x: 1}\na: {x: 2, y: 3}\n", "f")
    assert document.value == {"a": {"x": 1}}
    assert document.positions["/a/x"] == (1, 8)


def _places(raw: bytes) -> list[tuple[int, int]]:
    """Where the faults of this text are; for a good one, where its values are."""
    try:
        return list(read_document(raw, "f.yaml").positions.values())
    except DefinitionInvalid as error:
        return [(fault.line, fault.column) for fault in error.faults]


@given(st.text(max_size=200))
def test_the_door_answers_any_text(text: str) -> None:
    """Whatever is sent, the answer is a document or a list of places; nothing else is raised."""
    places = _places(text.encode("utf-8", "surrogatepass"))
    assert places
    assert all(line >= 1 and column >= 1 for line, column in places)


@given(st.text(alphabet="ab:-[]{}&*!|>'\"#%@`, \n\t?", max_size=80))
def test_the_door_answers_any_punctuation(text: str) -> None:
    """The same with the characters that mean something to YAML."""
    assert _places(text.encode())
