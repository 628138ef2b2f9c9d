"""A TCP port for a server that is about to start."""

import errno
import random
import socket

# Below the ephemeral range: the kernel hands none of them out between choice and use.
PORTS = range(20000, 32000)
MAX_TRIES = 1000
_taken: list[socket.socket] = []  # closed when this process ends


def free_port() -> int:
    """Return a free one of PORTS, which no other caller gets while this process lives.
    Global random states stay as they are. Raises OSError."""
    draw = random.SystemRandom()
    for _ in range(MAX_TRIES):
        port = draw.choice(PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
        # Linux's abstract names go with their holder, and belong to a network namespace, as ports
        taken = socket.socket(socket.AF_UNIX)
        try:
            taken.bind(f"\0r3_openrlhf/port/{port}")
        except OSError:
            taken.close()
            continue
        _taken.append(taken)
        return port
    raise OSError(
        errno.EADDRNOTAVAIL,
        f"no free TCP port between {PORTS.start} and {PORTS.stop} on {socket.gethostname()}",
    )
