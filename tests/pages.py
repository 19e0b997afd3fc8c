"""What tests look for in a page."""

import re
from html.parser import HTMLParser


class Reader(HTMLParser):
    """Tags with their attributes, and the texts of scripts."""

    def __init__(self):
        super().__init__()
        self.tags, self.scripts = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data):
        if self.tags and self.tags[-1][0] == "script":
            self.scripts[-1] += data


def read_page(page):
    reader = Reader()
    reader.feed(page.read_text(encoding="utf-8"))
    return reader


def own_markup(page):
    """The page without its scripts."""
    return re.sub(r"<script.*?</script>", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def loads_nothing(parsed):
    """Nothing comes from a network: no tag asks for anything, and the policy would not let it."""
    asking = [tag for tag, attrs in parsed.tags if attrs.keys() & {"src", "srcset", "action", "data"}]
    links = [attrs["href"] for _, attrs in parsed.tags if not attrs.get("href", "#").startswith("#")]
    policy = next(
        attrs["content"] for tag, attrs in parsed.tags if attrs.get("http-equiv") == "Content-Security-Policy"
    )
    strict = policy.startswith("default-src 'none'; script-src 'sha256-") and "unsafe-inline'; img" in policy
    return not asking and not links and strict


def runs_nothing_foreign(parsed):
    """No markup but the page's own: no image, no handler, and the three scripts that a page has."""
    handlers = [name for _, attrs in parsed.tags for name in attrs if name.startswith("on")]
    return "img" not in {tag for tag, _ in parsed.tags} and len(parsed.scripts) == 3 and not handlers
