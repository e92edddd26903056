# SPDX-License-Identifier: Apache-2.0
# backends: none
"""Fabrics of two processes: the programs of docs/fabric.md, and pages that a peer writes again and again."""

import pickle
import re
import subprocess
import sys
from pathlib import Path

import numpy

import headrace
from fabrics import SECONDS, await_true, fresh, open_fabric

HERE = Path(__file__).resolve().parent
PROGRAMS = re.findall(
    r"```python\n(# \w+\.py\n.*?)```", (HERE.parents[1] / "docs" / "fabric.md").read_text(), re.DOTALL
)


def test_the_two_programs_of_the_documents_move_an_array(tmp_path):
    for name, program in zip(("receive.py", "send.py"), PROGRAMS, strict=True):
        assert program.startswith(f"# {name}\n")
        (tmp_path / name).write_text(program)
    with subprocess.Popen(
        [sys.executable, "receive.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as receiver:
        try:
            descriptor = receiver.stdout.readline().strip()
            sender = subprocess.run(
                [sys.executable, "send.py", descriptor],
                cwd=tmp_path,
                check=False,
                capture_output=True,
                text=True,
                timeout=SECONDS,
            )
            assert (sender.returncode, sender.stderr) == (0, "")
            assert receiver.stdout.read() == "the sum is 499999500000\n"
            assert receiver.wait(SECONDS) == 0
        finally:
            receiver.kill()


WRITER = """
import pickle, sys
import numpy
import headrace
from fabrics import SECONDS, open_fabric

descriptor, address, content, order, rounds = pickle.load(sys.stdin.buffer)
with open_fabric() as fabric:
    print(fabric.address, flush=True)
    source = fabric.register(content)
    peer = fabric.connect(address)
    back = fabric.expect(2, 1)
    for round in range(rounds):
        fabric.write_pages(source, descriptor, 4096, source_indices=order, immediate=1, scope=6).wait(SECONDS)
        back.wait(SECONDS)
        content += 1
    fabric.post_immediate(peer, 3).wait(SECONDS)
"""


def test_a_process_writes_pages_in_rounds_and_hears_of_each():
    """The writer changes its bytes when the reader has told it, by an immediate, that they are compared."""
    content, order = fresh(4096 * 100), numpy.random.default_rng().permutation(100)
    target = numpy.zeros_like(content)
    with open_fabric() as fabric:
        memory = fabric.register(target, "writable")
        expectation = fabric.expect(1, 1, scope=6)
        ended = fabric.expect(3, 1)
        given = (memory.descriptor, fabric.address, content, order, 5)
        command = [sys.executable, "-c", WRITER]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=HERE) as writer:
            try:
                writer.stdin.write(pickle.dumps(given))
                writer.stdin.close()
                address = headrace.FabricAddress(writer.stdout.readline().decode().strip())
                peer = fabric.connect(address)
                for number in range(5):
                    expectation.wait(SECONDS)
                    expected = (content + numpy.uint8(number)).reshape(100, 4096)[order]
                    assert target.tobytes() == expected.tobytes()
                    fabric.post_immediate(peer, 2)
                ended.wait(SECONDS)
                assert writer.wait(SECONDS) == 0
            finally:
                writer.kill()
        await_true(lambda: expectation.rounds == 5)
