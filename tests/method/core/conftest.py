import json
from pathlib import Path

import pytest

VECTORS = Path(__file__).parents[3].parent / "shared" / "vectors" / "r3_vectors.json"


@pytest.fixture(scope="session")
def vectors():
    """Worked examples that lie beside the project; the most telling ones are written out in the tests as well."""
    if not VECTORS.exists():
        pytest.skip(f"the worked examples ../shared/vectors/{VECTORS.name} are not here")
    return json.loads(VECTORS.read_text())
