"""A proxy between two processes that breaks what passes it: it forwards a request and cuts the connection before the reply."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.engine import make_url

from governance import clock
from governance.wiring import Parts
from tests.kit.world import World, without_bucket

SEED = os.environ.get("TWOKEYS_TEST_SEED") or clock.random_hex(4)

REFUSED = b"HTTP/1.1 %s\r\nContent-Type: application/xml\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"


class Proxy:
    """`with Proxy(target, seed=, cut=) as proxy`: a target is a socket's path or a loopback port; so is `place`.

    Each request is doomed with the chance `cut`: it reaches the other side, whose answer nobody gets. `refuse` answers
    everything with an HTTP status of its own instead.
    """

    def __init__(self, target: Path | int, *, seed: object = 0, cut: float = 0.0, at: Path | None = None) -> None:
        self.cut, self.cuts = cut, 0
        self.refuse, self.refused = "", 0
        self._down = False
        self._target, self._at, self._chance = target, at, random.Random(str(seed))
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy")

    @property
    def port(self) -> int:
        return int(self._server.sockets[0].getsockname()[1])

    def __enter__(self) -> Proxy:
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def down(self) -> bool:
        """Whether nobody gets through: what is open is cut, what is new is turned away."""
        return self._down

    @down.setter
    def down(self, down: bool) -> None:
        async def turn() -> None:
            self._down = down
            if down:
                for task in self._tasks:
                    task.cancel()
                await asyncio.gather(*self._tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(turn(), self._loop).result()

    async def _listen(self) -> asyncio.Server:
        if self._at is not None:
            return await asyncio.start_unix_server(self._serve, self._at)
        return await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def _stop(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with suppress(OSError, asyncio.CancelledError):
                if not self._down:
                    await self._pass(reader, writer)
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if isinstance(self._target, Path):
            there, back = await asyncio.open_unix_connection(self._target)
        else:
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
        doomed = asyncio.Event()

        async def requests() -> None:
            first = True
            while data := await reader.read(65_536):
                if self.refuse:
                    self.refused += 1
                    writer.write(REFUSED % (self.refuse.encode(), 0))
                    await writer.drain()
                    return
                # The first that a client of PostgreSQL says is who it is: nothing is lost with that.
                if self._chance.random() < self.cut and not (first and isinstance(self._target, Path)):
                    doomed.set()
                first = False
                back.write(data)
                await back.drain()

        async def answers() -> None:
            while data := await there.read(65_536):
                if doomed.is_set():
                    self.cuts += 1
                    return
                writer.write(data)
                await writer.drain()

        both = [asyncio.ensure_future(requests()), asyncio.ensure_future(answers())]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in both:
                one.cancel()
            await asyncio.gather(*both, return_exceptions=True)
            back.transport.abort()


@pytest.fixture
def through(parts: Parts, world: World, tmp_path: Path) -> Iterator[tuple[World, Proxy]]:
    """The same tenant for a process whose way to the database leads through a proxy."""
    url = make_url(parts.settings.database_url)
    directory = Path(tempfile.mkdtemp(prefix="tk-proxy-"))
    with Proxy(Path(str(url.query["host"])) / ".s.PGSQL.5432", seed=SEED, at=directory / ".s.PGSQL.5432") as proxy:
        proxied = url.update_query_dict({"host": str(directory)}).render_as_string(hide_password=False)
        settings = parts.settings.model_copy(update={"database_url": proxied})
        # Without the replay of each commit: its thirty statements would be cut more often than the commit itself.
        made = Parts(settings, "proxied", tmp_path)
        without_bucket(made)
        yield replace(world, parts=made), proxy
        proxy.cut, proxy.down = 0.0, False
        made.close()
    shutil.rmtree(directory)
