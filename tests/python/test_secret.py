# SPDX-License-Identifier: Apache-2.0
"""One secret for all ports of an agent, under Headrace's names and under NIXL's."""

import socket
import subprocess
import sys

import pytest

import headrace
from conftest import unique
from headrace.compat.nixl import nixl_agent, nixl_agent_config
from stranger import METADATA, TCP, Connection, Refused, tcp_address

SECRET = "open sesame"
LOCAL = {"tcp.listen": "127.0.0.1:0"}


@pytest.fixture
def secret_file(tmp_path):
    path = tmp_path / "secret"
    path.write_text(f"{SECRET}\nnot this line\n")
    return str(path)


def refused_at_both_ports(listen, tcp):
    for address, purpose in (listen, METADATA), (tcp, TCP):
        for token in None, "guess":
            with pytest.raises(Refused, match="token"):
                Connection(address, "stranger", 7, purpose, token=token)
        Connection(address, "friend", 7, purpose, token=SECRET).close()


def test_a_secret_from_a_file_guards_the_metadata_socket_and_the_data_port(secret_file):
    with headrace.Agent(
        unique("a"), listen="127.0.0.1:0", options=LOCAL | {"auth_token_file": secret_file}
    ) as agent:
        refused_at_both_ports(agent.listen_address, tcp_address(agent.export_metadata()))


def test_agents_with_the_secret_from_a_file_and_from_an_option_meet(secret_file):
    with (
        headrace.Agent(
            unique("a"), ["tcp"], listen="127.0.0.1:0", options={"auth_token_file": secret_file}
        ) as listening,
        headrace.Agent(unique("b"), ["tcp"], options={"auth_token": SECRET}) as fetching,
        headrace.Agent(unique("c"), ["tcp"]) as without,
    ):
        fetching.fetch_metadata(listening.listen_address)
        fetching.connect(listening.name, 10)
        with pytest.raises(headrace.InvalidArgument, match="auth_token"):
            without.fetch_metadata(listening.listen_address)
        without.import_metadata(listening.export_metadata())
        with pytest.raises(headrace.Error, match="auth_token"):
            without.connect(listening.name, 10)


def test_a_backend_has_no_secret_of_its_own():
    with pytest.raises(headrace.InvalidArgument, match="one secret for all its ports: set auth_token"):
        headrace.Agent("a", options={"tcp.auth_token": "hunter2"})


def test_an_agent_whose_secret_is_required_opens_no_port_beyond_loopback_without_one(secret_file):
    required = {"auth": "required"}
    with pytest.raises(
        headrace.InvalidArgument, match=r"backend tcp \(option tcp.listen\) listens on every interface"
    ) as refused:
        headrace.Agent("a", backends=["tcp"], options=required)
    assert "tcp.listen=127.0.0.1:0 (HEADRACE_TCP_LISTEN)" in str(refused.value)
    assert "HEADRACE_AUTH_TOKEN_FILE" in str(refused.value)
    with pytest.raises(
        headrace.InvalidArgument, match=r"the metadata socket \(listen\) listens on 0.0.0.0:0"
    ):
        headrace.Agent("a", backends=["shm"], listen="0.0.0.0:0", options=required)
    for backends in ["tcp"], ["shm", "tcp"]:
        headrace.Agent("a", backends, listen="127.0.0.1:0", options=required).close()
    headrace.Agent("a", ["tcp"], options=required | LOCAL).close()
    headrace.Agent("a", listen="0.0.0.0:0", options=required | {"auth_token_file": secret_file}).close()


def ports_of(**more):
    with headrace.Agent(unique("a"), ["tcp"], **more) as agent:
        (tcp,) = [backend for backend in agent.backends() if backend.name == "tcp"]
        assert tcp.ports
        return tcp.ports


def test_an_agent_that_listens_on_loopback_opens_its_data_port_there(tmp_path, monkeypatch):
    every = "0.0.0.0:", "[::]:"
    assert all(port.startswith("127.0.0.1:") for port in ports_of(listen="127.0.0.1:0"))
    assert all(port.startswith("127.0.0.1:") for port in ports_of(listen="127.0.0.1:0", store="memory:here"))
    assert all(port.startswith(every) for port in ports_of())
    assert all(port.startswith(every) for port in ports_of(listen="0.0.0.0:0"))
    assert all(port.startswith(every) for port in ports_of(listen="127.0.0.1:0", store=f"file://{tmp_path}"))
    assert all(port.startswith(every) for port in ports_of(listen="127.0.0.1:0", options={"tcp.listen": ""}))
    monkeypatch.setenv("HEADRACE_TCP_LISTEN", "0.0.0.0:0")
    assert all(port.startswith(every) for port in ports_of(listen="127.0.0.1:0"))
    monkeypatch.delenv("HEADRACE_TCP_LISTEN")
    monkeypatch.setenv("HEADRACE_STORE", f"file://{tmp_path}")
    assert all(port.startswith(every) for port in ports_of(listen="127.0.0.1:0"))


TWO_AGENTS = """
import headrace
from headrace.compat.nixl import nixl_agent, nixl_agent_config
{}
"""


def warnings_of(code):
    """How often a process that runs this code says that it has no secret."""
    done = subprocess.run(
        [sys.executable, "-c", TWO_AGENTS.format(code)],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr.count("without a secret: tcp ")


@pytest.mark.parametrize(
    "open_one",
    [
        "headrace.Agent('{name}', listen='0.0.0.0:0')",
        "nixl_agent('{name}', nixl_agent_config(enable_listen_thread=True, listen_port={port}))",
    ],
    ids=["headrace", "nixl"],
)
def test_ports_beyond_loopback_without_a_secret_are_said_once_in_a_process(open_one, monkeypatch, tmp_path):
    ports = []
    for _ in range(2):
        with socket.create_server(("127.0.0.1", 0)) as free:
            ports.append(free.getsockname()[1])
    two = "\n".join(f"{name} = {open_one.format(name=name, port=port)}" for name, port in zip("ab", ports))
    assert warnings_of(two) == 1
    monkeypatch.setenv("HEADRACE_AUTH_TOKEN", SECRET)
    assert warnings_of(two) == 0
    monkeypatch.delenv("HEADRACE_AUTH_TOKEN")
    assert warnings_of("a = headrace.Agent('a', listen='127.0.0.1:0')") == 0
    assert warnings_of("a = headrace.Agent('a')") == 0, "metadata by hand"
    assert warnings_of(f"a = headrace.Agent('a', store='file://{tmp_path}')") == 1


def test_the_package_under_nixls_names_has_the_same_rules(monkeypatch, secret_file):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = nixl_agent_config(enable_listen_thread=True, listen_port=port)
    monkeypatch.setenv("HEADRACE_AUTH", "required")
    with pytest.raises(ValueError, match="set auth_token or auth_token_file"):
        nixl_agent(unique("left"), config)
    monkeypatch.setenv("HEADRACE_AUTH_TOKEN_FILE", secret_file)
    monkeypatch.setenv("HEADRACE_TCP_LISTEN", "127.0.0.1:0")
    left = nixl_agent(unique("left"), config)
    exported = left.get_agent_metadata()
    refused_at_both_ports(f"127.0.0.1:{port}", tcp_address(exported))
