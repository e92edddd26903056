# SPDX-License-Identifier: Apache-2.0
# backends: none
"""Which network cards and CPUs are near which GPU, on this machine and on a written one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import headrace

SWITCH = "pci0000:10/0000:10:01.0/0000:11:00.0"
SPEED = 400_000


class Machine:
    """A /sys in a folder, with links as the kernel makes them."""

    def __init__(self, root: Path):
        self.root = root
        self.write("sys/devices/system/cpu/online", "0-3")
        self.write("sys/devices/system/node/online", "0")
        self.write("sys/devices/system/node/node0/cpulist", "0-3")

    def write(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")

    def link(self, path, target):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.symlink_to(os.path.relpath(self.root / target, file.parent))

    def pci(self, path, vendor, device, kind):
        folder = f"sys/devices/{path}"
        for name, text in {"vendor": vendor, "device": device, "class": kind, "numa_node": "0"}.items():
            self.write(f"{folder}/{name}", text)
        self.link(f"sys/bus/pci/devices/{Path(path).name}", folder)
        return folder

    def gpu(self, path):
        self.pci(path, "0x10de", "0x2330", "0x030200")

    def rdma(self, path, name, state="4: ACTIVE"):
        folder = self.pci(path, "0x15b3", "0x1021", "0x020700")
        port = f"{folder}/infiniband/{name}/ports/1"
        self.write(f"{port}/rate", "400 Gb/sec (4X NDR)")
        self.write(f"{port}/state", state)
        self.write(f"{port}/link_layer", "InfiniBand")
        self.link(f"sys/class/infiniband/{name}", f"{folder}/infiniband/{name}")
        self.write(f"sys/class/infiniband_verbs/uverbs_{name}/ibdev", name)
        self.write(f"dev/infiniband/uverbs_{name}", "")


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_each_gpu_has_the_card_of_its_switch_and_cards_without_a_link_are_named(machine):
    machine.gpu(f"{SWITCH}/0000:12:00.0/0000:13:00.0")
    machine.rdma(f"{SWITCH}/0000:12:01.0/0000:14:00.0", "mlx5_0")
    machine.rdma(f"{SWITCH}/0000:12:02.0/0000:15:00.0", "mlx5_1", state="1: DOWN")
    found = headrace.detect_topology(root=str(machine.root))
    (group,) = found.groups
    assert isinstance(group, headrace.TopologyGroup)
    assert (group.gpu.pci, group.gpu.index, group.gpu.name) == ("0000:13:00.0", None, "")
    assert (group.numa_node, group.cpus, group.own_cpus) == (0, [0, 1, 2, 3], [0, 1, 2, 3])
    (nic,) = group.nics
    assert (nic.name, nic.interfaces, nic.rdma, nic.up) == ("mlx5_0", [], True, True)
    assert (nic.link_layer, nic.speed_mbit, nic.nearness) == ("InfiniBand", SPEED, "pci_switch")
    assert (nic.pci, nic.model, nic.driver, nic.numa_node) == ("0000:14:00.0", "15b3:1021", "", 0)
    (left,) = found.left_out
    assert (left.nic.name, left.nic.up, left.reason) == ("mlx5_1", False, "its link is down")


def test_the_texts_are_for_people(machine):
    machine.gpu(f"{SWITCH}/0000:12:00.0/0000:13:00.0")
    machine.rdma(f"{SWITCH}/0000:12:01.0/0000:14:00.0", "mlx5_0")
    machine.rdma(f"{SWITCH}/0000:12:02.0/0000:15:00.0", "mlx5_1", state="1: DOWN")
    found = headrace.detect_topology(root=str(machine.root))
    line = "GPU 0000:13:00.0, node 0, CPUs 0-3: mlx5_0 400 Gbit/s (RDMA, pci_switch)"
    left = "mlx5_1 unknown speed (RDMA): its link is down"
    assert str(found) == f"{line}\nleft out: {left}\n"
    assert str(found.groups[0]) == line
    assert repr(found.groups[0]) == f"<TopologyGroup: {line}>"
    assert str(found.groups[0].nics[0]) == "mlx5_0 400 Gbit/s (RDMA)"
    assert repr(found.groups[0].gpu) == "TopologyGpu(pci='0000:13:00.0', index=None, name='')"
    assert repr(found.left_out[0]) == f"<LeftOutNic: {left}>"


def test_a_machine_without_gpus_and_pci_is_one_group(machine):
    (group,) = headrace.detect_topology(root=str(machine.root)).groups
    assert group.gpu is None
    assert (group.numa_node, group.cpus, group.nics) == (0, [0, 1, 2, 3], [])


def test_this_machine_has_groups_with_cpus_that_this_process_may_use():
    usable = os.sched_getaffinity(0)
    found = headrace.detect_topology(ask_driver=False)
    assert found.groups
    for group in found.groups:
        assert group.cpus
        assert set(group.own_cpus) <= set(group.cpus) <= usable


def test_a_process_that_may_use_one_cpu_has_no_other_in_its_groups():
    cpu = min(os.sched_getaffinity(0))
    program = (
        f"import os; os.sched_setaffinity(0, [{cpu}]); import headrace; "
        "print([g.cpus for g in headrace.detect_topology(ask_driver=False).groups])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert str([cpu]) in done.stdout
    assert set(done.stdout.strip()[1:-1].split(", ")) == {str([cpu])}


def test_wrong_arguments_are_refused():
    with pytest.raises(TypeError):
        headrace.detect_topology("/")
    with pytest.raises(TypeError):
        headrace.detect_topology(root=3)
