"""Slack's markup as HTML: what Slack knows becomes a tag, everything else stays text."""

from __future__ import annotations

import pytest

from governance.local.desk import Workspace
from governance.local.desk.render import Renderer
from tests.kit.desk import BOT_TOKEN, PEOPLE, SIGNING_SECRET

RENDERER = Renderer(Workspace("http://127.0.0.1:9/", SIGNING_SECRET, BOT_TOKEN, PEOPLE))
LINK = '<a href="{}" target="_blank" rel="noopener noreferrer">{}</a>'


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("*bold* _soft_ ~gone~ `code`", "<b>bold</b> <i>soft</i> <s>gone</s> <code>code</code>"),
        ("*bold _and_ soft*", "<b>bold <i>and</i> soft</b>"),
        ("snake_case_name 2*3*4", "snake_case_name 2*3*4"),
        ("a\nb", "a<br>b"),
        ("&gt; quoted", "<blockquote>quoted</blockquote>"),
        ("```\n*literal* &lt;\n```", "<pre>*literal* &lt;</pre>"),
        ("<@U0BOB> <@U9>", '<span class="mention">@Bob Brand</span> <span class="mention">@U9</span>'),
        ("<!here>", '<span class="mention loud">@here</span>'),
        ("<https://a.example/?b=1&amp;c|see>", LINK.format("https://a.example/?b=1&amp;c", "see")),
        ("<javascript:alert(1)|see>", "javascript:alert(1)|see"),
        ("<!date^0^{date_num} {time}|never>", "1970-01-01 00:00 UTC"),
        ("<!date^soon^{time}|never>", "never"),
        ("&lt;b&gt; &amp;amp; <b>", "&lt;b&gt; &amp;amp; b"),
        (":warning: :unheard_of:", "⚠️ :unheard_of:"),
        ('`"><script>`', "<code>&#34;&gt;&lt;script&gt;</code>"),
    ],
)
def test_markup_becomes_html(source: str, shown: str) -> None:
    assert RENDERER.mrkdwn(source) == shown


def test_plain_text_is_literal() -> None:
    text = {"type": "plain_text", "text": "*a* <b> :key:\n&amp;", "emoji": False}
    assert RENDERER.text(text) == "*a* &lt;b&gt; :key:<br>&amp;amp;"
    assert RENDERER.text({**text, "text": ":key:", "emoji": True}) == "🔑"


def test_rich_text_is_literal_and_keeps_its_form() -> None:
    def leaf(text: str, **style: bool) -> dict[str, object]:
        return {"type": "text", "text": text, "style": style}

    block = {
        "type": "rich_text",
        "elements": [
            {"type": "rich_text_section", "elements": [leaf("*x*", bold=True)]},
            {"type": "rich_text_preformatted", "elements": [leaf("<a>\nb")]},
            {
                "type": "rich_text_list",
                "style": "ordered",
                "elements": [{"type": "rich_text_section", "elements": [leaf("one")]}],
            },
            {"type": "rich_text_quote", "elements": [{"type": "link", "url": "javascript:x", "text": "y"}]},
        ],
    }
    assert RENDERER.rich(block) == (
        "<div><b>*x*</b></div><pre>&lt;a&gt;<br>b</pre><ol><li><div>one</div></li></ol>"
        "<blockquote>javascript:x</blockquote>"
    )
