"""Which packages an import loads."""

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
PACKAGE = REPOSITORY / "r3_openrlhf"
FRAMEWORKS = {"ray", "vllm", "deepspeed", "openrlhf", "hydra", "omegaconf", "transformers"}
ENGINES = {"ray", "vllm", "deepspeed", "openrlhf"}


def loaded_by(statement: str, modules: set[str]) -> set[str]:
    """Which of `modules` does this import drag in?"""
    code = (
        f"{statement}; import sys; print(*[m for m in {sorted(modules)} if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], text=True, capture_output=True, cwd=PACKAGE.parent
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())
