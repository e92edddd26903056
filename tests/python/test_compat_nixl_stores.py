# SPDX-License-Identifier: Apache-2.0
# backends: shm
"""Metadata over etcd and torch's TCPStore, with NIXL's environment variables."""

import socket

import numpy as np
import pytest

import headrace
from conftest import free_ports, unique, until
from headrace.compat.nixl import _bindings as bind
from headrace.compat.nixl import nixl_agent


@pytest.fixture(params=["etcd", "tcpstore"])
def store(request, monkeypatch):
    """The name of the store; NIXL's environment variables name its address."""
    if request.param == "etcd":
        monkeypatch.setenv("NIXL_ETCD_ENDPOINTS", f"http://{request.getfixturevalue('etcd')}")
        monkeypatch.setenv("NIXL_ETCD_NAMESPACE", f"/{unique('nixl')}/")
        yield request.param
        return
    pytest.importorskip("torch", reason="torch is not installed")
    from torch.distributed import TCPStore

    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setenv("NIXL_TCPSTORE_ENDPOINT", f"127.0.0.1:{server.port}")
    monkeypatch.setenv("NIXL_TCPSTORE_TIMEOUT_MS", "5000")
    yield request.param


@pytest.fixture
def two(store):
    """Two agents that know the store, and two regions of the second agent."""
    here, there = nixl_agent(unique("here")), nixl_agent(unique("there"))
    memory = np.zeros(8192, np.uint8)
    rows = [(memory.ctypes.data + 4096 * i, 4096, 0, "") for i in range(2)]
    descs = there.register_memory(rows, "DRAM")
    return here, there, descs, memory


def test_metadata_in_the_store_is_found(two):
    here, there, descs, _ = two
    there.send_local_metadata()
    here.fetch_remote_metadata(there.name)
    until(lambda: here.check_remote_metadata(there.name, descs.trim()))


def test_metadata_that_is_fetched_too_early_is_found_once_it_is_sent(two):
    here, there, descs, _ = two
    here.fetch_remote_metadata(there.name)
    assert not here.check_remote_metadata(there.name)
    there.send_local_metadata()
    until(lambda: here.check_remote_metadata(there.name, descs.trim()))


def test_partial_metadata_is_stored_under_its_label(two):
    here, there, descs, _ = two
    for i, label in enumerate(("first", "second")):
        part = there.get_reg_descs([tuple(descs[i])], "DRAM")
        there.send_partial_agent_metadata(part, True, label=label)
        here.fetch_remote_metadata(there.name, label=label)
        until(lambda part=part: here.check_remote_metadata(there.name, part.trim()))
        assert here.check_remote_metadata(there.name, descs.trim()) == (i == 1)


def test_partial_metadata_without_a_label_is_refused(two):
    _, there, descs, _ = two
    with pytest.raises(bind.nixlInvalidParamError, match="label"):
        there.send_partial_agent_metadata(descs, True)


def test_withdrawn_metadata_is_no_longer_found(two, store, nixl_log):
    here, there, _, _ = two
    there.send_local_metadata()
    here.fetch_remote_metadata(there.name)
    until(lambda: here.check_remote_metadata(there.name))
    there.invalidate_local_metadata()
    if store == "etcd":  # agents that found it there are notified
        until(lambda: not here.check_remote_metadata(there.name))
    late = nixl_agent(unique("late"))
    there.fetch_remote_metadata("nobody")  # jobs run in order: when this one has run, the withdrawal has, too
    until(lambda: there.agent._exchange._jobs.empty())
    late.agent._exchange._patience = 0.2
    late.fetch_remote_metadata(there.name)
    until(lambda: f"metadata of {there.name}, label metadata, did not appear in the store" in nixl_log.text)
    assert not late.check_remote_metadata(there.name)


def test_a_program_that_ends_withdraws_its_metadata(etcd, run_script, monkeypatch):
    monkeypatch.setenv("NIXL_ETCD_ENDPOINTS", etcd)
    monkeypatch.setenv("NIXL_ETCD_NAMESPACE", unique("nixl"))
    text = """
import headrace.compat.nixl.install
from nixl._api import nixl_agent
agent = nixl_agent("leaver")
agent.send_local_metadata()
agent.fetch_remote_metadata("stayer")
while not agent.check_remote_metadata("stayer"): pass
agent.send_notif("stayer", b"here")
agent.invalidate_local_metadata()
"""
    stayer = nixl_agent("stayer")
    stayer.send_local_metadata()
    stayer.fetch_remote_metadata("leaver")
    code, said, errors = run_script(text)
    assert code == 0, errors
    assert "ERROR" not in said
    until(lambda: stayer.check_remote_xfer_done("leaver", b"here"))
    until(lambda: not stayer.check_remote_metadata("leaver"))


def test_without_a_store_or_an_address_sending_metadata_is_refused():
    agent = nixl_agent(unique("alone"))
    for act in (
        agent.send_local_metadata,
        agent.invalidate_local_metadata,
        lambda: agent.fetch_remote_metadata("peer"),
    ):
        with pytest.raises(bind.nixlInvalidParamError, match="NIXL_ETCD_ENDPOINTS"):
            act()


def test_two_stores_are_refused(monkeypatch):
    monkeypatch.setenv("NIXL_ETCD_ENDPOINTS", "127.0.0.1:1")
    monkeypatch.setenv("NIXL_TCPSTORE_ENDPOINT", "127.0.0.1:1")
    with pytest.raises(RuntimeError, match="one store"):
        nixl_agent(unique("greedy"))


def test_a_port_in_use_is_reported():
    from headrace.compat.nixl import nixl_agent_config

    with socket.create_server(("0.0.0.0", 0)) as held:
        port = held.getsockname()[1]
        with pytest.raises(RuntimeError, match="in use"):
            nixl_agent(unique("late"), nixl_agent_config(enable_listen_thread=True, listen_port=port))


def test_a_torch_client_and_ours_see_each_others_values(monkeypatch):
    pytest.importorskip("torch", reason="torch is not installed")
    from torch.distributed import TCPStore

    from headrace.compat.nixl._tcpstore import Client

    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setenv("NIXL_TCPSTORE_ENDPOINT", f"127.0.0.1:{server.port}")
    client = Client(headrace.Agent(unique("client"), backends=["shm"]))
    assert client.get("key") is None
    client.set("key", b"value\0" * 1_000_000)
    assert server.get("key") == b"value\0" * 1_000_000
    server.set("key", "torch's")
    assert client.get("key") == b"torch's"
    client.delete("key")
    client.delete("key")
    assert not server.check(["key"])


@pytest.mark.parametrize("text", ["nohost", ":1", "host:", "host:port"])
def test_an_invalid_endpoint_is_refused(text, monkeypatch):
    from headrace.compat.nixl._tcpstore import endpoint

    monkeypatch.setenv("NIXL_TCPSTORE_ENDPOINT", text)
    with pytest.raises(ValueError, match="must be host:port"):
        endpoint()


@pytest.fixture
def silent(monkeypatch):
    """A server that accepts connections and never answers. Call it with the name of the store that it is
    taken for."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(30)

        def stands_for(store):
            address = f"127.0.0.1:{server.getsockname()[1]}"
            if store == "etcd":
                monkeypatch.setenv("NIXL_ETCD_ENDPOINTS", f"http://{address}")
            else:
                monkeypatch.setenv("NIXL_TCPSTORE_ENDPOINT", address)
                monkeypatch.setenv("NIXL_TCPSTORE_OP_TIMEOUT_MS", "60000")
            return server

        yield stands_for


@pytest.mark.parametrize(
    "store, call, connections",
    [
        ("etcd", "publish", 1),
        ("etcd", "find", 2),  # after a watch
        ("tcpstore", "find", 1),
        ("tcpstore", "withdraw", 1),  # after a publish, which waits for no answer
    ],
)
def test_a_close_ends_the_call_of_a_store_that_does_not_answer(silent, store, call, connections, nixl_log):
    server = silent(store)
    agent = nixl_agent(unique("closed"))
    if call == "find":
        agent.fetch_remote_metadata("peer")
    else:
        agent.send_local_metadata()
    if call == "withdraw":
        agent.invalidate_local_metadata()
    held = [server.accept()[0] for _ in range(connections)]
    agent.agent._agent.close()
    until(lambda: "was closed while" in nixl_log.text)  # before the time limits of the calls, 60 s
    for connection in held:
        connection.close()


def test_a_tcpstore_that_does_not_answer_ends_a_call_by_its_deadline(silent, monkeypatch, nixl_log):
    silent("tcpstore")
    monkeypatch.setenv("NIXL_TCPSTORE_OP_TIMEOUT_MS", "100")
    agent = nixl_agent(unique("patient"))
    agent.fetch_remote_metadata("peer")
    until(lambda: "the store did not answer within 0.1 s" in nixl_log.text)


def test_a_tcpstore_that_is_not_there_is_reported(monkeypatch, nixl_log):
    (port,) = free_ports(1)
    monkeypatch.setenv("NIXL_TCPSTORE_ENDPOINT", f"127.0.0.1:{port}")
    agent = nixl_agent(unique("early"))
    agent.send_local_metadata()
    until(lambda: "Connection refused" in nixl_log.text)


def test_metadata_is_fetched_by_host_name():
    from headrace.compat.nixl import nixl_agent_config

    (port,) = free_ports(1)
    there = nixl_agent(unique("there"), nixl_agent_config(enable_listen_thread=True, listen_port=port))
    here = nixl_agent(unique("here"))
    here.fetch_remote_metadata(there.name, "localhost", port)
    until(lambda: here.check_remote_metadata(there.name))
