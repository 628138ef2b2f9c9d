"""Programs on servers of SandboxFusion's HTTP form (POST /run_code); expected values stay here."""

import itertools
import json
import secrets
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from r3_openrlhf.rewards.code.data import NotPlain, encode
from r3_openrlhf.rewards.code.run import Call, Limits, Outcome

AT_ONCE = 8  # tests of one program
ATTEMPTS = 3
MAX_ANSWER_BYTES = 2**26
_turns = itertools.count()
_CALL = Path(__file__).with_name("call_function.txt").read_text("utf-8")


def run_program(
    url: str, program: str, calls: Sequence[Call], *, limits: Limits, language: str = "python"
) -> list[Outcome]:
    """Do as run.run_program. A server that fails, or does not answer: "unavailable" tests."""
    with ThreadPoolExecutor(AT_ONCE) as threads:
        return list(
            threads.map(lambda call: _outcome(url, program, call, limits, language), calls)
        )


def _outcome(url: str, program: str, call: Call, limits: Limits, language: str) -> Outcome:
    mark = secrets.token_hex(8)
    if call.function is not None:
        program += _CALL.format(name=call.function, mark=mark)
    body = {
        "code": program,
        "language": language,
        "stdin": call.stdin if call.function is None else json.dumps(call.arguments),
        "compile_timeout": limits.seconds_per_test,
        "run_timeout": limits.seconds_per_test,
        "memory_limit_MB": limits.memory_mb,
    }
    answer = _ask(url, body, limits.seconds_per_test)
    result = answer.get("run_result") or {}
    compiled = answer.get("compile_result") or {}
    if answer.get("status") not in ("Success", "Failed") or not isinstance(result, dict):
        return Outcome(status="unavailable", detail=str(answer.get("message") or "")[:200])
    if not result:
        late = isinstance(compiled, dict) and compiled.get("status") == "TimeLimitExceeded"
        return Outcome(
            status="timeout" if late else "syntax_error" if compiled else "unavailable"
        )
    if result.get("status") == "TimeLimitExceeded":
        return Outcome(status="timeout")
    errors, printed = str(result.get("stderr") or ""), str(result.get("stdout") or "")
    if result.get("status") != "Finished":
        return Outcome(status="unavailable", detail=str(result.get("status"))[:200])
    # else its own sys.exit, which is no verdict
    if result.get("return_code") != 0 and errors.strip():
        last = errors.strip().rpartition("\n")[2]
        is_syntax = (
            last.startswith(("SyntaxError", "IndentationError", "TabError"))
            and "Traceback" not in errors
        )
        status = (
            "syntax_error"
            if is_syntax
            else "memory"
            if last.startswith("MemoryError")
            else "error"
        )
        return Outcome(status=status, detail=ascii(last.partition(":")[0])[1:-1][:80])
    if call.function is None:
        return Outcome(status="finished", stdout=printed[: limits.output_bytes])
    try:
        _, text = printed.rsplit(mark, 1)
        return Outcome(status="finished", value=encode(json.loads(text)))
    except (ValueError, RecursionError, NotPlain):  # no mark, or no JSON after it
        return Outcome(status="error", detail="no value")


def _ask(url: str, body: dict[str, Any], limit_s: float) -> dict[str, Any]:
    """Ask the servers in turn, and return the first answer of one that works; {} where there is none."""
    servers, start = url.split(","), next(_turns)
    for attempt in range(max(ATTEMPTS, len(servers))):
        if attempt >= len(servers):
            time.sleep(0.2 * 2**attempt)
        address = f"{servers[(start + attempt) % len(servers)].strip().rstrip('/')}/run_code"
        request = urllib.request.Request(
            address, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=10 * limit_s + 30) as answer:
                content = json.loads(answer.read(MAX_ANSWER_BYTES))
        except (
            OSError,
            ValueError,
            RecursionError,
        ) as error:  # URLError and status are OSErrors
            content = {"message": f"{type(error).__name__}"}
        if isinstance(content, dict) and content.get("status") in ("Success", "Failed"):
            return content
    return content if isinstance(content, dict) else {}
