"""Each rule of the house profile is broken once, at a known place, and the shipped policies break none."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from governance.policy import bundle, house, rego
from governance.policy.faults import Fault, PolicyInvalid
from governance.policy.reader import Read, Reader

POLICIES = bundle.shipped_directory()
FILES = {
    str(file.relative_to(POLICIES)): file.read_text(encoding="utf-8")
    for file in (*POLICIES.glob("twokeys/*.rego"), *POLICIES.glob("tests/*.rego"))
}
MODULES = {path: text for path, text in FILES.items() if path.startswith("twokeys/")}
OVERLAY = MODULES["twokeys/overlay.rego"]
END = OVERLAY.count("\n")  # a line that is appended stands two lines further


READER = Reader()


@pytest.fixture(scope="module", autouse=True)
def one_reader() -> Iterator[None]:
    yield
    READER.close()


def check(files: dict[str, str], **how: Any) -> Read:
    return house.check(READER, files, **how)


def faults(extra: str, *, path: str = "twokeys/overlay.rego") -> list[Fault]:
    """What is wrong when this is added to the overlay, or written to another file."""
    text = f"{OVERLAY}\n{extra}" if path == "twokeys/overlay.rego" else extra
    with pytest.raises(PolicyInvalid) as refused:
        check({**MODULES, path: text}, owned={name: MODULES[name] for name in bundle.OWNED})
    return list(refused.value.faults)


def test_the_shipped_policies_and_their_tests_keep_the_profile() -> None:
    """And they compile with the data of a tenant."""
    data = dict(bundle.shipped({"acme": {}}).data)
    read = check(FILES, owned={name: MODULES[name] for name in bundle.OWNED}, data=data)
    assert len(house.tests_of(read.modules)) >= 35
    assert house.named_groups(read.modules) == {"oncall"}


# Each: what is added to the overlay, the rule, line and column counted from the added text, and what the fault says.
BROKEN = [
    ("deny contains x if { x := http.send({}) }", "builtin", (1, 27), "asks nobody"),
    ("deny contains 1 if { opa.runtime() }", "builtin", (1, 22), "`opa.runtime`"),
    ("deny contains 1 if { rand.intn(input.run.id, 3) == 1 }", "builtin", (1, 22), "same answer"),
    ("deny contains 1 if { x := uuid.rfc4122(input.run.id) }", "builtin", (1, 27), "`uuid.rfc4122`"),
    ("deny contains 1 if { time.now_ns() == 1 }", "builtin", (1, 22), "input.time"),
    ('deny contains 1 if { regex.match("a", input.run.id) }', "builtin", (1, 22), "startswith"),
    ('deny contains 1 if { glob.match("a", [], input.run.id) }', "builtin", (1, 22), "startswith"),
    ("deny contains 1 if { max([1, 2]) == 2 }", "builtin", (1, 22), "compare each item"),
    ("deny contains 1 if { min([1, 2]) == 1 }", "builtin", (1, 22), "compare each item"),
    ("deny contains 1 if { sort([1]) == [1] }", "builtin", (1, 22), "compare each item"),
    ("deny contains 1 if { object.union({}, {}) == {} }", "builtin", (1, 22), "object.get"),
    ('deny contains 1 if { to_number("1") == 1 }', "builtin", (1, 22), "one type"),
    ("deny contains 1 if { 4 / 2 == 2 }", "builtin", (1, 24), "`/`"),
    ("deny contains 1 if { 4 % 2 == 0 }", "builtin", (1, 24), "`%`"),
    ('deny contains sprintf("%d", [1])', "builtin", (1, 15), "concat"),
    ('deny contains $"a{input.run.id}"', "builtin", (1, 15), "concat"),
    ("deny contains 1 if { input.action.payload_bytes == 1.5 }", "float", (1, 52), "1.5"),
    ("deny contains 1 if { input.action.payload_bytes == 1e3 }", "float", (1, 52), "1e3"),
    ('deny contains 1 if { not input.run.id in {"a"} }', "negation", (1, 22), "bare name"),
    ("deny contains 1 if {\n\tnot input.kill_switch\n}", "negation", (2, 2), "rule of its own"),
    ("deny contains 1 if { not tenant.enabled }", "negation", (1, 22), "bare name"),
    ('deny contains 1 if { not startswith(input.run.id, "a") }', "negation", (1, 22), "bare name"),
    ("deny contains 1 if { x := true; not x }", "negation", (1, 33), "bare name"),
    ('deny contains 1 if { tenant.enabled with input as {"a": 1} }', "with", (1, 37), "for tests"),
    ("deny contains 1 if { data.twokeys.base.dney }", "reference", (1, 22), "did you mean 'deny'"),
    ("deny contains 1 if { data.tenant[input.tenant.id] }", "reference", (1, 22), "did you mean 'tenants'"),
    ("deny contains 1 if { data.tests.world.codes }", "reference", (1, 22), "nothing is called"),
    ("deny contains 1 if { data.twokeys.base[x] }", "reference", (1, 22), "name the rule"),
    ("deny contains 1 if { data[x] }", "reference", (1, 22), "all data at once"),
    ("deny contains 1 if { tenant.caps.max_wirtes_per_run == 1 }", "reference", (1, 22), "'max_writes_per_run'"),
    ("deny contains 1 if { tenant.conectors }", "reference", (1, 22), "'connectors'"),
    ('deny contains 1 if { input.acton.kind == "read" }', "reference", (1, 22), "did you mean 'action'"),
    ('deny contains 1 if { input["acton"] == 1 }', "reference", (1, 22), "did you mean 'action'"),
    ('deny contains 1 if { input.action.target.name == "x" }', "reference", (1, 22), "input.action.target"),
    ("deny contains 1 if { input.action[k] == 1 }", "reference", (1, 22), "named by a variable"),
    ('deny contains 1 if { input.action.fields.name == "x" }', "reference", (1, 22), "is a list"),
    ('deny contains 1 if { input.run.id.more == "x" }', "reference", (1, 22), "has no fields"),
    ('deny contains 1 if {\n\tsome f in input.action.fields\n\tf.clasification == "x"\n}', "reference", (3, 2), "classification"),
    ('deny contains 1 if { every f in input.action.fields { f.nam == "x" } }', "reference", (1, 55), "'name'"),
    ('deny contains 1 if { a := input.action; a.knd == "x" }', "reference", (1, 41), "'kind'"),
    ('deny contains 1 if { object.get(input.action, "risk", "low") == "low" }', "reference", (1, 22), "'risk_tier'"),
    ('deny contains 1 if { object.get(input, ["action", "risk"], "") == "low" }', "reference", (1, 22), "'risk_tier'"),
    ('deny contains [f.nam | some f in input.action.fields]', "reference", (1, 16), "'name'"),
    ("import data.twokeys.bsae\n", "reference", (1, 8), "did you mean 'twokeys.base'"),
    ("import future.keywords.not\n", "version", (1, 8), "Rego v1"),
    ("deny contains 1 if { some x in [1]; x > 0 }", "comparison", (1, 39), "is_number(x)"),
    ('deny contains 1 if { input.run.id > 3 }', "comparison", (1, 35), "is string"),
    ("over(x) if x > 3", "comparison", (1, 14), "is_number(x)"),
    ("over(x) if { is_string(x) } else if { x > 3 }", "comparison", (1, 41), "is_number(x)"),
    ("over(x) if { is_number(x) } else if { x > 3 }", "comparison", (1, 41), "is_number(x)"),
    ("over(x) if { x > 3; count([y | y := x; is_number(x)]) == 1 }", "comparison", (1, 16), "is_number(x)"),
    ("tenants := 1", "data_root", (1, 1), "'tenants'"),
    ('grant contains {"code": "a", "message": "b"}', "overlay", (1, 1), "only tighten"),
    ('obligations contains {"type": "reason"}', "overlay", (1, 1), "only tighten"),
    ("a.b := 1", "rule", (1, 1), "more than one part"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "rule", "place", "says"), BROKEN, ids=[row[0].replace("\n", " ") for row in BROKEN])
def test_each_rule_bites_at_its_place(text: str, rule: str, place: tuple[int, int], says: str) -> None:
    """File, line, column, the line itself and a sentence that says what to do."""
    broken = text if not text.startswith("import") else ""
    added = f"package twokeys.more\n\n{text}" if not broken else text
    path = "twokeys/overlay.rego" if broken else "twokeys/more.rego"
    found = [fault for fault in faults(added, path=path) if fault.rule == rule and says in str(fault)]
    assert found, faults(added, path=path)
    start = END + 1 if broken else 2
    assert (found[0].file, found[0].line - start, found[0].column) == (path, *place)
    assert found[0].text == text.split("\n")[place[0] - 1]


GOOD = [
    "over(x) if { is_number(x); x > 3 }",
    "over(x) if { is_number(x); count([y | y := x; x > 3]) == 1 }",
    "deny contains 1 if { input.action.amount_minor > tenant.caps.max_amount_minor }",
    'deny contains "x" if { count(input.action.fields) > 3; not known }\nknown if tenant.enabled',
    'deny contains "x" if { not data.twokeys.base.deny }',
    'deny contains "x" if { some c, ops in tenant.allowed_operations; "wipe" in ops; c == "x" }',
    'deny contains concat("", ["above ", format_int(tenant.caps.max_amount_minor, 10)])',
    'deny contains "x" if { some f in input.action.fields; startswith(f.name, "secret.") }',
    'deny contains "x" if { object.get(input.action, "risk_tier", "high") == "high" }',
]


@pytest.mark.parametrize("text", GOOD)
def test_what_the_profile_allows_passes(text: str) -> None:
    """A lint that refuses good rules would be switched off."""
    check({**MODULES, "twokeys/overlay.rego": f"{OVERLAY}\n{text}\n"})


def test_every_fault_is_told_at_once() -> None:
    """Nobody mends a file fault by fault."""
    found = faults("tenants := 1\ndeny contains 1 if { not input.kill_switch; http.send({}); input.acton }\n")
    assert {fault.rule for fault in found} == {"data_root", "negation", "builtin", "reference"}
    assert found == sorted(found)


def test_faults_of_the_compiler_hide_none_of_the_profile() -> None:
    """OPA stops at the first of its own; ours are told with it."""
    text = f"{OVERLAY}\ndeny contains 1 if {{ amuont > 1; not input.kill_switch; input.acton }}\n"
    with pytest.raises(PolicyInvalid) as refused:
        check({**MODULES, "twokeys/overlay.rego": text}, data=dict(bundle.shipped({}).data))
    assert {fault.rule for fault in refused.value.faults} == {"compile", "comparison", "negation", "reference"}


PARSES = [
    ("deny contains 1 if {", "parse", "open"),
    ("deny contains 1 { true }", "parse", "if"),
    ("deny contains 1 if { x == }", "parse", "unexpected"),
    ('deny contains "unclosed if { true }', "parse", "non-terminated"),
    ("import rego.v0", "parse", "rego.v0"),
]


@pytest.mark.parametrize(("text", "rule", "says"), PARSES)
def test_text_that_does_not_parse_is_shown_with_its_line(text: str, rule: str, says: str) -> None:
    """OPA's own sentence, with the column and a hint where there is one."""
    found = [fault for fault in faults(text, path="twokeys/overlay.rego") if fault.rule == rule]
    assert any(says in str(fault) for fault in found), found
    assert all(fault.line >= END + 2 and fault.column >= 1 for fault in found)


COMPILES = [
    ("deny contains 1 if { amuont > 1; is_number(amuont) }", (1, 22), "unsafe"),
    ("deny contains 1 if { x := 1; x := 2 }", (1, 22), "assigned above"),
    ('deny contains 1 if { startswith(1, "a") }', (1, 22), "type"),
    ("a if b\nb if a", (1, 1), "recursive"),
    ("deny contains 1 if { nothing(1) }", (1, 22), "undefined function"),
]


@pytest.mark.parametrize(("text", "place", "says"), COMPILES)
def test_text_that_does_not_compile_is_shown_with_its_line(text: str, place: tuple[int, int], says: str) -> None:
    """What only OPA's compiler knows: unsafe names, types, recursion."""
    data = dict(bundle.shipped({}).data)
    with pytest.raises(PolicyInvalid) as refused:
        check({**MODULES, "twokeys/overlay.rego": f"{OVERLAY}\n{text}"}, data=data)
    found = [fault for fault in refused.value.faults if fault.rule in ("compile", "builtin")]
    assert found, refused.value.faults
    assert found[0].line == END + 1 + place[0]
    assert found[0].column >= place[1]


@pytest.mark.parametrize("path", bundle.OWNED)
def test_the_products_own_files_stay_as_they_are(path: str) -> None:
    """Whoever could write to guard could loosen everything."""
    found = faults(MODULES[path].replace("\n\n", "\n\n# mine\n", 1), path=path)
    assert [(fault.file, fault.rule) for fault in found] == [(path, "owned")]
    assert found[0].text == "# mine"
    without = {name: text for name, text in MODULES.items() if name != path}
    with pytest.raises(PolicyInvalid) as refused:
        check(without, owned={path: MODULES[path]})
    assert "is missing" in str(refused.value)


@pytest.mark.parametrize(
    ("path", "text", "rule"),
    [
        ("twokeys/meta.rego", "package twokeys.meta\n\nrevision := 1\n", "data_root"),
        ("twokeys/more.rego", "package twokeys.other\n\na := 1\n", "package"),
        ("tests/more_test.rego", "package twokeys.base\n\na := 1\n", "package"),
        ("more.rego", "package more\n", "path"),
        ("twokeys/../x.rego", "package x\n", "path"),
        ("twokeys/more.rego", "package twokeys.more\n\n# \u202e hidden\n", "hidden"),
    ],
)
def test_files_that_are_none_of_ours_are_refused(path: str, text: str, rule: str) -> None:
    """A package named like the data, a file outside, a character that nobody sees."""
    assert rule in {fault.rule for fault in faults(text, path=path)}


def test_five_megabytes_are_refused_before_anybody_parses_them() -> None:
    """The size is a sentence."""
    (found,) = faults("package twokeys.more\n" + "# x\n" * 1_300_000, path="twokeys/more.rego")
    assert (found.rule, "at most 1048576" in found.message) == ("size", True)


def test_a_module_nested_beyond_reason_is_a_fault_and_not_a_crash() -> None:
    """Neither OPA's parser nor ours gives up without a sentence."""
    found = faults(f"deny contains 1 if {{ x := {'[' * 400}{']' * 400} }}")
    assert [fault.rule for fault in found] == ["parse"]


def test_tests_may_use_what_tests_need_and_nothing_outside() -> None:
    """`with`, object.union and free negation are for tests; the network is for nobody."""
    text = "package twokeys.more_test\n\ntest_x if {\n\tnot input.x == 1 with input as object.union({}, {})\n"
    check({**MODULES, "tests/more_test.rego": text + "}\n"})
    (found,) = faults(text + '\thttp.send({"url": "x"})\n}\n', path="tests/more_test.rego")
    assert (found.rule, found.line, found.column) == ("builtin", 5, 2)


def test_every_reference_of_the_shipped_files_is_found_at_its_place() -> None:
    """The order of the tree and the order of the text agree."""
    for module in READER.read(FILES).modules.values():
        for one in module.found:
            here = module.text.text[one.at :]
            if one.kind == "ref":
                assert here.startswith(str(rego.chain_of(one.node)[0]))
            elif one.kind in ("negation", "with"):
                assert here.startswith("not" if one.kind == "negation" else "with")


def test_text_of_any_kind_is_answered() -> None:
    """Whatever is done to a file, the answer is a list of faults or that there are none."""
    dice = random.Random(20261118)
    base = MODULES["twokeys/base.rego"]
    for _ in range(25):
        at = dice.randrange(len(base))
        text = (
            base[:at]
            + dice.choice(["", "{", "}", '"', "\0", " if ", "[", "`", "\n", "# "])
            + base[at + dice.randrange(9) :]
        )
        found: tuple[Fault, ...] = ()
        try:
            check({**MODULES, "twokeys/base.rego": text})
        except PolicyInvalid as invalid:
            found = invalid.faults
        assert all(fault.line >= 1 and fault.column >= 1 and fault.message for fault in found), text
