"""Posts signed bytes to an address that a tenant named: never to a private one, past no proxy, after no redirect, read to a bound."""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from typing import NoReturn
from urllib.parse import SplitResult, urlsplit

from engine.errors import CallerError, OperatorError
from governance import clock
from governance.keys import hook_signature

connect_seconds = 3.0
seconds_max = 20.0
answer_bytes_max = 65_536
url_chars_max = 2_000

Resolve = Callable[[str, int], Sequence[str]]
# 64:ff9b::/96 leads to any IPv4 address behind a translator, 2002::/16 and 2001::/32 through a tunnel.
_tunnels = tuple(ipaddress.ip_network(one) for one in ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32"))


def check_url(url: str, *, allow_local: bool, resolve: Resolve | None = None) -> None:
    """Return when something may be posted there; the host is looked up now, and again before every post."""
    _addresses(_parts(url, allow_local), allow_local, resolve or _resolve)


def is_public(address: str) -> bool:
    """Whether this is an address of the open internet: not of this machine, a private network, a provider's own, or a tunnel."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return is_public(str(found.ipv4_mapped))
        if any(found in tunnel for tunnel in _tunnels):
            return False
    return found.is_global and not found.is_multicast


def post(
    url: str,
    body: bytes,
    headers: dict[str, str],
    secret: str,
    *,
    allow_local: bool,
    send_by: float = float("inf"),
    resolve: Resolve | None = None,
) -> None:
    """Post once, and not after `send_by`; OperatorError unless the other side said that it has it."""
    parts = _parts(url, allow_local)
    addresses = _addresses(parts, allow_local, resolve or _resolve)
    stamp = str(clock.epoch_seconds())
    signed = {"X-Twokeys-Timestamp": stamp, "X-Twokeys-Signature": hook_signature(secret, stamp, body)}
    connection = _Pinned(parts, addresses)
    # The socket's own timeout begins again with every byte; a trickle would hold everybody else's exports.
    late = threading.Timer(seconds_max, connection.cut)
    late.daemon = True
    late.start()
    try:
        connection.connect()
        if clock.boottime() > send_by:
            _failed("the lease ran out before anything was sent")
        connection.request("POST", _path(parts), body, {**headers, **signed, "User-Agent": "twokeys"})
        answer = connection.getresponse()
        if len(answer.read(answer_bytes_max + 1)) > answer_bytes_max:
            _failed(f"the answer passes {answer_bytes_max} bytes")
    except (OSError, http.client.HTTPException) as error:
        _failed(f"{type(error).__name__}: {error}"[:300])
    finally:
        late.cancel()
        connection.close()
    if connection.was_cut:
        _failed(f"the answer takes longer than {seconds_max:g} s")
    if not 200 <= answer.status < 300:
        _failed(f"answered {answer.status}")


class _Pinned(http.client.HTTPConnection):
    """To exactly the addresses that were checked; the certificate must be of the host that was named."""

    def __init__(self, parts: SplitResult, addresses: Sequence[str]) -> None:
        self._secure = parts.scheme == "https"
        self.default_port = 443 if self._secure else 80
        assert parts.hostname is not None
        super().__init__(parts.hostname, parts.port, timeout=seconds_max)
        self._addresses = addresses
        self.was_cut = False

    def connect(self) -> None:
        """The first address that takes us."""
        for n, address in enumerate(self._addresses):
            try:
                self.sock = socket.create_connection((address, self.port), connect_seconds)
                break
            except OSError:
                if n == len(self._addresses) - 1:
                    raise
        if self._secure:
            self.sock = ssl.create_default_context().wrap_socket(self.sock, server_hostname=self.host)
        self.sock.settimeout(seconds_max)

    def cut(self) -> None:
        """Whatever is going on, it is over; an answer that ends here was none."""
        self.was_cut = True
        with contextlib.suppress(OSError, AttributeError):
            self.sock.shutdown(socket.SHUT_RDWR)


def _parts(url: str, allow_local: bool) -> SplitResult:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        _bad("is not a URL")
    if not url.isascii() or not url.isprintable() or " " in url or len(url) > url_chars_max:
        _bad("is not a URL", "write it in ASCII, without spaces")
    if parts.scheme != "https" and not (allow_local and parts.scheme == "http"):
        _bad("is not https://")
    if not parts.hostname or port == 0:
        _bad("names no host")
    if parts.username is not None or parts.password is not None or parts.fragment:
        _bad("holds a password or a fragment", "the signature says who we are; leave both out")
    return parts


def _addresses(parts: SplitResult, allow_local: bool, resolve: Resolve) -> Sequence[str]:
    assert parts.hostname is not None
    try:
        found = resolve(parts.hostname, parts.port or 443)
    except (OSError, UnicodeError):
        _bad(f"{parts.hostname} has no address")
    if not found:
        _bad(f"{parts.hostname} has no address")
    # One private address among public ones is how a name is made to lead elsewhere on the second look.
    private = [one for one in found if not is_public(one)]
    if private and not allow_local:
        _bad(
            f"{parts.hostname} is {private[0]}, which is no address of the open internet",
            "name a host that the internet can reach; nothing is posted into this network",
        )
    return found


def _resolve(host: str, port: int) -> Sequence[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(one[4][0]) for one in found))


def _path(parts: SplitResult) -> str:
    return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def _bad(reason: str, next_step: str = "for example https://siem.example.com/twokeys") -> NoReturn:
    raise CallerError(reason, code="bad_url", field="url", next_step=next_step)


def _failed(reason: str) -> NoReturn:
    raise OperatorError(reason, code="not_delivered", next_step="it is tried again; look at the other side")
