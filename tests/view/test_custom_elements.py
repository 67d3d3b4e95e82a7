"""The stand-in for Custom Elements v0 by itself, in a browser that has none of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tdiag.view.charts import STATIC

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PAGE = f"""<!doctype html><x-early><x-late></x-late></x-early><div id="here"></div>
<script>
window.ready = 0;
window.addEventListener("WebComponentsReady", () => ready++);
{(STATIC / "custom_elements_v0.js").read_text()}
window.heard = [];
window.here = document.querySelector("#here");
window.prototype = (base = HTMLElement) => {{
    const made = Object.create(base.prototype);
    for (const word of ["created", "attached", "detached", "attributeChanged"])
        made[word + "Callback"] = function (...words) {{
            heard.push([word, this.id || this.localName, ...words].join(" "));
        }};
    return made;
}};
window.since = () => new Promise((done) => setTimeout(() => done(heard.splice(0))));
</script>"""


@pytest.fixture(scope="module")
def blank(browser: Browser) -> Iterator[Page]:
    page = browser.new_page()
    yield page
    page.close()


@pytest.fixture
def tab(blank: Page) -> Page:
    """A document of its own: a name can be registered only once."""
    blank.goto("about:blank")
    blank.set_content(PAGE)
    return blank


def heard(tab: Page, script: str) -> list[str]:
    tab.evaluate(f"() => {{ {script} }}")
    return tab.evaluate("since()")  # type: ignore[no-any-return]


def test_elements_of_the_parser_are_upgraded_when_their_name_is_registered(tab: Page) -> None:
    register = "document.registerElement('{0}', {{prototype: prototype()}})"
    assert heard(tab, register.format("x-late")) == ["created x-late", "attached x-late"]
    assert heard(tab, register.format("x-early")) == ["created x-early", "attached x-early"]
    assert tab.evaluate("ready") == 1


def test_created_attached_moved_detached(tab: Page) -> None:
    said = heard(
        tab,
        "window.Mine = document.registerElement('x-a', {prototype: prototype()});"
        "window.a = new Mine();"
        "heard.push(String(a instanceof Mine && a.constructor === Mine))",
    )
    assert said == ["created x-a", "true"]
    assert heard(tab, "here.append(a)") == ["attached x-a"]
    assert heard(tab, "document.body.append(a)") == []
    assert heard(tab, "a.remove()") == ["detached x-a"]
    assert heard(tab, "here.append(a); CustomElements.takeRecords(); heard.push('then')") == [
        "attached x-a",
        "then",
    ]


def test_attributes(tab: Page) -> None:
    said = heard(
        tab,
        "document.registerElement('x-a', {prototype: prototype()});"
        "window.a = document.createElement('x-a');"
        "a.setAttribute('Word', 1); a.setAttribute('word', 2);"
        "a.removeAttribute('word'); a.removeAttribute('word');",
    )
    assert said == [
        "created x-a",
        "attributeChanged x-a word  1",
        "attributeChanged x-a word 1 2",
        "attributeChanged x-a word 2 ",
    ]


def test_copies_of_a_template_are_upgraded_at_once_and_the_template_is_not(tab: Page) -> None:
    said = heard(
        tab,
        "document.registerElement('x-a', {prototype: prototype()});"
        "const template = document.createElement('template');"
        "template.innerHTML = '<x-a id=one><x-a id=two></x-a></x-a>';"
        "template.content.cloneNode(true); heard.push('imported');"
        "const made = document.importNode(template.content, true); heard.push('cloned');"
        "made.firstChild.cloneNode(true)",
    )
    both = ["created one", "created two"]
    assert said == ["imported", *both, "cloned", *both]
    assert heard(tab, "here.innerHTML = '<p><x-a id=three></x-a></p>'") == [
        "created three",
        "attached three",
    ]


def test_an_extended_tag_is_that_tag_only_where_it_says_so(tab: Page) -> None:
    said = heard(
        tab,
        "const made = prototype(HTMLTemplateElement);"
        "window.Mine = document.registerElement('x-t', {prototype: made, extends: 'template'});"
        "const [a, b] = [new Mine(), document.createElement('template', 'x-t')];"
        "heard.push([a, b].every((one) => one.content && one instanceof Mine));"
        "document.createElement('template'); document.createElement('x-t');"
        "here.innerHTML = '<template is=x-t></template>'",
    )
    assert said == [
        "created template",
        "created template",
        True,
        "created template",
        "attached template",
    ]


def test_what_a_callback_throws_stops_nothing(tab: Page) -> None:
    faults: list[str] = []
    tab.on("pageerror", lambda error: faults.append(str(error)))
    said = heard(
        tab,
        "const bad = prototype(); bad.attachedCallback = () => { throw Error('mine') };"
        "document.registerElement('x-bad', {prototype: bad});"
        "document.registerElement('x-good', {prototype: prototype()});"
        "here.append(document.createElement('x-bad'), document.createElement('x-good'))",
    )
    assert said == ["created x-bad", "created x-good", "attached x-good"]
    assert faults == ["mine"]


def test_a_shadow_root_shows_its_hosts_children(tab: Page) -> None:
    heard(
        tab,
        "const host = document.createElement('overlay'); host.textContent = 'inside';"
        "host.createShadowRoot().innerHTML = '<b>[</b><content></content><b>]</b>';"
        "here.append(host)",
    )
    assert tab.locator("#here").evaluate("(here) => here.firstChild.shadowRoot.textContent") == "[]"
    assert tab.locator("#here").get_by_text("inside").bounding_box() is not None
    assert tab.evaluate("here.firstChild.firstChild.assignedSlot?.localName") == "slot"
