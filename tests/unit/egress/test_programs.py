"""Programs with network access in real jails: what they can reach, what they cannot, and what they leave behind."""

from __future__ import annotations

import dataclasses
import io
import os
import signal
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from local_web import ENDLESS, LocalWeb, make_certificate, serving

import belljar
from belljar.contract.errors import NotOffered, SandboxFault
from belljar.contract.execution import Output
from belljar.jail import policy
from belljar.settings import NetworkSettings, Settings

if TYPE_CHECKING:
    from tests.conftest import Host, PlainBox, Process

_BYTES_MAX = 8 << 20
ASK = "import urllib.request\nprint(urllib.request.urlopen('{url}', timeout=20).read().decode())"
PORT = "import os, urllib.parse\nport = urllib.parse.urlsplit(os.environ['http_proxy']).port\n"


@pytest.fixture(scope="module")
def web() -> Iterator[LocalWeb]:
    """A local server that programs may reach as in.test."""
    with serving() as opened:
        yield opened


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificate(tmp_path_factory.mktemp("tls") / "safe.pem", "safe.test")


@pytest.fixture(scope="module")
def safe_web(certificate: Path) -> Iterator[LocalWeb]:
    """A local server over TLS that programs may reach as safe.test."""
    with serving(certificate) as opened:
        yield opened


@pytest.fixture(scope="module")
def offering(settings: Settings, web: LocalWeb, safe_web: LocalWeb) -> Settings:
    """Settings that offer a network."""
    network = NetworkSettings(
        offered=True,
        hosts=("in.test=127.0.0.1", "safe.test=127.0.0.1", "mixed.test=93.184.215.14", "mixed.test=127.0.0.1"),
        allow_private=(f"in.test:{web.port}", f"safe.test:{safe_web.port}"),
        total_bytes=_BYTES_MAX,
    )
    return dataclasses.replace(settings, network=network)


@pytest.fixture(scope="module")
def netbox(offering: Settings) -> Iterator[belljar.Sandbox]:
    with belljar.Sandbox(settings=offering) as opened:
        yield opened


def _egress(host: Host, box: belljar.Sandbox) -> Process:
    """The egress process of this sandbox; it is started by the first program with a network."""
    box.run("pass", network=True)
    children = [each for each in host.guest_processes() if each.parent == os.getpid()]
    (found,) = (each for each in children if "belljar.egress" in each.command)
    return found


def _own_egress(host: Host) -> set[int]:
    """The egress processes of all sandboxes in this process."""
    return {each.pid for each in host.processes() if each.parent == os.getpid() and "belljar.egress" in each.command}


def _sockets(process: Process) -> int:
    links = []
    for name in os.listdir(f"/proc/{process.pid}/fd"):
        try:
            links.append(os.readlink(f"/proc/{process.pid}/fd/{name}"))
        except OSError:
            continue  # closed meanwhile
    return sum(link.startswith("socket:") for link in links)


# ---- what programs can reach


def test_python_reaches_allowed_hosts(netbox: belljar.Sandbox, web: LocalWeb) -> None:
    url = f"http://in.test:{web.port}/hello"
    for program in (ASK.format(url=url), f"import requests\nprint(requests.get('{url}').text)"):
        outcome = netbox.run(program, network=True)
        assert (outcome.stdout, outcome.stderr) == ("hello\n", "")
        used = outcome.usage.network
        assert used is not None
        assert (used.connections, used.refused) == (1, 0)
        assert used.sent_bytes > 50
        assert used.received_bytes > 50
    assert outcome.as_json()["usage"]["network"] == used.as_json()


def test_tls_passes_through_unchanged(netbox: belljar.Sandbox, safe_web: LocalWeb, certificate: Path) -> None:
    program = f"import requests\nprint(requests.get('https://safe.test:{safe_web.port}/', verify='ca.pem').text)"
    outcome = netbox.run(program, network=True, files={"ca.pem": certificate.read_bytes()})
    assert (outcome.stdout, outcome.stderr) == ("hello\n", "")


def test_commands_and_other_languages_reach_it(
    netbox: belljar.Sandbox, web: LocalWeb, safe_web: LocalWeb, certificate: Path
) -> None:
    script = (
        f"curl -sS http://in.test:{web.port}/\necho\ncurl -sS --cacert ca.pem https://safe.test:{safe_web.port}/\necho\n"
        f"curl -sS --socks5-hostname ${{http_proxy#http://}} --proxy '' http://in.test:{web.port}/ || true\n"
    )
    outcome = netbox.run(script, language="bash", network=True, files={"ca.pem": certificate.read_bytes()})
    assert outcome.stdout.startswith("hello\nhello\n"), outcome.stderr


def test_pip_installs_from_an_index(netbox: belljar.Sandbox, tmp_path: Path) -> None:
    wheel = io.BytesIO()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("far_away.py", "place = 'far away'")
        archive.writestr("far_away-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: far_away\nVersion: 1\n")
        archive.writestr("far_away-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("far_away-1.dist-info/RECORD", "")
    name = "far_away-1-py3-none-any.whl"
    pages = {
        "/simple/far-away/": ("text/html", f"<a href='/files/{name}'>{name}</a>".encode()),
        f"/files/{name}": ("application/octet-stream", wheel.getvalue()),
    }
    with serving(pages=pages) as index:
        network = dataclasses.replace(
            netbox.settings.network, hosts=("index.test=127.0.0.1",), allow_private=(f"index.test:{index.port}",)
        )
        with belljar.Sandbox(settings=dataclasses.replace(netbox.settings, network=network)) as box:
            outcome = box.run(
                "import subprocess, sys\n"
                "options = ['-q', '--target=.', '--disable-pip-version-check', '--trusted-host=index.test',\n"
                f"           '--index-url=http://index.test:{index.port}/simple']\n"
                "subprocess.run([sys.executable, '-m', 'pip', 'install', *options, 'far_away'], check=True)\n"
                "import far_away\nprint(far_away.place)",
                network=True,
                limits={"wall_seconds": 60, "cpu_seconds": 60},
            )
    assert (outcome.stdout, outcome.status) == ("far away\n", "ok"), outcome.stderr


def test_a_callers_own_variables_win(netbox: belljar.Sandbox) -> None:
    program = "import os; print(os.environ['http_proxy'], os.environ['NO_PROXY'])"
    outcome = netbox.run(program, network=True, env={"http_proxy": "http://mine:1"})
    assert outcome.stdout == "http://mine:1 localhost,127.0.0.1,::1\n"


# ---- what programs cannot reach


@pytest.mark.parametrize(
    "url",
    [
        *("http://127.0.0.1:{port}/", "http://localhost:{port}/", "http://[::1]:{port}/", "http://in.test/"),
        *("http://169.254.169.254/latest/", "http://10.0.0.1/", "http://2130706433/", "http://0177.0.0.1/"),
        *("http://[::ffff:127.0.0.1]/", "http://mixed.test/", "http://in.test:22/", "http://nobody.invalid/"),
    ],
)
def test_programs_cannot_reach_private_addresses(netbox: belljar.Sandbox, web: LocalWeb, url: str) -> None:
    before = web.requests.total()
    program = (
        "import os, urllib.request, urllib.error\n"
        "ask = urllib.request.build_opener(urllib.request.ProxyHandler({'http': os.environ['http_proxy']})).open\n"
        "del os.environ['no_proxy'], os.environ['NO_PROXY']\n"
        f"try:\n    ask('{url.format(port=web.port)}')\n"
        "except urllib.error.HTTPError as error:\n    print(error.code)"
    )
    outcome = netbox.run(program, network=True)
    assert (outcome.stdout, outcome.stderr) == ("403\n", "")
    assert outcome.usage.network is not None
    assert (outcome.usage.network.connections, outcome.usage.network.refused) == (0, 1)
    assert web.requests.total() == before


def test_the_proxy_is_the_only_network_access(netbox: belljar.Sandbox, web: LocalWeb) -> None:
    """As for every program: a private loopback, no route, no name resolution."""
    outcome = netbox.run(
        "import socket\n"
        f"for where in (('127.0.0.1', {web.port}), ('192.0.2.1', 80), ('in.test', 80)):\n"
        "    try:\n        socket.create_connection(where, 5)\n"
        "    except OSError as error:\n        print(type(error).__name__)",
        network=True,
    )
    assert outcome.stdout == "ConnectionRefusedError\nOSError\ngaierror\n", outcome.stderr


def test_network_is_refused_if_not_offered(box: belljar.Sandbox) -> None:
    with pytest.raises(NotOffered, match="network"):
        box.run("pass", network=True)
    with pytest.raises(NotOffered, match="network"):
        box.session(network=True).open()


def test_programs_get_no_network_by_default(netbox: belljar.Sandbox) -> None:
    outcome = netbox.run("import os\nprint([name for name in os.environ if 'proxy' in name.lower()])")
    assert outcome.stdout == "[]\n"
    assert outcome.usage.network is None
    assert "network" not in outcome.as_json()["usage"]


def test_other_processes_cannot_reach_a_programs_listener(netbox: belljar.Sandbox) -> None:
    knock = (
        "import socket\ntry:\n    socket.create_connection(('127.0.0.1', {port}), 5)\n    print('reached')\n"
        "except ConnectionRefusedError:\n    print('refused')"
    )
    events = netbox.stream(PORT + "print(port, flush=True)\nimport time; time.sleep(60)", network=True, timeout=60)
    port = next(int(event.text) for event in events if isinstance(event, Output))
    try:
        assert netbox.run(knock.format(port=port)).stdout == "refused\n"
        own = netbox.run(PORT + "print(port)\n" + knock.format(port=port), network=True).stdout.split()
        assert own[1] == ("reached" if int(own[0]) == port else "refused")
    finally:
        events.close()


def test_a_program_can_neither_take_nor_keep_its_listener(offering: Settings) -> None:
    """With a single reused jail: the next program finds no listener."""
    pool = dataclasses.replace(offering.pool, max_running=1, ready_guests=0)
    take = (
        "import socket\nown = socket.socket()\nown.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n"
        "own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)\n"
        "try:\n    own.bind(('127.0.0.1', {port}))\n    own.listen()\n    print('taken')\n"
        "except OSError as error:\n    print(type(error).__name__)"
    )
    with belljar.Sandbox(settings=dataclasses.replace(offering, pool=pool)) as box:
        first = box.run(PORT + "print(port)\n" + take.format(port="port"), network=True)
        port, word = first.stdout.split()
        assert word == "OSError"
        assert box.run(take.format(port=port)).stdout == "taken\n"


# ---- limits, counters and cleanup


def test_bytes_per_program_are_limited(netbox: belljar.Sandbox, web: LocalWeb) -> None:
    outcome = netbox.run(
        "import urllib.request\n"
        f"answer = urllib.request.urlopen('http://in.test:{web.port}{ENDLESS}')\n"
        "try:\n    while answer.read(65536):\n        pass\n    print('ended')\n"
        "except ConnectionResetError:\n    print('cut')",
        network=True,
    )
    assert outcome.stdout == "cut\n", outcome.stderr
    assert outcome.usage.network is not None
    assert _BYTES_MAX < outcome.usage.network.received_bytes < _BYTES_MAX + (1 << 20)


@pytest.mark.parametrize("how", ["exits", "is_killed", "times_out", "leaves_a_daemon", "is_cancelled"])
def test_an_aborted_run_leaves_no_connection(netbox: belljar.Sandbox, web: LocalWeb, host: Host, how: str) -> None:
    egress = _egress(host, netbox)
    before = _sockets(egress)
    web.hung_up.clear()
    program = (
        "import os, signal, time, urllib.request\n"
        f"kept = urllib.request.urlopen('http://in.test:{web.port}{ENDLESS}')\nkept.read(70000)\n"
        "print('begun', flush=True)\n"
    )
    program += {
        "exits": "os._exit(0)",
        "is_killed": "os.kill(os.getpid(), signal.SIGKILL)",
        "times_out": "time.sleep(60)",
        "leaves_a_daemon": "os.fork() or (os.setsid(), time.sleep(60))",
        "is_cancelled": "time.sleep(60)",
    }[how]
    if how == "is_cancelled":
        events = netbox.stream(program, network=True, timeout=60)
        next(event for event in events if isinstance(event, Output))
        events.close()
    else:
        outcome = netbox.run(program, network=True, timeout=3 if how == "times_out" else 60)
        assert outcome.stdout == "begun\n"
        assert _sockets(egress) <= before, "the run returned before all connections were closed"
    assert web.hung_up.wait(20)
    host.wait_until(lambda: _sockets(egress) <= before, "its sockets are closed")


def test_many_runs_leave_nothing_behind(netbox: belljar.Sandbox, web: LocalWeb, host: Host) -> None:
    egress = _egress(host, netbox)
    before = _sockets(egress)
    program = (
        f"import socket\n{PORT}way = socket.create_connection(('127.0.0.1', port))\n"
        f"way.sendall(b'GET http://in.test:{web.port}/ HTTP/1.1\\r\\n\\r\\n')\nprint(way.makefile().read()[-5:])"
    )
    outcomes = list(netbox.run_many([{"code": program, "network": True}] * 40))
    assert {outcome.stdout for outcome in outcomes} == {"hello\n"}
    assert _sockets(egress) <= before


def test_the_egress_process_is_unprivileged(netbox: belljar.Sandbox, host: Host, offering: Settings) -> None:
    egress = _egress(host, netbox)
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{egress.pid}/status").read_text().splitlines())
    assert (egress.uid - offering.jail.uid_base) % policy.UIDS_PER_INSTANCE == policy.EGRESS_UID
    assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert (status["NoNewPrivs"], status["Seccomp"], status["Groups"].strip()) == ("1", "2", "")
    assert Path(f"/proc/{egress.pid}/environ").read_bytes().count(b"=") == 2


def test_a_dead_egress_process_is_replaced(offering: Settings, web: LocalWeb, host: Host) -> None:
    ask = ASK.format(url=f"http://in.test:{web.port}/")
    with belljar.Sandbox(settings=offering) as box:
        others = _own_egress(host)
        assert box.run(ask, network=True).stdout == "hello\n"
        (egress,) = _own_egress(host) - others
        events = box.stream(
            f"import socket, time\n{PORT}print('begun', flush=True)\n"
            "while True:\n    try:\n        socket.create_connection(('127.0.0.1', port), 5).close()\n"
            "    except ConnectionRefusedError:\n        break\n"
            "    except ConnectionResetError:\n        pass  # it dies\n"
            "    time.sleep(0.05)\nprint('gone')",
            network=True,
            timeout=60,
        )
        output = ""
        with pytest.raises(SandboxFault, match="network of this program was lost"):
            for event in events:
                output += event.text if isinstance(event, Output) else ""
                if output == "begun\n" and egress:
                    os.kill(egress, signal.SIGKILL)
                    egress = 0
        assert output == "begun\ngone\n"
        assert box.run(ask, network=True).stdout == "hello\n"


def test_an_unprivileged_user_can_offer_a_network(plain_box: PlainBox) -> None:
    outcome = plain_box.run(
        "import os, urllib.request, urllib.error\n"
        "try:\n    urllib.request.urlopen('http://10.0.0.1/')\n"
        "except urllib.error.HTTPError as error:\n    print(error)",
        network=True,
    )
    assert "403: 10.0.0.1 cannot be reached" in outcome.stdout, outcome.stderr


# ---- sessions


def test_a_session_counts_each_cell_and_branches_have_their_own_network(
    netbox: belljar.Sandbox, web: LocalWeb, host: Host
) -> None:
    egress = _egress(host, netbox)
    before = _sockets(egress)
    ask = f"urllib.request.urlopen('http://in.test:{web.port}/').read()"
    with netbox.session(network=True) as session:
        first = session.run(f"import urllib.request\n{ask}; {ask}")
        assert first.usage.network is not None
        assert (first.value, first.usage.network.connections) == ("b'hello'", 2)
        (copy,) = session.branch()
        with copy:
            session.close()
            own = copy.run(ask)
            assert own.usage.network is not None
            assert (own.value, own.usage.network.connections) == ("b'hello'", 1)
            (grandchild,) = copy.branch()
            with grandchild:
                assert grandchild.run(ask).value == "b'hello'"
                quiet = grandchild.run("1")
                assert quiet.usage.network is not None
                assert quiet.usage.network.connections == 0
    host.wait_until(lambda: _sockets(egress) <= before, "their sockets are closed")


def test_a_session_regains_a_lost_network_in_the_next_cell(offering: Settings, web: LocalWeb, host: Host) -> None:
    ask = f"urllib.request.urlopen('http://in.test:{web.port}/').read()"
    others = _own_egress(host)
    with belljar.Sandbox(settings=offering) as box, box.session(network=True) as session:
        assert session.run(f"import urllib.request\nx = {ask}; x").value == "b'hello'"
        (copy,) = session.branch()
        (egress,) = _own_egress(host) - others
        os.kill(egress, signal.SIGKILL)
        for each in (session, copy):
            with pytest.raises(SandboxFault, match="network of this cell was lost"):
                each.run("y = 1")
            again = each.run(f"(x, y, {ask})")
            assert again.usage.network is not None
            assert (again.value, again.usage.network.connections) == ("(b'hello', 1, b'hello')", 1)
        copy.close()


def test_sessions_of_other_languages_have_a_network(netbox: belljar.Sandbox, web: LocalWeb) -> None:
    with netbox.session(language="bash", network=True) as session:
        assert session.run(f"curl -sS http://in.test:{web.port}/").stdout == "hello"


def test_a_dead_session_releases_its_network(netbox: belljar.Sandbox, web: LocalWeb, host: Host) -> None:
    egress = _egress(host, netbox)
    before = _sockets(egress)
    session = netbox.session(network=True).open()
    begin = f"import os, urllib.request\nkept = urllib.request.urlopen('http://in.test:{web.port}{ENDLESS}')\n"
    outcome = session.run(begin + "print(len(kept.read(70000)), flush=True); os._exit(3)")
    assert (outcome.status, outcome.exit_code, outcome.stdout) == ("failed", 3, "70000\n"), outcome.stderr
    host.wait_until(lambda: _sockets(egress) <= before, "its sockets are closed")


def test_metrics_count_connections(offering: Settings, web: LocalWeb) -> None:
    with belljar.Sandbox(settings=offering) as box:
        box.run(ASK.format(url=f"http://in.test:{web.port}/"), network=True)
        box.run(ASK.format(url="http://10.0.0.1/"), network=True)
        counted = box.facts()["sandbox"]
    assert (counted["network_connections"], counted["network_refused"]) == (1, 1)
    assert counted["network_received_bytes"] > 0
