# SPDX-License-Identifier: Apache-2.0
"""Hosts of a test: network namespaces with names and addresses of their own, and a wire between them that delays and
loses packets and can be cut. It needs root, and TUN devices, which this process moves packets between."""

import contextlib
import fcntl
import heapq
import os
import pathlib
import random
import select
import shutil
import signal
import struct
import subprocess
import threading
import time

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
NETWORK = "10.123.77"


def run(*command):
    subprocess.run(command, check=True, capture_output=True, text=True)


class Hosts:
    """Hosts 1 to `count`, with the addresses NETWORK.1 and so on."""

    def __init__(self, count: int, delay: float, loss: float):
        self.delay, self.loss = delay, loss
        self.names = [f"quire{os.getpid()}h{i}" for i in range(1, count + 1)]
        self.addresses = [f"{NETWORK}.{i}" for i in range(1, count + 1)]
        self._cut: set[int] = set()
        self._tuns: list[int] = []
        self._random = random.Random(1)
        self._stop = threading.Event()
        self._made: list[str] = []
        try:
            for name, address in zip(self.names, self.addresses):
                run("ip", "netns", "add", name)
                self._made.append(name)
                self._tuns.append(self._open_tun(name))
                run("ip", "link", "set", name, "netns", name)
                run("ip", "-n", name, "link", "set", "lo", "up")
                run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", name)
                run("ip", "-n", name, "link", "set", name, "up")
        except (OSError, subprocess.CalledProcessError):
            self._remove()
            raise
        self._mover = threading.Thread(target=self._move, daemon=True)
        self._mover.start()

    @staticmethod
    def _open_tun(name: str) -> int:
        tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH14x", name.encode(), IFF_TUN | IFF_NO_PI))
        return tun

    def _move(self):
        """Passes packets on, `delay` seconds later, unless they are lost."""
        waiting: list[tuple[float, int, int, bytes]] = []  # due, order, to, packet
        order = 0
        while not self._stop.is_set():
            timeout = 0.05 if not waiting else max(0.0, waiting[0][0] - time.monotonic())
            for tun in select.select(self._tuns, [], [], min(timeout, 0.05))[0]:
                with contextlib.suppress(BlockingIOError):
                    packet = os.read(tun, 65536)
                    to = packet[19] - 1 if packet[0] >> 4 == 4 else -1
                    if not 0 <= to < len(self._tuns) or {to, self._tuns.index(tun)} & self._cut:
                        continue
                    if self._random.random() >= self.loss:
                        order += 1
                        heapq.heappush(waiting, (time.monotonic() + self.delay, order, to, packet))
            while waiting and waiting[0][0] <= time.monotonic():
                _, _, to, packet = heapq.heappop(waiting)
                with contextlib.suppress(OSError):
                    os.write(self._tuns[to], packet)

    def cut(self, host: int):
        """From now on nothing reaches or leaves this host."""
        self._cut.add(host - 1)

    def on(self, host: int) -> list[str]:
        """Goes in front of a command that shall run on a host."""
        name = self.names[host - 1]
        return ["ip", "netns", "exec", name, "unshare", "--uts", "sh", "-c", f'hostname {name}; exec "$@"', "sh"]

    def write_agent(self, path: pathlib.Path):
        """A stand-in for ssh: AGENT ADDRESS COMMAND..."""
        cases = "".join(f'{address}) set -- {name} "$@" ;;\n' for name, address in zip(self.names, self.addresses))
        path.write_text('#!/bin/sh\naddress=$1\nshift\ncase $address in\n' + cases + 'esac\nname=$1\nshift\n'
                        'exec ip netns exec "$name" unshare --uts sh -c "hostname $name; $*"\n')
        path.chmod(0o755)

    def _remove(self):
        for name in self._made:
            pids = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False).stdout
            for pid in pids.split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        for tun in self._tuns:
            os.close(tun)

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self._stop.set()
        self._mover.join()
        self._remove()


def what_is_missing() -> str:
    """Why there can be no hosts here; "" if there can be."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None or shutil.which("unshare") is None:
        return "ip (Debian: iproute2) or unshare is not installed"
    if not os.path.exists("/dev/net/tun"):
        return "there are no TUN devices here"
    try:
        with Hosts(1, 0, 0):
            return ""
    except (OSError, subprocess.CalledProcessError) as error:
        return f"no network namespace can be made here ({getattr(error, 'stderr', error)})".replace("\n", " ")
