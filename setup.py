"""What pyproject.toml cannot say: a wheel and a source archive know the commit that they were made from."""

import runpy
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

PACKAGE = Path(__file__).parent / "r3_openrlhf"
# the package itself may not be importable here
COMMIT = runpy.run_path(str(PACKAGE / "runs" / "commit.py"))


def write_commit(package: Path) -> None:
    commit = COMMIT["commit_of"](PACKAGE)
    if commit is None:
        # of an earlier build in the same folder
        (package / COMMIT["FILE"]).unlink(missing_ok=True)
    else:
        (package / COMMIT["FILE"]).write_text(f"{commit}\n", encoding="utf-8")


class BuildPy(build_py):
    def run(self):
        super().run()
        if not self.editable_mode:  # an editable installation asks git
            write_commit(Path(self.build_lib) / PACKAGE.name)


class Sdist(sdist):
    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        write_commit(Path(base_dir) / PACKAGE.name)


setup(cmdclass={"build_py": BuildPy, "sdist": Sdist})
