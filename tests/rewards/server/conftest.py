import pytest

from .service import running


@pytest.fixture(scope="session")
def service():
    """One service for the tests that leave it as they find it."""
    with running("--timeout", "2", "--workers", "2") as service:
        yield service
