"""An engine that waits in one weight sync for a file, for tests that do something to a run meanwhile. Loaded inside the vLLM worker."""

import os
import time
from pathlib import Path

from r3_openrlhf.machine.cpu.vllm_worker import CpuWorkerWrap
from tests.stack.training import GATE, SYNC


class Gated(CpuWorkerWrap):
    _first, _syncs = None, 0

    def update_weight(self, name, dtype, shape, empty_cache=False):
        self._first = self._first or name
        if name == self._first:
            self._syncs += 1
            while self._syncs == int(os.environ[SYNC]) and not Path(os.environ[GATE]).exists():
                time.sleep(0.05)  # only the pace of asking
        return super().update_weight(name, dtype, shape, empty_cache)
