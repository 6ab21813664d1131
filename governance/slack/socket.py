"""Socket Mode: for whoever is behind a firewall, the same clicks arrive over a connection that we open to Slack."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from slack_bolt.adapter.socket_mode.builtin import SocketModeHandler
from slack_sdk.errors import SlackApiError, SlackClientError

from governance import log
from governance.slack.api import check_base, client
from governance.slack.clicks import Clicks
from governance.slack.endpoint import bolt_app

open_seconds_max = 10
again_seconds_max = 60.0
_say = log.get("slack")
_quiet = logging.getLogger("twokeys.slack.socket")
_quiet.setLevel(logging.CRITICAL)  # the SDK logs whole payloads, with tokens and response addresses


class Socket:
    """One connection, opened again whenever it ends; its handlers are those of the HTTP door, behind the same checks.

    There is nothing to verify of what arrives: the connection itself is Slack's, by its certificate and our app token.
    """

    def __init__(
        self, clicks: Clicks, app_token: str, signing_secret: str, count: Callable[[str], None], *, base_url: str, allow_local: bool
    ) -> None:  # fmt: skip
        web = client(check_base(base_url, allow_local=allow_local), app_token, open_seconds_max)
        app = bolt_app(clicks, signing_secret, count)
        self._handler = SocketModeHandler(app, app_token, logger=_quiet, web_client=web)
        self._handler.client.proxy = None  # the constructor has put the environment's proxy here
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._open, name="slack-socket", daemon=True)

    def start(self) -> None:
        """Connect, and keep trying while Slack does not answer."""
        self._thread.start()

    def close(self) -> None:
        """End the connection; what is being answered is answered."""
        self._closed.set()
        self._thread.join(timeout=open_seconds_max)
        self._handler.client.close()

    def _open(self) -> None:
        pause = 1.0
        while not self._closed.is_set():
            try:
                self._handler.client.connect()
            except (SlackApiError, SlackClientError, OSError) as error:
                word = error.response.get("error") if isinstance(error, SlackApiError) else type(error).__name__
                _say.warning("slack gives no connection", reason=str(word)[:80])
                self._closed.wait(pause)
                pause = min(2 * pause, again_seconds_max)
            else:
                _say.info("connected to slack")
                return
