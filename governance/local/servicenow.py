"""A local stand-in of ServiceNow's Table API with a memory, a change log and faults on demand."""

from __future__ import annotations

import base64
import hmac
import json
import os
import re
import sys
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

from governance import clock
from governance.local import standin
from governance.local.children import LOOPBACK, Children

MODULE = "governance.local.servicenow"
TABLES = ("incident", "sys_journal_field", "sys_audit")
JOURNAL_FIELDS = ("work_notes", "comments")
REFERENCE_FIELDS = {"assignment_group": "sys_user_group", "assigned_to": "sys_user", "caller_id": "sys_user"}
FAULTS = ("slow", "crash_before_answer", "drop_connection", "error_500", "too_many_requests")
AFTER_COMMIT = ("crash_before_answer", "drop_connection")
LARGEST_BODY = 1_000_000
DEFAULTS = {
    "state": "1", "impact": "3", "urgency": "3", "priority": "5", "category": "inquiry", "short_description": "", "description": "",
    "assignment_group": "", "assigned_to": "", "caller_id": "", "close_code": "", "close_notes": "", "active": "true",
}  # fmt: skip
DEFAULT_LIMIT = 10_000
RECORD_PATH = re.compile(r"/api/now/table/([a-z_]+)(?:/([^/]+))?")


def start(
    children: Children,
    state_directory: Path,
    *,
    user: str,
    password: str,
    incidents: Iterable[Mapping[str, str]],
    environment: str,
    port: int = 0,
) -> standin.StandIn:
    """Start it; the incidents are used at the first start only, later its state file speaks."""
    seed = [dict(incident) for incident in incidents]
    config = {"environment": environment, "user": user, "password": password, "incidents": seed}
    return standin.start(children, "servicenow", MODULE, state_directory, config, port)


@dataclass(frozen=True)
class Answer:
    """What goes back: a status, a JSON document and ServiceNow's own headers."""

    status: int
    document: Any
    headers: tuple[tuple[str, str], ...] = ()


class Instance:
    """The records and everything that was ever written to them; each change is on disk before it is answered."""

    def __init__(self, state_file: Path, seed: list[dict[str, str]]) -> None:
        self._file = state_file
        self._seed = seed
        self.lock = threading.Lock()
        if state_file.exists():
            self._state: dict[str, Any] = json.loads(state_file.read_text())
        else:
            self.reset()

    def reset(self) -> None:
        """Back to the seed, without history and without faults."""
        self._state = {"incident": {}, "sys_journal_field": {}, "sys_audit": {}, "faults": []}
        for fields in self._seed:
            record = {**DEFAULTS, **fields, **dict.fromkeys(JOURNAL_FIELDS, "")}
            record.setdefault("sys_id", clock.random_hex(16))
            record |= {"sys_class_name": "incident", "sys_mod_count": "0", "sys_updated_by": "system"}
            record |= {"sys_created_on": _now(), "sys_updated_on": _now()}
            self._state["incident"][record["sys_id"]] = record
        self.save()

    def save(self) -> None:
        standin.write_whole(self._file, json.dumps(self._state, indent=1))

    def rows(self, table: str) -> list[dict[str, str]]:
        return list(self._state[table].values())

    def row(self, table: str, sys_id: str) -> dict[str, str] | None:
        found: dict[str, str] | None = self._state[table].get(sys_id)
        return found

    def write(self, sys_id: str, fields: Mapping[str, str], user: str) -> dict[str, str]:
        """Change known fields only, as the real table does; a write that changes nothing leaves no trace."""
        record: dict[str, str] = self._state["incident"][sys_id]
        changes = {
            name: value
            for name, value in fields.items()
            if name in record and not name.startswith("sys_") and value != record[name]
        }
        if not changes:
            return record
        count = str(int(record["sys_mod_count"]) + 1)
        for name, value in changes.items():
            change = {"documentkey": sys_id, "tablename": "incident", "fieldname": name, "user": user}
            change |= {"oldvalue": record[name], "newvalue": value, "record_checkpoint": count}
            self._add("sys_audit", change, user)
            if name in JOURNAL_FIELDS:
                entry = {"element_id": sys_id, "name": "incident", "element": name, "value": value}
                self._add("sys_journal_field", entry, user)
            else:
                record[name] = value
        record.update(sys_mod_count=count, sys_updated_on=_now(), sys_updated_by=user)
        self.save()
        return record

    def add_fault(self, fault: dict[str, Any]) -> None:
        self._state["faults"].append(fault)
        self.save()

    def faults(self) -> list[dict[str, Any]]:
        return list(self._state["faults"])

    def clear_faults(self) -> None:
        self._state["faults"] = []
        self.save()

    def take_fault(self, method: str) -> dict[str, Any]:
        """The first fault planned for this method, counted down on disk before it strikes."""
        for fault in self._state["faults"]:
            if fault["method"] in {method, "*"}:
                fault["times"] -= 1
                self._state["faults"] = [each for each in self._state["faults"] if each["times"] > 0]
                self.save()
                return dict(fault)
        return {"fault": ""}

    def _add(self, table: str, fields: dict[str, str], user: str) -> None:
        sys_id = clock.random_hex(16)
        row = {"sys_id": sys_id, **fields, "sys_created_on": _now(), "sys_created_by": user}
        self._state[table][sys_id] = row


class Handler(BaseHTTPRequestHandler):
    """One connection: authenticate, then the Table API or the control door."""

    protocol_version = "HTTP/1.1"
    timeout = 30
    instance: ClassVar[Instance]
    user: ClassVar[str]
    expected: ClassVar[bytes]

    disable_nagle_algorithm = True  # head and body are two writes; without this each answer waits 40 ms for an ACK

    def do_GET(self) -> None:
        self._handle()

    def do_PATCH(self) -> None:
        self._handle()

    def do_POST(self) -> None:
        self._handle()

    def do_DELETE(self) -> None:
        self._handle()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: request lines of a test would only bury what matters."""

    def _handle(self) -> None:
        size = self.headers.get("Content-Length", "0")
        if not size.isdigit() or int(size) > LARGEST_BODY:
            self.close_connection = True
            self._send(_failure(413, "Request too large", f"at most {LARGEST_BODY} bytes"))
            return
        body = self.rfile.read(int(size))
        address = urlsplit(self.path)
        if address.path == "/_ready":
            self._send(Answer(200, {"ready": True}))
        elif not hmac.compare_digest(self.headers.get("Authorization", "").encode(), self.expected):
            refused = _failure(401, "User Not Authenticated", "Required to provide Auth information")
            self._send(Answer(401, refused.document, (("WWW-Authenticate", 'BASIC realm="Service-now"'),)))
        elif address.path.startswith("/_control/"):
            with self.instance.lock:
                answer = control(self.instance, self.command, address.path, body)
            self._send(answer)
        else:
            self._table(address.path, parse_qs(address.query), body)

    def _table(self, path: str, query: dict[str, list[str]], body: bytes) -> None:
        with self.instance.lock:
            fault = self.instance.take_fault(self.command)
            if fault["fault"] == "error_500":
                answer = _failure(500, "Internal server error", "the stand-in was asked to fail")
            elif fault["fault"] == "too_many_requests":
                limited = _failure(429, "Rate limit exceeded", "the stand-in was asked to refuse")
                answer = Answer(429, limited.document, (("Retry-After", str(fault["seconds"])),))
            else:
                answer = table(self.instance, self.command, path, query, body, self.user)
            if fault["fault"] == "crash_before_answer":
                os._exit(70)  # the write is on disk, the answer is not
        if fault["fault"] == "drop_connection":
            self.close_connection = True
            return
        if fault["fault"] == "slow":
            clock.sleep(float(fault["seconds"]))
        self._send(answer)

    def _send(self, answer: Answer) -> None:
        body = json.dumps(answer.document).encode()
        try:
            self.send_response(answer.status)
            for name, value in (("Content-Type", "application/json;charset=UTF-8"), *answer.headers):
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except ConnectionError:  # a client that gave up waiting is not our error
            self.close_connection = True


def table(instance: Instance, method: str, path: str, query: dict[str, list[str]], body: bytes, user: str) -> Answer:
    """The Table API: list, read and change records."""
    place = RECORD_PATH.fullmatch(path)
    if place is None:
        return _failure(400, "Requested URI does not represent any resource", path)
    name, sys_id = place.group(1), place.group(2)
    if name not in TABLES:
        return _failure(400, f"Invalid table {name}", "")
    if sys_id is None:
        return _list(instance, name, query) if method == "GET" else _failure(405, "Method not allowed", method)
    record = instance.row(name, sys_id)
    if record is None:
        return _failure(404, "No Record found", "Record doesn't exist or ACL restricts the record retrieval")
    if method == "GET":
        return Answer(200, {"result": _shown(record, query)})
    if method != "PATCH" or name != "incident":
        return _failure(405, "Method not allowed", method)
    fields = _fields(body)
    if fields is None:
        return _failure(400, "Exception while reading request", "a JSON object of fields and texts is needed")
    return Answer(200, {"result": _shown(instance.write(sys_id, fields, user), query)})


def control(instance: Instance, method: str, path: str, body: bytes) -> Answer:
    """For tests: plan faults, change a record as somebody else would, read the change log."""
    match method, path:
        case "GET", "/_control/changes":
            return Answer(200, {"result": instance.rows("sys_audit")})
        case "GET", "/_control/faults":
            return Answer(200, {"result": instance.faults()})
        case "DELETE", "/_control/faults":
            instance.clear_faults()
            return Answer(200, {"result": []})
        case "POST", "/_control/reset":
            instance.reset()
            return Answer(200, {"result": instance.rows("incident")})
        case "POST", "/_control/faults":
            return _plan(instance, body)
        case "POST", "/_control/change":
            wanted = _json_object(body)
            fields = wanted.get("fields")
            if instance.row("incident", str(wanted.get("sys_id"))) is None or not isinstance(fields, dict):
                return _failure(400, "sys_id of an incident and fields are needed", "")
            record = instance.write(str(wanted["sys_id"]), fields, str(wanted.get("user", "somebody.else")))
            return Answer(200, {"result": record})
        case _:
            return _failure(404, "No such control", path)


def _plan(instance: Instance, body: bytes) -> Answer:
    wanted = _json_object(body)
    if wanted.get("fault") not in FAULTS:
        return _failure(400, "fault must be one of " + ", ".join(FAULTS), "")
    method = "PATCH" if wanted["fault"] in AFTER_COMMIT else "*"
    plan = {"fault": wanted["fault"], "method": wanted.get("method", method)}
    plan |= {"times": int(wanted.get("times", 1)), "seconds": wanted.get("seconds", 1)}
    instance.add_fault(plan)
    return Answer(200, {"result": plan})


def _list(instance: Instance, name: str, query: dict[str, list[str]]) -> Answer:
    """Rows whose fields equal what the encoded query asks: `field=value`, `field>=value` or `field<=value` joined by `^`."""
    rows = instance.rows(name)
    for condition in filter(None, query.get("sysparm_query", [""])[0].split("^")):
        if condition.startswith("ORDERBY"):
            field = condition.removeprefix("ORDERBYDESC").removeprefix("ORDERBY")
            rows.sort(key=lambda row: row.get(field, ""), reverse=condition.startswith("ORDERBYDESC"))
            continue
        compared = re.fullmatch("([a-z_]+)(>=|<=)(.*)", condition)
        if compared:
            bound = compared[3]
            later = compared[2] == ">="
            rows = [row for row in rows if (row[compared[1]] >= bound if later else row[compared[1]] <= bound)]
            continue
        field, operator, value = condition.partition("=")
        if not operator:
            return _failure(400, "Invalid query", condition)
        rows = [row for row in rows if row.get(field) == value]
    limit = query.get("sysparm_limit", [str(DEFAULT_LIMIT)])[0]
    kept = rows[: int(limit) if limit.isdigit() else DEFAULT_LIMIT]
    return Answer(200, {"result": [_shown(row, query) for row in kept]}, (("X-Total-Count", str(len(rows))),))


def _shown(record: Mapping[str, str], query: dict[str, list[str]]) -> dict[str, Any]:
    """A record as the API shows it: references are links unless the caller asks for bare values."""
    names = [name for name in query.get("sysparm_fields", [""])[0].split(",") if name]
    shown: dict[str, Any] = {name: record[name] for name in names or record if name in record}
    if query.get("sysparm_exclude_reference_link", ["false"])[0] != "true":
        for name, target in REFERENCE_FIELDS.items():
            if shown.get(name):
                shown[name] = {"link": f"/api/now/table/{target}/{shown[name]}", "value": shown[name]}
    return shown


def _fields(body: bytes) -> dict[str, str] | None:
    try:
        document = json.loads(body)
    except ValueError:
        return None
    if not isinstance(document, dict):
        return None
    if not all(isinstance(value, str | int | bool) for value in document.values()):
        return None
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in document.items()}


def _json_object(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _failure(status: int, message: str, detail: str) -> Answer:
    return Answer(status, {"error": {"message": message, "detail": detail}, "status": "failure"})


def _now() -> str:
    return clock.now_utc().strftime("%Y-%m-%d %H:%M:%S")


def main(arguments: list[str]) -> None:
    """Serve until a signal ends the process; nothing is lost, for every change is on disk already."""
    config = standin.read_config(arguments)
    pair = f"{config['user']}:{config['password']}".encode()
    Handler.instance = Instance(Path(config["home"]) / "state.json", config["incidents"])
    Handler.user = config["user"]
    Handler.expected = b"Basic " + base64.b64encode(pair)
    server = ThreadingHTTPServer((LOOPBACK, 0), Handler, bind_and_activate=False)
    server.daemon_threads = True
    server.socket.close()
    server.socket = standin.open_port(config)
    server.server_address = server.socket.getsockname()
    server.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1:])
