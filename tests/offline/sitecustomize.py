"""On the PYTHONPATH of every test run: connections leave this machine from no kernel, child process or worker.

pytest plugins that block sockets reach the pytest process alone; Python imports this module in every interpreter.
"""

import ipaddress
import socket
from typing import Any


class NetworkBlockedError(OSError):
    """Something tried to reach the network in a test."""


def _refuse(host: Any) -> None:
    name = host.decode() if isinstance(host, bytes) else host
    if name in (None, "", "localhost", socket.gethostname()):
        return
    try:
        if ipaddress.ip_address(str(name).partition("%")[0]).is_loopback or str(name) in ("0.0.0.0", "::"):
            return
    except ValueError:
        pass
    raise NetworkBlockedError(f"tests reach no network, but something tried to connect to {name}")


def _guarded(method: Any) -> Any:
    def call(self: socket.socket, address: Any, *arguments: Any) -> Any:
        if self.family in (socket.AF_INET, socket.AF_INET6):
            _refuse(address[0])
        return method(self, address, *arguments)

    return call


_getaddrinfo = socket.getaddrinfo


def _guarded_getaddrinfo(host: Any, *arguments: Any, **keywords: Any) -> Any:
    _refuse(host)
    return _getaddrinfo(host, *arguments, **keywords)


socket.socket.connect = _guarded(socket.socket.connect)  # type: ignore[method-assign]
socket.socket.connect_ex = _guarded(socket.socket.connect_ex)  # type: ignore[method-assign]
socket.getaddrinfo = _guarded_getaddrinfo
