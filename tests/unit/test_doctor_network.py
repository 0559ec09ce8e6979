"""Names, addresses and links, on made-up facts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from warmrank.orchestrator.doctor.findings import Finding
from warmrank.orchestrator.doctor.network import HcclLink, Network, check

FINE = Network(
    device="npu",
    host="atlas-0",
    addresses=("10.0.0.1",),
    resolve_s=0.01,
    gloo_interface="",
    hccl_interface="",
    interfaces=("lo", "eth0", "enp1s0"),
    spans_nodes=True,
    has_hccn_conf=True,
    links=tuple(HcclLink(device=number, state="UP") for number in range(8)),
    hccl_ports=(60000, 60015),
    ray_address="10.0.0.1:6379",
)


def troubles(facts: Network) -> dict[str, Finding]:
    return {finding.check: finding for finding in check(facts) if finding.level != "ok"}


def test_a_connected_node_is_fine():
    assert troubles(FINE) == {}


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.1.1", "::1"])
def test_loopback_address_is_a_warning_between_nodes_and_a_note_on_one(address: str):
    facts = replace(FINE, addresses=(address,))
    assert troubles(facts)["network.host_name"].level == "warning"
    assert troubles(replace(facts, spans_nodes=False))["network.host_name"].level == "note"


def test_named_interface_makes_the_host_s_name_unimportant():
    assert troubles(replace(FINE, addresses=("127.0.0.1",), gloo_interface="eth0")) == {}


def test_findings_on_names_are_equal_on_different_hosts():
    first = troubles(replace(FINE, addresses=("127.0.0.1",)))
    assert first == troubles(replace(FINE, host="atlas-1", addresses=("127.0.0.1",)))


@pytest.mark.parametrize(
    ("addresses", "seconds", "actual"),
    [
        ((), 0.1, "unknown name"),
        ((), float("inf"), "no answer in time"),
        (("10.0.0.1",), 20.0, "20.0 s"),
    ],
)
def test_slow_or_unknown_name_is_a_warning(addresses: tuple[str, ...], seconds: float, actual: str):
    assert (
        troubles(replace(FINE, addresses=addresses, resolve_s=seconds))["network.host_name"].actual == actual
    )


@pytest.mark.parametrize(
    ("variable", "name"),
    [("gloo_interface", "network.gloo_interface"), ("hccl_interface", "network.hccl_interface")],
)
def test_interface_that_is_not_there_is_an_error(variable: str, name: str):
    found = troubles(replace(FINE, **{variable: "eth7"}))  # type: ignore[arg-type]
    assert {check: finding.level for check, finding in found.items()} == {name: "error"}


@pytest.mark.parametrize("value", ["eth", "=eth0", "enp,eth"])
def test_interface_may_be_named_by_its_first_letters(value: str):
    assert troubles(replace(FINE, hccl_interface=value)) == {}


def test_hccl_interface_counts_on_npu_only():
    assert troubles(replace(FINE, device="cpu", hccl_interface="eth7")) == {}


def test_missing_addresses_of_npus_count_between_nodes_only():
    facts = replace(FINE, has_hccn_conf=False)
    assert set(troubles(facts)) == {"network.hccn_conf"}
    assert troubles(replace(facts, spans_nodes=False)) == {}


@pytest.mark.parametrize(("spans_nodes", "level"), [(True, "error"), (False, "note")])
def test_link_that_is_down_is_named(spans_nodes: bool, level: str):
    links = (*FINE.links[:7], HcclLink(device=7, state="DOWN"))
    found = troubles(replace(FINE, links=links, spans_nodes=spans_nodes))["network.hccl_links"]
    assert (found.level, found.actual) == (level, "NPU 7 DOWN")


def test_links_that_are_not_known_are_a_note():
    found = troubles(replace(FINE, links=(), hccn_problem="hccn_tool is not on PATH"))
    assert found["network.hccl_links"].actual == "hccn_tool is not on PATH"


def test_port_that_hccl_needs_and_others_hold_is_a_warning():
    found = troubles(replace(FINE, busy_hccl_ports=(60003,)))["network.hccl_ports"]
    assert (found.level, found.actual, found.expected) == ("warning", "60003", "ports 60000-60015 free")
    assert troubles(replace(FINE, device="cpu", busy_hccl_ports=(60003,))) == {}


def test_cluster_that_does_not_listen_is_an_error():
    found = troubles(replace(FINE, ray_problem="connection refused"))["network.ray"]
    assert "10.0.0.1:6379" in found.expected
    assert "ray start" in found.remedy
