"""Which tests are long: `make test-fast` leaves out the functions and files that stand in tests/long_tests.txt.

`make test-long SECONDS=0.7` runs every test and writes the list anew.
"""

NAME = "tests/long_tests.txt"


def pytest_addoption(parser):
    help_ = f"write what took as long as this into {NAME}"
    parser.addoption("--write-long-tests", type=float, metavar="SECONDS", help=help_)


def function_of(nodeid: str) -> str:
    """All cases of a parametrised test together."""
    return nodeid.partition("[")[0]


def file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def pytest_collection_modifyitems(config, items):
    long = listed(config)
    for item in items:
        if long & {function_of(item.nodeid), file_of(item.nodeid)}:
            item.add_marker("long")


def listed(config) -> set[str]:
    """The functions and files of the list."""
    path = config.rootpath / NAME
    return set(path.read_text().split()) if path.exists() else set()


def long_ones(reports, limit: float) -> set[str]:
    """A function one of whose calls took `limit` seconds, and a file where what its tests share took four times as long."""
    files = {file_of(report.nodeid) for report in reports if report.when == "setup" and report.duration >= 4 * limit}
    calls = [report for report in reports if report.when == "call" and file_of(report.nodeid) not in files]
    return files | {function_of(report.nodeid) for report in calls if report.duration >= limit}


def pytest_terminal_summary(terminalreporter, config):
    limit = config.getoption("--write-long-tests")
    if limit is not None:
        reports = [found for kind in terminalreporter.stats.values() for found in kind if hasattr(found, "duration")]
        (config.rootpath / NAME).write_text("".join(f"{name}\n" for name in sorted(long_ones(reports, limit))))
