"""Proves the guard table of slack.md 2.2: every odd request is turned away before anything is parsed."""

from __future__ import annotations

import pytest

from engine.errors import OperatorError
from governance.slack.guard import Guard, Turned
from tests.governance.slack.kit import NOW, OLD_SECRET, SECRET, form, signed

BODY = form({"type": "block_actions"})


def guard(*secrets: str) -> Guard:
    return Guard(secrets or (SECRET,), lambda: NOW)


def with_header(name: bytes, value: bytes) -> list[tuple[bytes, bytes]]:
    return [(key, value if key == name else old) for key, old in signed(BODY)]


def turned(headers: list[tuple[bytes, bytes]], body: bytes = BODY, *secrets: str) -> tuple[int, str]:
    with pytest.raises(Turned) as caught:
        guard(*secrets).admit(headers, body)
    return caught.value.status, caught.value.code


def test_the_published_example_of_slack_is_admitted() -> None:
    # The known vector of Slack's documentation of signed requests.
    secret = "8f742231b10e8888abcd99yyyzzz85a5"
    body = (
        b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V"
        b"&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text="
        b"&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554"
        b"%2F96rGlfmibIGlgcZRskXaIFfN&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
    )
    headers = [
        (b"x-slack-request-timestamp", b"1531420618"),
        (b"x-slack-signature", b"v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503"),
    ]
    assert Guard([secret], lambda: 1_531_420_618).admit(headers, body).secret == 0


@pytest.mark.parametrize("skew", [-300, -299, 0, 299, 300])
def test_a_fresh_signed_request_is_admitted(skew: int) -> None:
    admitted = guard().admit(signed(BODY, at=NOW + skew), BODY)
    assert admitted.body == BODY.decode()


@pytest.mark.parametrize("skew", [-302, -301, 301, 302, 86_400])
def test_a_request_outside_five_minutes_is_turned_away(skew: int) -> None:
    assert turned(signed(BODY, at=NOW + skew)) == (401, "not_fresh")


@pytest.mark.parametrize(
    "stamp", [b"", b"abc", b"180000000", b"18000000000", b"1800000000 ", b"+180000000", b"1e9", "١٨٠٠٠٠٠٠٠٠".encode()]
)
def test_an_odd_timestamp_is_turned_away(stamp: bytes) -> None:
    assert turned(with_header(b"x-slack-request-timestamp", stamp)) == (401, "not_signed")


@pytest.mark.parametrize(
    "signature",
    [
        b"",
        b"v0=",
        b"v0=" + b"0" * 63,
        b"v0=" + b"G" * 64,
        b"v1=" + b"0" * 64,
        "v0=é".encode(),
        b"v0=" + b"A" * 64,
        b"v0=" + b"0" * 64 + b"\n",
    ],
)
def test_an_odd_signature_is_turned_away(signature: bytes) -> None:
    assert turned(with_header(b"x-slack-signature", signature)) == (401, "not_signed")


def test_a_wrong_signature_is_turned_away() -> None:
    assert turned(with_header(b"x-slack-signature", b"v0=" + b"0" * 64)) == (401, "wrong_signature")
    assert turned(signed(BODY), BODY + b" ") == (401, "wrong_signature")
    assert turned(signed(BODY, secret=OLD_SECRET)) == (401, "wrong_signature")


@pytest.mark.parametrize("name", [b"x-slack-signature", b"x-slack-request-timestamp"])
def test_a_missing_or_doubled_header_is_turned_away(name: bytes) -> None:
    assert turned([(key, value) for key, value in signed(BODY) if key != name]) == (401, "not_signed")
    once = [(key, value) for key, value in signed(BODY) if key == name]
    assert turned([*signed(BODY), *once]) == (401, "not_signed")


@pytest.mark.parametrize("body", [b"\xff\xfe", b"{bad", b"payload=[]", b"payload=null", b"[" * 20_000, b"ssl_check=1"])
def test_an_unsigned_body_is_turned_away_before_it_is_parsed(body: bytes) -> None:
    assert turned([(b"content-type", b"application/json")], body) == (401, "not_signed")


def test_a_signed_body_that_is_no_text_is_turned_away() -> None:
    assert turned(signed(b"\xff"), b"\xff") == (400, "not_text")


def test_a_body_above_one_megabyte_is_turned_away() -> None:
    big = b"a" * (1_048_576 + 1)
    assert turned(signed(big), big) == (413, "too_large")


@pytest.mark.parametrize("length", [b"1048577", b"-1", b"abc", b"", b"9" * 40, b"1,1"])
def test_a_bad_or_large_length_is_turned_away_before_the_body_is_read(length: bytes) -> None:
    with pytest.raises(Turned) as caught:
        guard().check_length([(b"content-length", length)])
    assert caught.value.status == 413


def test_both_secrets_of_a_rotation_are_accepted_and_told_apart() -> None:
    rotating = guard(SECRET, OLD_SECRET)
    assert rotating.admit(signed(BODY), BODY).secret == 0
    assert rotating.admit(signed(BODY, secret=OLD_SECRET), BODY).secret == 1


def test_only_five_headers_go_on() -> None:
    extra = [(b"x-slack-bolt-lazy-only", b"1"), (b"X-Slack-Bolt-Lazy-Function-Name", b"fn"), (b"cookie", b"a=b")]
    retry = [(b"X-Slack-Retry-Num", b"1"), (b"x-slack-retry-reason", b"http_timeout")]
    admitted = guard().admit([*extra, *signed(BODY), *retry], BODY)
    assert set(admitted.headers) == {
        "content-type",
        "x-slack-request-timestamp",
        "x-slack-signature",
        "x-slack-retry-num",
        "x-slack-retry-reason",
    }


@pytest.mark.parametrize("secrets", [[], [""], ["short"], [SECRET, ""], [SECRET, OLD_SECRET, SECRET]])
def test_an_empty_secret_refuses_to_start(secrets: list[str]) -> None:
    with pytest.raises(OperatorError, match="signing secret"):
        Guard(secrets, lambda: NOW)
