"""The verifier's command line: arguments in, a report and an exit code out; files are read by the caller's hand."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from engine.errors import BrokenLedger, CallerError
from engine.ledger.ed25519 import has_cryptography
from engine.ledger.sealed import MALFORMED, OUTCOMES, Expectation, Verified
from engine.ledger.trust import Trust, read_trust
from engine.ledger.verify import verify

_about = "Verify the evidence bundle of a Twokeys run or period, offline. Exit: 0 valid, 1 invalid, 2 incomplete, 3 malformed."
_no_pin = "Get the trust policy from somebody other than whoever gave you the bundle, and give it with --trust."


class _Arguments(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        # argparse would leave with 2, which here means an incomplete bundle.
        raise CallerError(message, code="usage", next_step="see --help")


def run_verifier(
    arguments: Sequence[str],
    read_file: Callable[[str], bytes],
    write: Callable[[str], object],
    program: str = "verify.py",
) -> int:
    """Verify as the arguments say, write the report, and return the exit code."""
    try:
        options = _parse(arguments, program)
        data = _content(read_file, options.bundle)
        trust = read_trust(_content(read_file, options.trust)) if options.trust else None
    except (CallerError, BrokenLedger) as error:
        write(f"{program}: {error}\n")
        return MALFORMED
    result = verify(data, trust, Expectation(run=options.run, sha256=options.sha256.lower()))
    write(json_report(result) if options.json else text_report(result, options.bundle, trust))
    return result.outcome


def json_report(result: Verified) -> str:
    """The result as one JSON object on one line."""
    value: dict[str, Any] = {
        "outcome": OUTCOMES[result.outcome],
        "exit": result.outcome,
        "findings": [
            {
                "step": finding.step,
                "code": finding.code,
                "record": finding.record,
                "reason": finding.reason,
                "outcome": OUTCOMES[finding.outcome],
            }
            for finding in result.findings
        ],
        "steps": list(result.steps),
        "remarks": list(result.remarks),
        "facts": result.facts,
    }
    return json.dumps(value, sort_keys=True) + "\n"


def text_report(result: Verified, path: str, trust: Trust | None) -> str:
    """The result for a person: each step, then the verdict in the last line."""
    facts = result.facts
    signatures = "cryptography" if has_cryptography else "built-in Ed25519"
    lines = [f"bundle  {path}", f"sha256  {facts.get('sha256', '')}", f"checks  {signatures}", ""]
    found = {finding.step: finding for finding in result.findings}
    for number, title in enumerate(result.titles):
        if number < len(result.steps):
            word = "MISSING" if number in found else "ok"
            lines.append(f"({number}) {title}\n      {word}: {_printable(result.steps[number])}")
        elif number in found:
            lines.append(f"({number}) {title}\n      BROKEN: see below")
        else:
            lines.append(f"({number}) {title}\n      not reached")
    lines.append("")
    for name in sorted(facts.get("approvals", {})):
        approval = facts["approvals"][name]
        persons = ", ".join(approval["persons"]) or "nobody"
        lines.append(_printable(f"approval {name}: {approval['state']}, keys of {persons}"))
    lines += [_printable(f"note: {remark}") for remark in result.remarks]
    for finding in result.findings:
        word = OUTCOMES[finding.outcome].upper()
        lines.append(
            _printable(f"{word} at step ({finding.step}), {finding.record}: {finding.reason} [{finding.code}]")
        )
    if trust is None:
        lines.append(_no_pin)
    lines.append(_last_line(result))
    return "\n".join(lines) + "\n"


def _last_line(result: Verified) -> str:
    facts = result.facts
    if result.outcome:
        return f"RESULT: {OUTCOMES[result.outcome]}"
    witnesses = facts.get("witnesses")
    by = f"witnessed by {', '.join(witnesses)}" if witnesses else "unwitnessed"
    if "from_size" in facts:
        return (
            f"RESULT: valid ({by}): log of tenant {facts['tenant']} from {facts['from_size']} to {facts['tree_size']}, "
            f"{facts['entries']} entries, {facts['from']} to {facts['to']}"
        )
    return (
        f"RESULT: valid ({by}): run {facts['run']} of tenant {facts['tenant']}, {facts['status']}, "
        f"{facts['entries']} entries, {facts['from']} to {facts['to']}"
    )


def _parse(arguments: Sequence[str], program: str) -> argparse.Namespace:
    parser = _Arguments(prog=program, description=_about, allow_abbrev=False)
    parser.add_argument("bundle", metavar="BUNDLE", help="the bundle, a .zip file")
    parser.add_argument("--trust", default="", metavar="POLICY", help="the trust policy, obtained from elsewhere")
    parser.add_argument("--run", default="", metavar="RUN", help="refuse the evidence of any other run")
    parser.add_argument("--sha256", default="", metavar="HEX", help="refuse a file with any other digest")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    options = parser.parse_args(list(arguments))
    if options.sha256 and not re.fullmatch(r"[0-9a-fA-F]{64}", options.sha256):
        raise CallerError("a sha256 is 64 hexadecimal digits", code="usage", field="--sha256")
    return options


def _content(read_file: Callable[[str], bytes], path: str) -> bytes:
    try:
        return read_file(path)
    except OSError as error:
        raise CallerError(f"cannot be read: {error.strerror or error}", code="unreadable", field=path) from None


def _printable(text: str) -> str:
    # A hostile bundle's words must not move the cursor of the terminal that shows them.
    return "".join(letter if letter.isprintable() else "?" for letter in text)
