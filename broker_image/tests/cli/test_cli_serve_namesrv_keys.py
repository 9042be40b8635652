"""One configuration file for both servers of standalone."""

from pathlib import Path

from delaymq.cli.servers.serve import parser
from delaymq.cli.servers.settings import settings_of


def test_standalone_file_may_have_keys_of_broker_and_nameserver(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("brokerName=b\nrouteGraceMs=7\nlistenPort=12345\n")
    options = parser("standalone").parse_args(["-c", str(conf), "--store-path", str(tmp_path / "store")])
    found = settings_of("standalone", options, {"DELAYMQ_SCAN_INTERVAL_MS": "200"})
    assert found.broker is not None
    assert found.namesrv is not None
    broker, namesrv = found.broker.config, found.namesrv.config
    assert (broker.broker_name, broker.listen_port) == ("b", 12345)
    assert (namesrv.route_grace_ms, namesrv.scan_interval_ms, namesrv.listen_port) == (7, 200, 9876)
