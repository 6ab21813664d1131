"""Who is there: a personal token on each API request, or a signed session that a token opened; both are looked up every time."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass

from itsdangerous import BadData, URLSafeSerializer

from engine.canonical import sha256
from engine.errors import Refused
from governance.commands.authority import Actor, allowed, token_ref
from governance.keys import mac, same
from governance.store.people import Profile
from governance.store.unit import Database, Unit

session_seconds_max = 8 * 3600
fresh_seconds_max = 300  # a sign-in this young counts as entering the token again (step-up)

_token = re.compile(r"tk_[A-Za-z0-9._-]{8,200}")


@dataclass(frozen=True, slots=True)
class Caller:
    """A tenant and an identity in it; what it may do is looked up by whoever does something."""

    tenant: str
    actor: Actor


@dataclass(frozen=True, slots=True)
class Session:
    """What the cookie says; `tenant` is empty before sign-in, when it only ties the sign-in form to this browser."""

    tenant: str
    ref: str
    at: int
    nonce: str

    @property
    def caller(self) -> Caller:
        """Whom the session stands for."""
        return Caller(self.tenant, Actor("token", self.ref))


class NotSignedIn(Refused):
    """Whoever asks must act: there is no token here that opens a door."""

    code = "not_signed_in"


def by_token(route: Callable[[str, str], str | None], token: str) -> Caller:
    """The tenant a personal token leads to; a token of the wrong form and one that nobody has are the same."""
    tenant = route("token", token_ref(token)) if _token.fullmatch(token) else None
    if tenant is None:
        raise NotSignedIn("this token is not known", next_step="ask an owner of your tenant for a new one")
    return Caller(tenant, Actor("token", token_ref(token)))


def bearer(route: Callable[[str, str], str | None], header: str) -> Caller:
    """Whom an Authorization header stands for."""
    scheme, _, token = header.partition(" ")
    if not header:
        raise NotSignedIn("a personal token is needed", next_step="send `Authorization: Bearer tk_...`")
    if scheme.lower() != "bearer":
        raise NotSignedIn("only bearer tokens are read", next_step="send `Authorization: Bearer tk_...`")
    return by_token(route, token.strip())


def check_reader(database: Database, caller: Caller) -> Profile:
    """The person, when they may read at all: the identity is linked and the account is active, at this moment."""
    with database.unit(caller.tenant, write=False) as unit:
        return reader(unit, caller)


def reader(unit: Unit, caller: Caller) -> Profile:
    """The same inside a unit that is open already."""
    try:
        return allowed(unit, caller.actor, "read")
    except Refused as refused:
        if refused.code == "unknown_person":
            raise NotSignedIn(
                "this token has been revoked", next_step="ask an owner of your tenant for a new one"
            ) from None
        raise


class Sessions:
    """The cookie: signed, never encrypted, and holding nothing that opens a door by itself."""

    def __init__(self, key: bytes, now: Callable[[], int], random_hex: Callable[[int], str], *, secure: bool) -> None:
        self._signer = URLSafeSerializer(
            key, salt="twokeys/session/v1", signer_kwargs={"digest_method": hashlib.sha256, "key_derivation": "hmac"}
        )
        self._key = key
        self._now = now
        self._random_hex = random_hex
        self.secure = secure
        # The prefix makes browsers refuse the cookie from a sub-domain or without https.
        self.cookie = "__Host-twokeys" if secure else "twokeys"

    def anonymous(self) -> Session:
        """A browser before sign-in."""
        return Session("", "", self._now(), self._random_hex(16))

    def signed_in(self, caller: Caller) -> Session:
        """A browser whose person has just entered this token."""
        return Session(caller.tenant, caller.actor.ref, self._now(), self._random_hex(16))

    def write(self, session: Session) -> str:
        """The cookie's value."""
        return self._signer.dumps([session.tenant, session.ref, session.at, session.nonce]).__str__()

    def read(self, value: str) -> Session | None:
        """The session of a cookie; None when it is not ours, too old or from the future."""
        try:
            parts = self._signer.loads(value)
        except BadData:
            return None
        if type(parts) is not list or [type(part) for part in parts] != [str, str, int, str]:
            return None
        session = Session(*parts)
        age = self._now() - session.at
        return session if 0 <= age < session_seconds_max else None

    def is_fresh(self, session: Session, seconds_max: int = fresh_seconds_max) -> bool:
        """Whether the token was entered just now."""
        return bool(session.tenant) and 0 <= self._now() - session.at <= min(seconds_max, fresh_seconds_max)

    def csrf(self, session: Session) -> str:
        """What every form of this session carries; another session's is worth nothing here."""
        return mac(self._key, "twokeys/csrf/v1", session.tenant, session.ref, session.nonce).hex()

    def check_csrf(self, session: Session | None, given: str) -> None:
        """Refused unless the form came from a page that this session was shown."""
        if session is None or not same(self.csrf(session), given):
            raise Refused(
                "this form is not from a page of your session, so nothing was done", code="csrf",
                next_step="open the page again and send the form from there",
            )  # fmt: skip


def dedupe_key(door: str, caller: Caller, approval: str, once: str) -> str:
    """Names one press of one person on one request: a repeat finds the first answer, and nobody finds another's."""
    if not once:
        return ""
    return f"{door}-" + sha256("\n".join((caller.actor.ref, approval, once)).encode("utf-8", "replace")).hex()
