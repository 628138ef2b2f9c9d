"""A Ray that starts on a slow machine, too: `python -m r3_openrlhf.machine.ray_start start ...` is
`ray start ...`, and a `ray.init` that starts a Ray does it in `patient_raylet()`.

A node's raylet starts two agents, Python programs with many imports, and waits 15 s for the ports
of each, a limit that cannot be set. Then it aborts, and `ray start` says that "the current node
timed out during startup" (ray-project/ray issue 65983). Busy processors or a slow shared file
system are enough. A raylet that knows the ports does not wait. Ray has options for all four, and
forgets the fourth."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from r3_openrlhf.machine.ports import free_port

if TYPE_CHECKING:
    from ray._private.services import ProcessInfo

# Arguments of ray/_private/services.py:1587, `start_raylet`.
_DASHBOARD_PORTS = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port")
_NO_PORT = -1  # as ray/dashboard/agent.py:92 writes where there is no such server
# Of a raylet; a user's values count. It waits 30 s for the agent of a first runtime_env, then
# aborts. An actor's children end with it: vLLM's EngineCore would keep a GPU's memory.
_ENVIRONMENT = {
    "RAY_agent_register_timeout_ms": "300000",
    "RAY_process_group_cleanup_enabled": "true",
}


def authentication() -> dict[str, str]:
    """Return the environment to talk to one Ray: without its token neither tasks nor key store are open."""
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


def of_this_machine() -> dict[str, str]:
    """Return the environment of a Ray of one node. A variable for Windows and macOS makes it take 127.0.0.1
    (ray/_private/services.py:791), and listen there alone. Ray reads them when it is imported.

    A run goes on without its key store; after 60 s, the default, Ray would end it without a word."""
    local = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    return {
        **authentication(),
        **local,
        "RAY_gcs_rpc_server_reconnect_timeout_s": str(7 * 86_400),
    }


@contextlib.contextmanager
def patient_raylet(*, common_port: int | None = None) -> Iterator[None]:
    """Let raylets of this process know their agents' ports: the given, else free ones.
    Without a dashboard's libraries (`get_dashboard_dependency_error`) three have no server.

    common_port: an agent's port that no one set, the same for all Rays of a machine."""
    from ray._private import ray_constants, services, utils

    start_raylet, start_process = services.start_raylet, services.start_ray_process

    def start_raylet_with_ports(*arguments: Any, **options: Any) -> ProcessInfo:
        dashboard = utils.get_dashboard_dependency_error() is None
        for name in (
            (*_DASHBOARD_PORTS, "runtime_env_agent_port")
            if dashboard
            else ("runtime_env_agent_port",)
        ):
            port = options.get(name)
            options[name] = port if port and port != common_port else free_port()
        patience = {name: os.environ.get(name, value) for name, value in _ENVIRONMENT.items()}
        options["env_updates"] = {**(options.get("env_updates") or {}), **patience}
        known = {name: options[name] if dashboard else _NO_PORT for name in _DASHBOARD_PORTS}
        # the last of a name counts
        flags = [f"--{name}={port}" for name, port in known.items()]

        def start_process_with_flags(
            command: list[str], process_type: str, *positional: object, **more: object
        ) -> ProcessInfo:
            if process_type == ray_constants.PROCESS_TYPE_RAYLET:
                command = [*command, *flags]
            return start_process(command, process_type, *positional, **more)

        with patch.multiple(services, start_ray_process=start_process_with_flags):
            return start_raylet(*arguments, **options)

    with patch.multiple(services, start_raylet=start_raylet_with_ports):
        yield


def main() -> None:
    """Run Ray's command line."""
    from ray.scripts import scripts

    with patient_raylet():
        scripts.main()


if __name__ == "__main__":
    main()
