"""`twokeys-witness` as a process with a memory of its own: it remembers across restarts, races and kills, and never cosigns a fork."""

from __future__ import annotations

import http.client
import re
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from engine.errors import OperatorError
from engine.ledger.notes import cosigned_at, read_note, read_vkey, write_vkey
from engine.ledger.witnessing import Refused, Seen, submission_bytes_max, write_submission
from governance.local import children
from governance.witness import Witness, logs_from, server
from tests.engine.ledger.test_witnessing import FORK, KEYS, LOG, ORIGIN, TREE, note
from tests.kit.wait import until

ROOT = Path(__file__).parents[2]
VKEY = write_vkey(ORIGIN, LOG.public)


def asked(old: int, new: int, *, forged: bool = False) -> bytes:
    tree = FORK if forged else TREE
    return write_submission(old, tree.consistency(old, new) if 0 < old < new else (), note(tree, new))


def keys_of(origin: str) -> tuple[object, ...]:
    return KEYS if origin == ORIGIN else ()


def cosign(witness: Witness, body: bytes) -> bytes | Refused:
    return witness.cosign(body, keys_of)  # type: ignore[arg-type]


def test_it_remembers_across_a_restart_and_keeps_its_key(tmp_path: Path) -> None:
    first = Witness(tmp_path / "w", "acme/witness", lambda: 1_787_000_000)
    line = cosign(first, asked(0, 5))
    assert isinstance(line, bytes)
    assert cosigned_at(read_note(note(TREE, 5) + line), read_vkey(first.vkey)) == 1_787_000_000
    again = Witness(tmp_path / "w", "acme/witness")
    assert again.vkey == first.vkey
    assert again.seen(ORIGIN) == Seen(5, TREE.root(5))
    forged = cosign(again, asked(0, 5, forged=True))
    assert isinstance(forged, Refused)
    assert (forged.status, forged.seen) == (409, 5)
    forged = cosign(again, asked(5, 9, forged=True))
    assert isinstance(forged, Refused)
    assert forged.status == 422
    assert isinstance(cosign(again, asked(5, 9)), bytes)


def test_who_lost_the_answer_asks_again_and_gets_one(tmp_path: Path) -> None:
    """Killed between memory and answer: the sender is told the size and asks once more from there."""
    witness = Witness(tmp_path / "w", "acme/witness")
    cosign(witness, asked(0, 5))
    late = cosign(witness, asked(0, 5))
    assert isinstance(late, Refused)
    assert (late.status, late.seen) == (409, 5)
    assert isinstance(cosign(witness, asked(5, 5)), bytes)


def test_two_forks_that_race_are_one_history(tmp_path: Path) -> None:
    """Also when two witnesses were started on the same state by mistake."""
    both = [Witness(tmp_path / "w", "acme/witness") for _ in range(2)]
    barrier = threading.Barrier(8)

    def ask(n: int) -> bytes | Refused:
        barrier.wait()
        return cosign(both[n % 2], asked(0, 4 + n // 2, forged=bool(n % 2)))

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(ask, range(8)))
    assert sum(isinstance(one, bytes) for one in found) == 1
    assert {one.status for one in found if isinstance(one, Refused)} == {409}


def test_its_key_is_its_own_and_a_broken_one_is_refused(tmp_path: Path) -> None:
    Witness(tmp_path / "w", "acme/witness")
    file = tmp_path / "w" / "key"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "w").stat().st_mode) == 0o700
    file.write_text("not a key")
    with pytest.raises(OperatorError, match="holds no key"):
        Witness(tmp_path / "w", "acme/witness")


def test_a_witness_key_is_no_logs_key(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="witness's key"):
        logs_from([Witness(tmp_path / "w", "acme/witness").vkey])


# --- the door ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def door(tmp_path: Path) -> Iterator[int]:
    opened = server(Witness(tmp_path / "w", "acme/witness"), logs_from([VKEY]), "127.0.0.1", 0)
    thread = threading.Thread(target=opened.serve_forever, args=(0.02,))
    thread.start()
    yield opened.server_address[1]
    opened.shutdown()
    thread.join()
    opened.server_close()


def post(port: int, body: bytes, path: str = "/add-checkpoint", **headers: str) -> tuple[int, str, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("POST", path, body, headers)
    answer = connection.getresponse()
    found = answer.status, answer.getheader("content-type", ""), answer.read()
    connection.close()
    return found


def test_the_door_answers_as_the_specification_says(door: int) -> None:
    status, _, line = post(door, asked(0, 5))
    assert (status, line.startswith("— acme/witness ".encode())) == (200, True)
    assert post(door, asked(0, 9)) == (409, "text/x.tlog.size", b"5\n")
    assert post(door, asked(5, 9, forged=True))[0] == 422
    assert post(door, write_submission(0, (), note(TREE, 5, origin="other/log/t/0")))[0] == 404
    assert post(door, b"nonsense")[0] == 400
    assert post(door, asked(5, 9), path="/other")[0] == 404
    assert post(door, b"x" * (submission_bytes_max + 1))[0] == 400
    assert post(door, asked(5, 9))[0] == 200


def test_a_length_that_is_none_is_refused(door: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", door, timeout=10)
    connection.putrequest("POST", "/add-checkpoint")
    connection.putheader("content-length", "-5")
    connection.endheaders()
    assert connection.getresponse().status == 400
    connection.close()


# --- the process ------------------------------------------------------------------------------------------------------


def start(tmp_path: Path, port: int, *more: str) -> subprocess.Popen[str]:
    policy = tmp_path / "policy.txt"
    policy.write_text(f"# a trust policy\nlog {VKEY}\nquorum none\n")
    argv = [sys.executable, "-c", "from governance.cli.witness import main; main()"]
    argv += [
        "--state",
        str(tmp_path / "w"),
        "--name",
        "acme/witness",
        "--trust",
        str(policy),
        "--port",
        str(port),
        *more,
    ]
    return subprocess.Popen(
        argv, cwd=ROOT, env={"PATH": "/usr/bin"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_the_command_needs_no_settings_prints_its_key_and_stops_gracefully(tmp_path: Path) -> None:
    port = children.free_port()
    process = start(tmp_path, port)
    try:
        until(lambda: children.answers(port, "/healthz") or process.poll() is not None, 30)
        assert post(port, asked(0, 5))[0] == 200
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=20)
        process = start(tmp_path, port)
        until(lambda: children.answers(port, "/healthz") or process.poll() is not None, 30)
        assert post(port, asked(0, 5, forged=True))[0] == 409
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert re.fullmatch(r"witness acme/witness acme/witness\+[0-9a-f]{8}\+[A-Za-z0-9+/=]{44}\n", out)
    assert "Traceback" not in err


def test_a_witness_of_no_log_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("quorum none\n")
    argv = [
        sys.executable,
        "-c",
        "from governance.cli.witness import main; main()",
        "--state",
        str(tmp_path / "w"),
        "--name",
        "a/w",
    ]
    done = subprocess.run(
        [*argv, "--trust", str(tmp_path / "empty.txt")], cwd=ROOT, env={}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 3
    assert "no log is named" in done.stderr
