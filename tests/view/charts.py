"""What the charts and lists of a page show."""


def shown(page):
    """Addresses of the groups that are shown, in their order."""
    links = page.locator("#groups tbody tr:not([hidden]) th a")
    return links.evaluate_all("links => links.map(l => l.getAttribute('href'))")


def all_drawn(page):
    """Waits: those out of view are drawn when the browser has time."""
    drawn = "document.querySelectorAll('.chart').length === document.querySelectorAll('.chart canvas').length"
    page.wait_for_function(f"() => {drawn}")
    assert page.locator(".chart").count() > 15
