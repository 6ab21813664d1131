"""Authoring: every fault class with its place and its exact sentence, all at once; one text, one digest."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from engine.canonical import decode
from engine.errors import AuthorError
from engine.program.definition import definition_from
from engine.program.faults import DefinitionInvalid
from engine.program.normalize import normalize
from tests.engine.program.specs import CATALOG

SAMPLE = Path(__file__).resolve().parents[3] / "docs/examples/incident-triage.yaml"

# Line numbers in the tests below count in this text.
BASE = """\
name: triage
version: "1"
trigger: {kind: manual}
inputs:
  type: object
  additionalProperties: false
  properties: {id: {type: string}, count: {type: integer}}
effects: [servicenow.lookup, servicenow.update, servicenow.close, slack.post, bank.refund]
caps: {max_writes_per_run: 3}
risk_ceiling: high
steps:
  - id: shape
    kind: assign
    values: {label: "Incident ${input.id}", many: "${input.count > 3}"}
  - id: look
    kind: action
    connector: servicenow
    operation: lookup
    target: ${input.id}
    result: incident
  - id: change
    kind: action
    connector: servicenow
    operation: update
    target: ${input.id}
    fields: {work_notes: "${state.label} is ${steps.incident.state}"}
    deadline_s: 600
    retry: {max_attempts: 2}
  - id: end
    kind: complete
    result: {number: "${steps.incident.number}"}
"""


def faults_of(text: str) -> list[str]:
    with pytest.raises(DefinitionInvalid) as caught:
        normalize(text.encode(), "f.yaml", CATALOG)
    return [str(fault).removeprefix("f.yaml:") for fault in caught.value.faults]


def edited(old: str, new: str, count: int = 1) -> str:
    assert old in BASE
    return BASE.replace(old, new, count)


def test_the_base_and_the_sample_are_valid() -> None:
    """The sample of the demo, with everything it declares."""
    assert normalize(BASE.encode(), "f.yaml", CATALOG).name == "triage"
    sample = normalize(SAMPLE.read_bytes(), SAMPLE.name, CATALOG)
    assert [getattr(step, "risk", "") for step in sample.steps] == ["", "low", "low", "med", "high", "low", ""]
    assert sample.effects == ("servicenow.close", "servicenow.lookup", "servicenow.update", "slack.post")


KINDS = (
    "(known: action, assign, branch, business_reference, complete, continue_with, fail, parallel, repeat, subworkflow, "
    "task, transform, wait)"
)
FAULTS: list[tuple[str, str, list[str]]] = [
    # the head
    ("name: triage", "nam: triage", ["1:1: a definition needs the key 'name'", "1:1: unknown key 'nam'; did you mean 'name'?"]),
    ("name: triage", "name: Triage!", ["1:7: 'Triage!' is not a name; use 1-63 of a-z 0-9 . _ -, starting with a letter or digit"]),
    ('version: "1"', "version: 1", ["2:10: version is text, not a whole number; write it in quotes"]),
    ('version: "1"', "version: 1.10", ["2:10: 1.10 is a fraction; write it in quotes"]),
    ('version: "1"', "version: a b", ["2:10: 'a b' is not a version; use 1-32 of A-Z a-z 0-9 . _ -"]),
    ('version: "1"', 'version: "1"\nschema: twokeys/v9', ["3:9: the schema of a definition is twokeys.definition/v1"]),
    ('version: "1"', f'version: "1"\ntitle: {"x" * 151}', ["3:8: title has 151 characters; at most 150"]),
    ("{kind: manual}", "{kind: manuel}", ["3:17: unknown kind 'manuel'; did you mean 'manual'?"]),
    ("{kind: manual}", "{kind: event}", ["3:10: an event trigger needs at least one of subscriptions: {source, event}"]),
    (
        "{kind: manual}",
        "{kind: manual, subscriptions: [{source: a, event: b}]}",
        ["3:40: a manual trigger has no subscriptions; write kind: event"],
    ),
    ("{kind: manual}", "{kind: event, subscriptions: [{source: a}]}", ["3:40: 0 needs the key 'event'"]),
    ("{kind: manual}", "manual", ["3:10: trigger is a map, not text"]),
    ("  type: object", "  type: objekt", ["5:9: inputs: an input is a map: the schema starts with type: object"]),
    ("{type: integer}", "{type: integr}", ["7:50: inputs: unknown type 'integr'; did you mean 'integer'?"]),
    ("servicenow.lookup,", "servicenow.lokup,", [
        "8:11: servicenow has no operation 'lokup'; did you mean 'lookup'?",
        "18:16: 'servicenow.lookup' is not declared; add it to effects",
    ]),
    ("[servicenow.lookup,", "[servicenw.lookup, servicenow.lookup,", ["8:11: unknown connector 'servicenw'; did you mean 'servicenow'?"]),
    ("[servicenow.lookup,", "[lookup, servicenow.lookup,", ["8:11: 'lookup' is not an effect; write connector.operation"]),
    ("[servicenow.lookup,", "[slack.post, servicenow.lookup,", ["8:79: 'slack.post' stands twice"]),
    ("caps:", "connectors: [slack, bank]\ncaps:", ["9:13: effects name 'servicenow', which is not among the connectors"]),
    ("{max_writes_per_run: 3}", "{max_writes_per_run: 0}", ["9:28: max_writes_per_run is 1 to 1000000, not 0"]),
    ("{max_writes_per_run: 3}", "{max_writes: 3}", ["9:8: unknown key 'max_writes'; did you mean 'max_writes_per_run'?"]),
    ("risk_ceiling: high", "risk_ceiling: hihg", ["10:15: unknown risk_ceiling 'hihg'; did you mean 'high'?"]),
    # steps
    ("kind: assign", "kind: asign", [
        "13:11: unknown kind of step 'asign'; did you mean 'assign'?",
        "26:29: state.label is not set before step 'shape' has run",
    ]),
    ("id: change", "id: look", ["21:9: the step id 'look' stands twice; first in line 15"]),
    ("id: change", "id: Change", ["21:9: 'Change' is not a step id; use 1-63 of a-z 0-9 _ -"]),
    ("  - id: change\n    kind", "  - kind", ["21:5: an action step needs the key 'id'"]),
    ("    kind: complete\n", "", ["29:5: a step needs the key 'kind' " + KINDS]),
    ("connector: servicenow", "connector: servicenw", ["17:16: unknown connector 'servicenw'; did you mean 'servicenow'?"]),
    ("operation: update", "operation: updat", ["24:16: servicenow has no operation 'updat'; did you mean 'update'?"]),
    ("{work_notes:", "{work_note:", ["26:14: servicenow.update has no field 'work_note'; did you mean 'work_notes'?"]),
    ("operation: update", "operation: close", [
        "26:14: servicenow.close has no field 'work_notes'; did you mean 'close_notes'?",
    ]),
    ("operation: update", "operation: update\n    risk: low\n    risk: med", ["26:5: the key 'risk' stands twice; first in line 25"]),
    ("connector: servicenow\n    operation: update", "connector: slack\n    operation: post", [
        "26:13: slack.post needs the field 'text'",
        "26:14: slack.post has no field 'work_notes' (known: text, thread_ts)",
    ]),
    ("deadline_s: 600", "deadline_s: 0", ["27:17: deadline_s is 1 to 604800, not 0"]),
    ("deadline_s: 600", "deadline_s: 10m", ["27:17: deadline_s is a whole number, not text"]),
    ("max_attempts: 2", "max_attempts: 5", ["28:27: max_attempts is 1 to 4, not 5"]),
    ("result: incident", "result: Incident", [
        "20:13: 'Incident' is not a name; use 1-63 of a-z 0-9 _, first a letter",
        "26:47: no step has the result 'incident'",
        "31:25: no step has the result 'incident'",
    ]),
    ("result: incident", "result: in", [
        "20:13: 'in' is not a name; use 1-63 of a-z 0-9 _, first a letter",
        "26:47: no step has the result 'incident'",
        "31:25: no step has the result 'incident'",
    ]),
    ("label: ", "Label: ", [
        "14:14: 'Label' is not a name; use 1-63 of a-z 0-9 _, first a letter",
        "26:29: no step sets state.label; did you mean 'Label'?",
    ]),
    ("target: ${input.id}", "target: a b", ["19:13: target: 'a b' is not an id; use 1-128 of A-Z a-z 0-9 . _ : / @ -"]),
    ("target: ${input.id}", "target: {type: problem, id: x}", [
        "19:20: servicenow.lookup changes a target of type 'incident', not 'problem'",
    ]),
    ("target: ${input.id}", "target: [x]", ["19:13: text, a whole number, true or false can stand here; this is a list"]),
    ("    target: ${input.id}\n", "", ["15:5: an action step needs the key 'target'"]),
    ("    kind: complete\n", "    kind: fail\n    message: nope\n", [
        "29:5: a fail step needs the key 'error_class'",
        "32:5: unknown key 'result' (known: error_class, id, kind, message, when)",
    ]),
    ("    kind: complete\n", "    kind: complete\n    when: input.count > 3\n", ["31:11: a condition is one expression: ${...}"]),
    ("    kind: complete\n", "    kind: complete\n    when: ${input.count + 3}\n", ["31:13: a condition is true or false; this is int"]),
    # expressions
    ("input.id}\"", "inptu.id}\"", ["14:33: unknown name 'inptu'; did you mean 'input'? (known: input, state, steps, run, trigger, each)"]),
    ("input.id}\"", "input.ids}\"", ["14:33: the inputs schema has no 'ids'; did you mean 'id'?"]),
    ("input.id}\"", "run.idd}\"", ["14:33: run has no 'idd'; did you mean 'id'?"]),
    ("input.id}\"", "trigger.reff}\"", ["14:33: trigger has no 'reff'; did you mean 'ref'?"]),
    ("input.id}\"", "state.many}\"", ["14:33: state.many is not set before step 'shape' has run"]),
    ("input.id}\"", "steps.incident.number}\"", ["14:33: steps.incident is not there before step 'look' has run"]),
    ("input.id}\"", "input.id\"", ["14:21: ${ has no closing }"]),
    ("input.id}\"", "items(input).map(i, i.key)}\"", ["14:33: text, a whole number, true or false can stand here; this gives list"]),
    ("input.id}\"", "input.map(k, k)}\"", ["14:42: this loop may walk a map, whose order is not fixed; write items(...) around it"]),
    ("state.label}", "state.lable}", ["26:29: no step sets state.lable; did you mean 'label'?"]),
    ("steps.incident.state", "steps.incidnt.state", ["26:47: no step has the result 'incidnt'; did you mean 'incident'?"]),
    ("steps.incident.state", "steps.look.state", ["26:47: no step has the result 'look' (known: incident)"]),
    ("steps.incident.state", "steps.incident.stat", ["26:47: the result 'incident' has no 'stat'; did you mean 'state'?"]),
    ("input.count > 3", "input.count >", ["14:67: syntax error: the expression ends too early"]),
    ("input.count > 3", "size(input.count, 3)", ["14:54: no function 'size' takes these arguments"]),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "wanted"), FAULTS, ids=[f"{n}" for n in range(len(FAULTS))])
def test_each_fault_has_its_place_and_its_sentence(old: str, new: str, wanted: list[str]) -> None:
    """One edit of a valid file, and everything that is said about it."""
    assert faults_of(edited(old, new)) == wanted


ACTION = (
    "name: a\nversion: '1'\ntrigger: {kind: manual}\neffects: [servicenow.close, bank.refund, slack.post]\nsteps:\n"
)


@pytest.mark.parametrize(
    ("step", "wanted"),
    [
        (
            "{id: x, kind: action, connector: servicenow, operation: close, target: t, risk: low}",
            ["6:83: risk 'low' is below 'high', the least for servicenow.close"],
        ),
        (
            "{id: x, kind: action, connector: bank, operation: refund, target: t}",
            ["6:3: bank.refund is a payment and needs an amount"],
        ),
        (
            "{id: x, kind: action, connector: bank, operation: refund, target: t, amount: -1, currency: eur}",
            [
                "6:80: amount is a whole number of the smallest unit, 0 or more, or ${...} giving one",
                "6:94: 'eur' is not a currency; write it as EUR",
            ],
        ),
        (
            "{id: x, kind: action, connector: bank, operation: refund, target: t, amount: 5}",
            ["6:3: amount and currency stand together"],
        ),
        (
            "{id: x, kind: action, connector: slack, operation: post, target: t, fields: {text: [a]}}",
            ["6:86: text, a whole number, true or false can stand here; this is a list"],
        ),
        (
            "{id: x, kind: action, connector: slack, operation: post, target: t, fields: {text: " + "x" * 3001 + "}}",
            ["6:86: text has 3001 characters; at most 3000"],
        ),
        ("{id: x, kind: complete}\n- {id: y, kind: complete}", ["7:3: step 'y' is never reached: the run always ends at step 'x'"]),
        ("5", ["6:3: a step is a map, not a whole number"]),
        (
            "{id: x, kind: assign, values: {a: [[[[[[[[[1]]]]]]]]]}}",
            ["6:46: values nest at most 8 deep"],
        ),
        (
            "{id: x, kind: fail, error_class: Bad Class, message: m}",
            ["6:36: 'Bad Class' is not an error class; use 1-63 of a-z 0-9 _, first a letter"],
        ),
    ],
)  # fmt: skip
def test_each_fault_of_a_step_alone(step: str, wanted: list[str]) -> None:
    """Steps whose operations the base does not use."""
    assert faults_of(ACTION + "- " + step + "\n") == wanted


def test_a_risk_above_the_ceiling_is_a_fault() -> None:
    """Of the declared risk, and of the one that an operation brings with it."""
    text = ACTION.replace("steps:", "risk_ceiling: med\nsteps:")
    step = "- {id: x, kind: action, connector: servicenow, operation: close, target: t}\n"
    assert faults_of(text + step) == ["7:3: risk 'high' is above the definition's risk_ceiling 'med'"]


def test_all_faults_come_at_once_in_the_order_of_the_file() -> None:
    """Eight different classes in one file."""
    text = (
        BASE.replace("version: \"1\"", "version: 1.5")
        .replace("kind: manual", "kind: manul")
        .replace("max_writes_per_run: 3", "max_writes_per_run: 0")
        .replace("input.id}\"", "inptu.id}\"")
        .replace("operation: lookup", "operation: lokup")
        .replace("work_notes", "work_note")
        .replace("id: end", "id: shape")
        .replace("steps.incident.number", "steps.late.number")
    )  # fmt: skip
    assert [fault.split(":")[0] for fault in faults_of(text)] == ["2", "3", "9", "14", "18", "26", "29", "31"]


def test_a_place_inside_a_folded_expression_is_found() -> None:
    """A block scalar of several lines: the fault stands in the line of the file it stands in."""
    block = 'values:\n      label: |-\n        ${input.id\n          + inptu.id}\n      many: "x"'
    text = edited('values: {label: "Incident ${input.id}", many: "${input.count > 3}"}', block)
    [fault] = faults_of(text)
    assert fault.startswith("17:13: unknown name 'inptu'")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a: [" + "1," * 20_001 + "]", "1:39999: the file has more than 20000 values"),
        ("- " * 40, "1:65: nested deeper than 32"),
        ("x" * 10_485_760, "1:1: the file is 10485760 bytes; at most 262144 are read"),
        ("[]", "1:1: a definition is a map, not a list"),
        ("", "1:1: the file is empty"),
        (ACTION + "- {id: a, kind: assign, values: {a: 1}}\n" * 1_001, "6:1: a definition has at most 1000 steps; this one has 1001"),
    ],
)  # fmt: skip
def test_hostile_files_are_bounded(text: str, wanted: str) -> None:
    """Refused at once, with the limit named."""
    started = time.monotonic()
    assert faults_of(text) == [wanted]
    assert time.monotonic() - started < 2


def test_two_hundred_faults_are_enough() -> None:
    """A hopeless file does not give an endless answer."""
    text = ACTION + "".join(f"- {{id: s{n}, kind: nothing}}\n" for n in range(500))
    assert len(faults_of(text)) == 200


# --- one text, one digest -----------------------------------------------------------------------------------------


def test_the_digest_of_the_sample_is_stable() -> None:
    """Pinned: runs name this digest, so a change of the canonical form must be seen here first."""
    definition = normalize(BASE.encode(), "f.yaml", CATALOG)
    assert definition.digest.hex() == "70d579e433837e2569db702e72a9d52a14fcbdbc86ab7bdedf82fd06a52d9a79"


def test_layout_does_not_change_the_digest_and_meaning_does() -> None:
    """Comments, quoting and flow style do not; a value, or the order of steps, does."""
    digest = normalize(BASE.encode(), "f.yaml", CATALOG).digest
    same = [
        "# a comment\n" + BASE,
        edited("deadline_s: 600", "deadline_s:   600   # ten minutes"),
        edited("name: triage", "'name': \"triage\""),
        edited("{max_writes_per_run: 3}", "\n  max_writes_per_run: 3"),
        edited("${input.id}\n    result", "${ input.id }\n    result"),
    ]
    assert {normalize(text.encode(), "g.yaml", CATALOG).digest for text in same} == {digest}
    other = [
        edited("600", "601"),
        edited("${state.label} is", "${state.label} was"),
        edited('version: "1"', 'version: "2"'),
    ]
    assert digest not in {normalize(text.encode(), "f.yaml", CATALOG).digest for text in other}


@given(st.randoms(use_true_random=False))
def test_the_order_of_keys_does_not_change_the_digest(chance: random.Random) -> None:
    """Every map of the sample shuffled, written again and read: the same bytes."""
    source = SAMPLE.read_bytes()
    shuffled = _shuffled(yaml.load(source, yaml.BaseLoader), chance)
    text = yaml.dump(shuffled, sort_keys=False, default_style='"', width=10_000)
    for name in ("max_writes_per_run", "deadline_s", "minLength", "maxLength", "max_attempts"):
        text = _unquote(text, name)
    text = text.replace('"additionalProperties": "false"', '"additionalProperties": false')
    assert normalize(text.encode(), "s.yaml", CATALOG).body == normalize(source, "s.yaml", CATALOG).body


def _unquote(text: str, name: str) -> str:
    lines = []
    for line in text.split("\n"):
        key, colon, value = line.partition(": ")
        bare = f"{key}{colon}{value.strip(chr(34))}" if key.strip(' -"') == name else line
        lines.append(bare)
    return "\n".join(lines)


def _shuffled(value: Any, chance: random.Random) -> Any:
    if isinstance(value, list):
        return [_shuffled(item, chance) for item in value]
    if not isinstance(value, dict):
        return value
    names = list(value)
    chance.shuffle(names)
    return {name: _shuffled(value[name], chance) for name in names}


def test_a_definition_survives_storage() -> None:
    """Stored bytes give the same definition, the same digest and the same bytes."""
    for text in (BASE.encode(), SAMPLE.read_bytes()):
        definition = normalize(text, "f.yaml", CATALOG)
        again = definition_from(decode(definition.body))
        assert (again, again.body, again.digest) == (definition, definition.body, definition.digest)


def test_what_is_no_stored_definition_is_refused() -> None:
    """Every missing, extra or mistyped part is an error, never a default."""
    value = normalize(BASE.encode(), "f.yaml", CATALOG).to_value()
    for name in value:
        with pytest.raises(AuthorError):
            definition_from({key: item for key, item in value.items() if key != name})
        with pytest.raises(AuthorError):
            definition_from({**value, name: 0.5})
    for number, step in enumerate(value["steps"]):
        for name in step:
            broken = [dict(each) for each in value["steps"]]
            broken[number][name] = 0.5
            with pytest.raises(AuthorError):
                definition_from({**value, "steps": broken})
    with pytest.raises(AuthorError, match="of no known kind: 'loop'"):
        definition_from({**value, "steps": [{"id": "a", "kind": "loop"}]})
