# SPDX-License-Identifier: Apache-2.0
# backends: none
"""Messages of a rank to itself in a group in Python; on the CPU here, whose groups do not use them."""

import importlib.util

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


def messages():
    from headrace._torch.to_itself import ToItself

    return ToItself(3)


def test_a_send_that_is_first_keeps_what_it_sent():
    import torch

    itself, sent, got = messages(), torch.arange(6.0).reshape(2, 3), torch.zeros(6)
    work = itself.send(sent)
    work.wait()
    sent.zero_()
    received = itself.recv(got)
    received.wait()
    assert got.tolist() == [0, 1, 2, 3, 4, 5]
    assert work.is_completed() and received.is_completed() and received.source() == 3


def test_each_send_belongs_to_the_receive_of_its_number():
    import torch

    itself, got = messages(), [torch.zeros(1) for _ in range(3)]
    first, second = itself.recv(got[0]), itself.recv(got[1])
    itself.send(torch.tensor([7.0]))
    first.wait()
    assert not second.is_completed()
    with pytest.raises(
        RuntimeError, match="rank 3 receives from itself what it has not sent: call send first"
    ):
        second.wait()
    ended = []
    second.get_future().add_done_callback(lambda _: ended.append(True))
    itself.send(torch.tensor([8.0]))
    second.wait()
    itself.send(torch.tensor([9.0]))
    itself.recv(got[2]).wait()
    assert [tensor.item() for tensor in got] == [7, 8, 9] and ended == [True]


def test_what_does_not_fit_is_said_and_can_be_sent_again():
    import torch

    itself, got = messages(), torch.zeros(2)
    itself.recv(got)
    with pytest.raises(RuntimeError, match="sends 3 elements of torch.float32 to itself, and receives 2"):
        itself.send(torch.ones(3))
    with pytest.raises(RuntimeError, match="sends 2 elements of torch.int32"):
        itself.send(torch.ones(2, dtype=torch.int32))
    itself.send(torch.ones(2)).wait()
    assert got.tolist() == [1, 1]
