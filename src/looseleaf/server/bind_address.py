"""Where the server listens: the socket, and which addresses are too public to listen on without API keys."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket

from looseleaf.errors import ConfigurationError

_BACKLOG = 2048
_KEEP_ALIVE = {socket.TCP_KEEPIDLE: 60, socket.TCP_KEEPINTVL: 15, socket.TCP_KEEPCNT: 4}
"""Seconds of silence before the kernel asks whether a client is still there, seconds between questions, and how many
without an answer end the connection."""


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it: "localhost", 127.0.0.0/8 or ::1."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]").split("%")[0]).is_loopback
    except ValueError:
        return False


def check_exposure(host: str, *, has_keys: bool, allow_unauthenticated: bool) -> None:
    """Raises `ConfigurationError` if others could reach the server and nothing says who they must be."""
    if not (has_keys or allow_unauthenticated or is_loopback(host)):
        raise ConfigurationError(
            f"{host} can be reached from other machines, and there are no API keys.",
            hint="Give --api-key-file or --api-key, or --allow-unauthenticated if whoever can connect may use it.",
        )


def bind(host: str, port: int) -> socket.socket:
    """A bound socket, not yet listening. Raises `ConfigurationError` for what cannot be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise ConfigurationError(f"{host!r} is no address of this machine: {error.strerror or error}.") from error
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # connections inherit these
        for option, value in _KEEP_ALIVE.items():
            bound.setsockopt(socket.IPPROTO_TCP, option, value)
        bound.bind(address)
        bound.listen(_BACKLOG)  # two sockets may be bound to one port, but not listen on it
    except OSError as error:
        bound.close()
        hint = {
            errno.EADDRINUSE: "Something else listens there. Choose another --port; 0 takes any that is free.",
            errno.EACCES: "Ports below 1024 are for the system; choose another --port.",
            errno.EADDRNOTAVAIL: "Use an address of this machine, such as 127.0.0.1.",
        }.get(error.errno or 0, "")
        what = os.strerror(error.errno) if error.errno else str(error)
        raise ConfigurationError(f"Cannot listen on {host} port {port}: {what.lower()}.", hint=hint) from error
    bound.setblocking(False)
    return bound


def url_of(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
