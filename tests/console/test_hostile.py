"""What models, tools and people write cannot act in the console, and CI looks."""

from segue.config import Settings
from tests.support.browsing import DOT, Browsing, Window
from tests.support.conversations import shelf_service
from tests.support.provider import Provider, calls, says

MARKDOWN = """
<script>window.owned = "owned"</script><img src=x onerror="window.owned = 'owned'">
<svg onload="window.owned = 'owned'"></svg><style>body { display: none }</style>

[a link](javascript:window.owned='owned') [data](data:text/html,owned) <a href="javascript:owned">raw</a>
![a picture](https://elsewhere.example/pixel.png) [good](https://good.example/page)

| a | b |
|---|---|
| <iframe src="https://elsewhere.example/frame"></iframe> | `<b>code</b>` |

invoice\u202egnp.exe, zero\u200bwidth

\u2068Rossi\u2069 and `x\u2068y\u2069`
"""
DRAWN = rf"""
\[ a^2 \] and \(\href{{javascript:window.owned='owned'}}{{x}}\) and \(\includegraphics{{https://elsewhere.example/i}}\)

It costs $5 and $6, and is written `\[ a^2 \]`.

```js
const owned = "<img src=x onerror=owned>"
```

![a drawing](data:image/svg+xml;base64,PHN2Zy8+) ![a dot](data:image/png;base64,{DOT})
"""


async def ask(browsing: Browsing, url: str, message: str) -> Window:
    window = await browsing.open(url)
    await window.say(message)
    return window


async def test_hostile_markdown_runs_nothing_and_asks_nobody(
    browsing: Browsing, settings: Settings, provider: Provider
) -> None:
    provider.will(calls(("mcp_find_items", {"query": MARKDOWN})), says(MARKDOWN + DRAWN))
    async with shelf_service(settings) as client:
        window = await ask(browsing, str(client.http.base_url).rstrip("/"), MARKDOWN)
        answer = window.page.locator(".answer")
        await answer.get_by_role("link", name="good").wait_for()
        await window.button("Details of this answer").wait_for()
        links = await answer.get_by_role("link").evaluate_all("all => all.map(each => each.href)")
        assert links == ["https://elsewhere.example/pixel.png", "https://good.example/page"]
        assert await answer.locator("msup").text_content() == "a2"
        await answer.locator("pre .hljs-string", has_text="<img src=x onerror=owned>").wait_for()
        pictures = await answer.locator("img").evaluate_all("all => all.map(each => each.src.slice(0, 5) + each.alt)")
        assert pictures == ["blob:a dot"]
        assert await answer.locator("svg, iframe, script, style, math [href], mglyph").count() == 0
        assert await answer.locator("[style]:not(math, math *), [onerror]").count() == 0
        assert await answer.get_by_text("It costs $5 and $6, and is written \\[ a^2 \\].").count() == 1
        assert await answer.get_by_text("invoice‹U+202E›gnp.exe, zero‹U+200B›width").count() == 1
        assert await answer.get_by_text("\u2068Rossi\u2069 and").count() == 1
        assert await answer.locator("code", has_text="x‹U+2068›y‹U+2069›").count() == 1
        assert await answer.get_by_text('<script>window.owned = "owned"</script>').count() == 1
        assert await window.page.evaluate("window.owned === undefined")
        assert "owned" in await window.page.title()  # a chat's name is text there
        await browsing.close()
