import json
from pathlib import Path

import pytest
from hypothesis import settings

# A law is not a stopwatch: on a busy machine one example may take longer than Hypothesis's 200 ms.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")

VECTORS = Path(__file__).parents[2].parent / "shared" / "vectors" / "r3_vectors.json"


@pytest.fixture(scope="session")
def vectors():
    """Worked examples that lie beside the project; the most telling ones are written out in the tests as well."""
    if not VECTORS.exists():
        pytest.skip(f"the worked examples ../shared/vectors/{VECTORS.name} are not here")
    return json.loads(VECTORS.read_text())
