"""The OPA server: opa-python-client held to a strict exchange, with one deadline over all of it."""

from __future__ import annotations

import json
import re
import threading
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from opa_client.opa import OpaClient

from engine.canonical import read_json
from engine.errors import CallerError, OperatorError
from engine.gate.verdict import Answer, PolicyFault
from engine.limits import policy_bytes_max, policy_server_connect_seconds, policy_server_total_seconds
from governance import clock
from governance.policy import canary
from governance.policy.bundle import Bundle

ENGINE = "opa-server"
OLDEST = (
    1,
    19,
    0,
)  # 1.9.0 still computed sum([2^63-1, 2^63-1]) = -2, and integers above 64 bits were wrong before 1.19
in_flight_max = 8

_package, _rule = "twokeys.main", "findings"
_params = {"strict-builtin-errors": "true", "provenance": "true", "metrics": "true"}
_envelope_keys = frozenset(("result", "provenance", "metrics", "decision_id"))
_version = re.compile(r"(\d+)\.(\d+)\.(\d+)")
# Which fault an exception of the client, of requests or of urllib3 is, by the first of its bases that is listed.
_faults = {
    "SSLError": "tls",
    "Timeout": "timeout",
    "TimeoutError": "timeout",
    "HTTPError": "refused",
    "ConnectionError": "refused",
    "JSONDecodeError": "malformed_answer",
}


class Server:
    """The Policy that answers from an OPA server which polls the bundle itself. Threads may share it."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        bundle_name: str,
        tls: bool = False,
        ca_file: str = "",
        certificate: tuple[str, str] | None = None,
        token: str = "",
        oldest: tuple[int, int, int] = OLDEST,
        total_seconds: float = policy_server_total_seconds,
        engine: str = ENGINE,
    ) -> None:
        """`bundle_name` is the bundle's name in that server's configuration: its revision is read from each answer."""
        read_seconds = total_seconds - policy_server_connect_seconds
        self._client = OpaClient(
            host=host,
            port=port,
            ssl=(ca_file or True) if tls else False,
            cert=certificate,
            token=token or None,
            retries=0,
            timeout=(policy_server_connect_seconds, read_seconds),
        )
        _harden(self._client, total_seconds)
        self._bundle_name = bundle_name
        self._oldest = oldest
        self._total_seconds = total_seconds
        self._engine = engine
        self._slots = threading.BoundedSemaphore(in_flight_max)
        self._seen_version = ""

    @property
    def version(self) -> str:
        """The version in the last good answer."""
        return self._seen_version

    def load(self, bundle: Bundle) -> None:
        """Make sure that the server answers with this bundle; it gets bundles from where it polls, never from us."""
        canary.prove(self, bundle.revision)

    def evaluate(self, input_bytes: bytes) -> Answer:
        """The findings about one input document."""
        return self._answer(self._exchange(json.loads(input_bytes)))

    def close(self) -> None:
        """Close the idle connections."""
        self._client.close_connection()

    def _exchange(self, document: Any) -> bytes:
        """One exchange in a thread of its own: headers that drip would outlast every timeout inside the client."""
        if not self._slots.acquire(blocking=False):
            raise PolicyFault("breaker_open", f"{in_flight_max} questions are still without an answer")
        call = _Call(self._client, document, self._slots, clock.monotonic() + self._total_seconds)
        threading.Thread(target=call.run, name="opa-query", daemon=True).start()
        if not call.done.wait(self._total_seconds):
            raise PolicyFault("timeout", "the policy server did not answer inside its deadline")
        if call.error is not None:
            raise _fault_of(call.error)
        return call.body

    def _answer(self, body: bytes) -> Answer:
        try:
            envelope = read_json(body, bytes_max=policy_bytes_max, depth_max=12, floats=True)
        except CallerError as error:
            raise PolicyFault("malformed_answer", error.reason) from error
        if type(envelope) is not dict or not _envelope_keys.issuperset(envelope):
            raise PolicyFault("wrong_envelope", "the answer has parts that we do not know")
        if "result" not in envelope:
            raise PolicyFault("undefined", "the policy gives no findings for this input")
        revision, version = self._source(envelope.get("provenance"))
        self._seen_version = version
        findings = json.dumps(envelope["result"], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return Answer(findings.encode("utf-8"), revision, self._engine, version)

    def _source(self, provenance: object) -> tuple[str, str]:
        """The revision and the version that this answer comes from."""
        if type(provenance) is not dict or type(provenance.get("version")) is not str:
            raise PolicyFault("wrong_envelope", "the answer does not say where it comes from")
        numbers = _version.match(provenance["version"])
        if numbers is None or tuple(int(n) for n in numbers.groups()) < self._oldest:
            oldest = ".".join(str(n) for n in self._oldest)
            raise PolicyFault("engine_too_old", f"OPA {provenance['version'][:40]} is older than {oldest}")
        bundles = provenance.get("bundles")
        found = bundles.get(self._bundle_name) if type(bundles) is dict else None
        if type(found) is not dict or type(found.get("revision")) is not str:
            raise PolicyFault("revision_mismatch", f"the server has no active bundle {self._bundle_name}")
        return found["revision"], provenance["version"]


def server_at(url: str, tenant: str, *, token: str = "") -> Server:
    """The server at this URL, in which `{tenant}` stands for the tenant: one server holds the policy of one tenant."""
    parts = urlsplit(url.replace("{tenant}", tenant))
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.query:
        raise OperatorError(
            "is not an http(s) URL of a server", code="bad_setting", field="TWOKEYS_OPA_URL",
            next_step="such as https://opa.internal:8181, or https://opa-{tenant}.internal:8181 for several tenants",
        )  # fmt: skip
    tls = parts.scheme == "https"
    port = parts.port or (443 if tls else 8181)
    return Server(parts.hostname, port, bundle_name="twokeys", tls=tls, token=token)


class _Call:
    """One exchange and what became of it; it outlives its caller when the caller gives up."""

    def __init__(self, client: Any, document: Any, slots: threading.BoundedSemaphore, deadline: float) -> None:
        self.done = threading.Event()
        self.body = b""
        self.error: BaseException | None = None
        self._client = client
        self._document = document
        self._slots = slots
        self._deadline = deadline

    def run(self) -> None:
        with self:
            self.body = self._query()
            if not self.body and clock.monotonic() < self._deadline:
                self.body = self._query(last=True)

    def _query(self, *, last: bool = False) -> bytes:
        """The body of the answer; empty when nobody listened, which is worth one more try inside the deadline."""
        try:
            answer = self._client.query_rule(self._document, _package, _rule, _params)
        except OSError as error:
            if last or "NewConnectionError" not in repr(error):
                raise
            return b""
        if type(answer) is not _Body:
            raise PolicyFault("client_error", "the client did not hand over the answer that was checked")
        return answer.raw

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        # Nothing is swallowed: whatever ended the exchange is raised again by the thread that waits for it.
        self.error = error
        self._slots.release()
        self.done.set()
        return True


class _Body(dict[str, Any]):
    """What the client returns as the answer: the bytes that the hook has checked."""

    def __init__(self, raw: bytes) -> None:
        super().__init__()
        self.raw = raw


def _harden(client: Any, total_seconds: float) -> None:
    """Hold the client's session to what one exchange may be. The private names tie this to opa-python-client 3 and requests 2."""
    session = client._session
    session.trust_env = False  # no proxies, no .netrc, no certificates from the environment
    session.max_redirects = 0
    session.headers["Accept"] = "application/json"
    session.headers["Accept-Encoding"] = "identity"

    def hook(response: Any, *_: object, **__: object) -> Any:
        deadline = clock.monotonic() - response.elapsed.total_seconds() + total_seconds
        body = b""
        try:
            _check_head(response)
            body = _read_body(response, deadline)
        finally:
            if not body:
                response.close()  # a connection with an answer of no use carries no further question
        response._content = body
        response._content_consumed = True
        response.json = lambda: _Body(body)
        return response

    session.hooks["response"].append(hook)


def _check_head(response: Any) -> None:
    if response.is_redirect or response.is_permanent_redirect:
        raise PolicyFault("redirect", "the policy server points elsewhere; an answer from elsewhere is none")
    if response.status_code in (502, 503, 504):
        raise PolicyFault("unavailable", f"the policy server answers {response.status_code}")
    if response.status_code == 500:
        raise PolicyFault("evaluation_failed", "the policy server could not evaluate the policy (500)")
    if response.status_code != 200:
        raise PolicyFault("http_status", f"the policy server answers {response.status_code}")
    if response.headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
        raise PolicyFault("content_type", "the policy server's answer is not JSON")
    if response.headers.get("content-encoding", "identity") != "identity":
        raise PolicyFault("content_encoding", "the policy server's answer is encoded although we asked for it plain")


def _read_body(response: Any, deadline: float) -> bytes:
    body = b""
    while True:
        if clock.monotonic() > deadline:
            raise PolicyFault("timeout", "the policy server's answer came too slowly")
        part = response.raw.read1(4096)
        if not part:
            break
        body += part
        if len(body) > policy_bytes_max:
            raise PolicyFault("too_large", f"the policy server's answer is above {policy_bytes_max} bytes")
    length = response.headers.get("content-length", "")
    if length and length != str(len(body)):
        raise PolicyFault("truncated", "the policy server's answer has another length than it says")
    if not body:
        raise PolicyFault("malformed_answer", "the policy server's answer is empty")
    return body


def _fault_of(error: BaseException) -> BaseException:
    """What the client raised as a fault of ours; what is not an exception of the exchange stays what it is."""
    if isinstance(error, PolicyFault) or not isinstance(error, Exception):
        return error
    names = [base.__name__ for base in type(error).__mro__]
    if "ReadTimeoutError" in names or "ConnectTimeout" in names:
        code = "timeout"
    else:
        code = next((_faults[name] for name in names if name in _faults), "client_error")
    fault = PolicyFault(code, f"the exchange with the policy server failed ({type(error).__name__})")
    fault.__cause__ = error
    return fault
