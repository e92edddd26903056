# SPDX-License-Identifier: Apache-2.0
"""The sets of bench/growth.py: each measures one cost at several sizes, in processes of growth_worker.py."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from comparison import Worker, median, percentile

PATIENCE = 600  # seconds for an answer of a worker
US, MS, NS = 1e6, 1e3, 1e9


class Skipped(Exception):
    """The set cannot run on this machine."""


@dataclass
class Figure:
    case: str
    metric: str
    unit: str
    value: float
    checked: bool
    lower_is_better: bool = True


@dataclass
class Run:
    """How to measure: with which interpreter, and which sizes."""

    python: str
    quick: bool
    figures: list[Figure] = field(default_factory=list)

    def sizes(self, quick: tuple[int, ...], all_sizes: tuple[int, ...]) -> tuple[int, ...]:
        return quick if self.quick else all_sizes

    def add(
        self, case: str, metric: str, unit: str, value: float, checked: bool, lower_is_better: bool = True
    ) -> None:
        self.figures.append(Figure(case, metric, unit, value, checked, lower_is_better))

    @contextlib.contextmanager
    def workers(self, count: int) -> Iterator[list[Worker]]:
        """Processes that see one another and no other agents. What they log is in `log`, beside them."""
        folder = Path(tempfile.mkdtemp(prefix="growth-"))  # short: paths of sockets are
        self.log = folder / "log"
        environment = {"HEADRACE_RUNTIME_DIR": str(folder)}
        with self.log.open("w") as log:
            workers = [
                Worker(self.python, environment, PATIENCE, "growth_worker.py", log) for _ in range(count)
            ]
            try:
                yield workers
            finally:
                for worker in workers:
                    worker.stop()
                shutil.rmtree(folder, ignore_errors=True)


def introduce(left: Worker, left_name: str, right: Worker, right_name: str) -> None:
    """Each imports the metadata of the other."""
    left.ask("meet", name=left_name, metadata=right.ask("export", names=[right_name]))
    right.ask("meet", name=right_name, metadata=left.ask("export", names=[left_name]))


@contextlib.contextmanager
def stopped(worker: Worker) -> Iterator[None]:
    """The process of the worker stands still meanwhile."""
    worker.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, worker.process.pid, os.WSTOPPED | os.WNOWAIT)
    try:
        yield
    finally:
        worker.process.send_signal(signal.SIGCONT)


def cpu_seconds(pids: list[int]) -> float:
    """Returns the CPU time of processes."""
    ticks = 0
    for pid in pids:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(words[11]) + int(words[12])
    return ticks / os.sysconf("SC_CLK_TCK")


# ------------------------------------------------------------------ pages


PAGE = 16  # bytes


def pages(run: Run) -> None:
    """Preparing, making and posting a read of 10^3 to 10^7 pages of 16 bytes over shm, in random order."""
    for count in run.sizes((10**3, 10**5), (10**3, 10**4, 10**5, 10**6, 10**7)):
        with run.workers(2) as (owner, reader):
            owner.ask("open", names=["owner"], backends=["shm"])
            reader.ask("open", names=["reader"], backends=["shm"])
            region = owner.ask("allocate", name="owner", bytes_=PAGE * count)
            introduce(owner, "owner", reader, "reader")
            reader.ask("connect", name="reader", peers=["owner"])
            one = [
                reader.ask("read_pages", name="reader", peer="owner", region=region, page=PAGE, count=count)
                for _ in range(3)
            ]
            right = all(each["right"] for each in one)
            for metric, key, unit, factor in (
                ("prepare", "prepare", "ns/page", NS),
                ("make", "make", "ns/page", NS),
                ("move", "move", "ns/page", NS),
                ("post", "post", "us", US),
                ("list_memory", "list", "bytes/page", 1),
                ("request_memory", "request", "bytes/page", 1),
            ):
                run.add(f"pages/{count}", metric, unit, median([each[key] for each in one]) * factor, right)


# ------------------------------------------------------------------ regions


def regions(run: Run) -> None:
    """Registering, exporting, importing, deregistering 10^3 to 10^6 regions, loaded by a peer over shm."""
    for count in run.sizes((10**3, 10**5), (10**3, 10**4, 10**5, 10**6)):
        with run.workers(2) as (owner, reader):
            regions_of(run, count, owner, reader)
    for metric in ("deregister", "import_update", "export_update"):
        of = {each.case: each.value for each in run.figures if each.metric == metric}
        if of.get("regions/1000"):
            ratio = of["regions/100000"] / of["regions/1000"]
            run.add("regions/100000-by-1000", metric, "ratio", ratio, True)


def regions_of(run: Run, count: int, owner: Worker, reader: Worker) -> None:
    owner.ask("open", names=["owner"], backends=["shm"])
    reader.ask("open", names=["reader"], backends=["shm"])
    case = f"regions/{count}"
    registered = owner.ask("register", name="owner", count=count)
    exported = owner.ask("export_all", name="owner")
    imported = reader.ask("import_all", name="reader", metadata=exported["metadata"])
    loaded = reader.ask("load_all", name="reader", peer="owner", count=count)
    assert loaded["regions"] == count, f"the peer knows {loaded['regions']} of {count} regions"
    right = loaded["right"]
    run.add(case, "register", "ns/region", registered / count * NS, right)
    run.add(case, "export", "ns/region", exported["seconds"] / count * NS, right)
    run.add(case, "import", "ns/region", imported / count * NS, right)
    run.add(case, "metadata", "bytes/region", len(exported["metadata"]) / count, right)
    singly = 200
    seconds = owner.ask("deregister_singly", name="owner", count=singly)
    left = count - len(seconds)
    checked = right and reader.ask("region_count", name="reader", peer="owner") == left
    run.add(case, "deregister", "us", median(seconds) * US, checked)
    updates = owner.ask("updates", name="owner", count=singly)
    seconds = reader.ask("import_updates", name="reader", metadata=updates["metadata"])
    left += singly
    checked = right and reader.ask("region_count", name="reader", peer="owner") == left
    run.add(case, "export_update", "us", median(updates["seconds"]) * US, checked)
    run.add(case, "import_update", "us", median(seconds) * US, checked)
    if count == 100_000:
        took = owner.ask("deregister_every_second", name="owner", of=10_000)
        left -= 5_000
        checked = right and reader.ask("region_count", name="reader", peer="owner") == left
        run.add(case, "every_second_of_10000", "ms", took * MS, checked)
    took = owner.ask("deregister_all", name="owner")
    checked = right and reader.ask("region_count", name="reader", peer="owner") == 0
    run.add(case, "deregister_all", "ns/region", took / left * NS, checked)


# ------------------------------------------------------------------ peers


PROCESSES = 4  # that hold the peers


def peers(run: Run) -> None:
    """An agent with 1 to 1000 peers: connecting, what each costs, a notification with all of them there."""
    for backend in ("shm", "tcp"):
        for count in run.sizes((1, 50), (1, 10, 100, 1000)):
            with run.workers(1 + min(count, PROCESSES)) as (hub, *others):
                peers_of(run, backend, count, hub, others)


def peers_of(run: Run, backend: str, count: int, hub: Worker, others: list[Worker]) -> None:
    case = f"peers/{backend}/{count}"
    names = [[f"p{i}" for i in range(at, count, len(others))] for at in range(len(others))]
    before = [worker.ask("usage") for worker in others]
    hub.ask("open", names=["hub"], backends=[backend])
    for worker, its in zip(others, names):
        worker.ask("open", names=its, backends=[backend])
    hub_before = hub.ask("usage")
    hub_metadata = hub.ask("export", names=["hub"])
    for worker, its in zip(others, names):
        hub.ask("meet", name="hub", metadata=worker.ask("export", names=its))
        for name in its:
            worker.ask("meet", name=name, metadata=hub_metadata)
    seconds = hub.ask("connect", name="hub", peers=[name for its in names for name in its])
    after = hub.ask("usage")
    there = [worker.ask("usage") for worker in others]
    idle = cpu_while_idle(hub, others, 2 if run.quick else 10)
    late = late_notifications(hub, others[0], names[0][0])
    ok = len(late) == MESSAGES
    run.add(case, "connect_median", "ms", median(seconds) * MS, ok)
    run.add(case, "connect_all", "ms", sum(seconds) * MS, ok)
    for metric, key, unit, factor in (
        ("descriptors", "descriptors", "count/peer", 1),
        ("threads", "threads", "count/peer", 1),
        ("memory", "bytes", "KiB/peer", 1 / 1024),
    ):
        run.add(case, metric, unit, (after[key] - hub_before[key]) / count * factor, ok)
        theirs = sum(now[key] - then[key] for now, then in zip(there, before))
        run.add(case, f"peers_{metric}", unit, theirs / count * factor, ok)
    run.add(case, "idle_hub", "% of a core", idle[0], ok)
    run.add(case, "idle_peers", "% of a core", idle[1], ok)
    run.add(case, "notification_median", "us", median(late) * US, ok)
    run.add(case, "notification_p99", "us", percentile(late, 99) * US, ok)


MESSAGES = 200


def late_notifications(hub: Worker, other: Worker, name: str) -> list[float]:
    other.ask("send_slowly", name=name, peer="hub", count=MESSAGES, prefix="late", pause=0.002)
    late: list[float] = hub.ask("take_late", name="hub", count=MESSAGES)
    other.ask("join")
    return late


def cpu_while_idle(hub: Worker, others: list[Worker], seconds: float) -> tuple[float, float]:
    """Returns the percentage of a core that the hub takes, and that all others take together."""
    time.sleep(1)  # what the connecting has left to do
    sets = [[hub.process.pid], [worker.process.pid for worker in others]]
    before = [cpu_seconds(pids) for pids in sets]
    start = time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - start
    hub_share, others_share = ((cpu_seconds(pids) - b) / took * 100 for pids, b in zip(sets, before))
    return hub_share, others_share


# ------------------------------------------------------------------ posts in flight, awaits


PATIENT = {"tcp.heartbeat_timeout": "600s"}  # for an owner that stands still


@contextlib.contextmanager
def many_requests(run: Run, count: int) -> Iterator[tuple[Worker, Worker]]:
    """An owner, and a reader that has `count` requests of one word over tcp."""
    with run.workers(2) as (owner, reader):
        owner.ask("open", names=["owner"], backends=["tcp"], options=PATIENT)
        reader.ask("open", names=["reader"], backends=["tcp"], options=PATIENT)
        region = owner.ask("allocate", name="owner", bytes_=8 * count)
        introduce(owner, "owner", reader, "reader")
        reader.ask("connect", name="reader", peers=["owner"])
        reader.ask("make_singles", name="reader", peer="owner", region=region, count=count)
        yield owner, reader


def in_flight(run: Run) -> None:
    """10^2 to 10^5 posts of one word over tcp that are in flight together: the owner stands still until the
    last is posted."""
    for count in run.sizes((10**2, 10**4), (10**2, 10**3, 10**4, 10**5)):
        with many_requests(run, count) as (owner, reader):
            with stopped(owner):
                posted = reader.ask("post_singles")
                reader.begin("finish_singles")
            done = reader.end()
            case, right = f"in-flight/{count}", done["right"] and done["in_flight"] == count
            run.add(case, "post", "us", posted * US, right)
            run.add(case, "complete", "us", done["seconds"] * US, right)


def awaits(run: Run) -> None:
    """10^2 to 10^4 requests that are awaited in one event loop."""
    for count in run.sizes((10**2, 10**3), (10**2, 10**3, 10**4)):
        case = f"awaits/{count}"
        with many_requests(run, count) as (owner, reader):
            with stopped(owner):
                begun = reader.ask("begin_awaits")
            ended = reader.ask("end_awaits")
            right = ended["right"] and ended["failed"] == 0
            run.add(case, "descriptors", "count", begun["descriptors"], right)
            run.add(case, "failed", "count", ended["failed"], ended["right"])
            rounds = reader.ask("await_rounds", seconds=1 if run.quick else 4)
            run.add(case, "rate", "awaits/s", rounds["rate"], rounds["right"], lower_is_better=False)


# ------------------------------------------------------------------ notifications


def notifications(run: Run) -> None:
    """Inboxes in which 10^3 to 10^6 notifications wait, `async for` with a filter, a full inbox."""
    for count in run.sizes((10**3, 10**5), (10**3, 10**4, 10**5, 10**6)):
        with run.workers(2) as (receiver, sender):
            waiting(run, count, receiver, sender)
    for count in (10**2, 10**4):
        with run.workers(2) as (receiver, sender):
            filtered_iterator(run, count, receiver, sender)
    with run.workers(1 + FLOODERS) as (receiver, *senders):
        full_inbox(run, receiver, senders)


def meet_all(receiver: Worker, senders: list[tuple[Worker, str]], options: dict[str, str]) -> None:
    receiver.ask("open", names=["receiver"], backends=["shm"], options=options)
    for worker, name in senders:
        worker.ask("open", names=[name], backends=["shm"])
        introduce(receiver, "receiver", worker, name)
        worker.ask("connect", name=name, peers=["receiver"])


def waiting(run: Run, count: int, receiver: Worker, sender: Worker) -> None:
    """Of those that wait, the last 20 of the peer have another prefix; then come 20 of another peer."""
    case, rounds = f"notifications/{count}", 20
    meet_all(
        receiver, [(sender, "many"), (sender, "few")], {"inbox_capacity": "2000000", "inbox_bytes": "1GiB"}
    )
    start = time.monotonic()
    sender.ask("send_many", name="many", peer="receiver", count=count, prefix="other")
    sender.ask("send_many", name="many", peer="receiver", count=rounds, prefix="wanted")
    sender.ask("send_many", name="many", peer="receiver", count=1, prefix="last of many")
    sender.ask("send_many", name="few", peer="receiver", count=rounds, prefix="few")
    sender.ask("send_many", name="few", peer="receiver", count=1, prefix="last of few")
    for prefix in ("last of many", "last of few"):
        receiver.ask("wait_for", name="receiver", prefix=prefix)
    arrived = time.monotonic() - start
    for metric, arguments in (
        ("take_miss_prefix", {"hits": False, "prefix": "none"}),
        ("take_miss_peer", {"hits": False, "peer": "nobody"}),
        ("take_miss_both", {"hits": False, "peer": "few", "prefix": "other"}),
        ("take_hit_prefix", {"hits": True, "prefix": "wanted"}),
        ("take_hit_peer", {"hits": True, "peer": "few", "prefix": "few"}),
    ):
        took = receiver.ask("take_filtered", name="receiver", rounds=rounds, **arguments)
        run.add(case, metric, "us", median(took["seconds"]) * US, took["right"])
    taken = receiver.ask("take_all", name="receiver")
    run.add(case, "take_all", "ns/notification", taken["seconds"] / count * NS, taken["count"] == count)
    run.add(case, "arrive", "us/notification", arrived / count * US, taken["count"] == count)


def filtered_iterator(run: Run, count: int, receiver: Worker, sender: Worker) -> None:
    """`async for` with a filter, while others wait."""
    case, expected = f"async-for/{count}", 50
    meet_all(receiver, [(sender, "sender"), (sender, "timer")], {})
    receiver.ask("open", names=["starter"], backends=["shm"])
    introduce(receiver, "starter", sender, "timer")
    receiver.ask("connect", name="starter", peers=["timer"])
    sender.ask("send_many", name="sender", peer="receiver", count=count, prefix="other")
    sender.ask("send_many", name="sender", peer="receiver", count=1, prefix="last")
    receiver.ask("wait_for", name="receiver", prefix="last")
    receiver.ask("keep", key="sender", value="timer")
    sender.ask("send_when_told", name="timer", peer="receiver", count=expected, prefix="wanted", pause=0.02)
    idle = 2 if run.quick else 5
    took = receiver.ask("iterate", name="receiver", prefix="wanted", count=expected, idle=idle)
    sender.ask("join")
    left = receiver.ask("take_all", name="receiver")["count"]
    right = len(took["late"]) == expected and left == count
    run.add(case, "idle", "% of a core", took["share"] * 100, right)
    run.add(case, "late_median", "ms", median(took["late"]) * MS, right)
    run.add(case, "late_p90", "ms", percentile(took["late"], 90) * MS, right)


FLOODERS, THREADS_EACH = 2, 4


def full_inbox(run: Run, receiver: Worker, senders: list[Worker]) -> None:
    """Eight senders at full speed to a receiver that takes one notification in 0.1 ms."""
    names = [[f"s{number}-{i}" for i in range(THREADS_EACH)] for number in range(len(senders))]
    pairs = [(worker, name) for worker, its in zip(senders, names) for name in its]
    meet_all(receiver, pairs, {"inbox_capacity": "10000"})
    flag = run.log.parent / "senders-have-ended"
    receiver.ask("keep", key="flag", value=str(flag))
    for worker, its in zip(senders, names):
        worker.begin("flood", names=its, peer="receiver", seconds=1 if run.quick else 4)
    receiver.begin("receive_slowly", name="receiver", pause=1e-4, quiet=2.0)
    floods = [worker.end() for worker in senders]
    flag.touch()
    received = receiver.end()
    sent = sum(each["sent"] for each in floods)
    dropped = receiver.ask("counter", name="receiver", counter="notifications.dropped")
    right = sent == received + dropped
    for metric, value in (
        ("sent", sent),
        ("received", received),
        ("would_block", sum(each["would_block"] for each in floods)),
        ("errors", sum(each["errors"] for each in floods)),
        ("dropped", dropped),
        ("logged", run.log.stat().st_size),
    ):
        good = metric in ("sent", "received")
        unit = "bytes" if metric == "logged" else "count"
        run.add("full-inbox/8", metric, unit, value, right, lower_is_better=not good)


# ------------------------------------------------------------------ etcd


ETCD_PROCESSES = 5


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def is_healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            return b"true" in answer.read()
    except OSError:
        return False


@contextlib.contextmanager
def etcd_server() -> Iterator[tuple[str, int]]:
    """host:port of a fresh etcd, and its process."""
    program = shutil.which("etcd")
    if program is None:
        raise Skipped("there is no program etcd: install Debian's etcd-server")
    client, peer = (f"http://127.0.0.1:{port}" for port in free_ports(2))
    with tempfile.TemporaryDirectory(prefix="growth-etcd-") as folder:
        command = [program, "--data-dir", f"{folder}/data", "--listen-client-urls", client]
        command += ["--advertise-client-urls", client, "--listen-peer-urls", peer]
        command += ["--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            end = time.monotonic() + 60
            while not is_healthy(client):
                if server.poll() is not None or time.monotonic() > end:
                    raise Skipped(f"{program} does not become healthy")
                time.sleep(0.05)
            yield client.removeprefix("http://"), server.pid
        finally:
            server.terminate()
            server.wait(30)


def etcd(run: Run) -> None:
    """10 to 500 agents in five processes, from their first publish in a real etcd until all know all."""
    for count in run.sizes((10, 50), (10, 50, 100, 200, 500)):
        with etcd_server() as (address, server), run.workers(ETCD_PROCESSES) as workers:
            store = f"etcd://{address}/growth"
            shares = [[f"e{i}" for i in range(at, count, len(workers))] for at in range(len(workers))]
            for worker, names in zip(workers, shares):
                worker.ask("open", names=names, backends=["tcp"], store=store)
            before, made = cpu_seconds([server]), time.monotonic()
            for worker, names in zip(workers, shares):
                worker.begin("publish_all", names=names)
            publishes = [second for worker in workers for second in worker.end()]
            published = time.monotonic()
            for worker in workers:
                worker.begin("wait_until_known", count=count - 1)
            known = max(worker.end() for worker in workers)
            used = cpu_seconds([server]) - before
            threads = sum(worker.ask("usage")["threads"] for worker in workers)
            case = f"etcd/{count}"
            run.add(case, "until_known", "s", known - made, True)
            run.add(case, "after_last_publish", "s", max(0.0, known - published), True)
            run.add(case, "slowest_publish", "s", max(publishes), True)
            run.add(case, "etcd_cpu", "s", used, True)
            run.add(case, "threads", "count/agent", threads / count, True)


SETS: dict[str, Callable[[Run], None]] = {
    "pages": pages,
    "regions": regions,
    "peers": peers,
    "in-flight": in_flight,
    "notifications": notifications,
    "awaits": awaits,
    "etcd": etcd,
}


def sentence_of(name: str) -> str:
    return " ".join((SETS[name].__doc__ or "").split())


@dataclass
class Bound:
    """The most that a figure may be."""

    case: str
    metric: str
    most: float
    unit: str

    def holds(self, figure: Figure) -> bool:
        return figure.value <= self.most


BOUNDS = [
    Bound("regions/100000-by-1000", "deregister", 2, "ratio"),
    Bound("regions/100000-by-1000", "import_update", 2, "ratio"),
    Bound("notifications/1000000", "take_miss_prefix", 100, "us"),
    Bound("notifications/1000000", "take_miss_peer", 100, "us"),
    Bound("async-for/*", "idle", 5, "% of a core"),
    Bound("async-for/*", "late_median", 2, "ms"),
    Bound("full-inbox/8", "dropped", 0, "count"),
    Bound("awaits/*", "descriptors", 1, "count"),
    Bound("awaits/*", "failed", 0, "count"),
    Bound("etcd/500", "until_known", 3, "s"),
    Bound("peers/tcp/1000", "idle_hub", 1, "% of a core"),
]


def bound_of(figure: Figure) -> Bound | None:
    for bound in BOUNDS:
        same = bound.case.rstrip("*") == figure.case or (
            bound.case.endswith("*") and figure.case.startswith(bound.case[:-1])
        )
        if same and bound.metric == figure.metric:
            return bound
    return None
