# SPDX-License-Identifier: Apache-2.0
"""Every program in examples/*.py runs, and says what it should."""

import shutil
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from conftest import until

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(name, *arguments):
    done = subprocess.run([sys.executable, str(EXAMPLES / name), *arguments], capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


@pytest.fixture
def etcd(tmp_path):
    """The address of an etcd that was started for this test."""
    program = shutil.which("etcd")
    assert program, "etcd is not installed: run tools/setup.sh"
    ports = []
    for _ in range(2):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            ports.append(free.getsockname()[1])
    client, peer = (f"http://127.0.0.1:{port}" for port in ports)
    command = [program, "--data-dir", str(tmp_path / "etcd"), "--listen-client-urls", client, "--advertise-client-urls", client,
               "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"]  # fmt: skip
    with (tmp_path / "etcd.log").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    def healthy():
        assert server.poll() is None, (tmp_path / "etcd.log").read_text()
        try:
            with urllib.request.urlopen(f"{client}/health", timeout=5) as answer:
                return b"true" in answer.read()
        except OSError:
            return False

    try:
        until(healthy, 60)
        yield f"127.0.0.1:{ports[0]}"
    finally:
        server.terminate()
        server.wait(30)


def test_every_example_has_a_test():
    text = Path(__file__).read_text()
    assert [path.name for path in EXAMPLES.glob("*.py") if f'"{path.name}"' not in text] == []


def test_two_peers_exchange_pages():
    said = run("two_peers.py")
    assert "prefill: decode says: took pages [200, 3, 77, 142]" in said and "decode: 262144 bytes" in said


def test_partial_metadata_shows_one_region_at_a_time():
    said = run("partial_metadata.py")
    assert "name='layer 2'" in said and "after deregistration:" in said


def test_two_agents_find_each_other_in_a_real_etcd(etcd):
    said = run("etcd_agents.py", f"etcd://{etcd}/example")
    assert "in the namespace: ['trainer']" in said and "read weights (uint8, 1048576)" in said
