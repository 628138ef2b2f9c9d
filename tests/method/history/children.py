"""Run a function in a process of its own."""

import json
import os

from r3_openrlhf.method.errors import HistoryError


def in_child(function):
    """Runs function in a forked child and returns what it returned, as JSON."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer = function()
        except HistoryError as error:
            answer = {"error": str(error)}
        except BaseException as error:
            answer = {"crash": repr(error)}
        os.write(writer, json.dumps(answer).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        answer = json.loads(stream.read())
    os.waitpid(child, 0)
    return answer
