"""A training server on loopback: a real sshd with its own keys, behind a proxy that can cut a connection."""

from __future__ import annotations

import os
import selectors
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from tests.conftest import ROOT

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
MISSING = [tool for tool in ("ssh", "ssh-keygen", "rsync", "git", "dvc", "make", "flock") if not shutil.which(tool)]
if not SSHD:
    MISSING.append("sshd (openssh-server)")
_HOST = "127.0.0.1"


class Proxy:
    """Passes connections on to the server; one of them can be cut after so many bytes from either side."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.listener = socket.create_server((_HOST, 0))
        self.port = self.listener.getsockname()[1]
        self.connections = 0
        self.cut_connection, self.cut_bytes = 0, 0
        self.was_cut = False
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, connection: int, after: int) -> None:
        """Cut the `connection`th connection from now on (1: the next) after `after` bytes."""
        self.connections, self.was_cut = 0, False
        self.cut_connection, self.cut_bytes = connection, after

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            self.connections += 1
            limit = self.cut_bytes if self.connections == self.cut_connection else None
            threading.Thread(target=self._pass_on, args=(client, limit), daemon=True).start()

    def _pass_on(self, client: socket.socket, limit: int | None) -> None:
        passed = 0
        with client, socket.create_connection((_HOST, self.target)) as server, selectors.DefaultSelector() as ready:
            ready.register(client, selectors.EVENT_READ, server)
            ready.register(server, selectors.EVENT_READ, client)
            while True:
                for key, _ in ready.select():
                    try:
                        data = key.fileobj.recv(4096)  # type: ignore[union-attr]
                        if not data:
                            return
                        passed += len(data)
                        if limit is not None and passed > limit:
                            self.was_cut = True
                            return
                        key.data.sendall(data)
                    except OSError:
                        return


class Server:
    """sshd, its files in `folder`. Sessions see only the tools in `folder/bin` and the system's."""

    def __init__(self, folder: Path, path: str = "/usr/local/bin:/usr/bin:/bin") -> None:
        self.folder = folder
        (folder / "bin").mkdir(parents=True)
        (folder / "home").mkdir()
        (folder / "bin/python3").symlink_to(sys.executable)
        for key in ("host", "client"):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)]
            subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
        (folder / "authorized").write_text((folder / "client.pub").read_text())
        self.port = _free_port()
        environment = {
            "PATH": f"{folder}/bin:{path}",
            "HOME": str(folder / "home"),
            "DVC_SITE_CACHE_DIR": str(folder / "site"),
            "TMUX_TMPDIR": str(folder / "home"),
            "PYTHONPATH": str(ROOT / "src"),  # the code under test, wherever `enlace` is installed from
        }
        settings = f"""
            ListenAddress {_HOST}
            Port {self.port}
            HostKey {folder}/host
            AuthorizedKeysFile {folder}/authorized
            PidFile none
            StrictModes no
            UsePAM no
            PasswordAuthentication no
            KbdInteractiveAuthentication no
            SetEnv {" ".join(f"{name}={value}" for name, value in environment.items())}
        """
        (folder / "sshd_config").write_text(settings)
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)  # where a root's sshd separates its privileges
        assert SSHD
        with (folder / "sshd.log").open("wb") as log:
            self.process = subprocess.Popen([SSHD, "-D", "-e", "-f", str(folder / "sshd_config")], stderr=log)
        _wait_for_port(self.port)
        self.proxy = Proxy(self.port)
        (folder / "ssh_config").write_text(f"""
            Host casa
                HostName {_HOST}
                Port {self.proxy.port}
            Host directa
                HostName {_HOST}
            Host *
                IdentityFile {folder}/client
                IdentitiesOnly yes
                UserKnownHostsFile {folder}/known
                StrictHostKeyChecking accept-new
                LogLevel ERROR
        """)
        # ssh reads its own configuration in the home of the password file, so that the tests' comes in as a wrapper.
        ssh = folder / "client-bin/ssh"
        ssh.parent.mkdir()
        ssh.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/ssh_config "$@"\n')
        ssh.chmod(0o755)

    def tool(self, name: str, script: str) -> None:
        """Put a command of that name on the server, before the system's."""
        path = self.folder / "bin" / name
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(0o755)

    def close(self) -> None:
        """End sshd; sessions that it left end with their connections."""
        self.process.terminate()
        self.process.wait()
        self.proxy.listener.close()


def _free_port() -> int:
    with socket.create_server((_HOST, 0)) as listener:
        return int(listener.getsockname()[1])


def _wait_for_port(port: int) -> None:
    for _ in range(200):
        try:
            socket.create_connection((_HOST, port)).close()
            return
        except ConnectionRefusedError:
            time.sleep(0.05)
    raise AssertionError("sshd did not start")
