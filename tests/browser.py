"""Browser checks shared by the site and the viewer: layout, colours, console, keyboard."""

from itertools import product
from typing import Any

from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait

WIDTHS = (360, 768, 1280)
COLOURS = ("light", "dark")


def fits_every_screen(browser: Any, address: str) -> None:
    """Assert that the page fits the screen's width, follows the preferred colour scheme, and logs nothing."""
    browser.get_log("browser")  # clear the messages of earlier pages
    for width, colour in product(WIDTHS, COLOURS):
        media = {"features": [{"name": "prefers-color-scheme", "value": colour}]}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        opened(browser, address, width)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width, (width, colour)
        red, green, blue = browser.execute_script(
            "const of = (e) => getComputedStyle(e).backgroundColor.match(/[.\\d]+/g).map(Number);"
            "const all = [document.body, document.documentElement].map(of);"
            "return (all.find((c) => c.length < 4 || c[3] > 0) || [255, 255, 255]).slice(0, 3)"
        )
        assert (red + green + blue > 380) == (colour == "light"), (width, colour)
        assert [entry["message"] for entry in browser.get_log("browser")] == []
    browser.get("about:blank")
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def opened(browser: Any, address: str, width: int) -> None:
    """Load a page from scratch on a screen of this width."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.get("about:blank")
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(address)  # may return before the page has loaded
    loaded = "return document.readyState === 'complete' && location.href !== 'about:blank'"
    WebDriverWait(browser, 20).until(lambda _: browser.execute_script(loaded))


def reached_by_keyboard(browser: Any, selector: str) -> bool:
    """Whether Tab reaches every visible element that matches the selector; assert that it reaches no hidden one."""
    seen = "e.checkVisibility({visibilityProperty: true})"
    shown = f"[...document.querySelectorAll(arguments[0])].filter(e => {seen} && !e.closest('[inert]'))"
    assert browser.execute_script(f"window.left = new Set({shown}); return left.size", selector)
    for _ in range(500):
        browser.switch_to.active_element.send_keys(Keys.TAB)
        assert browser.execute_script(f"const e = document.activeElement; return {seen}")
        if not browser.execute_script("left.delete(document.activeElement); return left.size"):
            return True
    return False
