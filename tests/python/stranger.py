# SPDX-License-Identifier: Apache-2.0
"""A program with no Headrace inside that speaks its protocols, to try what an agent believes.

It has an encoder of its own for metadata (docs/wire.md, section 2), hellos (section 3), frames of the tcp
backend (section 4) and the metadata socket (section 6). Standard library only.
"""

import hmac
import os
import re
import socket
import struct

METADATA, TCP = 2, 1  # purposes of a hello
MASK = (1 << 64) - 1

SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578"
    "825ad07dccff7221b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea3"
    "71644897a20df94e3819ef46a9deacd8a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931"
    "c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
    "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
PRIME32_1, PRIME32_2, PRIME32_3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
PRIME64_1 = 0x9E3779B185EBCA87


def _read64(data, at=0):
    return int.from_bytes(data[at : at + 8], "little")


def _fold(a, b):
    product = (a & MASK) * (b & MASK)
    return (product ^ (product >> 64)) & MASK


def _avalanche(h):
    h ^= h >> 37
    h = h * 0x165667919E3779F9 & MASK
    return h ^ (h >> 32)


def _mix(data, at, secret_at, seed):
    low = _read64(data, at) ^ (_read64(SECRET, secret_at) + seed & MASK)
    high = _read64(data, at + 8) ^ (_read64(SECRET, secret_at + 8) - seed & MASK)
    return _fold(low, high)


def xxh3(data, seed=0):
    """XXH3-64 of 9 to 240 bytes."""
    n = len(data)
    assert 9 <= n <= 240, n
    if n <= 16:
        low = _read64(data) ^ ((_read64(SECRET, 24) ^ _read64(SECRET, 32)) + seed & MASK)
        high = _read64(data, n - 8) ^ ((_read64(SECRET, 40) ^ _read64(SECRET, 48)) - seed & MASK)
        swapped = int.from_bytes(low.to_bytes(8, "little"), "big")
        return _avalanche(n + swapped + high + _fold(low, high) & MASK)
    acc = n * PRIME64_1
    if n <= 128:
        for i in reversed(range((n - 1) // 32 + 1)):
            acc += _mix(data, 16 * i, 32 * i, seed) + _mix(data, n - 16 * (i + 1), 32 * i + 16, seed)
        return _avalanche(acc & MASK)
    acc += sum(_mix(data, 16 * i, 16 * i, seed) for i in range(8))
    acc = _avalanche(acc & MASK)
    acc += sum(_mix(data, 16 * i, 16 * (i - 8) + 3, seed) for i in range(8, n // 16))
    return _avalanche(acc + _mix(data, n - 16, 136 - 17, seed) & MASK)


def pack(value):
    """msgpack, as far as it is needed here."""
    match value:
        case None:
            return b"\xc0"
        case bool():
            return b"\xc3" if value else b"\xc2"
        case int():
            return b"\xcf" + struct.pack(">Q", value)
        case str():
            text = value.encode()
            return b"\xd9" + struct.pack(">B", len(text)) + text
        case bytes():
            return b"\xc6" + struct.pack(">I", len(value)) + value
        case list():
            return bytes([0x90 | len(value)]) + b"".join(map(pack, value))
        case dict():
            pairs = b"".join(pack(key) + pack(each) for key, each in value.items())
            return b"\xde" + struct.pack(">H", len(value)) + pairs
    raise TypeError(value)


def metadata(name, incarnation, *, version=0, backends=(), regions=(), part=False, end=None, **more):
    """regions: (id, address, length), registered with every backend."""
    body = {"name": name, "inc": incarnation, "ver": version}
    if part:
        body["part"] = True
    elif "since" not in more:
        body["end"] = (max((r[0] for r in regions), default=0) + 1) if end is None else end
    if backends:
        body["backends"] = [[backend, "1", info] for backend, info in backends]
    if regions:
        body["n"] = len(regions)
        ids, addresses, lengths = zip(*regions)
        body["id"] = struct.pack(f"<{len(ids)}I", *ids)
        body["addr"] = struct.pack(f"<{len(ids)}Q", *addresses)
        body["len"] = struct.pack(f"<{len(ids)}Q", *lengths)
        body["kind"] = b"\0"
        body["mask"] = struct.pack("<H", (1 << len(backends)) - 1)
    packed = pack(body | more)
    head = b"HRMD" + struct.pack("<HHQ", 1, 0, len(packed))
    return head + struct.pack("<Q", xxh3(packed, xxh3(head))) + packed


def hello(name, incarnation, purpose, *, expected=0, link_id=0, channel=0, auth=False):
    text = name.encode()
    head = b"HRWT" + struct.pack("<HHQIBBH", 1, 0, incarnation, int(auth), purpose, channel, len(text))
    return head + os.urandom(32) + struct.pack("<QQ", link_id, expected) + text


class Refused(Exception):
    """The agent's verdict, or the connection has ended."""


class Connection:
    """A connection to an agent that has shaken hands. token: the secret that this side claims to know."""

    def __init__(self, address, name, incarnation, purpose, *, token=None, **more):
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=20)
        ours = hello(name, incarnation, purpose, auth=token is not None, **more)
        self.socket.sendall(ours)
        theirs = self.read(72)
        theirs += self.read(struct.unpack_from("<H", theirs, 22)[0])
        self.name = theirs[72:].decode()
        self.incarnation = _read64(theirs, 8)
        asked = theirs[16] & 1
        if token is not None or asked:
            proof = hmac.digest((token or "guess").encode(), b"C" + ours + theirs, "sha256")
            try:
                self.socket.sendall(proof)
            except OSError:
                pass  # it may have refused already
        code, length = struct.unpack("<II", self.read(8))
        text = self.read(length).decode()
        if code != 0:
            raise Refused(text)
        if token is not None or asked:
            self.read(32)

    def read(self, count):
        data = b""
        while len(data) < count:
            try:
                more = self.socket.recv(count - len(data))
            except ConnectionResetError:
                more = b""
            if not more:
                raise Refused("the connection has ended")
            data += more
        return data

    def close(self):
        self.socket.close()

    def ended(self, seconds=20):
        """Whether the agent closes the connection; takes what it says before."""
        self.socket.settimeout(seconds)
        try:
            while self.socket.recv(65536):
                pass
        except ConnectionResetError:
            pass
        except TimeoutError:
            return False
        return True

    # The metadata socket.

    def ask(self, message):
        self.socket.sendall(struct.pack("<I", len(message)) + message)

    def answer(self):
        return self.read(struct.unpack("<I", self.read(4))[0])

    # Frames of the tcp backend.

    def say(self, kind, payload=b"", *, channel=0, flags=0):
        head = struct.pack("<BBHIQIIQII", kind, flags, channel, 0, 0, 0, 0, len(payload), 0, 0)
        self.socket.sendall(head + payload)

    def wait_for_acknowledgement(self, channel, count):
        """Until the agent has said that so many messages of this channel have arrived."""
        while True:
            head = struct.unpack("<BBHIQIIQII", self.read(40))
            assert head[3] == 0, "no frame with ranges is expected"
            self.read(head[7])
            if head[0] == 9 and head[2] == channel and head[4] >= count:
                return

    def notify(self, payload, request=0, post=0):
        self.say(5, struct.pack("<QQ", request, post) + payload)


def send(address, name, incarnation, data, **more):
    """Sends metadata as that agent; returns the answer, without its code's encoding."""
    connection = Connection(address, name, incarnation, METADATA, **more)
    connection.ask(b"\x92\x02" + pack(data))
    answer = connection.answer()
    connection.close()
    return answer


def tcp_address(exported):
    """Where the tcp backend listens on 127.0.0.1, from an agent's metadata."""
    return re.search(rb"headrace-tcp 1 \w+ [^\x80-\xff]*?(127\.0\.0\.1:\d+)", exported)[1].decode()


class FalsePort:
    """Listens on 127.0.0.1 and claims to be another agent."""

    def __init__(self, name, incarnation):
        self.name, self.incarnation = name, incarnation
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(20)

    def info(self):
        return b"headrace-tcp 1 0 127.0.0.1:%d" % self.listener.getsockname()[1]

    def greet(self):
        """Answers one connection as an agent without a secret does; returns its socket."""
        connection, _ = self.listener.accept()
        connection.settimeout(20)
        connection.recv(4096)
        connection.sendall(hello(self.name, self.incarnation, TCP) + struct.pack("<II", 0, 0))
        return connection
