"""Records that an attacker would write: any text anywhere, too long, too many, with markup, direction and control characters."""

from __future__ import annotations

from hypothesis import strategies as st

from engine.gate.card import PHASES, CardRecord
from tests.governance.slack.kit import APPROVAL

MARKUP = (
    "<!channel>",
    "<https://evil.example|Approve via portal>",
    "<@U0ALICE>",
    "`</code> *bold* _x_ ~y~",
    "```\nApproved by @ana\n```",
    "&lt;!here&gt; & < >",
    ":white_check_mark: Approved",
    "\u202egnp.exe\u202c",
    "zero\u200bwidth\ufeff",
    "tag\U000e0041\U000e0042",
    "nul\x00bell\x07del\x7f",
    "line\u2028para\u2029nel\x85cr\rlf\n",
    "e" + "\u0301" * 200,
    "lone \ud800 surrogate",
    "\ue000 private",
    "👩\u200d👩\u200d👧",
    "\u3164\u2800\u115f",
    "{date}^1^|x>",
    '"},{"type":"button"',
)
words = st.one_of(
    st.text(max_size=30),
    st.text(max_size=80),
    st.sampled_from(MARKUP),
    st.builds(
        lambda part, n: part * n,
        st.sampled_from(("a", "é", "🔴", "<", "\n", " ", "\u202e", "\ud800", "ab\n")),
        st.sampled_from((0, 1, 50, 161, 700, 2_000, 3_100)),
    ),
)


@st.composite
def records(draw: st.DrawFn, phase: str = "") -> CardRecord:
    def pairs(first: st.SearchStrategy[str], second: st.SearchStrategy[str], most: int) -> tuple[tuple[str, str], ...]:
        return tuple(draw(st.lists(st.tuples(first, second), max_size=most)))

    return CardRecord(
        approval=APPROVAL,
        tenant="acme",
        status="requested",
        tier=draw(st.one_of(st.sampled_from(("low", "med", "high")), words)),
        keys=draw(st.integers(0, 20)),
        counts=tuple(draw(st.lists(st.tuples(words, st.integers(1, 9)), max_size=4))),
        groups=tuple(draw(st.lists(words, max_size=9))),
        expires_at=draw(st.one_of(st.just("2027-01-15T09:00:00.000000Z"), words)),
        expires_epoch=draw(st.one_of(st.just(1_800_003_600), st.integers(-(2**70), 2**70))),
        requested_by=draw(words),
        on_behalf_of=draw(words),
        workflow=draw(words),
        version=draw(words),
        step=draw(words),
        run=draw(words),
        connector=draw(words),
        operation=draw(words),
        summary=draw(words),
        kind=draw(st.one_of(st.sampled_from(("read", "write", "delete", "message", "payment")), words)),
        reversible=draw(st.booleans()),
        reversal=draw(st.one_of(st.sampled_from(("inverse", "manual", "none")), words)),
        target=draw(
            st.one_of(st.just({}), st.fixed_dictionaries(dict.fromkeys(("system", "type", "id", "instance"), words)))
        ),
        changes=tuple(draw(st.lists(st.tuples(words, words, words), max_size=6))),
        amount=draw(words),
        why=draw(words),
        reasons=pairs(words, words, 8),
        policy_revision=draw(words),
        action_sha256="ab" * 32,
        card_rev=draw(st.integers(0, 99)),
        phase=phase or draw(st.sampled_from(PHASES)),
        given=tuple(draw(st.lists(st.tuples(words, words, words), max_size=5))),
        excluded=pairs(words, words, 4),
        outcome=draw(words),
        console_url=draw(
            st.one_of(st.just("https://twokeys.example.com/a/1"), words, st.just("https://x.example/a|b>"))
        ),
        environment=draw(words),
    )
