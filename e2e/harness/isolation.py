"""A network namespace with loopback only, for this process and its children.

RocketMQ's broker and NameServer bind all interfaces regardless of their configuration. Inside such a namespace they
cannot be reached from outside, and cannot reach anything outside. Root creates one directly, other users within a user
namespace.
"""

import contextlib
import ctypes
import fcntl
import os
import socket
import struct
from pathlib import Path

from harness.errors import IsolationError

CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000
SIOCGIFFLAGS = 0x8913
SIOCSIFFLAGS = 0x8914
SIOCSIFADDR = 0x8916
IFF_UP = 0x1
INTERFACE_REQUEST = struct.Struct("16sH22x")  # name, flags, rest of the union
ADDRESS_REQUEST = struct.Struct("16sHH4s16x")  # name, sockaddr_in (family, port, address), rest of the union
assert INTERFACE_REQUEST.size == ADDRESS_REQUEST.size == 40


def is_isolated() -> bool:
    """Return whether loopback is up and no other interface is (a new namespace can contain tunnel devices that are
    down).
    """
    up = {name for _, name in socket.if_nameindex() if _flags(name) & IFF_UP}
    return up == {"lo"}


def enter() -> None:
    """Move this process into a namespace with only loopback, unless it is in one already.

    Call it from the main thread before starting others: existing threads stay outside.
    Raises IsolationError if the kernel or a sandbox forbids it.
    """
    if is_isolated():
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET) != 0:
        user_id, group_id = os.getuid(), os.getgid()
        if libc.unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0:
            reason = os.strerror(ctypes.get_errno())
            raise IsolationError(
                f"no network namespace can be created ({reason}): run as root, or allow unprivileged user namespaces"
                " (sysctl kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0)"
            )
        _map_own_user(user_id, group_id)
    _loopback_up()
    if not is_isolated():
        raise IsolationError(f"interfaces other than loopback are up in the new namespace: {socket.if_nameindex()}")


def add_address(address: str) -> None:
    """Add a second IPv4 address to this namespace's loopback, for peers that must not appear as this machine itself.

    Raises IsolationError outside such a namespace.
    """
    if not is_isolated():
        raise IsolationError(f"{address} can be added to loopback only in a namespace: use harness.isolated")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        fcntl.ioctl(probe, SIOCSIFADDR, ADDRESS_REQUEST.pack(b"lo:1", socket.AF_INET, 0, socket.inet_aton(address)))


def _map_own_user(user_id: int, group_id: int) -> None:
    """Map the user and group to themselves, so that file ownership is unchanged."""
    process = Path("/proc/self")
    with contextlib.suppress(FileNotFoundError):
        (process / "setgroups").write_text("deny")
    (process / "uid_map").write_text(f"{user_id} {user_id} 1")
    (process / "gid_map").write_text(f"{group_id} {group_id} 1")


def _flags(name: str) -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe, SIOCGIFFLAGS, INTERFACE_REQUEST.pack(name.encode(), 0))
        except OSError:  # the interface vanished since it was listed
            return 0
    flags: int = INTERFACE_REQUEST.unpack(answer)[1]
    return flags


def _loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        fcntl.ioctl(probe, SIOCSIFFLAGS, INTERFACE_REQUEST.pack(b"lo", _flags("lo") | IFF_UP))
