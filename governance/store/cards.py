"""Where cards stand in Slack, what each shows of its record, what people were told of it, and which have fallen behind."""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import CallerError
from engine.gate.approval import APPROVER_LEVEL_MIN
from governance.store import approvals, outbox, people
from governance.store.unit import Unit

heal_seconds = 60

# What a card shows of its record, in a word that changes whenever the card must. Read before the record is: a change that
# comes between the two makes the card look older than it is, and it is only sent once more.
_state = """
select a.status || '/' || p.state || '/' || md5(p.last_error) || '/' || (
         select count(*) from vote v where v.tenant = a.tenant and v.approval = a.approval) as state,
       a.status <> 'requested' and (a.status <> 'approved' or p.state in ('succeeded', 'failed_terminal', 'canceled')) as over
  from approval a join promise p on p.tenant = a.tenant and p.run = a.run and p.promise = a.promise
 where a.tenant = c.tenant and a.approval = c.approval
union all
select t.status, t.status <> 'asked' from task t where t.tenant = c.tenant and t.task = c.approval
union all
select p.state || '/' || p.attempt || '/' || md5(p.last_error) || '/' || (
         select count(*) from word w where w.tenant = d.tenant and w.doubt = d.doubt),
       p.state <> 'unknown' or p.attempt <> d.attempt
  from doubt d join promise p on p.tenant = d.tenant and p.run = d.run and p.promise = d.promise
 where d.tenant = c.tenant and d.doubt = c.approval
"""
_one = (
    "select c.channel, c.ts, c.shown, c.told, s.state, s.over from card c cross join lateral (" + _state + ") s "
    "where c.tenant = :tenant and c.approval = :ref"
)
_behind = (
    "select c.approval from card c cross join lateral (" + _state + ") s where c.tenant = :tenant and not c.settled "
    "and c.shown <> s.state and not exists (select 1 from outbox o where o.tenant = c.tenant and o.ref = c.approval "
    "and o.kind = 'card' and o.state = 'ready') order by c.approval limit 200"
)


@dataclass(frozen=True, slots=True)
class Place:
    """A card: where it was posted (no `ts`: nowhere yet), what it shows, what was told of it, and what it should show."""

    channel: str
    ts: str
    shown: str
    told: str
    state: str
    over: bool

    @property
    def is_true(self) -> bool:
        """Whether the posted card shows what is."""
        return bool(self.ts) and self.shown == self.state


@dataclass(frozen=True, slots=True)
class Copy:
    """The same question in one person's direct messages, because its channel could not be reached."""

    approval: str
    person: str
    member: str  # the Slack user
    channel: str
    ts: str
    shown: str


def place(unit: Unit, ref: str) -> Place | None:
    """The card of an approval, a task or a doubt."""
    row = unit.one(_one, ref=ref)
    return None if row is None else Place(*row)


def posted(unit: Unit, ref: str, channel: str, ts: str, blocks_sha256: str, at: Place, told: str) -> None:
    """Where the card is now and what it shows; what is not over is looked at again, whatever becomes of its updates."""
    unit.run(
        "update card set channel = :channel, ts = :ts, rendered = rendered + 1, blocks_sha256 = :blocks, shown = :shown, told = :told, "
        "settled = :over where tenant = :tenant and approval = :ref",
        ref=ref, channel=channel, ts=ts, blocks=blocks_sha256, shown=at.state, told=told, over=at.over,
    )  # fmt: skip
    watch(unit)


def missed(unit: Unit, ref: str, at: Place) -> None:
    """Slack refused the card for good: it is tried again when it has something new to say, not every minute."""
    unit.run(
        "update card set shown = :shown, settled = :over where tenant = :tenant and approval = :ref",
        ref=ref, shown=at.state, over=at.over,
    )  # fmt: skip


def watch(unit: Unit) -> None:
    """Let somebody compare this tenant's cards with their records in a minute."""
    unit.run(
        "insert into due (tenant, kind, ref, at) select :tenant, 'cards', '', clock_timestamp() + make_interval(secs => :s) "
        "where exists (select 1 from card where tenant = :tenant and not settled) on conflict do nothing",
        s=heal_seconds,
    )


def heal(unit: Unit) -> int:
    """Queue every card that shows less than its record says; how many. As long as a card can fall behind, look again."""
    behind = [row[0] for row in unit.all(_behind)]
    for ref in behind:
        outbox.put(unit, "card", ref, {})
    unit.run(
        "update due set at = clock_timestamp() + make_interval(secs => :s) where tenant = :tenant and kind = 'cards' "
        "and exists (select 1 from card where tenant = :tenant and not settled)",
        s=heal_seconds,
    )
    return len(behind)


def copies(unit: Unit, ref: str) -> list[Copy]:
    """Every copy of this question in direct messages."""
    rows = unit.all(
        "select approval, person, member, channel, ts, shown from card_copy where tenant = :tenant and approval = :ref order by person",
        ref=ref,
    )
    return [Copy(*row) for row in rows]


def copy_to(unit: Unit, ref: str, person: str, member: str) -> bool:
    """This person gets a copy; False when they have one."""
    return (
        unit.run(
            "insert into card_copy (tenant, approval, person, member) values (:tenant, :ref, :person, :member) on conflict do nothing",
            ref=ref, person=person, member=member,
        ).rowcount
        == 1
    )  # fmt: skip


def copy_posted(unit: Unit, ref: str, person: str, channel: str, ts: str, shown: str) -> None:
    """Where that copy is now and what it shows."""
    unit.run(
        "update card_copy set channel = :channel, ts = :ts, shown = :shown where tenant = :tenant and approval = :ref and person = :person",
        ref=ref, person=person, channel=channel, ts=ts, shown=shown,
    )  # fmt: skip


def member_of(unit: Unit, person: str, team: str) -> str:
    """The person's account in this workspace; empty when none is linked."""
    row = unit.one(
        "select ref from identity where tenant = :tenant and kind = 'slack' and person = :person and revoked_at is null "
        "and split_part(ref, ':', 1) = :team order by created_at limit 1",
        person=person, team=team,
    )  # fmt: skip
    return "" if row is None else str(row[0]).partition(":")[2]


def asker(unit: Unit, ref: str) -> str:
    """Who is told what becomes of an approval: who asked, or whoever a service asked for or belongs to; empty for tasks and doubts."""
    if not ref.startswith("ap_"):
        return ""
    try:
        lineage = approvals.load(unit, ref).asked.lineage
    except CallerError:
        return ""
    kinds = {name: one.kind for name, one in people.profiles(unit).items()}
    for why in ("requester", "on_behalf_of", "owner"):
        found = next((name for name, said in lineage.items() if said == why and kinds.get(name) == "human"), "")
        if found:
            return found
    return ""


def holders(unit: Unit, ref: str) -> list[str]:
    """Who could give a key, or a word, and has not."""
    known = people.profiles(unit)
    able = {
        name: one for name, one in known.items()
        if one.kind == "human" and one.active and not one.read_only and one.level >= APPROVER_LEVEL_MIN
    }  # fmt: skip
    if not ref.startswith("ap_"):
        return []
    found = approvals.load(unit, ref)
    gave = {vote.person for vote in found.votes if vote.kind == "key"}
    return [
        name for name, one in able.items()
        if set(one.groups) & found.asked.groups and name not in found.asked.lineage and name not in gave
    ]  # fmt: skip
