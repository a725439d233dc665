"""What is looked at: the page, the documentation, the numbers, the log."""

from __future__ import annotations

import re

from api_server import Server


def test_browsers_get_a_page_that_needs_nothing_else(server: Server) -> None:
    answer = server.ask("GET", "/", headers={"Accept": "text/html,application/xhtml+xml"})
    page = answer.content.decode()
    assert answer.headers["content-type"].startswith("text/html")
    assert "/v1/execute" in page
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", page)
    assert "default-src 'none'" in answer.headers["content-security-policy"]


def test_others_get_json(server: Server) -> None:
    body = server.ask("GET", "/").body
    assert body["name"] == "belljar"
    assert body["version"] in body["message"]


def test_docs_name_every_route(server: Server) -> None:
    page = server.ask("GET", "/docs").content.decode()
    for path in server.ask("GET", "/openapi.json").body["paths"]:
        assert path in page
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", page)


def test_lists_are_as_documented(server: Server) -> None:
    languages = {each["name"]: each for each in server.ask("GET", "/v1/languages").body["languages"]}
    python, shell = languages["python"], languages["sh"]
    assert set(python) == {"name", "title", "aliases", "available", "version", "install"}
    assert (python["title"], python["available"], python["install"]) == ("Python", True, None)
    assert "bash" in shell["aliases"]
    assert shell["available"]
    assert shell["version"]
    assert len(languages) >= 33
    environments = {each["name"]: each for each in server.ask("GET", "/v1/environments").body["environments"]}
    default = environments["default"]
    assert set(default) == {"name", "python", "packages", "warm"}
    assert "numpy" in {package["name"] for package in default["packages"]}
    info = server.ask("GET", "/v1/info").body
    assert set(info) == {"version", "backend", "isolation", "limits"}
    assert info["isolation"]["seccomp"]["state"] == "on"
    assert set(info["limits"]["default"]) == set(info["limits"]["ceiling"])


def test_head_has_no_body(server: Server) -> None:
    answer = server.ask("HEAD", "/health")
    assert (answer.status, answer.content) == (200, b"")


def test_metrics_count_executions(server: Server) -> None:
    def count(status: str) -> float:
        text = server.ask("GET", "/metrics").content.decode()
        found = re.search(rf'belljar_executions_total{{language="python",status="{status}"}} ([\d.]+)', text)
        return float(found[1]) if found else 0.0

    before = count("ok"), count("failed")
    server.execute("print(1)")
    server.execute("1/0")
    server.ask("GET", "/nope")
    assert (count("ok"), count("failed")) == (before[0] + 1, before[1] + 1)
    text = server.ask("GET", "/metrics").content.decode()
    for name in (
        *("belljar_queue_seconds_bucket", "belljar_run_seconds_bucket", "belljar_memory_peak_bytes_bucket"),
        *("belljar_ready_guests", "belljar_queue_depth", "belljar_running", "belljar_sandbox_faults_total"),
        *("process_resident_memory_bytes", "belljar_refusals_total"),
    ):
        assert f"\n{name}" in text, name


def test_log_has_one_line_per_execution_and_no_content(server: Server) -> None:
    answer = server.execute("print('secret-' + 'word')")
    line = server.wait_for_line("execution", id=answer.body["id"])
    assert (line["caller"], line["language"], line["status"]) == ("127.0.0.1", "python", "ok")
    assert {"wall_seconds", "cpu_seconds", "memory_peak_bytes", "queue_seconds"} <= set(line)
    assert "secret" not in str(line)
