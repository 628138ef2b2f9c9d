"""A tool for agents.tools: ask a search server, whose address is in SEARCH_URL.

    SEARCH_URL=http://127.0.0.1:9000/search r3 train experiment=... agents.tools=[examples/own_search.py:search]

An answer that is not JSON, or no answer, is an error that the policy reads.
"""

import json
import os
import urllib.parse
import urllib.request


def search(text):
    """Return the titles and texts that a server finds: GET SEARCH_URL?q=..., [{"title": ..., "text": ...}, ...]."""
    address = f"{os.environ['SEARCH_URL']}?{urllib.parse.urlencode({'q': text.strip()[:200]})}"
    with urllib.request.urlopen(address, timeout=10) as answer:
        found = json.loads(answer.read(10**6))
    return "\n".join(f"{one['title']}: {one['text']}" for one in found[:3]) or "nothing"
